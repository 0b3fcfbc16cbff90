//! `format.dns1123Label().validate(text)`: the forms that names and values have.

use std::any::Any;

use cel::estimate::{self, Guess, Operands};
use cel::{Call, EvaluationError, Library, Opaque, Type, Value, cost, function};

use crate::validation::names::{NameRule, label_value, qualified_name};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

const NAME: &str = "kubernetes.NamedFormat";

macro_rules! formats {
    ($($name:literal => $function:ident, $shown:literal, $pattern:literal, $wrong:expr;)*) => {
        $(fn $function<'a>(_: &mut Call<'_>, _: &[Value<'a>]) -> Outcome<'a> {
            Ok(Value::opaque(Format { name: $shown, pattern: $pattern, wrong: $wrong }))
        })*

        pub(super) const LIBRARY: Library = Library {
            functions: &[
                $(function(concat!("format.", $name, "(): kubernetes.NamedFormat"), $function),)*
                function("format.named(string): optional<kubernetes.NamedFormat>", named),
                function("kubernetes.NamedFormat::validate(string): optional<list<string>>", validate)
                    .costs(validation_cost)
                    .estimated(validation_estimate),
            ],
            types: &[(NAME, Type::Opaque(NAME))],
        };

        fn named<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
            match given[0].as_str() {
                $(Some($name) => $function(call, &[]).map(Value::some),)*
                _ => Ok(Value::Optional(None)),
            }
        }
    };
}

// The numbers are the sizes of upstream's patterns, by which validation costs.
formats! {
    "dns1123Label" => dns1123_label, "DNS1123Label", 30, |s| NameRule::Label.check(s, false);
    "dns1123Subdomain" => dns1123_subdomain, "DNS1123Subdomain", 60, |s| NameRule::Subdomain.check(s, false);
    "dns1035Label" => dns1035_label, "DNS1035Label", 30, |s| NameRule::Label1035.check(s, false);
    "qualifiedName" => name_with_prefix, "QualifiedName", 60, qualified_name;
    "dns1123LabelPrefix" => dns1123_label_prefix, "DNS1123LabelPrefix", 30, |s| NameRule::Label.check(s, true);
    "dns1123SubdomainPrefix" => dns1123_subdomain_prefix, "DNS1123SubdomainPrefix", 60,
        |s| NameRule::Subdomain.check(s, true);
    "dns1035LabelPrefix" => dns1035_label_prefix, "DNS1035LabelPrefix", 30, |s| NameRule::Label1035.check(s, true);
    "labelValue" => value_of_label, "LabelValue", 40, label_value;
    "uri" => uri, "URI", 1120, |s| cel::check_uri(s).err().into_iter().collect();
    "uuid" => uuid, "uuid", 69, |s| one_of(is_uuid(s), "does not match the UUID format");
    "byte" => byte, "byte", 84, |s| one_of(is_base64(s), "invalid base64");
    "date" => date, "date", 124, |s| one_of(is_date(s), "invalid date");
    "datetime" => datetime, "datetime", 124, |s| one_of(is_datetime(s), "invalid datetime");
}

struct Format {
    name: &'static str,
    pattern: u64,
    wrong: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Opaque for Format {
    fn type_name(&self) -> &'static str {
        NAME
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Format>().is_some_and(|other| self.name == other.name)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn validation_cost(given: &[Value<'_>], _: Option<&Value<'_>>) -> u64 {
    let pattern = given[0].downcast::<Format>().map_or(1, |f| f.pattern);
    cost::matching_second(given, pattern)
}

/// The size of the longest pattern, whichever format it turns out to be.
fn validation_estimate(given: &Operands<'_>) -> Guess {
    estimate::matching_second(given, 128)
}

/// The errors of a text, if there are any.
fn validate<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let (Some(format), Some(text)) = (given[0].downcast::<Format>(), given[1].as_str()) else {
        return Err(EvaluationError::no_such_overload());
    };
    let wrong = (format.wrong)(text);
    if wrong.is_empty() {
        return Ok(Value::Optional(None));
    }
    Ok(Value::some(Value::list(wrong.into_iter().map(Value::string).collect())))
}

fn one_of(right: bool, message: &str) -> Vec<String> {
    if right { Vec::new() } else { vec![message.to_owned()] }
}

/// With all of its dashes, or with none.
fn is_uuid(text: &str) -> bool {
    let dashes: Vec<usize> = text.bytes().enumerate().filter(|(_, b)| *b == b'-').map(|(at, _)| at).collect();
    let hex = text.bytes().filter(u8::is_ascii_hexdigit).count();
    hex == 32 && (dashes == [8, 13, 18, 23] && text.len() == 36 || text.len() == 32)
}

fn is_base64(text: &str) -> bool {
    use base64::Engine;
    !text.is_empty() && base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_datetime(text: &str) -> bool {
    let day = text.get(..10).is_some_and(is_date);
    let zoned = text.ends_with(['Z', 'z']) || text.get(19..).is_some_and(|rest| rest.contains(['+', '-']));
    day && zoned && matches!(text.as_bytes().get(10), Some(b'T' | b't')) && text.parse::<jiff::Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::super::check;

    #[test]
    fn formats_in_expressions() {
        check("format.dns1123Label().validate('my-label') == optional.none()", "true", 1 + 8 + 1 + 1);
        check("format.dns1123Label().validate('No').hasValue()", "true", 1 + 8 + 1);
        check("format.dns1123LabelPrefix().validate('prefix-').hasValue()", "false", 1 + 8 + 1);
        check("format.qualifiedName().validate('example.com/name').hasValue()", "false", 1 + 2 * 15 + 1);
        check("format.labelValue().validate('-').value().size()", "1", 1 + 10 + 2);
        check("format.named('dns1035Label').value().validate('a1').hasValue()", "false", 1 + 1 + 8 + 1);
        check("format.named('other').hasValue()", "false", 2);
        check("format.date().validate('2021-01-01').hasValue()", "false", 1 + 2 * 31 + 1);
        check("format.date().validate('2021-13-01').value()[0]", "invalid date", 1 + 2 * 31 + 1 + 2);
        check("format.datetime().validate('2021-01-01T00:00:00Z').hasValue()", "false", 1 + 3 * 31 + 1);
        check("format.byte().validate('aGVsbG8=').hasValue()", "false", 1 + 21 + 1);
        check("format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()", "false", 1 + 4 * 18 + 1);
        check("format.uri().validate('http://example.com').hasValue()", "false", 1 + 2 * 280 + 1);
        let wrong = "parse \"../a\": invalid URI for request";
        check("format.uri().validate('../a').value()[0]", wrong, 1 + 280 + 1 + 2);
        check("format.named('uri').value() == format.uri()", "true", 4);
        check("format.uuid().validate('123e4567').hasValue()", "true", 1 + 18 + 1);
    }
}
