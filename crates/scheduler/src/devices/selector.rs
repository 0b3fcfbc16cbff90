//! Selectors: the expressions by which classes and requests choose devices.

use std::{collections::HashMap, sync::Arc};

use api::rules::device_selector::Selector;
use parking_lot::Mutex;

use super::slices::Device;

/// Why it cannot be said whether an expression selects a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The expression is none.
    Compile(String),
    /// It fails for this device.
    Run(String),
}

/// The evaluation of selectors' expressions.
pub trait Selectors {
    /// Whether an expression selects a device, and what it cost to find out, in steps of the search.
    fn matches(&self, expression: &str, device: &Device) -> Result<(bool, usize), Fault>;
}

/// How many compiled expressions are kept.
const KEPT: usize = 256;
/// The cost of expressions that is as much as one step of a search.
const COST_OF_A_STEP: u64 = 20;

/// The expressions that are evaluated, compiled once.
#[derive(Default)]
pub struct Expressions {
    compiled: Mutex<HashMap<String, Result<Arc<Selector>, String>>>,
}

impl Expressions {
    fn compiled(&self, expression: &str) -> Result<Arc<Selector>, String> {
        let mut compiled = self.compiled.lock();
        if let Some(held) = compiled.get(expression) {
            return held.clone();
        }
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        let selector = Selector::compile(expression).map(Arc::new);
        compiled.insert(expression.to_owned(), selector.clone());
        selector
    }
}

impl Selectors for Expressions {
    fn matches(&self, expression: &str, device: &Device) -> Result<(bool, usize), Fault> {
        let selector = self.compiled(expression).map_err(Fault::Compile)?;
        let (verdict, cost) = selector.matches(&device.facts);
        let steps = usize::try_from(1 + cost / COST_OF_A_STEP).unwrap_or(usize::MAX);
        verdict.map(|verdict| (verdict, steps)).map_err(Fault::Run)
    }
}
