//! A value of the wrong type in the words of Go's converter from free values to types.
//! Upstream counterpart: k8s.io/apimachinery/pkg/runtime/converter.go

use json::Value;

use crate::schema::Type;

/// The converter's complaint; `None` where it leaves the value to the JSON decoder.
pub(super) fn complaint(value: &Value, ty: &Type) -> Option<String> {
    let found = match value {
        Value::Null => return None,
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    };
    let number = value.is_number();
    Some(match ty.resolve() {
        Type::Map(_) => format!("cannot restore map from {found}"),
        Type::List(_) | Type::Bytes => format!("cannot restore slice from {found}"),
        Type::Object(_) => format!("cannot restore struct from: {found}"),
        // Go converts whole numbers to texts of one letter, and all numbers into each other; its JSON does neither.
        Type::String if found == "int64" => "cannot convert int64 to string".to_owned(),
        ty @ (Type::Int32 | Type::Int64 | Type::Number) if number => {
            format!("cannot convert {found} to {}", ty.go_name())
        }
        ty @ (Type::String | Type::Bool | Type::Int32 | Type::Int64 | Type::Number) => {
            format!("unrecognized type: {}", ty.go_name())
        }
        _ => return None,
    })
}
