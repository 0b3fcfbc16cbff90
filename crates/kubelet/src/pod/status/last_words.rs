//! The last statements of containers' statuses: those that nothing is known of count as failed, and messages are cut to what
//! fits into a Pod's status. Pure. Upstream counterpart: TerminatePod and normalizeStatus in pkg/kubelet/status.

use api::rules::pod::is_sidecar;
use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStateTerminated, ContainerStatus};

/// The bytes that the messages of all containers of a Pod have together.
const MOST: usize = 12 << 10;

fn waits(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_none_or(|state| state.running.is_none() && state.terminated.is_none())
}

fn ended(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state?.terminated.as_ref()
}

fn has_begun(status: &ContainerStatus) -> bool {
    !waits(status) || ended(status.last_state.as_ref()).is_some()
}

fn is_initialized(init_containers: &[Container], inits: &[ContainerStatus], mains: &[ContainerStatus]) -> bool {
    let done = |(container, status): (&Container, &ContainerStatus)| {
        let succeeded = |state| ended(state).is_some_and(|end| end.exit_code == 0);
        match is_sidecar(container) {
            true => status.started == Some(true),
            false => succeeded(status.state.as_ref()) || succeeded(status.last_state.as_ref()),
        }
    };
    let last = init_containers.iter().zip(inits).next_back();
    mains.iter().any(has_begun) || last.is_none_or(done)
}

/// Once nothing of the Pod runs any more: what has begun, or was to begin next, has come to an end that nobody saw.
pub fn give_up(init_containers: &[Container], inits: &mut [ContainerStatus], mains: &mut [ContainerStatus]) {
    let is_initialized = is_initialized(init_containers, inits, mains);
    let begun = inits.iter().rposition(has_begun).unwrap_or(0);
    let mains = mains.iter_mut().filter(|_| is_initialized);
    for status in inits.iter_mut().take(begun + 1).chain(mains).filter(|status| ended(status.state.as_ref()).is_none())
    {
        let lost = ContainerStateTerminated {
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some("The container could not be located when the pod was terminated".to_owned()),
            exit_code: 137,
            ..Default::default()
        };
        status.state = Some(ContainerState { terminated: Some(lost), ..Default::default() });
    }
}

/// Each container has an equal part of what all messages may have.
pub fn shorten<const N: usize>(mut lists: [&mut [ContainerStatus]; N]) {
    let count: usize = lists.iter().map(|list| list.len()).sum();
    let most = MOST / count.max(1);
    for status in lists.iter_mut().flat_map(|list| list.iter_mut()) {
        for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
            if let Some(message) = state.terminated.as_mut().and_then(|end| end.message.as_mut()) {
                message.truncate(message.floor_char_boundary(most));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn status(text: &str) -> ContainerStatus {
        let (name, state) = text.split_once(':').unwrap();
        let (now, last) = match state {
            "waits" => (json!({"waiting": {}}), json!({})),
            "restarts" => (json!({"waiting": {}}), json!({"terminated": {"exitCode": 1}})),
            code => (json!({"terminated": {"exitCode": code.parse::<i32>().unwrap()}}), json!({})),
        };
        let status = json!({"name": name, "state": now, "lastState": last, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        json::from_value(status).unwrap()
    }

    #[test]
    fn what_was_never_seen_to_end_counts_as_failed() {
        let check = |inits: &str, mains: &str, expected: &str| {
            let of = |text: &str| -> Vec<ContainerStatus> { text.split_whitespace().map(status).collect() };
            let (mut inits, mut mains) = (of(inits), of(mains));
            let specs: Vec<Container> =
                inits.iter().map(|s| Container { name: s.name.clone(), ..Default::default() }).collect();
            give_up(&specs, &mut inits, &mut mains);
            let words = |status: &ContainerStatus| match ended(status.state.as_ref()) {
                Some(end) => format!("{}:{}", status.name, end.exit_code),
                None => format!("{}:waits", status.name),
            };
            let got: Vec<String> = inits.iter().chain(&mains).map(words).collect();
            assert_eq!(got.join(" "), expected);
        };
        check("", "m:waits n:0", "m:137 n:0");
        check("", "m:restarts", "m:137");
        // A container that waits for its turn has not failed.
        check("i:1", "m:waits", "i:1 m:waits");
        check("i:waits j:waits", "m:waits", "i:137 j:waits m:waits");
        check("i:0 j:restarts k:waits", "m:waits", "i:0 j:137 k:waits m:waits");
        check("i:0", "m:waits", "i:0 m:137");
    }

    #[test]
    fn messages_share_what_there_is() {
        let with = |message: &str| {
            let mut one = status("c:1");
            one.state.as_mut().unwrap().terminated.as_mut().unwrap().message = Some(message.to_owned());
            one
        };
        let length = |count: usize, message: &str| {
            let mut all = vec![with(message); count];
            shorten([&mut all]);
            all[0].state.as_ref().unwrap().terminated.as_ref().unwrap().message.as_ref().unwrap().len()
        };
        let long = "x".repeat(4096);
        assert_eq!((length(3, &long), length(4, &long)), (4096, 3072));
        // No character is cut in two.
        assert_eq!(length(4, &"é".repeat(2048).replacen('é', "x", 1)), 3071);
    }
}
