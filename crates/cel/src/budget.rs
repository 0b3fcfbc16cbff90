//! The budget of an evaluation. Costs are upstream's units, so an expression that fits there fits here. Work is our own
//! measure beside it: some operations cost one unit however large their operands are (joining lists, comparing
//! objects), and without a second bound a short expression could run for hours.

use crate::error::EvaluationError;

/// The cost of one evaluation that Kubernetes allows (`PerCallLimit`).
pub const PER_CALL_LIMIT: u64 = 1_000_000;

/// Elements touched and bytes copied in one evaluation, beyond what costs count.
const MOST_WORK: u64 = 10_000_000;

/// The elements that one list or map may have, and the bytes of one string that an expression makes.
pub(crate) const LARGEST: usize = 10_000_000;

/// The cost of making a list, a map or an object, besides its parts.
pub(crate) const LIST_COST: u64 = 10;
pub(crate) const MAP_COST: u64 = 30;
pub(crate) const OBJECT_COST: u64 = 40;

#[derive(Debug, Clone)]
pub struct Budget {
    limit: u64,
    used: u64,
    work: u64,
}

impl Budget {
    pub fn new(limit: u64) -> Self {
        Budget { limit, used: 0, work: 0 }
    }

    /// The cost so far, in upstream's units.
    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    pub fn charge(&mut self, cost: u64) -> Result<(), EvaluationError> {
        self.used = self.used.saturating_add(cost);
        if self.used > self.limit { Err(EvaluationError::CostLimitExceeded) } else { Ok(()) }
    }

    /// Takes back what upstream does not count where an attribute is a part of another.
    pub(crate) fn refund(&mut self, cost: u64) {
        self.used = self.used.saturating_sub(cost);
    }

    /// Counts work that has no cost upstream.
    pub fn work(&mut self, amount: u64) -> Result<(), EvaluationError> {
        self.work = self.work.saturating_add(amount);
        if self.work > MOST_WORK { Err(EvaluationError::CostLimitExceeded) } else { Ok(()) }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget::new(PER_CALL_LIMIT)
    }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// The cost of walking once over a text or list of this size.
pub(crate) fn traversal(size: u64) -> u64 {
    scaled(size, 0.1)
}

/// The cost of walking over it twice.
pub(crate) fn two_traversals(size: u64) -> u64 {
    scaled(size, 0.2)
}

/// The cost of matching a text against a regular expression, by the lengths of both.
pub(crate) fn matching(text: u64, pattern: u64) -> u64 {
    scaled(text + 1, 0.1).saturating_mul(scaled(pattern, 0.25))
}
