//! A kind in an older version that can still be switched on: it has a shape of its own, and is stored and judged in the kind's.
//! Upstream counterpart: pkg/apis, the `conversion.go` of each version; k8s.io/apiserver/pkg/endpoints/deprecation.

use std::sync::Arc;

use json::Value;

use super::{Checked, Definition, Strategy, Target};
use crate::schema;
use crate::validation::field::Errors;
use crate::write::resets::Resets;

/// The differences of an older version.
#[derive(Clone, Copy)]
pub struct Older {
    pub version: &'static str,
    /// The minor releases since which it is deprecated and from which on it is gone, and whether upstream names what to use.
    pub deprecated: Option<(u32, u32, bool)>,
    /// Turns its shape into the kind's, and back.
    pub to_current: fn(&mut Value),
    pub from_current: fn(&mut Value),
    /// Times that the server sets, where their places differ.
    pub stamped: Option<&'static [&'static str]>,
}

impl Older {
    /// The version of this name, with the kind's own shape.
    pub const fn named(version: &'static str) -> Older {
        Older { version, deprecated: None, to_current: |_| {}, from_current: |_| {}, stamped: None }
    }

    /// The definition of the version, from that of the kind.
    pub fn of(self, current: Definition) -> Definition {
        let Definition { group, kind, .. } = &current;
        let ty = schema::of_kind(group, self.version, kind);
        let warning = self.deprecated.map(|(since, gone, named)| {
            let instead = if named { format!("; use {} {kind}", current.api_version()) } else { String::new() };
            let version = self.version;
            format!("{group}/{version} {kind} is deprecated in v1.{since}+, unavailable in v1.{gone}+{instead}")
        });
        let strategy = Converted {
            of: current.strategy.clone(),
            older: self,
            current: current.api_version(),
            own: format!("{group}/{}", self.version),
        };
        Definition {
            version: self.version.to_owned(),
            schema: ty.name().unwrap_or_default(),
            ty,
            deprecated: warning,
            stamped: self.stamped.unwrap_or(current.stamped),
            storage: (group.clone(), current.version.clone()),
            strategy: Arc::new(strategy),
            ..current
        }
    }
}

/// The kind's strategy over objects of the older shape.
struct Converted {
    of: Arc<dyn Strategy>,
    older: Older,
    current: String,
    own: String,
}

impl Converted {
    fn current(&self, object: &Value) -> Value {
        let mut object = object.clone();
        self.to_storage(&mut object);
        object
    }

    fn through(&self, object: &mut Value, change: impl FnOnce(&mut Value)) {
        self.to_storage(object);
        change(object);
        self.from_storage(object);
    }
}

/// Errors name the fields of the kind's shape, as upstream's do: it validates what all versions become.
impl Strategy for Converted {
    fn default(&self, object: &mut Value) {
        self.through(object, |object| self.of.default(object));
    }

    fn check(&self, object: &Value) -> Result<Checked, Errors> {
        // The type is that of the other version.
        Ok(Checked { typed: None, ..self.of.check(&self.current(object))? })
    }

    fn check_update(&self, new: &Value, old: &Value, target: Target) -> Result<Vec<String>, Errors> {
        self.of.check_update(&self.current(new), &self.current(old), target)
    }

    fn prepare_create(&self, object: &mut Value) -> Vec<String> {
        let mut warnings = Vec::new();
        self.through(object, |object| warnings = self.of.prepare_create(object));
        warnings
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, target: Target) {
        self.through(new, |new| self.of.prepare_update(new, &self.current(old), target));
    }

    fn resets(&self, target: Target) -> Resets {
        self.of.resets(target)
    }

    fn row(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        self.of.row(&self.current(object), now)
    }

    fn grace_seconds(&self, object: &Value, requested: Option<i64>) -> Option<i64> {
        self.of.grace_seconds(&self.current(object), requested)
    }

    fn prepare_delete(&self, object: &mut Value) -> bool {
        let mut wanted = false;
        self.through(object, |object| wanted = self.of.prepare_delete(object));
        wanted
    }

    fn to_storage(&self, object: &mut Value) {
        (self.older.to_current)(object);
        object["apiVersion"] = Value::from(&*self.current);
    }

    fn from_storage(&self, object: &mut Value) {
        (self.older.from_current)(object);
        object["apiVersion"] = Value::from(&*self.own);
    }
}
