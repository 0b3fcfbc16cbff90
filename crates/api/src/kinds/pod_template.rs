//! PodTemplate: a Pod that is not, for controllers to copy.

use json::Value;
use k8s_openapi::api::core::v1::PodTemplate;

use crate::kind::cell;
use crate::kind::{Generation, Kind, col, name};
use crate::kinds::pod::validate::validate_template;
use crate::kinds::pod::{defaults, gated, warnings};
use crate::validation::field::Path;

pub const POD_TEMPLATE: Kind<PodTemplate> = Kind {
    gated: gated::OF_POD_TEMPLATE,
    gated_texts: gated::TEXTS_OF_POD_TEMPLATE,
    generation: Generation::CountsChangesOf("template"),
    default_in_place: Some(|object| defaults::template_at(object, &["template"])),
    validate: Some(|object| {
        let template = object.template.as_ref();
        template.map(|t| validate_template(t, &Path::new("template"))).unwrap_or_default()
    }),
    warnings: Some(|object, _| {
        let template = object.template.as_ref();
        template.map(|template| warnings::of_template(template, &Path::new("template"))).unwrap_or_default()
    }),
    columns: &[
        name(),
        col("Containers", cell::CONTAINERS_ABOUT, |t, _| {
            cell::container_names(t.template.as_ref().and_then(|t| t.spec.as_ref()))
        }),
        col("Images", cell::IMAGES_ABOUT, |t, _| {
            cell::container_images(t.template.as_ref().and_then(|t| t.spec.as_ref()))
        }),
        col("Pod Labels", "The labels for the pod template.", |t, _| {
            let metadata = t.template.as_ref().and_then(|t| t.metadata.as_ref());
            Value::from(cell::labels(metadata.and_then(|m| m.labels.as_ref())))
        }),
    ],
    ..Kind::BASE
};
