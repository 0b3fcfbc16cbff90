//! `json!`: a value written as JSON, with expressions in it.

/// Reads as JSON; any expression may stand for a value, and a literal or an expression in parentheses for a name.
#[macro_export]
macro_rules! json {
    (null) => { $crate::Value::Null };
    ([]) => { $crate::Value::Array(::std::vec::Vec::new()) };
    ([ $($items:tt)+ ]) => { $crate::Value::Array($crate::json_items!([] $($items)+)) };
    ({}) => { $crate::Value::Object($crate::Map::new()) };
    ({ $($fields:tt)+ }) => {{
        let mut fields = $crate::Map::new();
        $crate::json_fields!(fields () $($fields)+);
        $crate::Value::Object(fields)
    }};
    ($value:expr) => { $crate::to_value(&$value).expect("plain data is a JSON value") };
}

/// The items of a list, done ones in brackets before the others.
#[doc(hidden)]
#[macro_export]
macro_rules! json_items {
    ([$($done:expr,)*]) => { ::std::vec![$($done),*] };
    ([$($done:expr,)*] null $(, $($rest:tt)*)?) => { $crate::json_items!([$($done,)* $crate::json!(null),] $($($rest)*)?) };
    ([$($done:expr,)*] [$($inner:tt)*] $(, $($rest:tt)*)?) => {
        $crate::json_items!([$($done,)* $crate::json!([$($inner)*]),] $($($rest)*)?)
    };
    ([$($done:expr,)*] {$($inner:tt)*} $(, $($rest:tt)*)?) => {
        $crate::json_items!([$($done,)* $crate::json!({$($inner)*}),] $($($rest)*)?)
    };
    ([$($done:expr,)*] $item:expr $(, $($rest:tt)*)?) => { $crate::json_items!([$($done,)* $crate::json!($item),] $($($rest)*)?) };
}

/// The fields of an object, one after the other; what is read of a name stands in parentheses.
#[doc(hidden)]
#[macro_export]
macro_rules! json_fields {
    ($map:ident ()) => {};
    ($map:ident ($($key:tt)+) : null $(, $($rest:tt)*)?) => {
        $map.insert($crate::json_key!($($key)+), $crate::Value::Null);
        $crate::json_fields!($map () $($($rest)*)?);
    };
    ($map:ident ($($key:tt)+) : [$($inner:tt)*] $(, $($rest:tt)*)?) => {
        $map.insert($crate::json_key!($($key)+), $crate::json!([$($inner)*]));
        $crate::json_fields!($map () $($($rest)*)?);
    };
    ($map:ident ($($key:tt)+) : {$($inner:tt)*} $(, $($rest:tt)*)?) => {
        $map.insert($crate::json_key!($($key)+), $crate::json!({$($inner)*}));
        $crate::json_fields!($map () $($($rest)*)?);
    };
    ($map:ident ($($key:tt)+) : $value:expr $(, $($rest:tt)*)?) => {
        $map.insert($crate::json_key!($($key)+), $crate::json!($value));
        $crate::json_fields!($map () $($($rest)*)?);
    };
    ($map:ident ($($key:tt)*) $next:tt $($rest:tt)*) => { $crate::json_fields!($map ($($key)* $next) $($rest)*) };
}

/// Names that are written out are not copied.
#[doc(hidden)]
#[macro_export]
macro_rules! json_key {
    ($name:literal) => {
        const { $crate::Key::fixed($name) }
    };
    ($name:expr) => {
        $crate::Key::of(::std::convert::AsRef::<str>::as_ref(&$name))
    };
}
