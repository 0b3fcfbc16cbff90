//! How many connections the kernel follows and for how long: a node with many Pods runs out of the usual number, and then drops
//! packets of new ones.
//! Upstream counterpart: cmd/kube-proxy/app/conntrack.go.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

const SETTINGS: &str = "/proc/sys/net/netfilter";
/// How many buckets the table of connections has.
const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";
/// Connections for each bucket.
const IN_A_BUCKET: u64 = 4;

/// The wanted limits. Zero leaves a setting as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections for each processor, and the least number of all together.
    pub max_per_core: u64,
    pub min: u64,
    pub tcp_established: Duration,
    pub tcp_close_wait: Duration,
    pub udp: Duration,
    pub udp_stream: Duration,
    /// Packets outside of a connection's window are taken too.
    pub tcp_be_liberal: bool,
}

impl Default for Limits {
    /// Upstream's.
    fn default() -> Self {
        Limits {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Duration::from_secs(24 * 60 * 60),
            tcp_close_wait: Duration::from_secs(60 * 60),
            udp: Duration::ZERO,
            udp_stream: Duration::ZERO,
            tcp_be_liberal: false,
        }
    }
}

impl Limits {
    /// The number of connections, or 0 to leave it.
    fn max(&self, cores: u64) -> u64 {
        if self.max_per_core == 0 { 0 } else { self.min.max(self.max_per_core.saturating_mul(cores)) }
    }

    /// The settings by their names.
    fn wanted(&self, cores: u64) -> Vec<(&'static str, u64)> {
        let all = [
            ("nf_conntrack_max", self.max(cores)),
            ("nf_conntrack_tcp_timeout_established", self.tcp_established.as_secs()),
            ("nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait.as_secs()),
            ("nf_conntrack_udp_timeout", self.udp.as_secs()),
            ("nf_conntrack_udp_timeout_stream", self.udp_stream.as_secs()),
            ("nf_conntrack_tcp_be_liberal", u64::from(self.tcp_be_liberal)),
        ];
        all.into_iter().filter(|(_, value)| *value > 0).collect()
    }
}

/// Sets them; what cannot be set is said and stays. A machine may allow more connections already, for something else.
pub fn set(limits: &Limits) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    for (name, value) in limits.wanted(cores) {
        let only_more = name == "nf_conntrack_max";
        match change(&Path::new(SETTINGS).join(name), value, only_more) {
            Ok(true) if only_more => {
                if let Err(error) = change(&PathBuf::from(BUCKETS), value / IN_A_BUCKET, true) {
                    tracing::warn!(%error, "the table of connections has few buckets for their number");
                }
            }
            Ok(_) => {}
            // In a network namespace of its own a node has not all of them.
            Err(error) => tracing::info!(name, value, %error, "cannot set how the kernel follows connections"),
        }
    }
}

/// Sets one setting. Whether there was something to change.
pub(crate) fn change(file: &Path, value: u64, only_more: bool) -> io::Result<bool> {
    let held: Option<u64> = fs::read_to_string(file)?.trim().parse().ok();
    if held.is_some_and(|held| held == value || only_more && held > value) {
        return Ok(false);
    }
    fs::write(file, value.to_string())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_numbers() {
        let usual = Limits::default();
        let text = |limits: &Limits, cores| {
            let all = limits.wanted(cores);
            all.iter().map(|(name, value)| format!("{}={value}", &name[13..])).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(text(&usual, 2), "max=131072 tcp_timeout_established=86400 tcp_timeout_close_wait=3600");
        assert_eq!(text(&usual, 8), "max=262144 tcp_timeout_established=86400 tcp_timeout_close_wait=3600");
        let zero = Duration::ZERO;
        let nothing = Limits { max_per_core: 0, tcp_established: zero, tcp_close_wait: zero, ..usual };
        assert_eq!(text(&nothing, 8), "");
        let udp = Limits {
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_secs(60),
            tcp_be_liberal: true,
            ..nothing
        };
        assert_eq!(text(&udp, 8), "udp_timeout=30 udp_timeout_stream=60 tcp_be_liberal=1");
    }

    #[test]
    fn what_is_more_already_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("setting");
        let check = |held: &str, only_more, expected: &str| {
            fs::write(&file, held).unwrap();
            let changed = change(&file, 100, only_more).unwrap();
            assert_eq!((fs::read_to_string(&file).unwrap().as_str(), changed), (expected, held != expected));
        };
        check("50", true, "100");
        check("200\n", true, "200\n");
        check("200", false, "100");
        check("100\n", false, "100\n");
        assert!(change(&folder.path().join("nothing"), 1, false).is_err());
    }
}
