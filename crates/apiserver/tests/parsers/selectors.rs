//! Selectors of labels and fields: what was read is read again from what it is shown as.

use std::collections::BTreeMap;

use api::rules::selector::{FieldSelector, Selector, escape};
use fuzz::Target;

use crate::found;

#[test]
fn labels() {
    let seeds =
        ["a=b", "a==b,c!=d", "app in (a, b),!x", "x notin (a,),y", "a>1,b<2", "example.com/a in (), z=", " a , b "];
    let words = &["in", "notin", " in (", ")", "!=", "==", "=", "!", ",", ">", "<", "exists", "example.com/a"];
    let target = Target { name: "labels", seeds: texts(&seeds), words, found: found() };
    fuzz::run(&target, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return "no text".to_owned() };
        let selector = match Selector::parse(text) {
            Ok(selector) => selector,
            Err(error) => return error.to_string(),
        };
        let shown = selector.to_string();
        let again = Selector::parse(&shown).unwrap_or_else(|error| panic!("{error}: {shown:?}"));
        assert_eq!(again.to_string(), shown);
        let some = BTreeMap::from([("a".to_owned(), "b".to_owned()), ("x".to_owned(), "1".to_owned())]);
        for labels in [BTreeMap::new(), some] {
            assert_eq!(again.matches(&labels), selector.matches(&labels), "{shown:?}");
        }
        format!("{} requirements", "x".repeat(selector.requirements.len().min(9)))
    });
}

#[test]
fn fields() {
    let seeds = ["metadata.name=a", "a==b,c!=d", r"a=b\,c\=d\\", "=", ",,", "spec.nodeName="];
    let words = &["\\,", "\\=", "\\\\", "!=", "==", "metadata.name"];
    let target = Target { name: "fields", seeds: texts(&seeds), words, found: found() };
    fuzz::run(&target, |input| {
        let text = String::from_utf8_lossy(input);
        let escaped = FieldSelector::parse(&format!("a={}", escape(&text))).expect("an escaped value is a value");
        assert_eq!(escaped.exact("a"), Some(&*text));
        match FieldSelector::parse(&text) {
            Ok(selector) => {
                let shown = selector.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                let again = FieldSelector::parse(&shown).unwrap_or_else(|error| panic!("{error}: {shown:?}"));
                assert_eq!(again, selector, "{shown:?}");
                "read".to_owned()
            }
            Err(error) => error.to_string(),
        }
    });
}

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}
