//! What tables, warnings and updates of the kinds that run Pods from a template have in common.

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::kind::{Column, Target, int, wide};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::{kind::cell, rules::selector};

/// A kind that runs Pods from a template.
pub(crate) trait Workload {
    fn template(&self) -> Option<&PodTemplateSpec>;

    fn selector(&self) -> Option<&LabelSelector>;

    fn pod_spec(&self) -> Option<&PodSpec> {
        self.template()?.spec.as_ref()
    }
}

pub(crate) const fn containers<T: Workload>() -> Column<T> {
    wide("Containers", cell::CONTAINERS_ABOUT, |w, _| cell::container_names(w.pod_spec()))
}

pub(crate) const fn images<T: Workload>() -> Column<T> {
    wide("Images", cell::IMAGES_ABOUT, |w, _| cell::container_images(w.pod_spec()))
}

pub(crate) const fn selected<T: Workload>() -> Column<T> {
    wide("Selector", "The labels that its Pods have.", |w, _| Value::from(selector::describe(w.selector())))
}

/// What is valid in a template, and hardly meant.
pub(crate) fn warnings<T: Workload>(new: &T, _old: Option<&T>) -> Vec<String> {
    let path = Path::new("spec").child("template").child("spec");
    new.pod_spec().map(|spec| crate::kinds::pod::spec_warnings(spec, &path)).unwrap_or_default()
}

/// Which Pods are its own is decided once.
pub(crate) fn selector_is_fixed<T: Workload>(new: &T, old: &T, _target: Target) -> Errors {
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

pub(crate) trait Counted {
    fn counts(&self) -> Counts;
}

pub(crate) const fn desired<T: Counted>() -> Column<T> {
    int("Desired", "Number of Pods wanted.", |w, _| Value::from(w.counts().wanted))
}

pub(crate) const fn current<T: Counted>() -> Column<T> {
    int("Current", "Number of Pods that exist.", |w, _| Value::from(w.counts().current))
}

pub(crate) const fn ready<T: Counted>() -> Column<T> {
    int("Ready", "Number of Pods that are ready.", |w, _| Value::from(w.counts().ready))
}

/// `2/3`: how many are ready of those wanted.
pub(crate) fn ready_of(ready: Option<i32>, wanted: Option<i32>) -> Value {
    Value::from(format!("{}/{}", ready.unwrap_or(0), wanted.unwrap_or(0)))
}

pub(crate) const READY_ABOUT: &str = "Number of the pod with ready state";
