//! Validating webhooks: asked at the same time, as nothing that one says changes what another one sees.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/validating.

use std::sync::Arc;

use api::status::StatusError;
use futures::StreamExt;

use super::super::{attributes::Attributes, plugin::Context};
use super::annotations::Notes;
use super::call::{ask, end, settle, span, verdict};
use super::scene::Scene;
use super::source::Hook;
use crate::http::timing;

const SORT: &str = "validating";
/// Webhooks asked at once about one write.
const AT_ONCE: usize = 32;

pub(super) async fn validate(
    context: &Context,
    attributes: &mut Attributes<'_>,
    hooks: Arc<Vec<Arc<Hook>>>,
) -> Result<(), StatusError> {
    let mut scene = Scene::new(context, attributes, SORT).await?;
    let mut concerned = Vec::new();
    for hook in hooks.iter() {
        // A webhook is counted among those that are asked.
        let index = concerned.len();
        concerned.extend(scene.concerned(hook, attributes).await?.map(|(_, input)| (index, hook.clone(), input)));
    }
    let dry_run = attributes.dry_run;
    let way = context.webhooks.way();
    let questions = concerned.into_iter().map(|(index, hook, input)| async move {
        let started = clock::Instant::now();
        let ask = || ask(way, &hook, false, dry_run, &input);
        let answer = spans::within(span(&hook, false, &input), ask).await;
        (index, hook, started.elapsed(), answer)
    });
    let answers: Vec<_> = futures::stream::iter(questions).buffered(AT_ONCE).collect().await;
    // All are heard. The first refusal in the order of the webhooks is the answer.
    let mut refused = Ok(());
    for (index, hook, took, answer) in answers {
        let done = answer.and_then(|mut answer| verdict(&hook, attributes, &mut answer));
        let metrics = &context.webhooks.metrics;
        timing::judged(took);
        metrics.asked(&hook.name, SORT, attributes.operation, took, end(&hook, &done));
        if let Err(failure) = done {
            let notes = Notes { trail: attributes.trail, hook: &hook, round: 0, index };
            refused = refused.and(settle(&hook, failure).map(|()| notes.failed_open("validating")));
        }
    }
    refused
}
