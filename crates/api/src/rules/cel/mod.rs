//! Expressions (CEL) as Kubernetes offers them: the language of the crate `cel` with the types whose rules stand here.
//! Whoever evaluates expressions adds its variables to this.

pub mod access_review;
mod address;
mod address_text;
pub mod admission;
pub mod authorizer;
mod format;
pub mod identity;
pub mod mutation;
mod quantity;
pub mod typed;

pub use quantity::{QUANTITY_TYPE, QuantityValue};

use crate::validation::field::{Cause, FieldError, Path};

/// So begins the reason when an expression is right as such, and still makes no program.
const INSTANTIATION: &str = "program instantiation failed: ";

/// Why an expression is none, in upstream's words.
pub fn why(error: &cel::CompileError) -> String {
    let begin = if error.is_instantiation() { INSTANTIATION } else { "compilation failed: " };
    format!("{begin}{error}")
}

/// The error of a field with an expression that was refused for a reason. Upstream takes it for its own fault when there is no
/// program.
pub fn refused(path: &Path, expression: &str, why: &str) -> FieldError {
    if why.starts_with(INSTANTIATION) {
        return FieldError { path: path.clone(), cause: Cause::Internal, detail: format!("Internal error: {why}") };
    }
    FieldError::invalid(path, expression, why)
}

/// The environment that all expressions share, as upstream's `MustBaseEnvSet` gives it for this version.
pub fn environment() -> cel::Builder {
    cel::Environment::builder().library(&quantity::LIBRARY).library(&address::LIBRARY).library(&format::LIBRARY)
}

#[cfg(test)]
fn check(text: &str, expected: &str, cost: u64) {
    let mut budget = cel::Budget::default();
    let shown = match environment().build().compile_any(text) {
        Err(error) => format!("refused: {}", error.issues()[0].message),
        Ok(program) => match program.evaluate(&cel::Variables::new(), &mut budget) {
            Ok(value) => value.to_string(),
            Err(error) => format!("error: {error}"),
        },
    };
    assert_eq!((shown.as_str(), budget.used()), (expected, cost), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::device_selector::Selector;

    #[test]
    fn a_pattern_that_is_none_is_no_fault_of_the_expression() {
        let policy = |text: &str| {
            let optional = admission::OptionalVariables { params: false, authorizer: false };
            admission::compile(&admission::environment(optional), text, &[cel::Type::Bool]).expect_err("refused")
        };
        let device = |text: &str| Selector::compile(text).expect_err("refused");
        let (of_policy, of_device) = ("object.a.find('(') == ''", "device.driver.find('(') == ''");
        for (text, why) in [(of_policy, policy(of_policy)), (of_device, device(of_device))] {
            let told = refused(&Path::new("f"), text, &why);
            let expected =
                "f: Internal error: program instantiation failed: error parsing regexp: missing closing ): `(`";
            assert_eq!((told.to_string().as_str(), told.cause), (expected, Cause::Internal));
            assert_eq!(told.cause.reason(), "InternalError");
        }
        let told = refused(&Path::new("f"), "object.", &policy("object.")).to_string();
        assert!(told.starts_with("f: Invalid value: \"object.\": compilation failed: "), "{told}");
    }
}
