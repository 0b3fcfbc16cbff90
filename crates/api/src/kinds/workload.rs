//! The kinds that run Pods from a template share these columns, warnings and rules of updates.

use json::Value;
use k8s_openapi::Metadata;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::kind::{Column, Generation, Kind, Scale, Target, age, int, name, wide};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::{internal_form, object_meta};
use crate::{kind::cell, rules::selector};

/// A kind that runs Pods from a template.
pub(crate) trait Workload {
    fn template(&self) -> Option<&PodTemplateSpec>;

    fn selector(&self) -> Option<&LabelSelector>;

    fn pod_spec(&self) -> Option<&PodSpec> {
        self.template()?.spec.as_ref()
    }

    fn selector_text(&self) -> String {
        selector::describe(self.selector())
    }
}

macro_rules! workloads {
    ($($kind:ident),*) => {$(
        impl Workload for $kind {
            fn template(&self) -> Option<&PodTemplateSpec> {
                self.spec.as_ref().map(|s| &s.template)
            }

            fn selector(&self) -> Option<&LabelSelector> {
                self.spec.as_ref().map(|s| &s.selector)
            }
        }
    )*};
}

workloads!(DaemonSet, Deployment, StatefulSet);

/// The declaration that all workloads begin with.
pub(crate) const fn base<T: Workload + Metadata<Ty = ObjectMeta> + 'static>() -> Kind<T> {
    Kind {
        categories: &["all"],
        status: true,
        generation: Generation::CountsChangesOf("spec"),
        validate_update: Some(selector_is_fixed),
        warnings: Some(warnings),
        ..Kind::BASE
    }
}

/// The scale of workloads that keep a number of Pods.
pub(crate) const SCALE: Scale<&str> =
    Scale { wanted: "spec.replicas", current: "status.replicas", selector: Some("spec.selector") };

pub(crate) const fn containers<T: Workload>() -> Column<T> {
    wide("Containers", cell::CONTAINERS_ABOUT, |w, _| cell::container_names(w.pod_spec()))
}

pub(crate) const fn images<T: Workload>() -> Column<T> {
    wide("Images", cell::IMAGES_ABOUT, |w, _| cell::container_images(w.pod_spec()))
}

pub(crate) const fn selected<T: Workload>() -> Column<T> {
    wide("Selector", "The labels that its Pods have.", |w, _| Value::from(w.selector_text()))
}

/// Warnings about a template that is valid but hardly meant, for those who write the spec.
pub(crate) fn warnings<T: Workload + Metadata<Ty = ObjectMeta>>(new: &T, old: Option<&T>) -> Vec<String> {
    if old.is_some_and(|old| old.metadata().generation == new.metadata().generation) {
        return Vec::new();
    }
    let path = Path::new("spec").child("template");
    new.template().map(|template| crate::kinds::pod::warnings::of_template(template, &path)).unwrap_or_default()
}

/// The warnings about an object whose name its Pods and their hostnames are made of.
pub(crate) fn named_warnings<T: Workload + Metadata<Ty = ObjectMeta>>(new: &T, old: Option<&T>) -> Vec<String> {
    let of_name = old.is_none().then(|| name_warning(new.metadata())).flatten();
    of_name.into_iter().chain(warnings(new, old)).collect()
}

/// The warning about a name that is no DNS label where hostnames of Pods begin with it.
pub(crate) fn name_warning(metadata: &ObjectMeta) -> Option<String> {
    object_meta::name_warning(metadata, "Pod names and hostnames")
}

/// The selector says which Pods are its own, and never changes.
fn selector_is_fixed<T: Workload>(new: &T, old: &T, _target: Target) -> Errors {
    if new.selector() == old.selector() {
        return Errors::new();
    }
    let shown = internal_form::compact("LabelSelector", new.selector());
    vec![FieldError::invalid_shown(&Path::new("spec").child("selector"), &shown, "field is immutable")]
}

/// The numbers of Pods of a kind that only keeps a number of them.
pub(crate) struct Counts {
    pub wanted: i32,
    pub current: i32,
    pub ready: i32,
}

pub(crate) trait Counted: Workload + Metadata<Ty = ObjectMeta> + Sized + 'static {
    fn counts(&self) -> Counts;

    const COLUMNS: &'static [Column<Self>] = &[
        name(),
        int("Desired", "Number of Pods wanted.", |w, _| Value::from(w.counts().wanted)),
        int("Current", "Number of Pods that exist.", |w, _| Value::from(w.counts().current)),
        int("Ready", "Number of Pods that are ready.", |w, _| Value::from(w.counts().ready)),
        age(),
        containers(),
        images(),
        selected(),
    ];
}

macro_rules! counted {
    ($($kind:ident),*) => {$(
        impl Counted for $kind {
            fn counts(&self) -> Counts {
                Counts {
                    wanted: self.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0),
                    current: self.status.as_ref().map_or(0, |s| s.replicas),
                    ready: self.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0),
                }
            }
        }
    )*};
}

counted!(ReplicaSet, ReplicationController);

/// `2/3`: how many are ready of those wanted.
pub(crate) fn ready_of(ready: Option<i32>, wanted: Option<i32>) -> Value {
    Value::from(format!("{}/{}", ready.unwrap_or(0), wanted.unwrap_or(0)))
}

pub(crate) const READY_ABOUT: &str = "Number of the pod with ready state";
