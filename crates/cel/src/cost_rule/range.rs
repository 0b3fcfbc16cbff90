//! A size or a cost of which only bounds are known. Sums and products stay at the largest number where they would pass it.

/// From the least to the most, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    pub least: u64,
    pub most: u64,
}

impl Range {
    pub const UNKNOWN: Range = Range { least: 0, most: u64::MAX };
    pub const ONE: Range = Range::exactly(1);

    pub const fn exactly(number: u64) -> Range {
        Range { least: number, most: number }
    }

    pub const fn up_to(most: u64) -> Range {
        Range { least: 0, most }
    }

    fn both(self, other: Range, of: impl Fn(u64, u64) -> u64) -> Range {
        Range { least: of(self.least, other.least), most: of(self.most, other.most) }
    }

    #[must_use]
    pub fn plus(self, other: Range) -> Range {
        self.both(other, u64::saturating_add)
    }

    #[must_use]
    pub fn times(self, other: Range) -> Range {
        self.both(other, u64::saturating_mul)
    }

    /// Both bounds multiplied, and rounded up.
    #[must_use]
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn scaled(self, factor: f64) -> Range {
        let scaled = |number: u64| (number as f64 * factor).ceil() as u64;
        Range { least: scaled(self.least), most: scaled(self.most) }
    }

    /// The smallest range that holds both.
    #[must_use]
    pub fn joined(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), most: self.most.max(other.most) }
    }
}
