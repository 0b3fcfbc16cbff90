//! Match conditions: expressions that say whether a policy or a webhook is about a write, beyond its rules.

use api::Value;
use api::k8s_openapi::api::admissionregistration::v1::MatchCondition;
use cel::{Environment, Type, Value as Cel};

use super::expressions::{Compiled, OUT_OF_BUDGET, OutOfBudget, Run};
use super::input::Input;

/// The most that all conditions may cost together.
const BUDGET: u64 = 2_500_000;

pub(crate) struct Conditions {
    list: Vec<Compiled>,
    ignores_failures: bool,
}

impl Conditions {
    pub(crate) fn new(environment: &Environment, list: &[MatchCondition], ignores_failures: bool) -> Self {
        let list = list.iter().map(|c| Compiled::new(environment, &c.expression, &[Type::Bool])).collect();
        Conditions { list, ignores_failures }
    }

    /// Whether all conditions hold. One that does not decides over others that failed.
    pub(crate) fn hold(&self, input: &Input, params: Option<&Value>) -> Result<bool, String> {
        let mut run = Run::new(&[], input.of_conditions(params), BUDGET);
        let mut failures = Vec::new();
        for condition in &self.list {
            match run.evaluate(condition) {
                Ok(Ok(Cel::Bool(true))) => {}
                Ok(Ok(_)) => return Ok(false),
                Ok(Err(why)) => failures.push(why),
                Err(OutOfBudget) => failures = vec![OUT_OF_BUDGET.to_owned()],
            }
            if failures.first().is_some_and(|f| f == OUT_OF_BUDGET) {
                break;
            }
        }
        match failures.as_slice() {
            [] => Ok(true),
            _ if self.ignores_failures => Ok(false),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}
