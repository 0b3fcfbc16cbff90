//! Waypoints: the named points that an object passes on its way through the components.
//!
//! Each is a function that is never inlined, so that a debugger can break on it by a stable name
//! (`break waypoint::scheduler::schedule_one`), and a tracing event with the target
//! `waypoint::<component>`, so that a log filter shows it (`--log waypoint=debug`).
//! The list below is the only place where a waypoint is declared.

/// One waypoint as the list has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waypoint {
    /// `component::point`, the name to break on after `waypoint::`.
    pub name: &'static str,
    /// Where upstream does the same.
    pub upstream: &'static str,
}

macro_rules! waypoints {
    ($($component:ident { $($point:ident: $upstream:literal,)* })*) => {
        $(
            #[doc = concat!("Waypoints of the ", stringify!($component), ".")]
            pub mod $component {
                $(
                    #[doc = concat!("Upstream: `", $upstream, "`. `object` names what passes, usually `kind namespace/name`.")]
                    #[inline(never)]
                    pub fn $point(object: &str) {
                        tracing::debug!(
                            target: concat!("waypoint::", stringify!($component)),
                            point = stringify!($point),
                            object,
                        );
                    }
                )*
            }
        )*
        /// Every waypoint, in the order in which a Pod meets the components.
        pub const ALL: &[Waypoint] = &[$($(
            Waypoint { name: concat!(stringify!($component), "::", stringify!($point)), upstream: $upstream },
        )*)*];
    };
}

waypoints! {
    apiserver {
        request: "apiserver ServeHTTP, WithRequestInfo",
        authenticate: "WithAuthentication, union authenticator",
        authorize: "WithAuthorization, RBAC Authorize, visitRules",
        route: "installAPIResources, registerResourceHandlers",
        create: "handlers.CreateResource, registry Store.Create",
        update: "handlers.UpdateResource, registry Store.Update",
        patch: "handlers.PatchResource",
        delete: "handlers.DeleteResource, registry Store.Delete",
        get: "handlers.GetResource",
        list: "handlers.ListResource",
        watch: "handlers.ServeWatch, cacher Watch",
        connect: "handlers.ConnectResource",
        admit: "admission Admit",
        validate: "rest.BeforeCreate, admission Validate",
        watch_event: "cacher dispatchEvent",
    }
    store {
        commit: "etcd3 store Create, GuaranteedUpdate, Delete",
        conflict: "etcd3 store GuaranteedUpdate, retry on conflict",
        event: "etcd3 watcher processEvent",
    }
    scheduler {
        queue: "PriorityQueue.Add",
        schedule_one: "ScheduleOne, NextPod",
        filter: "findNodesThatFitPod, RunFilterPlugins",
        score: "prioritizeNodes, RunScorePlugins",
        reserve: "assume, RunReservePluginsReserve",
        bind: "bindingCycle, DefaultBinder.Bind",
        unschedulable: "handleSchedulingFailure",
    }
    controller {
        reconcile: "processNextWorkItem, syncHandler",
        act: "RealPodControl and the typed clients",
    }
    kubelet {
        start: "app.Run, RunKubelet, startKubelet, (*Kubelet).Run",
        config_merge: "podStorage.merge, checkAndUpdatePod",
        sync_loop: "syncLoop, syncLoopIteration",
        pod_added: "HandlePodAdditions",
        pod_updated: "HandlePodUpdates",
        pod_removed: "HandlePodRemoves",
        pod_reconciled: "HandlePodReconcile",
        pod_synced: "HandlePodSyncs",
        worker_update: "podWorkers.UpdatePod",
        worker_loop: "podWorkers.managePodLoop",
        worker_complete: "podWorkers.completeWork",
        sync_pod: "(*Kubelet).SyncPod",
        plan_pod: "kuberuntime SyncPod, computePodActions",
        start_container: "kuberuntime startContainer",
        terminating: "SyncTerminatingPod",
        kill_pod: "killPod, killPodWithSyncResult",
        terminated: "SyncTerminatedPod",
        status_update: "status manager syncPod",
    }
    proxy {
        sync: "syncProxyRules",
    }
    dns {
        answer: "CoreDNS kubernetes plugin ServeDNS",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ALL.iter().map(|w| w.name).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }
}
