//! Expressions about a question for rights, as match conditions of authorization webhooks have them: `request` is the spec of a
//! SubjectAccessReview.

use std::sync::LazyLock;

use cel::{Environment, Type};

/// The names that the expressions may use.
pub static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(environment);

fn fields(fields: &[(&str, Type)]) -> Vec<(String, Type)> {
    fields.iter().map(|(name, kind)| ((*name).to_owned(), kind.clone())).collect()
}

fn environment() -> Environment {
    let (text, texts) = (|| Type::String, || Type::list(Type::String));
    let named = |names: &[&'static str]| names.iter().map(|name| (*name, text())).collect::<Vec<_>>();
    let requirement = fields(&[("key", text()), ("operator", text()), ("values", texts())]);
    let requirements = || Type::list(Type::object("kubernetes.SelectorRequirement"));
    let selector = fields(&[("rawSelector", text()), ("requirements", requirements())]);
    let mut resource = named(&["namespace", "verb", "group", "version", "resource", "subresource", "name"]);
    resource.push(("fieldSelector", Type::object("kubernetes.FieldSelectorAttributes")));
    resource.push(("labelSelector", Type::object("kubernetes.LabelSelectorAttributes")));
    let spec = fields(&[
        ("resourceAttributes", Type::object("kubernetes.ResourceAttributes")),
        ("nonResourceAttributes", Type::object("kubernetes.NonResourceAttributes")),
        ("user", text()),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
        ("uid", text()),
    ]);
    super::environment()
        .object("kubernetes.SelectorRequirement", requirement)
        .object("kubernetes.FieldSelectorAttributes", selector.clone())
        .object("kubernetes.LabelSelectorAttributes", selector)
        .object("kubernetes.ResourceAttributes", fields(&resource))
        .object("kubernetes.NonResourceAttributes", fields(&named(&["path", "verb"])))
        .object("kubernetes.SubjectAccessReviewSpec", spec)
        .variable("request", Type::object("kubernetes.SubjectAccessReviewSpec"))
        .build()
}
