//! The metrics of a node's certificates, which the kubelet shows among its own.
//! Upstream counterpart: pkg/kubelet/certificate, and cmd/kubelet/app for the client's.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use meter::{Metric, Metrics, told};
use pki::{Serving, inspect};

use super::certificate_purpose::{Purpose, user};

static CLIENT_TTL: Metric = Metric::gauge(
    "kubelet_certificate_manager_client_ttl_seconds",
    "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry \
     (negative if already expired). If client certificate is invalid or unused, the value will be +INF.",
);
static SERVER_TTL: Metric = Metric::gauge(
    "kubelet_certificate_manager_server_ttl_seconds",
    "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until \
     certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.",
);
static CLIENT_ERRORS: Metric = Metric::counter(
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "[ALPHA] Counter of certificate renewal errors.",
);
static SERVER_ERRORS: Metric =
    Metric::counter("kubelet_server_expiration_renew_errors", "[ALPHA] Counter of certificate renewal errors.");
/// From a minute to four years.
static ROTATIONS: Metric = Metric::histogram(
    "kubelet_certificate_manager_server_rotation_seconds",
    "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.",
    &[60.0, 3600.0, 14400.0, 86400.0, 604800.0, 2592000.0, 7776000.0, 15552000.0, 31104000.0, 124416000.0],
);

pub struct Figures {
    counted: Metrics,
    node: String,
    serving: Arc<Serving>,
    /// The file of the certificate towards the API server, where the node looks after one.
    client: Option<PathBuf>,
    /// The beginning of the certificate that was shown last and came from the cluster.
    begun: Mutex<Option<i64>>,
}

impl Figures {
    pub fn new(node: &str, serving: Arc<Serving>, client: Option<PathBuf>) -> Arc<Self> {
        let figures =
            Figures { counted: Metrics::new(), node: node.to_owned(), serving, client, begun: Mutex::default() };
        for metric in [&CLIENT_ERRORS, &SERVER_ERRORS, &ROTATIONS] {
            figures.counted.series(metric, &[]);
        }
        figures.look();
        Arc::new(figures)
    }

    /// A renewal failed.
    pub fn failed(&self, purpose: Purpose) {
        match purpose {
            Purpose::Client => self.counted.count(&CLIENT_ERRORS, &[]),
            Purpose::Serving => self.counted.count(&SERVER_ERRORS, &[]),
            Purpose::Services => {}
        }
    }

    /// Counts a certificate that took the place of another one. Each begins when it is signed, less the same few minutes, so
    /// what is between two of them is the time that the first one lived, whenever this looks.
    pub fn look(&self) {
        // The one that a node makes itself until the cluster signs one is none of these.
        let facts = self.serving.facts().ok().filter(|facts| facts.common_name == user(&self.node));
        let Some(facts) = facts else { return };
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let before = begun.replace(facts.not_before).filter(|before| *before != facts.not_before);
        if let Some(before) = before {
            self.counted.observe(&ROTATIONS, &[], (facts.not_before - before) as f64);
        }
    }

    /// The lines for the page.
    pub fn page(&self) -> String {
        self.look();
        let now = clock::now().as_second();
        let left = |end: Option<i64>| end.map_or(f64::INFINITY, |end| (end - now) as f64);
        let client = self.client.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        let client = client.and_then(|pem| inspect::facts(&pem).ok()).map(|facts| facts.not_after);
        let serving = self.serving.facts().ok().map(|facts| facts.not_after);
        let ends = [(&CLIENT_TTL, client), (&SERVER_TTL, serving)];
        let ends = ends.map(|(metric, end)| told(metric, [(String::new(), left(end))]));
        ends.concat() + &self.counted.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn certificates_tell_how_long_they_are_good_and_how_long_they_were() {
        clock::simulate(clock::Timestamp::from_second(1_750_000_000).unwrap(), 1);
        let folder = tempfile::tempdir().unwrap();
        let authority = pki::Authority::create("test").unwrap();
        let subject = |name: &str| pki::Subject::server(name, vec!["a".to_owned()]);
        let signed = |name: &str| authority.issue(&subject(name)).unwrap();
        let serving = Serving::new(&signed("a")).unwrap();
        let file = folder.path().join("client.crt");
        let figures = Figures::new("a", serving.clone(), Some(file.clone()));
        let line = |name: &str| -> f64 {
            let page = figures.page();
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is not on the page: {page}")).parse().unwrap()
        };
        let (client_ttl, server_ttl) = (CLIENT_TTL.name, SERVER_TTL.name);
        let rotations = format!("{}_count", ROTATIONS.name);
        let end = |pem: &str| (inspect::facts(pem).unwrap().not_after - clock::now().as_second()) as f64;
        assert_eq!((line(client_ttl), line(CLIENT_ERRORS.name)), (f64::INFINITY, 0.0));
        let client = signed("system:node:a").certificate;
        std::fs::write(&file, &client).unwrap();
        assert_eq!(line(client_ttl), end(&client));
        let first = signed("system:node:a");
        serving.replace(&first).unwrap();
        assert_eq!(
            (line(server_ttl), line(&rotations)),
            (end(&first.certificate), 0.0),
            "the node's own is no rotation"
        );
        clock::sleep(clock::Duration::from_secs(7200)).await;
        assert_eq!(line(server_ttl), end(&first.certificate));
        serving.replace(&signed("system:node:a")).unwrap();
        assert_eq!((line(&rotations), line(&format!("{}_sum", ROTATIONS.name))), (1.0, 7200.0));
        assert_eq!(line(&rotations), 1.0, "it is counted once");
        for purpose in [Purpose::Serving, Purpose::Client, Purpose::Client] {
            figures.failed(purpose);
        }
        assert_eq!((line(CLIENT_ERRORS.name), line(SERVER_ERRORS.name)), (2.0, 1.0));
        for sort in [
            format!("# TYPE {client_ttl} gauge"),
            format!("# TYPE {server_ttl} gauge"),
            format!("# TYPE {} counter", CLIENT_ERRORS.name),
            format!("# TYPE {} histogram", ROTATIONS.name),
        ] {
            assert!(figures.page().lines().any(|line| line == sort), "{sort}");
        }
    }
}
