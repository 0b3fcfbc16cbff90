//! The content of a namespace: how it is listed and deleted.

use client::{
    Client,
    rest::{self, DeleteOptions, Resource, Verb},
};
use controller::Write;
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::discovery::{Offered, Unknown};

/// The objects of one resource in the namespace.
pub struct Content {
    pub kind: Offered,
    pub objects: Vec<ObjectMeta>,
}

#[derive(Default)]
pub struct Observed {
    /// The namespace as the server has it now, when it is to be emptied. A cache may lag, and this controller deletes.
    pub namespace: Option<Namespace>,
    /// Groups whose resources are unknown.
    pub undiscovered: Unknown,
    /// `resource: message` for what could not be listed, or was not deleted in the last attempt.
    pub errors: Vec<String>,
    /// Only the Pods, while any of them ends: what they use (policies, secrets, services) stays until the last has ended.
    pub content: Vec<Content>,
}

/// `resource.group`, as the conditions name a kind.
pub fn title(resource: &Resource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}

pub fn is_pods(offered: &Offered) -> bool {
    offered.resource.group.is_empty() && offered.resource.plural == "pods"
}

impl Content {
    /// Deletes what is not being deleted yet.
    pub fn deletions(&self, namespace: &Namespace) -> Vec<Write> {
        let namespace = namespace.metadata.name.as_deref().unwrap_or("");
        let options = DeleteOptions { propagation: Some("Background"), ..Default::default() };
        let mut names = self.objects.iter().filter(|o| o.deletion_timestamp.is_none()).flat_map(|o| &o.name).peekable();
        if names.peek().is_some() && self.kind.can(&["deletecollection"]) {
            return vec![Write::dynamic(&self.kind.resource, namespace, "", Verb::DeleteCollection(options))];
        }
        let delete = |name: &String| {
            Write::dynamic(&self.kind.resource, namespace, name, Verb::Delete(options.clone())).tolerate(&["NotFound"])
        };
        names.map(delete).collect()
    }
}

impl Observed {
    pub fn is_nothing(&self) -> bool {
        self.undiscovered.is_empty() && self.errors.is_empty() && self.content.is_empty()
    }

    /// Adds the objects of this kind, and says whether they could be listed.
    pub async fn list(&mut self, client: &Client, namespace: &str, kind: Offered) -> bool {
        match rest::list_metadata(client, &kind.resource, namespace).await {
            Ok(objects) if objects.is_empty() => {}
            Ok(objects) => self.content.push(Content { kind, objects }),
            Err(error) => {
                self.errors.push(format!("{}: {}", title(&kind.resource), rest::message(&error)));
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use json::json;

    /// Objects of a kind, each `name` or `name:word:word` with the words deleting and held (by a finalizer).
    pub fn content(plural: &str, objects: &str) -> Content {
        let object = |text: &str| {
            let has = |word: &str| text.split(':').any(|w| w == word);
            let meta = json!({"name": text.split(':').next(),
                "deletionTimestamp": has("deleting").then_some("2026-01-01T00:00:00Z"),
                "finalizers": if has("held") { json!(["example.com/x"]) } else { json!([]) }});
            json::from_value(meta).unwrap()
        };
        let (kind, plural) = (plural.to_owned(), plural.to_owned());
        let resource = Resource { group: String::new(), version: "v1".into(), kind, plural };
        let verbs = ["list", "delete", "deletecollection"].map(str::to_owned).into();
        let kind = Offered { resource, namespaced: true, verbs, versions: vec!["v1".to_owned()] };
        Content { kind, objects: objects.split_whitespace().map(object).collect() }
    }
}
