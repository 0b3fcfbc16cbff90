//! Requests for certificates of Pods go a quarter of an hour after they were made, whatever became of them.
//! Reads: PodCertificateRequest. Writes: PodCertificateRequest (delete).
//! Upstream counterpart: pkg/controller/certificates/cleaner/pcrcleaner.go.

use std::time::Duration;

use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;

pub struct PodRequestCleaner;

const LIFE_SECONDS: i64 = 15 * 60;

impl Controller for PodRequestCleaner {
    const NAME: &'static str = "podcertificaterequest-cleaner-controller";
    type Object = PodCertificateRequest;
    type Observed = ();

    fn watches(&self, _: &mut Watches<PodCertificateRequest>) {}

    fn observe(&self, _: &PodCertificateRequest, _: &Listers) {}

    fn plan(&self, request: &PodCertificateRequest, (): &(), now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let made = request.metadata.creation_timestamp.as_ref().map_or(0, |made| made.0.as_second());
        match made + LIFE_SECONDS - now.as_second() {
            _ if request.metadata.deletion_timestamp.is_some() => {}
            left if left <= 0 => _ = plan.step(Write::delete(request)),
            left => _ = plan.again_after(Duration::from_secs(left.unsigned_abs())),
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn requests_go_when_everybody_is_done_with_them() {
        let now: Timestamp = "2025-01-01T00:30:00Z".parse().unwrap();
        let check = |made: &str, ended: bool, expected: &str, again: Option<u64>| {
            let conditions = if ended {
                json!([{"type": "Denied", "status": "True", "reason": "R", "message": "", "lastTransitionTime": made}])
            } else {
                json!([])
            };
            let request =
                json!({"metadata": {"name": "r", "creationTimestamp": made}, "status": {"conditions": conditions}});
            let plan = PodRequestCleaner.plan(&json::from_value(request).unwrap(), &(), now);
            assert_eq!(
                (plan.to_string().as_str(), plan.requeue_after.map(|d| d.as_secs())),
                (expected, again),
                "{made}"
            );
        };
        let gone = "delete podcertificaterequests r";
        check("2025-01-01T00:15:01Z", false, "", Some(1));
        check("2025-01-01T00:15:00Z", false, gone, None);
        check("2025-01-01T00:14:59Z", false, gone, None);
        check("2025-01-01T00:15:01Z", true, "", Some(1));
        check("2025-01-01T00:14:59Z", true, gone, None);
    }
}
