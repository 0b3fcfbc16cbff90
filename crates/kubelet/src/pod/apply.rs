//! Carries out a resize of running containers: the Pod's cgroup grows before them and shrinks after them.
//! Upstream counterpart: doPodResizeAction in pkg/kubelet/kuberuntime.

use std::collections::BTreeMap;

use client::EventKind;
use clock::Instant;
use k8s_openapi::api::core::v1::Container;

use crate::pod::{
    act::{Round, later},
    resize::{self, Change},
    resize_event,
    running::ContainerRun,
    spec::{
        linux,
        resources::{self, Limits, PodLimits},
    },
};

type Changed<'a> = [(&'a Container, &'a ContainerRun)];

impl Round<'_> {
    /// False when it failed and is to be tried again; why is remembered for the Pod's condition.
    pub(super) async fn resize(&mut self) -> bool {
        let begun = Instant::now();
        let error = self.try_resize().await.err();
        self.kubelet.figures.resized(error.is_none(), begun.elapsed());
        self.memory.resize.retry_at = error.is_some().then(later);
        if let Some(text) = error.as_ref().filter(|_| error != self.memory.resize.error) {
            let (desired, generation) = (self.desired, self.desired.resized.or(self.desired.pod.metadata.generation));
            let message = resize_event::message("error", &desired.pod, generation, Some(text));
            self.kubelet.events.pod(desired, EventKind::Warning, "ResizeError", &message);
        }
        self.memory.resize.error = error;
        self.memory.resize.error.is_none()
    }

    async fn try_resize(&mut self) -> Result<(), String> {
        let (desired, cgroups) = (self.desired, &self.kubelet.host.cgroups);
        let path = cgroups.path(api::rules::pod::qos(&desired.pod), desired.uid());
        let wanted = self.kubelet.pod_limits(desired);
        let now = cgroups.limits(&path);
        let all = resize::changes(desired, self.running, self.memory);
        let updates: Vec<_> =
            all.into_iter().filter(|(_, _, change)| *change == Change::Update).map(|(c, ran, _)| (c, ran)).collect();
        self.check_memory(&path, now, wanted, &updates).await?;
        let words = |error: std::io::Error| format!("cannot set the cgroup of the pod: {error}");
        if let Some(now) = now {
            cgroups.set(&path, now.on_the_way(wanted)).map_err(words)?;
        }
        for (container, ran) in updates {
            let mut linux = linux::of_container(desired, container, &self.kubelet.ground());
            let applied = Some(Limits::of(&linux, self.memory.cfs));
            self.kubelet.affinity.put(desired.uid(), &container.name, &mut linux);
            self.kubelet.config.runtime.update_resources(&ran.id, linux).await.map_err(|error| error.to_string())?;
            let run = self.memory.run_mut(&ran.id);
            (run.applied, run.memory_request) = (applied, Some(resize::memory_request(container)));
        }
        if now.is_some() {
            cgroups.set(&path, wanted).map_err(words)?;
        }
        self.memory.cgroup = Some(resources::of_pod(desired.spec(), self.memory.cfs));
        self.kubelet.weigh().map_err(words)
    }

    /// No limit falls below what is in use, as far as that is known: the kernel would kill for it.
    async fn check_memory(
        &self,
        path: &str,
        now: Option<PodLimits>,
        wanted: PodLimits,
        updates: &Changed<'_>,
    ) -> Result<(), String> {
        let (cgroups, desired) = (&self.kubelet.host.cgroups, self.desired);
        let mut errors = Vec::new();
        let too_low = |used: i64, limit: i64| format!("memory limit ({limit}) below current usage ({used})");
        let of_pod = now.and_then(|now| Some((now.shrinks_memory(wanted)?, cgroups.charged(path)?)));
        if let Some((limit, used)) = of_pod.filter(|(limit, used)| used >= limit) {
            errors.push(format!("attempting to set pod {}", too_low(used, limit)));
        }
        let shrinking: Vec<_> =
            updates.iter().filter(|(c, ran)| resize::shrinks(desired, c, ran, self.memory)).collect();
        let told = if shrinking.is_empty() { BTreeMap::new() } else { self.memory_usage().await? };
        for (container, ran) in shrinking {
            let limit = Limits::wanted(desired.spec(), container, self.memory.cfs).memory;
            let used = cgroups.charged(&format!("{path}/{}", ran.id)).or_else(|| told.get(&ran.id).copied());
            if let Some(used) = used.filter(|used| *used >= limit) {
                let text = too_low(used, limit);
                errors.push(format!("attempting to set container \"{}\" {text}", container.name));
            }
        }
        match errors.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            many => Err(format!("cannot decrease memory limits: [{}]", many.join(", "))),
        }
    }

    /// The bytes that containers are charged for, by id.
    async fn memory_usage(&self) -> Result<BTreeMap<String, i64>, String> {
        let stats = self.kubelet.config.runtime.container_stats().await.map_err(|error| error.to_string())?;
        let one = |stats: runtime::stats::ContainerStats| {
            let memory = stats.memory?;
            let used = memory.usage_bytes.or(memory.working_set_bytes)?.value;
            Some((stats.attributes?.id, i64::try_from(used).unwrap_or(i64::MAX)))
        };
        Ok(stats.into_iter().filter_map(one).collect())
    }
}
