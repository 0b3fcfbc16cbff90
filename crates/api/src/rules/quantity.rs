//! Amounts of resources: `100m`, `1.5Gi`, `12e6`. Exact fixed-point numbers with nine decimals (finer input rounds up), and
//! the canonical text that upstream's `resource.Quantity` writes.

use std::cmp::Ordering;
use std::fmt::{self, Display};
use std::ops::{AddAssign, SubAssign};
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

const NANO: i128 = 1_000_000_000;
/// Larger amounts are taken as this one.
const MAX: i128 = i64::MAX as i128 * NANO;

/// How an amount was written, and is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    #[default]
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

/// An exact amount. Equality and order are by value: `1000m` equals `1`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Form,
    /// The form is right, and there is no such unit.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl ParseError {
    /// The error of a suffix that is none.
    fn of_suffix(suffix: &str) -> ParseError {
        let rest = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
        let digits = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if digits.bytes().all(|b| b.is_ascii_digit()) { ParseError::Suffix } else { ParseError::Form }
    }
}

const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// All that fit into an `i128`.
const POWERS_OF_TEN: [i128; 39] = {
    let mut powers = [1; 39];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = powers[at - 1] * 10;
        at += 1;
    }
    powers
};

/// Digits that the machine's numbers hold, whatever they are.
const DIGITS: usize = 37;

enum Scale {
    Ten(i32),
    Two(u32),
}

fn scale(suffix: &str) -> Option<(Scale, Format)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Some((Scale::Ten(*power), Format::DecimalSi));
    }
    if let Some((_, power)) = BINARY.iter().find(|(s, _)| *s == suffix) {
        return Some((Scale::Two(*power), Format::BinarySi));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((Scale::Ten(exponent.parse().ok()?), Format::DecimalExponent))
}

/// `numerator * 10^power` in nanos, rounded away from zero, saturating.
fn times_ten_to(numerator: i128, power: i32) -> i128 {
    let power = power.saturating_add(9);
    let of_ten = POWERS_OF_TEN.get(power.unsigned_abs() as usize);
    if power >= 0 {
        return of_ten.and_then(|f| numerator.checked_mul(*f)).unwrap_or(if numerator < 0 { -MAX } else { MAX });
    }
    of_ten.map_or(numerator.signum(), |divisor| div_away(numerator, *divisor))
}

/// `numerator * 2^power / 10^decimals` in nanos. Where the product is too large for the machine's numbers, the last of the decimals
/// are given up.
fn times_two_to(mut numerator: i128, power: u32, mut decimals: i32) -> i128 {
    loop {
        match numerator.checked_mul(1 << power) {
            Some(scaled) => return times_ten_to(scaled, -decimals),
            None if decimals == 0 => return MAX,
            None => (numerator, decimals) = (numerator / 10, decimals - 1),
        }
    }
}

fn div_away(value: i128, divisor: i128) -> i128 {
    value / divisor + if value % divisor == 0 { 0 } else { value.signum() }
}

fn div_up(value: i128, divisor: i128) -> i128 {
    value.div_euclid(divisor) + i128::from(value.rem_euclid(divisor) != 0)
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.bytes().position(|b| !b.is_ascii_digit() && b != b'.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let point = number.bytes().position(|b| b == b'.');
        let (whole, fraction) = point.map_or((number, ""), |at| (&number[..at], &number[at + 1..]));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(ParseError::Form);
        }
        let (scale, mut format) = scale(suffix).ok_or_else(|| ParseError::of_suffix(suffix))?;
        // More digits than fit are beyond the largest amount, or finer than the finest.
        let whole = whole.trim_start_matches('0');
        let kept = &fraction[..fraction.len().min(24usize.saturating_sub(whole.len().min(24)))];
        let mut nanos = if whole.len() > DIGITS {
            MAX
        } else {
            let digits = whole.bytes().chain(kept.bytes()).fold(0, |sum, digit| sum * 10 + i128::from(digit - b'0'));
            let decimals = i32::try_from(kept.len()).map_err(|_| ParseError::Form)?;
            match scale {
                Scale::Ten(power) => times_ten_to(digits, power.saturating_sub(decimals)),
                Scale::Two(power) => times_two_to(digits, power, decimals),
            }
        };
        nanos = nanos.min(MAX);
        // A part of a byte is not shown as a fraction of Mi.
        if format == Format::BinarySi && nanos > 0 && nanos < NANO {
            format = Format::DecimalSi;
        }
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format })
    }
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    pub fn new(value: i64, format: Format) -> Self {
        Quantity { nanos: i128::from(value) * NANO, format }
    }

    pub fn from_milli(value: i64) -> Self {
        Quantity { nanos: i128::from(value) * (NANO / 1000), format: Format::DecimalSi }
    }

    /// The whole number, rounded up.
    pub fn value(self) -> i64 {
        i64::try_from(div_up(self.nanos, NANO)).unwrap_or(i64::MAX)
    }

    /// Thousandths, rounded up.
    pub fn milli_value(self) -> i64 {
        let milli = div_up(self.nanos, NANO / 1000);
        i64::try_from(milli).unwrap_or(if milli < 0 { i64::MIN } else { i64::MAX })
    }

    /// The amount in whole thousandths, rounded up: the finest that resources of Pods and nodes keep.
    #[must_use]
    pub fn rounded_to_milli(self) -> Self {
        let milli = NANO / 1000;
        Quantity { nanos: div_away(self.nanos, milli) * milli, ..self }
    }

    /// Whole units, rounded up.
    #[must_use]
    pub fn rounded_to_whole(self) -> Self {
        Quantity { nanos: div_away(self.nanos, NANO) * NANO, ..self }
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// A whole number, as huge pages, pods and extended resources must be.
    pub fn is_integer(self) -> bool {
        self.nanos % NANO == 0
    }

    pub fn as_f64(self) -> f64 {
        #[expect(clippy::cast_precision_loss)]
        let nanos = self.nanos as f64;
        nanos / 1e9
    }

    fn decimal_text(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut mantissa, mut exponent) = (self.nanos, -9i32);
        while mantissa % 1000 == 0 && exponent < 18 {
            mantissa /= 1000;
            exponent += 3;
        }
        match (self.format, exponent) {
            (_, 0) => write!(f, "{mantissa}"),
            (Format::DecimalExponent, e) => write!(f, "{mantissa}e{e}"),
            (_, e) => {
                let suffix = DECIMAL.iter().find(|(_, p)| *p == e).map_or("", |(s, _)| s);
                write!(f, "{mantissa}{suffix}")
            }
        }
    }
}

impl Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos / NANO;
        if self.format != Format::BinarySi || self.nanos % NANO != 0 || (-1024 < whole && whole < 1024) {
            return self.decimal_text(f);
        }
        let (mut mantissa, mut suffix) = (whole, "");
        for (next, _) in BINARY {
            if mantissa % 1024 != 0 {
                break;
            }
            mantissa /= 1024;
            suffix = next;
        }
        write!(f, "{mantissa}{suffix}")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        if self.nanos == 0 {
            self.format = other.format;
        }
        self.nanos += other.nanos;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        if self.nanos == 0 {
            self.format = other.format;
        }
        self.nanos -= other.nanos;
    }
}

impl From<Quantity> for Text {
    fn from(quantity: Quantity) -> Text {
        Text(quantity.to_string())
    }
}

/// The amount that an API object holds as text; what does not parse counts as nothing (validation refuses it earlier).
pub fn parse(text: &Text) -> Quantity {
    text.0.parse().unwrap_or_default()
}

/// The canonical text of an amount, `None` when it is not one.
pub fn canonical(text: &str) -> Option<String> {
    text.parse::<Quantity>().ok().map(|q| q.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_text() {
        for (given, expected) in [
            ("0", "0"),
            ("0Mi", "0"),
            ("1", "1"),
            ("+1", "1"),
            ("-1.5", "-1500m"),
            ("1000m", "1"),
            ("0.1", "100m"),
            (".5", "500m"),
            ("5.", "5"),
            ("1500", "1500"),
            ("1000", "1k"),
            ("12e6", "12e6"),
            ("2305843009213693836707849540n", "2305843009213693836707849540n"),
            ("1.9999999999999999Ei", "2305843009213693836707849540n"),
            ("0.99999999999999999999Ei", "1152921504606846975988470785n"),
            ("0.9999999999999999999999Ei", "1152921504606846975988470785n"),
            ("1E3", "1e3"),
            ("1e2", "100"),
            ("1E", "1E"),
            ("1024", "1024"),
            ("1Ki", "1Ki"),
            ("1024Ki", "1Mi"),
            ("512Ki", "512Ki"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("0.0001Ki", "102400u"),
            ("1.0001Ki", "1024102400u"),
            ("0.1n", "1n"),
            ("-0.1n", "-1n"),
            ("9223372036854775807", "9223372036854775807"),
            ("100E", "9223372036854775807"),
            ("1e100", "9223372036854775807"),
            ("1.5e2147483647", "9223372036854775807"),
            ("1.5e-2147483648", "1e-9"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(expected), "{given}");
        }
        for wrong in ["", "-", ".", "1.2.3", "1 ", "1mi", "1ki", "e3", "1e", "abc", "1KiB", "1e1.5"] {
            assert_eq!(canonical(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn arithmetic_rounds_up_and_keeps_the_format() {
        let q = |s: &str| s.parse::<Quantity>().unwrap();
        assert_eq!(q("100m").value(), 1);
        assert_eq!(q("1.0005").milli_value(), 1001);
        assert_eq!(q("-1.5").value(), -1);
        assert_eq!(q("100u").rounded_to_milli().to_string(), "1m");
        assert!(q("1Gi") > q("1G") && q("1000m") == q("1"));
        let mut sum = Quantity::ZERO;
        sum += q("512Mi");
        sum += q("512Mi");
        assert_eq!(sum.to_string(), "1Gi");
        sum -= q("1Gi");
        assert!(sum.is_zero());
    }
}
