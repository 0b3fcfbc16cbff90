//! The rules by which calls are priced before they are evaluated: functions bring them along, and `estimate` asks them on
//! its walk over an expression.

mod operands;
mod range;
pub(crate) mod rules;
mod sizes;

pub use operands::{Operand, Operands};
pub use range::Range;
pub use rules::{Estimate, Guess, first, first_twice, matching_second, walk};
pub use sizes::{Declared, Sizes};
pub(crate) use sizes::{Place, Step};
