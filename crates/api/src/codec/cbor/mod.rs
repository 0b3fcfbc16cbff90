//! Values in CBOR (RFC 8949), with the conventions of upstream's serializer: strings are byte strings, bytes are byte strings
//! that expect to become base64 (tag 22), times are text, and a document says that it is CBOR (tag 55799).
//! Upstream counterpart: k8s.io/apimachinery/pkg/runtime/serializer/cbor.

mod read;
mod write;

pub use read::{read, read_as};
pub use write::{append, document, list_head, map_head, text};

pub const MEDIA_TYPE: &str = "application/cbor";
/// Events of a watch, one behind the other.
pub const SEQUENCE: &str = "application/cbor-seq";
/// Every document begins with this tag, which says nothing but that CBOR follows.
pub const SELF_DESCRIBED: &[u8] = &[0xd9, 0xd9, 0xf7];
/// Server-side apply.
pub const APPLY_MEDIA_TYPE: &str = "application/apply-patch+cbor";

/// The first bits of each item.
mod major {
    pub const UNSIGNED: u8 = 0;
    pub const NEGATIVE: u8 = 1;
    pub const BYTES: u8 = 2;
    pub const TEXT: u8 = 3;
    pub const ARRAY: u8 = 4;
    pub const MAP: u8 = 5;
    pub const TAG: u8 = 6;
}

mod tag {
    pub const TIME: u64 = 0;
    pub const EPOCH: u64 = 1;
    pub const BIGNUM: u64 = 2;
    pub const NEGATIVE_BIGNUM: u64 = 3;
    pub const BASE64URL: u64 = 21;
    pub const BASE64: u64 = 22;
    pub const BASE16: u64 = 23;
    /// Says nothing but that CBOR follows.
    pub const SELF_DESCRIBED: u64 = 55799;
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;
    use crate::schema::{self, Type};

    fn unhex(text: &str) -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal")).collect()
    }

    /// The examples of RFC 8949, Appendix A, that JSON has a form for.
    #[test]
    fn items_are_read() {
        for (bytes, expected) in [
            ("00", "0"),
            ("17", "23"),
            ("1818", "24"),
            ("1903e8", "1000"),
            ("1a000f4240", "1000000"),
            ("1b000000e8d4a51000", "1000000000000"),
            ("20", "-1"),
            ("3903e7", "-1000"),
            ("3b7fffffffffffffff", "-9223372036854775808"),
            ("f90000", "0.0"),
            ("f93e00", "1.5"),
            ("f97bff", "65504.0"),
            ("f90001", "5.960464477539063e-8"),
            ("f9c400", "-4.0"),
            ("fa47c35000", "100000.0"),
            ("fb3ff199999999999a", "1.1"),
            ("f4", "false"),
            ("f5", "true"),
            ("f6", "null"),
            ("c074323031332d30332d32315432303a30343a30305a", r#""2013-03-21T20:04:00Z""#),
            ("c11a514b67b0", r#""2013-03-21T20:04:00Z""#),
            ("c1fb41d452d9ec200000", r#""2013-03-21T20:04:00.5Z""#),
            ("d74401020304", r#""01020304""#),
            ("d64401020304", r#""AQIDBA==""#),
            ("d543fbfffe", r#""-__-""#),
            ("d9d9f701", "1"),
            ("d818456449455446", r#""dIETF""#),
            ("40", r#""""#),
            ("6161", r#""a""#),
            ("62c3bc", r#""ü""#),
            ("41ff", "\"\u{fffd}\""),
            ("80", "[]"),
            ("83010203", "[1,2,3]"),
            ("a0", "{}"),
            ("a26161016162820203", r#"{"a":1,"b":[2,3]}"#),
            ("a1416101", r#"{"a":1}"#),
            ("5f42010243030405ff", r#""\u0001\u0002\u0003\u0004\u0005""#),
            ("7f657374726561646d696e67ff", r#""streaming""#),
            ("9fff", "[]"),
            ("9f018202039f0405ffff", "[1,[2,3],[4,5]]"),
            ("bf61610161629f0203ffff", r#"{"a":1,"b":[2,3]}"#),
        ] {
            assert_eq!(read(&unhex(bytes)).map(|value| value.to_string()).as_deref(), Ok(expected), "{bytes}");
        }
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        let nested = |depth: usize| "81".repeat(depth) + "00";
        let wide = |head: &str, item: &str, items: usize| head.to_owned() + &item.repeat(items);
        for (bytes, expected) in [
            ("", "unexpected EOF"),
            ("18", "unexpected EOF"),
            ("6261", "unexpected EOF"),
            ("8201", "unexpected EOF"),
            ("9f01", "unexpected EOF"),
            ("0001", "extraneous data"),
            ("1c", "invalid additional information 28"),
            ("1f", "invalid additional information 31"),
            ("ff", "unexpected \"break\" code"),
            ("a1ff", "unexpected \"break\" code"),
            ("bf6161ff", "unexpected \"break\" code"),
            ("1b8000000000000000", "overflows int64"),
            ("3b8000000000000000", "overflows int64"),
            ("c249010000000000000000", "bignum"),
            ("f7", "simple value 23"),
            ("f0", "simple value 16"),
            ("f820", "simple value 32"),
            ("f97e00", "NaN"),
            ("f97c00", "infinity"),
            ("61ff", "UTF-8"),
            ("7f4161ff", "wrong element type"),
            ("a10101", "map key"),
            ("a2616101416102", "duplicate map key \"a\" at map element index 1"),
            ("c06161", "time"),
            ("c1f5", "time"),
            ("9b7fffffffffffffff", "exceeded max number of elements 1024"),
            ("bb7fffffffffffffff", "exceeded max number of key-value pairs 1024"),
            ("5b7fffffffffffffff", "unexpected EOF"),
            (&nested(65), "exceeded max nested level 64"),
            (&"c6".repeat(100), "exceeded max nested level 64"),
            (&wide("9f", "00", 1025), "exceeded max number of elements 1024"),
        ] {
            let error = read(&unhex(bytes)).expect_err(bytes).to_string();
            assert!(error.contains(expected), "{bytes}: {error}");
        }
        assert!(read(&unhex(&nested(64))).is_ok());
    }

    /// A kilobyte of empty lists in each of a kilobyte of lists, and so on: each byte would be a value.
    #[test]
    fn many_small_values_are_refused() {
        let mut bytes = unhex("990400");
        for _ in 0..1024 {
            bytes.extend(unhex("990400"));
            bytes.extend([0x80; 1024]);
        }
        let error = read(&bytes).expect_err("too many").to_string();
        assert!(error.contains("too many values"), "{error}");
    }

    #[test]
    fn values_are_written_deterministically() {
        for (value, expected) in [
            (json!(null), "f6"),
            (json!(true), "f5"),
            (json!(23), "17"),
            (json!(500), "1901f4"),
            (json!(-500), "3901f3"),
            (json!(1.5), "f93e00"),
            (json!(100000.5), "fa47c35040"),
            (json!(1.1), "fb3ff199999999999a"),
            (json!(5.960464477539063e-8), "f90001"),
            (json!("ü"), "42c3bc"),
            (json!([1, []]), "820180"),
            (json!({"bb": 1, "a": {}, "c": 2}), "a34161a0416302426262 01"),
        ] {
            let mut out = Vec::new();
            append(&mut out, &Type::Any, &value);
            assert_eq!(base16ct::lower::encode_string(&out), expected.replace(' ', ""), "{value}");
            assert_eq!(read(&out), Ok(value));
        }
    }

    #[test]
    fn a_type_says_what_is_bytes_and_what_is_no_integer() {
        let secret = json!({"kind": "Secret", "apiVersion": "v1", "data": {"a": "AQI=", "b": "no base64"}});
        let bytes = document(&schema::of_kind("", "v1", "Secret"), &secret);
        assert_eq!(
            base16ct::lower::encode_string(&bytes),
            concat!("d9d9f7a3", "4464617461a24161d6420102416249", "6e6f20626173653634", "446b696e6446536563726574")
                .to_owned()
                + "4a61706956657273696f6e427631"
        );
        assert_eq!(read(&bytes), Ok(secret));
        let mut out = Vec::new();
        append(&mut out, &Type::Number, &json!(10));
        assert_eq!((base16ct::lower::encode_string(&out).as_str(), read(&out)), ("f94900", Ok(json!(10.0))));
    }

    #[test]
    fn bytes_are_bytes_whatever_they_are_expected_to_become() {
        let secret = schema::of_kind("", "v1", "Secret");
        for (sent, expected) in [
            ("d642fbff", "+/8="),
            ("d542fbff", "+/8="),
            ("d742fbff", "+/8="),
            ("442b2f383d", "+/8="),
            ("642b2f383d", "+/8="),
        ] {
            let bytes = unhex(&format!("a16464617461a16161{sent}"));
            assert_eq!(read_as(&secret, &bytes), Ok((json!({"data": {"a": expected}}), None)), "{sent}");
        }
        // In a field of text they become what the tag says.
        let map = schema::of_kind("", "v1", "ConfigMap");
        let bytes = unhex("a16464617461a16161d742fbff");
        assert_eq!(read_as(&map, &bytes), Ok((json!({"data": {"a": "fbff"}}), None)));
    }

    #[test]
    fn the_first_unknown_field_is_told_by_its_position() {
        let pod = schema::of_kind("", "v1", "Pod");
        let check = |object: Value, expected: Option<usize>, left: Value| {
            let mut bytes = Vec::new();
            append(&mut bytes, &Type::Any, &object);
            assert_eq!(read_as(&pod, &bytes), Ok((left, expected)), "{object}");
        };
        // Names are written by their length.
        let known =
            json!({"kind": "Pod", "metadata": {"labels": {"any": "x"}}, "spec": {"nodeSelector": {"any": "x"}}});
        check(known.clone(), None, known);
        check(json!({"kind": "Pod", "x": 1, "yy": {}}), Some(0), json!({"kind": "Pod"}));
        check(json!({"kind": "Pod", "unknown": [{"a": 1}]}), Some(1), json!({"kind": "Pod"}));
        let nested =
            json!({"kind": "Pod", "spec": {"containers": [{"name": "c"}, {"name": "d", "imager": 1}]}, "yet other": 1});
        let left = json!({"kind": "Pod", "spec": {"containers": [{"name": "c"}, {"name": "d"}]}});
        check(nested, Some(1), left);
        let twice = read_as(&pod, &unhex("a3416b 4150 4178 01 4178 02")).expect_err("twice").to_string();
        assert!(twice.contains("found duplicate map key \"x\" at map element index 2"), "{twice}");
    }

    #[test]
    fn lists_are_written_in_parts() {
        let list = json!({"kind": "L", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [1, 2]});
        let mut bytes = list_head("L", "v1", &list["metadata"], &[], "items", 2);
        bytes.extend([1, 2]);
        assert_eq!(read(&bytes), Ok(list));
        let value: Value =
            read(&list_head("T", "v1", &json!({}), &[("columns", &json!([]))], "rows", 0)).expect("reads");
        assert_eq!(value, json!({"kind": "T", "apiVersion": "v1", "metadata": {}, "columns": [], "rows": []}));
    }
}
