//! The values of flags: each function reads one, and says in a few words what is wrong with it.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

/// A parameter of the kernel, or the beginning of some, that namespaces keep apart.
pub fn sysctl(text: &str) -> Result<String, String> {
    kubelet::Sysctls::new(&[text.to_owned()]).map(|_| text.to_owned())
}

/// `15s`, `1m30s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "it must be a time such as 15s or 1m30s".to_owned();
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            _ => return Err(wrong()),
        };
        let number: u32 = number.parse().map_err(|_| wrong())?;
        sum = unit.checked_mul(number).and_then(|part| sum.checked_add(part)).ok_or_else(wrong)?;
        rest = tail;
    }
    // A lease says its time in whole seconds of 32 bits.
    if text.is_empty() || sum > Duration::from_secs(i32::MAX as u64) { Err(wrong()) } else { Ok(sum) }
}

/// How often something is done.
pub fn period(text: &str) -> Result<Duration, String> {
    duration(text)
        .and_then(|time| if time.is_zero() { Err("it must be longer than nothing".to_owned()) } else { Ok(time) })
}

pub fn within_an_hour(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_secs(3600);
    duration(text).and_then(|time| if time > longest { Err("it must be 1h at most".to_owned()) } else { Ok(time) })
}

/// A part such as a tenth, or a rate.
pub fn tolerance(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part: &f64| part.is_finite() && *part >= 0.0);
    part.ok_or_else(|| "it must be a number such as 0.1".to_owned())
}

/// How often in a second.
pub fn rate(text: &str) -> Result<f64, String> {
    tolerance(text).and_then(|rate| if rate == 0.0 { Err("it must be more than nothing".to_owned()) } else { Ok(rate) })
}

/// How much is done at once.
pub fn concurrency(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=1000).contains(n)).ok_or_else(|| "it must be a number from 1 to 1000".to_owned())
}

/// A path in the tree of cgroups.
pub fn cgroup(text: &str) -> Result<String, String> {
    let part = |part: &str| !matches!(part, "." | "..") && part.len() < 256 && !part.contains(char::is_control);
    let good = text.len() < 1024 && text.strip_prefix('/').is_some_and(|path| path.split('/').all(part));
    if good { Ok(text.to_owned()) } else { Err("it must be a path such as /nodes/a".to_owned()) }
}

/// A port that something can be reached at.
pub fn port(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|p| *p > 0).ok_or_else(|| "it must be a number from 1 to 65535".to_owned())
}

/// An address with a port to listen on; nothing listens when it is empty.
pub fn listening(text: &str) -> Result<String, String> {
    let good = text.is_empty() || text.parse::<SocketAddr>().is_ok_and(|address| address.port() > 0);
    if good { Ok(text.to_owned()) } else { Err("it must be an address with a port such as 127.0.0.1:10249".to_owned()) }
}

/// `30000-32767`.
pub fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let parsed = text.split_once('-').and_then(|(a, b)| Some(port(a).ok()?..=port(b).ok()?));
    parsed.filter(|r| !r.is_empty()).ok_or_else(|| "it must be a range such as 30000-32767".to_owned())
}

fn is_label(label: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&label.len()) && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
}

/// A DNS name in lower case; one dot at its end does not count.
pub fn domain(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.len() <= 253 && name.split('.').all(is_label) {
        return Ok(name.to_owned());
    }
    Err("it must be a DNS name in lower case such as cluster.local".to_owned())
}

/// The name of a Node, which upstream demands to be a DNS name too.
pub fn node_name(text: &str) -> Result<String, String> {
    domain(text).map_err(|_| "it must be a DNS name in lower case such as node-1".to_owned())
}

/// A host name, possibly with `*` in front, or an address: what a certificate is for.
pub fn host(text: &str) -> Result<String, String> {
    let named = domain(&text.to_ascii_lowercase().replacen("*.", "any.", 1)).is_ok();
    if named || text.parse::<IpAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    Err("it must be a host name or an address".to_owned())
}

/// Whether an address is one machine's, for others too.
pub fn is_one_machines(address: IpAddr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback())
}

/// An address at which others reach this machine.
pub fn reachable(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| "it must be an IP address such as 10.0.0.1".to_owned())?;
    if !is_one_machines(address) {
        return Err("others cannot reach this machine there; give one of its own addresses".to_owned());
    }
    Ok(address)
}

/// An address at which Pods ask for names: one of their network, of a Service, or of the link of their node.
pub fn cluster_dns(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr =
        text.parse().map_err(|_| "Invalid clusterDNS IP: it must be one such as 10.96.0.10".to_owned())?;
    if !is_one_machines(address) {
        return Err("Invalid clusterDNS IP: Pods reach no server there".to_owned());
    }
    Ok(address)
}

/// The URL of an API server.
pub fn server(text: &str) -> Result<String, String> {
    let good = url(text).is_some_and(|url| url.scheme_str() == Some("https"));
    if good { Ok(text.to_owned()) } else { Err("it is not a URL such as https://10.0.0.1:6443".to_owned()) }
}

/// The URL of an etcd server.
pub fn etcd(text: &str) -> Result<String, String> {
    let plain = |url: &http::Uri| matches!(url.path(), "" | "/") && url.query().is_none();
    match url(text).filter(plain) {
        Some(_) => Ok(text.trim_end_matches('/').to_owned()),
        None => Err("it must be a URL such as https://10.0.0.1:2379".to_owned()),
    }
}

/// A URL with a scheme of the web and a host, and without a user in it.
fn url(text: &str) -> Option<http::Uri> {
    let url: http::Uri = text.parse().ok()?;
    let authority = url.authority()?;
    let host = !authority.host().is_empty() && !authority.as_str().contains('@');
    // The text behind the host's colon is a port, or the whole was something else.
    let port = authority.as_str().len() == authority.host().len() || authority.port_u16().is_some_and(|p| p > 0);
    (host && port && matches!(url.scheme_str(), Some("http" | "https"))).then_some(url)
}

/// The SHA-256 of an authority's key.
pub fn pin(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").filter(|d| d.len() == 64 && d.chars().all(|c| c.is_ascii_hexdigit()));
    match digits {
        Some(_) => Ok(text.to_owned()),
        None => Err("it must be `sha256:` and 64 hexadecimal digits, as `skiff token create` prints it".to_owned()),
    }
}

/// The socket of a container engine.
pub fn socket(text: &str) -> Result<String, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if path.starts_with('/') && path.len() > 1 {
        return Ok(text.to_owned());
    }
    Err("it must be a unix socket such as unix:///run/containerd/containerd.sock".to_owned())
}

/// The node's eviction thresholds.
pub fn thresholds(text: &str) -> Result<String, String> {
    kubelet::eviction::pressure::parse(text).map(|_| text.to_owned())
}

/// A file that can be read now: what is wrong with it is said before anything begins.
pub fn readable(text: &str) -> Result<PathBuf, String> {
    let opened = std::fs::File::open(text).and_then(|f| f.metadata());
    match opened {
        Ok(meta) if meta.is_dir() => Err("it is a folder".to_owned()),
        Ok(_) => Ok(text.into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: std::fmt::Debug>(read: impl Fn(&str) -> Result<T, String>, good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(read(text).is_ok(), "{text}");
        }
        for text in bad {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn values() {
        check(duration, &["15s", "1m30s", "500ms", "0s"], &["", "15", "s", "1.5s", "5d", "999999h", "5s5"]);
        check(period, &["15s", "1ms"], &["0s", "", "15"]);
        check(within_an_hour, &["0s", "1h"], &["61m", "x"]);
        check(tolerance, &["0", "0.1", "2"], &["-0.1", "NaN", "inf", "a", ""]);
        check(concurrency, &["1", "1000"], &["0", "1001", "-1", "x"]);
        check(cgroup, &["/", "/nodes/a", "/skiff-node-2"], &["", "a", "/a/../b", "/.", "/a\n"]);
        check(port, &["1", "65535"], &["0", "65536", "-1", "http", ""]);
        check(port_range, &["30000-32767", "5-5"], &["5", "6-5", "0-5", "a-b", "-"]);
        check(domain, &["cluster.local", "a", "cluster.local."], &["", "a..b", "Bad", "bad domain", "-a", "a-"]);
        check(
            reachable,
            &["10.0.0.1", "fd00::1"],
            &["", "x", "0.0.0.0", "127.0.0.1", "::1", "::", "224.0.0.1", "10.0.0.0/8"],
        );
        check(
            cluster_dns,
            &["10.96.0.10", "169.254.20.10", "fd00::a"],
            &["", "x", "10.96.0.10/32", "10.96.0.10:53", "0.0.0.0", "127.0.0.53", "::1", "224.0.0.251"],
        );
        let wrong = [
            "",
            "not-a-url",
            "10.0.0.1:1",
            "ftp://h:1",
            "https://",
            "https://h:",
            "https://h:0",
            "https://h:x",
            "https://u@h:1",
        ];
        check(server, &["https://10.0.0.1:6443", "https://[fd00::1]:6443", "https://h"], &wrong);
        assert!(server("http://10.0.0.1:6443").is_err(), "tokens do not travel without TLS");
        check(etcd, &["http://h:2379", "https://[::1]:2379/", "https://h"], &wrong);
        check(etcd, &[], &["https://h:2379/v3", "unix:///x"]);
        let digits = "0123456789abcdefABCDEF0123456789abcdefABCDEF0123456789abcdef0123";
        check(pin, &[&format!("sha256:{digits}")], &["", digits, "sha256:", "sha256:zz", &format!("sha512:{digits}")]);
        check(socket, &["/run/x.sock", "unix:///run/x.sock"], &["", "unix://", "tcp://h:1", "x.sock", "/"]);
        check(thresholds, &["", "memory.available<100Mi", "nodefs.available<10%"], &["x", "memory.available>1", "x<1"]);
        check(host, &["example.org", "*.example.org", "10.0.0.1", "::1", "HOST"], &["", "bad san!", "a..b"]);
        check(readable, &["/proc/self/exe"], &["/", "/no/such/file"]);
    }
}
