//! Whether the API shows what the kubelet says of a Pod. What others say of it there is theirs.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};

/// Nothing and an empty list, or an empty text, are the same to the API.
fn same<T: PartialEq>(shown: Option<&[T]>, wanted: Option<&[T]>) -> bool {
    shown.unwrap_or_default() == wanted.unwrap_or_default()
}

fn is_there(shown: &PodStatus, wanted: &PodCondition) -> bool {
    fn text(condition: &PodCondition) -> [&str; 3] {
        let [reason, message] = [&condition.reason, &condition.message].map(|text| text.as_deref().unwrap_or_default());
        [&condition.status, reason, message]
    }
    let found = shown.conditions.iter().flatten().find(|condition| condition.type_ == wanted.type_);
    found.is_some_and(|found| text(found) == text(wanted))
}

pub fn is_shown(shown: &PodStatus, wanted: &PodStatus) -> bool {
    fn texts(status: &PodStatus) -> [&str; 5] {
        let texts = [&status.phase, &status.reason, &status.message, &status.host_ip, &status.pod_ip];
        texts.map(|text| text.as_deref().unwrap_or_default())
    }
    fn containers(status: &PodStatus) -> [&[ContainerStatus]; 3] {
        let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
        lists.map(|list| list.as_deref().unwrap_or_default())
    }
    texts(shown) == texts(wanted)
        && shown.start_time == wanted.start_time
        && same(shown.host_ips.as_deref(), wanted.host_ips.as_deref())
        && same(shown.pod_ips.as_deref(), wanted.pod_ips.as_deref())
        && wanted.conditions.iter().flatten().all(|condition| is_there(shown, condition))
        && containers(shown) == containers(wanted)
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn conditions_of_others_and_what_says_nothing_make_no_difference() {
        let check = |shown: json::Value, wanted: json::Value, expected: bool| {
            let of = |status: &json::Value| json::from_value::<PodStatus>(status.clone()).unwrap();
            assert_eq!(is_shown(&of(&shown), &of(&wanted)), expected, "{shown} {wanted}");
        };
        let ready = |status: &str| json!({"type": "Ready", "status": status});
        let others = json!({"type": "example.com/gate", "status": "True"});
        check(json!({"conditions": [others, ready("True")]}), json!({"conditions": [ready("True")]}), true);
        check(json!({"conditions": [ready("False")]}), json!({"conditions": [ready("True")]}), false);
        check(json!({}), json!({"conditions": [ready("True")]}), false);
        check(json!({"podIP": "10.0.0.9"}), json!({"podIP": "10.0.0.1"}), false);
        check(json!({"reason": "", "podIPs": []}), json!({}), true);
        check(json!({"nominatedNodeName": "n", "resourceClaimStatuses": [{"name": "c"}]}), json!({}), true);
        let one = |ready: bool| json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": ready, "restartCount": 0}]});
        check(one(true), one(true), true);
        check(one(false), one(true), false);
    }
}
