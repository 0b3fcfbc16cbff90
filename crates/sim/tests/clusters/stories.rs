//! Stories made from the seed. `SIM_SEED=7 cargo test -p sim --test clusters stories::claims` repeats one.

use sim::{
    cluster::{seeds, simulate},
    stories::{Sort, Told, tell},
};

/// Tells the stories; returns what happened in all of them.
fn stories(sort: Sort, usual: impl IntoIterator<Item = u64>) -> Told {
    let mut all = Told::default();
    for seed in seeds(usual) {
        all += simulate(seed, async |seed| tell(sort, seed).await);
    }
    all
}

#[test]
fn deployments() {
    // In 9, 10 and 13 Pods are taken for lost: nodes are away, or cannot renew their leases in time. In the last the
    // checkers are slower than the story.
    stories(Sort::Deployments, [1, 9, 10, 13, 1972700351]);
}

#[test]
fn workloads() {
    // In the last a Job waits for more than an hour, as Jobs that often fail do.
    assert!(stories(Sort::Workloads, [1, 2, 3, 460949352]).jobs > 0);
}

#[test]
fn claims() {
    assert!(stories(Sort::Claims, [1, 4]).claims > 0);
}

#[test]
fn attachments() {
    // In the first, a volume is detached by force. In the next two, a Pod once ran on a node from which its volume was just being
    // taken. In the fourth, managers that have to come again later keep their Lease all the same: a new leader would wait for the
    // dead node from the start. In the last a node comes back that was removed, and is not as silent as its Lease was when it went.
    let told = stories(Sort::Attachments, [1, 2, 7, 3470690260, 2983568098]);
    assert!(told.attached > 0 && told.forced > 0, "{told}");
}

#[test]
fn autoscalers() {
    // In the last a node whose clock is ahead has the newest Pod.
    assert!(stories(Sort::Autoscalers, [1, 4, 3650333797]).scalings > 0);
}

#[test]
fn quotas() {
    assert!(stories(Sort::Quotas, [1, 4]).within_quotas > 0);
}

#[test]
fn schedules() {
    assert!(stories(Sort::Schedules, [1, 4]).scheduled > 0);
}

#[test]
fn evictions() {
    assert!(stories(Sort::Evictions, [1, 4]).evictions > 0);
}
