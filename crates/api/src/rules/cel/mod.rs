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
