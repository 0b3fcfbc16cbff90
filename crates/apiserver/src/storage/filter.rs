//! The selection of a list or watch: namespace, name, label and field selectors, checked against stored bytes.

use api::{
    Value,
    kind::Definition,
    meta,
    rules::selector::{FieldSelector, Operator, Selector},
    status::StatusError,
};
use store::Entry;

use crate::storage::object;

/// A parsed selection of objects of one kind.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    labels: Selector,
    fields: FieldSelector,
    /// Text that every object which matches contains: rules most others out without parsing them.
    needles: Vec<Vec<u8>>,
}

impl Filter {
    pub fn parse(definition: &Definition, labels: &str, fields: &str) -> Result<Filter, StatusError> {
        let parsed = Selector::parse(labels).map_err(|e| StatusError::bad_request(e.to_string()))?;
        let selected = FieldSelector::parse(fields).map_err(|e| StatusError::bad_request(e.to_string()))?;
        for requirement in &selected.0 {
            definition.check_field_label(&requirement.field).map_err(StatusError::bad_request)?;
        }
        let mut needles = Vec::new();
        for r in &parsed.requirements {
            if let (Operator::In, [value]) = (r.operator, r.values.as_slice()) {
                needles.push(format!("{}:{}", Value::from(r.key.as_str()), Value::from(value.as_str())).into_bytes());
            }
        }
        for r in &selected.0 {
            // Values computed by the server (booleans, numbers) do not appear as strings; only plain text is searched for.
            let plain =
                !r.value.is_empty() && !matches!(r.value.as_str(), "true" | "false") && r.value.parse::<i64>().is_err();
            let verbatim = r.field.starts_with("metadata.") || r.field == "spec.nodeName";
            if r.equal && plain && verbatim && json::is_plain(&r.value) && !definition.is_converted() {
                needles.push(Value::from(r.value.as_str()).to_string().into_bytes());
            }
        }
        Ok(Filter { labels: parsed, fields: selected, needles })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// The name that all matching objects have.
    pub fn name(&self) -> Option<&str> {
        self.fields.exact("metadata.name")
    }

    pub fn namespace(&self) -> Option<&str> {
        self.fields.exact("metadata.namespace")
    }

    /// A field label and the value that all matching objects have there, other than name and namespace: for indexes.
    pub fn exact_field(&self) -> Option<(&str, &str)> {
        let usable = |r: &&api::rules::selector::FieldRequirement| r.equal && !r.field.starts_with("metadata.");
        self.fields.0.iter().find(usable).map(|r| (r.field.as_str(), r.value.as_str()))
    }

    /// Whether what is stored matches.
    pub fn matches_entry(&self, definition: &Definition, entry: &Entry) -> bool {
        if self.is_everything() {
            return true;
        }
        // Others may have written the same in other words.
        let verbatim = definition.webhook.is_some() || object::is_settled(definition, entry);
        if verbatim && !self.may_match(&entry.value) {
            return false;
        }
        let mut value = object::stored(&entry.value);
        object::convert(definition, &mut value, entry);
        self.matches(definition, &value)
    }

    /// False when the bytes cannot match.
    pub fn may_match(&self, bytes: &[u8]) -> bool {
        self.needles.iter().all(|needle| memchr::memmem::find(bytes, needle).is_some())
    }

    pub fn matches(&self, definition: &Definition, object: &Value) -> bool {
        if !self.labels.matches(&meta::labels(object)) {
            return false;
        }
        if self.fields.is_everything() {
            return true;
        }
        let values: Vec<_> = definition.field_values(object).collect();
        self.fields.matches(|field| match field {
            "metadata.name" => meta::name(object),
            "metadata.namespace" => meta::namespace(object),
            other => values.iter().find(|(label, _)| *label == other).map_or("", |(_, value)| value.as_str()),
        })
    }
}
