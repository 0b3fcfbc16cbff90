//! A write as the webhooks of one round look at it: which of them it concerns, and in which version they see it.

use std::sync::Arc;

use api::{Value, kind::Definition, status::StatusError};

use super::super::{
    attributes::Attributes,
    plugin::{Context, forbid},
    policy::{
        input::Input,
        matching::{Facts, Unclear, matches},
    },
};
use super::source::Hook;

pub(super) struct Scene<'c> {
    context: &'c Context,
    namespace: Option<Arc<Value>>,
    equivalents: Vec<Arc<Definition>>,
    /// The write in the versions that were asked for so far.
    seen: Vec<(Definition, Arc<Input>)>,
    sort: &'static str,
}

/// A webhook that a write concerns: the kind that it sees, and the write in it.
pub(super) type Seen = (Definition, Arc<Input>);

impl<'c> Scene<'c> {
    pub(super) async fn new(
        context: &'c Context,
        attributes: &Attributes<'_>,
        sort: &'static str,
    ) -> Result<Self, StatusError> {
        let namespace = match attributes.namespace {
            "" => None,
            name => context.objects.get("", "namespaces", "", name).await?,
        };
        let equivalents = context.objects.equivalents(attributes.definition);
        Ok(Scene { context, namespace, equivalents, seen: Vec::new(), sort })
    }

    /// The object is another one now.
    pub(super) fn changed(&mut self) {
        self.seen.clear();
    }

    /// The view of the write that the webhook has, if the write concerns it.
    pub(super) async fn concerned(
        &mut self,
        hook: &Hook,
        attributes: &Attributes<'_>,
    ) -> Result<Option<Seen>, StatusError> {
        if !hook.has_rules() {
            return Ok(None);
        }
        let facts = Facts { attributes, namespace: self.namespace.as_deref(), equivalents: &self.equivalents };
        let found = matches(Some(&hook.resources), &facts).map_err(|unclear| match unclear {
            Unclear::NoNamespace(name) => StatusError::not_found("", "namespaces", &name),
            Unclear::Selector(why) => StatusError::internal(why),
        })?;
        let Some(definition) = found else { return Ok(None) };
        let input = self.input(&definition, attributes).await?;
        if let Some(conditions) = hook.conditions() {
            let (hold, cost) = input.settled(|| conditions.hold(&input, None)).await;
            let about = ("webhook", self.sort, hook.name.as_str());
            self.context.policies.metrics.conditions(about, attributes.operation, cost);
            match hold {
                Ok(true) => {}
                Ok(false) => {
                    self.context.webhooks.metrics.excluded(&hook.name, self.sort, attributes.operation);
                    return Ok(None);
                }
                Err(why) => return Err(forbid(attributes, why)),
            }
        }
        Ok(Some((definition, input)))
    }

    async fn input(&mut self, definition: &Definition, attributes: &Attributes<'_>) -> Result<Arc<Input>, StatusError> {
        let same = |(known, _): &&Seen| {
            (&known.group, &known.version, &known.plural)
                == (&definition.group, &definition.version, &definition.plural)
        };
        if let Some((_, known)) = self.seen.iter().find(same) {
            return Ok(known.clone());
        }
        let by = (&*self.context.objects, self.context.authorizer.clone());
        let input = Input::new(by, attributes, definition, self.namespace.clone()).await;
        let input = Arc::new(input.map_err(|error| StatusError::internal(error.message))?);
        self.seen.push((definition.clone(), input.clone()));
        Ok(input)
    }
}
