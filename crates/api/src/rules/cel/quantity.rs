//! `quantity('1.5Gi')` and what expressions ask of amounts.

use std::any::Any;
use std::cmp::Ordering;

use cel::estimate;
use cel::{Call, EvaluationError, Library, Opaque, Type, Value, cost, function};

use crate::rules::quantity::{Format, Quantity};

/// The name of the type in expressions.
pub const QUANTITY_TYPE: &str = "kubernetes.Quantity";

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("quantity(string): kubernetes.Quantity", parse).costs(cost::first).estimated(estimate::first),
        function("isQuantity(string): bool", is_quantity).costs(cost::first).estimated(estimate::first),
        function("sign(kubernetes.Quantity): int", sign),
        function("kubernetes.Quantity::isGreaterThan(kubernetes.Quantity): bool", is_greater),
        function("kubernetes.Quantity::isLessThan(kubernetes.Quantity): bool", is_less),
        function("kubernetes.Quantity::compareTo(kubernetes.Quantity): int", compare),
        function("kubernetes.Quantity::asApproximateFloat(): double", as_float),
        function("kubernetes.Quantity::asInteger(): int", as_integer),
        function("kubernetes.Quantity::isInteger(): bool", is_integer),
        function("kubernetes.Quantity::add(kubernetes.Quantity): kubernetes.Quantity", add),
        function("kubernetes.Quantity::add(int): kubernetes.Quantity", add),
        function("kubernetes.Quantity::sub(kubernetes.Quantity): kubernetes.Quantity", sub),
        function("kubernetes.Quantity::sub(int): kubernetes.Quantity", sub),
    ],
    types: &[(QUANTITY_TYPE, Type::Opaque(QUANTITY_TYPE))],
};

/// An amount as the value of an expression.
#[derive(Debug, Clone, Copy)]
pub struct QuantityValue(pub Quantity);

impl Opaque for QuantityValue {
    fn type_name(&self) -> &'static str {
        QUANTITY_TYPE
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<QuantityValue>().is_some_and(|other| self.0 == other.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn amount(value: &Value<'_>) -> Result<Quantity, EvaluationError> {
    match value {
        Value::Int(whole) => Ok(Quantity::new(*whole, Format::DecimalExponent)),
        other => other.downcast::<QuantityValue>().map(|q| q.0).ok_or_else(EvaluationError::no_such_overload),
    }
}

fn read(value: &Value<'_>) -> Result<Quantity, EvaluationError> {
    let text = value.as_str().ok_or_else(EvaluationError::no_such_overload)?;
    text.parse().map_err(|e: crate::rules::quantity::ParseError| EvaluationError::new(e.to_string()))
}

fn parse<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    read(&given[0]).map(|q| Value::opaque(QuantityValue(q)))
}

fn is_quantity<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(read(&given[0]).is_ok()))
}

fn order(given: &[Value<'_>]) -> Result<Ordering, EvaluationError> {
    Ok(amount(&given[0])?.cmp(&amount(&given[1])?))
}

fn sign<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Int(amount(&given[0])?.cmp(&Quantity::ZERO) as i64))
}

fn is_greater<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    order(given).map(|o| Value::Bool(o.is_gt()))
}

fn is_less<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    order(given).map(|o| Value::Bool(o.is_lt()))
}

fn compare<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    order(given).map(|o| Value::Int(o as i64))
}

fn as_float<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    amount(&given[0]).map(|q| Value::Double(q.as_f64()))
}

fn is_integer<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    amount(&given[0]).map(|q| Value::Bool(integer(q).is_some()))
}

/// The amount as an integer. The largest amount stands for all that are larger, and for none of them.
fn integer(amount: Quantity) -> Option<i64> {
    let value = amount.value();
    (amount.is_integer() && value.unsigned_abs() < i64::MAX.unsigned_abs()).then_some(value)
}

fn as_integer<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let none = || EvaluationError::new("cannot convert value to integer");
    integer(amount(&given[0])?).map(Value::Int).ok_or_else(none)
}

fn add<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let mut sum = amount(&given[0])?;
    sum += amount(&given[1])?;
    Ok(Value::opaque(QuantityValue(sum)))
}

fn sub<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let mut rest = amount(&given[0])?;
    rest -= amount(&given[1])?;
    Ok(Value::opaque(QuantityValue(rest)))
}

#[cfg(test)]
mod tests {
    use super::super::check;

    #[test]
    fn amounts_in_expressions() {
        check("quantity('12Mi').isGreaterThan(quantity('8Mi'))", "true", 3);
        check("quantity('50k') == quantity('50000')", "true", 3);
        check("quantity('50k').compareTo(quantity('50Ki'))", "-1", 3);
        check("quantity('10Mi').isLessThan(quantity('1Gi'))", "true", 3);
        check("sign(quantity('-5m'))", "-1", 2);
        check("quantity('1').add(quantity('2')).sub(2).asInteger()", "1", 5);
        check("quantity('50k').add(20) == quantity('50020')", "true", 4);
        check("quantity('1.5').isInteger()", "false", 2);
        check("quantity('1.5').asInteger()", "error: cannot convert value to integer", 2);
        check("quantity('9999999999999999999999999999999999999G').isInteger()", "false", 5);
        check("quantity('-10E').asInteger()", "error: cannot convert value to integer", 2);
        check("quantity('5E').asInteger()", "5000000000000000000", 2);
        check("quantity('10Mm')", "error: unable to parse quantity's suffix", 1);
        check("quantity('50.703k').asApproximateFloat()", "50703", 2);
        check("isQuantity('1.3Gi') && !isQuantity('1.3GiB')", "true", 3);
        check("type(quantity('1')) == kubernetes.Quantity", "true", 3);
        check(
            "quantity('1') == '1'",
            "refused: found no matching overload for '_==_' applied to '(kubernetes.Quantity, string)'",
            0,
        );
        let wrong = "error: quantities must match the regular expression \
                     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        check("quantity('10Mo')", wrong, 1);
    }

    #[test]
    fn sums_of_the_largest_amounts_do_not_overflow() {
        let sum = (0..90).fold("quantity('100E')".to_owned(), |sum, _| format!("{sum}.add(quantity('100E'))"));
        check(&format!("{sum}.isGreaterThan(quantity('1'))"), "true", 91 + 90 + 2);
    }
}
