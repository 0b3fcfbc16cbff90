//! Numbers as Go's `fmt` prints them (`%v`).

use json::Number;

/// A number as `%v` prints it: a double has an exponent where it is very large or small, of two digits at least.
pub fn digits(number: &Number) -> String {
    number.as_f64().filter(|_| number.is_f64()).map_or_else(|| number.to_string(), double)
}

/// A double as `%v` prints it.
pub fn double(double: f64) -> String {
    if double == 0.0 || (1e-4..1e6).contains(&double.abs()) {
        return double.to_string();
    }
    let text = format!("{double:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_doubles_have_exponents() {
        let check = |number: f64, expected: &str| assert_eq!(double(number), expected);
        check(0.0, "0");
        check(-0.25, "-0.25");
        check(0.0001, "0.0001");
        check(0.00001, "1e-05");
        check(999_999.0, "999999");
        check(1e6, "1e+06");
        check(-1.5e300, "-1.5e+300");
        assert_eq!(digits(&Number::from(10_000_000_000_i64)), "10000000000");
    }
}
