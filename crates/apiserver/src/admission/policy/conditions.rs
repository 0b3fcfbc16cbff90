//! Match conditions: expressions that say whether a policy or a webhook is about a write, beyond its rules.

use api::Value;
use api::k8s_openapi::api::admissionregistration::v1::MatchCondition;
use cel::{Environment, Type, Value as Cel};
use clock::{Duration, Instant};

use super::expressions::{Compiled, OUT_OF_BUDGET, OutOfBudget, Run};
use super::input::Input;

/// The most that all conditions may cost together.
const BUDGET: u64 = 2_500_000;

/// The cost of conditions that were evaluated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub errors: u64,
    pub took: Duration,
}

pub(crate) struct Conditions {
    list: Vec<Compiled>,
    ignores_failures: bool,
}

impl Conditions {
    pub(crate) fn new(environment: &Environment, list: &[MatchCondition], ignores_failures: bool) -> Self {
        let list = list.iter().map(|c| Compiled::new(environment, &c.expression, &[Type::Bool])).collect();
        Conditions { list, ignores_failures }
    }

    /// Whether all conditions hold. One that does not decides over others that failed, but all are evaluated: their cost may be
    /// too high together.
    pub(crate) fn hold(&self, input: &Input, params: Option<&Value>) -> (Result<bool, String>, Option<Cost>) {
        if self.list.is_empty() {
            return (Ok(true), None);
        }
        let (began, mut errors) = (Instant::now(), 0);
        let result = self.evaluate(input, params, &mut errors);
        (result, Some(Cost { errors, took: began.elapsed() }))
    }

    fn evaluate(&self, input: &Input, params: Option<&Value>, errors: &mut u64) -> Result<bool, String> {
        let mut run = Run::new(&[], input.of_conditions(params), BUDGET);
        let (mut hold, mut failures) = (true, Vec::new());
        for condition in &self.list {
            match run.evaluate(condition) {
                Ok(Ok(value)) => hold &= matches!(value, Cel::Bool(true)),
                Ok(Err(why)) => {
                    *errors += 1;
                    // A failure that was told of is not told of again.
                    failures.extend(Some(why).filter(|why| !failures.contains(why)));
                }
                Err(OutOfBudget) => {
                    (hold, failures) = (true, vec![OUT_OF_BUDGET.to_owned()]);
                    break;
                }
            }
        }
        match failures.as_slice() {
            _ if !hold => Ok(false),
            [] => Ok(true),
            _ if self.ignores_failures => Ok(false),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}
