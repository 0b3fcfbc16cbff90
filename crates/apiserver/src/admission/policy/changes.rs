//! A mutating policy's expressions, compiled, and what they make of an object.

use api::Value;
use api::codec::decode;
use api::k8s_openapi::api::admissionregistration::v1beta1::{MutatingAdmissionPolicySpec, Mutation};
use api::kinds::admission_policy::stable;
use api::rules::cel::admission::{OptionalVariables, VARIABLES, compile, environment};
use api::rules::cel::mutation::{self, Change};
use api::schema::Type;
use api::status::StatusError;
use api::write::patch;
use cel::{Composed, Environment};

use super::BUDGET;
use super::conditions::Conditions;
use super::expressions::{Compiled, OUT_OF_BUDGET, OutOfBudget, Run};
use super::input::Input;

/// Why a mutation was not made.
pub(super) enum Failure {
    /// The policy's own failure: what follows is said by its failure policy.
    Policy(String),
    /// Ends the request, whatever the policy says.
    Request(StatusError),
}

pub struct Evaluator {
    pub(super) conditions: Conditions,
    /// Whether the policy wants to see what others made of the object after it.
    pub(super) reinvocable: bool,
    variables: Vec<Composed>,
    pub(super) mutations: Vec<Step>,
}

/// One mutation.
pub(super) struct Step {
    change: Change,
    expression: Compiled,
}

impl Evaluator {
    pub(super) fn new(spec: &MutatingAdmissionPolicySpec) -> Evaluator {
        let params = spec.param_kind.is_some();
        let mut asking = environment(OptionalVariables { params, authorizer: true });
        let mut changing = mutation::environment(params);
        let conditions = stable::match_conditions(spec.match_conditions.as_deref().unwrap_or_default());
        let conditions = Conditions::new(&asking, &conditions, spec.failure_policy.as_deref() == Some("Ignore"));
        let mut variables = Vec::new();
        for variable in spec.variables.iter().flatten() {
            let program = compile(&asking, &variable.expression, &[]);
            let kind = program.as_ref().map_or(cel::Type::Dyn, |p| p.result_type().clone());
            asking.compose(VARIABLES, &variable.name, kind.clone());
            changing.compose(VARIABLES, &variable.name, kind);
            variables.push((variable.name.clone(), program));
        }
        let mutations = spec.mutations.iter().flatten().filter_map(|m| Step::new(m, &changing)).collect();
        let reinvocable = spec.reinvocation_policy.as_deref() == Some("IfNeeded");
        Evaluator { conditions, reinvocable, variables, mutations }
    }

    /// The object that one of the mutations makes of the input's, which is of this type.
    pub(super) fn change(
        &self,
        step: &Step,
        input: &Input,
        params: Option<&Value>,
        ty: &Type,
    ) -> Result<Value, Failure> {
        if let Some(why) = step.expression.failure() {
            return Err(Failure::Policy(why.to_owned()));
        }
        let mut run = Run::new(&self.variables, input.of_validations(params), BUDGET);
        let made = match run.evaluate(&step.expression) {
            Ok(made) => made.map_err(Failure::Policy)?,
            Err(OutOfBudget) => return Err(Failure::Policy(OUT_OF_BUDGET.to_owned())),
        };
        match step.change {
            Change::Configuration => {
                let mut part = mutation::configuration(&made).map_err(Failure::Policy)?;
                for field in ["apiVersion", "kind"] {
                    part[field] = input.object[field].clone();
                }
                let whole = patch::configuration::apply(ty, &input.object, &part);
                whole.map_err(|why| Failure::Policy(format!("error applying patch: {why}")))
            }
            Change::Operations => patched(ty, &input.object, &mutation::operations(&made).map_err(Failure::Policy)?),
        }
    }
}

impl Step {
    fn new(mutation: &Mutation, environment: &Environment) -> Option<Step> {
        let change = Change::of(&mutation.patch_type)?;
        let text = match change {
            Change::Configuration => mutation.apply_configuration.as_ref()?.expression.as_deref(),
            Change::Operations => mutation.json_patch.as_ref()?.expression.as_deref(),
        };
        let expression = Compiled::new(environment, text.unwrap_or_default(), &[change.result()]);
        Some(Step { change, expression })
    }
}

/// A patch whose tests fail changes nothing.
fn patched(ty: &Type, object: &Value, operations: &Value) -> Result<Value, Failure> {
    let patched = match patch::json::apply(object.clone(), operations) {
        Ok(patched) => patched,
        Err(error) if patch::json::is_failed_test(&error) => return Ok(object.clone()),
        Err(error) => {
            let why = patch::json::why(&error).unwrap_or(&error.message);
            return Err(Failure::Policy(format!("JSON Patch: {why}")));
        }
    };
    let internal = |why: &str| Failure::Request(StatusError::internal(why));
    let (value, unknown) = decode::normalise_changed(ty, patched, object).map_err(|why| internal(&why))?;
    if unknown.is_empty() { Ok(value) } else { Err(internal(&decode::strict_error(&unknown))) }
}
