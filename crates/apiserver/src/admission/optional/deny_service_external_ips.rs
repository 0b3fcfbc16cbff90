//! DenyServiceExternalIPs: nobody takes traffic for chosen addresses to a Service. Addresses that a Service has may stay.

use api::Value;

use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Plugin, done, forbid, is, items},
};

pub const PLUGIN: Plugin = Plugin {
    name: "DenyServiceExternalIPs",
    concerns: |attributes| {
        matches!(attributes.operation, Operation::Create | Operation::Update)
            && is(attributes, "", "services", "")
            && has_new_address(attributes)
    },
    admit: None,
    validate: Some(|_, attributes| done(Err(forbid(attributes, "Use of external IPs is denied by admission control")))),
};

fn has_new_address(attributes: &Attributes<'_>) -> bool {
    let of = |service: &Value| items(service, "/spec/externalIPs").cloned().collect::<Vec<_>>();
    let had = attributes.old.map(of).unwrap_or_default();
    attributes.object.as_ref().is_some_and(|service| of(service).iter().any(|address| !had.contains(address)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use json::json;

    #[tokio::test]
    async fn only_addresses_that_were_there_stay() {
        let context = context(Vec::new()).await;
        let service = |addresses: &[&str]| json!({"metadata": {"name": "s"}, "spec": {"externalIPs": addresses}});
        let create = |addresses: &[&str]| Write::create("services", service(addresses)).through(&context, &PLUGIN);
        assert!(create(&[]).await.is_ok());
        let refused = create(&["192.0.2.1"]).await.unwrap_err();
        assert_eq!(refused, "services \"s\" is forbidden: Use of external IPs is denied by admission control");
        let update = |addresses: &[&str]| {
            let old = Some(service(&["192.0.2.1", "192.0.2.2"]));
            let write = Write { operation: Operation::Update, old, ..Write::create("services", service(addresses)) };
            write.through(&context, &PLUGIN)
        };
        for (addresses, allowed) in [
            (&["192.0.2.1", "192.0.2.2"][..], true),
            (&["192.0.2.2", "192.0.2.1"], true),
            (&["192.0.2.1", "192.0.2.3"], false),
            (&["192.0.2.1", "192.0.2.2", "192.0.2.3"], false),
            (&["192.0.2.3"], false),
            (&[], true),
            (&["192.0.2.1"], true),
            (&["192.0.2.2"], true),
        ] {
            assert_eq!(update(addresses).await.is_ok(), allowed, "{addresses:?}");
        }
    }
}
