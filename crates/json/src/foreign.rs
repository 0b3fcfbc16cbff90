//! From `serde_json`'s own tree and to it, for the libraries that know that one. Each tree reads the other.

use serde::Deserialize;
use serde_json::Value as Theirs;

use crate::Value;

impl From<&Theirs> for Value {
    fn from(value: &Theirs) -> Value {
        Value::deserialize(value).expect("every tree of theirs is one of ours")
    }
}

impl From<Theirs> for Value {
    fn from(value: Theirs) -> Value {
        Value::from(&value)
    }
}

impl From<&Value> for Theirs {
    fn from(value: &Value) -> Theirs {
        Theirs::deserialize(value).expect("every tree of ours is one of theirs")
    }
}

impl From<Value> for Theirs {
    fn from(value: Value) -> Theirs {
        Theirs::from(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_again() {
        let text = r#"{"a":[null,true,-3,18446744073709551615,1.5,"x",{}],"b":{"c":[]}}"#;
        let theirs: Theirs = serde_json::from_str(text).expect("JSON");
        let ours = Value::from(&theirs);
        assert_eq!(ours.to_string(), text);
        assert_eq!(Theirs::from(&ours), theirs);
    }
}
