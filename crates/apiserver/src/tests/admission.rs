//! The context of plugins in their tests: some objects, and writes as `verb` and JSON.

use std::sync::{Arc, OnceLock};

use api::{
    Value,
    k8s_openapi::api::core::v1::ConfigMap,
    kind::{Definition, Kind},
    status::StatusError,
};
use json::json;

use crate::{
    admission::{
        attributes::{Attributes, Operation},
        plugin::{Context, Plugin},
    },
    audit::{Trail, policy::Level},
    auth::{AlwaysAllow, User, rbac::Rbac},
    tests::objects,
};

/// Any definition under another name: plugins look at names alone.
pub fn definition(group: &str, plural: &str) -> Definition {
    let any: Definition = Kind::<ConfigMap>::BASE.define(Default::default());
    Definition { group: group.into(), plural: plural.into(), ..any }
}

pub async fn context(objects: Vec<(&'static str, Value)>) -> Context {
    Context {
        objects: objects::loopback(objects).await,
        rbac: Arc::default(),
        authorizer: Arc::new(AlwaysAllow),
        pod_security: Default::default(),
        pod_security_counts: Default::default(),
        optional: Default::default(),
        toleration_seconds: (300, 300),
        charges: Default::default(),
        deletions: Default::default(),
        policies: Default::default(),
        webhooks: Default::default(),
        features: Default::default(),
    }
}

/// Without objects; these roles and bindings say what users may do.
pub async fn context_of(rbac: Arc<Rbac>) -> Context {
    Context { authorizer: rbac.clone(), rbac, ..context(Vec::new()).await }
}

/// How a write is tried.
#[derive(Clone, Copy)]
enum Run {
    Once,
    Dry,
    /// Its last steps are taken twice.
    Twice,
}

/// The outcome of a write that was let through.
pub struct Told {
    pub object: Value,
    pub warnings: Vec<String>,
    pub annotations: Vec<(String, String)>,
}

/// One write to test.
pub struct Write {
    pub operation: Operation,
    pub kind: (&'static str, &'static str, &'static str),
    pub user: User,
    pub old: Option<Value>,
    pub object: Option<Value>,
}

impl Write {
    pub fn create(plural: &'static str, object: Value) -> Self {
        let user = User::new("jane", ["system:authenticated"]);
        Write { operation: Operation::Create, kind: ("", plural, ""), user, old: None, object: Some(object) }
    }

    /// Runs one plugin: the object afterwards, or the refusal.
    pub async fn through(self, context: &Context, plugin: &Plugin) -> Result<Value, String> {
        self.told(context, plugin).await.map(|told| told.object)
    }

    /// Runs one plugin that refuses the write.
    pub async fn refused(self, context: &Context, plugin: &Plugin) -> StatusError {
        self.run(context, plugin, Run::Once).await.err().expect("a refusal")
    }

    /// Runs one plugin for a dry run of the write.
    pub async fn dry(self, context: &Context, plugin: &Plugin) -> Result<Value, String> {
        self.run(context, plugin, Run::Dry).await.map(|told| told.object).map_err(|e| e.message)
    }

    /// Runs one plugin that refuses a dry run of the write.
    pub async fn refused_dry(self, context: &Context, plugin: &Plugin) -> StatusError {
        self.run(context, plugin, Run::Dry).await.err().expect("a refusal")
    }

    /// Runs one plugin: the object and what is told besides, or the refusal.
    pub async fn told(self, context: &Context, plugin: &Plugin) -> Result<Told, String> {
        self.run(context, plugin, Run::Once).await.map_err(|e| e.message)
    }

    /// Runs one plugin for a write whose last steps are taken twice.
    pub async fn again(self, context: &Context, plugin: &Plugin) -> Result<Value, String> {
        self.run(context, plugin, Run::Twice).await.map(|told| told.object).map_err(|e| e.message)
    }

    /// Runs one plugin: what becomes of the write, and the annotations for an audit log in either case.
    pub async fn noted(
        self,
        context: &Context,
        plugin: &Plugin,
        dry: bool,
    ) -> (Result<Told, StatusError>, Vec<(String, String)>) {
        let trail = Trail::for_tests(Level::Request);
        let outcome = self.run_on(context, plugin, if dry { Run::Dry } else { Run::Once }, &trail).await;
        (outcome, trail.annotations())
    }

    /// The same with the object alone.
    pub async fn heard(
        self,
        context: &Context,
        plugin: &Plugin,
        dry: bool,
    ) -> (Result<Value, StatusError>, Vec<(String, String)>) {
        let (outcome, annotations) = self.noted(context, plugin, dry).await;
        (outcome.map(|told| told.object), annotations)
    }

    async fn run(self, context: &Context, plugin: &Plugin, run: Run) -> Result<Told, StatusError> {
        self.run_on(context, plugin, run, &Trail::for_tests(Level::Request)).await
    }

    async fn run_on(self, context: &Context, plugin: &Plugin, run: Run, trail: &Trail) -> Result<Told, StatusError> {
        static EMPTY: OnceLock<Value> = OnceLock::new();
        let definition = definition(self.kind.0, self.kind.1);
        let subject = self.object.as_ref().or(self.old.as_ref()).unwrap_or(EMPTY.get_or_init(|| json!({}))).clone();
        let mut attributes = Attributes {
            definition: &definition,
            operation: self.operation,
            subresource: self.kind.2,
            namespace: api::meta::namespace(&subject),
            name: api::meta::name(&subject),
            user: &self.user,
            dry_run: matches!(run, Run::Dry),
            object: self.object,
            old: self.old.as_ref(),
            options: json!({}),
            warnings: Vec::new(),
            trail,
            charged: false,
            reinvocation: Default::default(),
            collection: false,
        };
        let checks = std::iter::repeat_n(plugin.validate, if let Run::Twice = run { 2 } else { 1 });
        for step in std::iter::once(plugin.admit).chain(checks).flatten() {
            if (plugin.concerns)(&attributes) {
                step(context, &mut attributes).await?;
            }
        }
        let (warnings, annotations) = (attributes.warnings, trail.annotations());
        Ok(Told { object: attributes.object.unwrap_or_default(), warnings, annotations })
    }
}
