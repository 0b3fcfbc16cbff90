//! The annotations of a request's events: few, in the order of their keys.

use std::borrow::Cow;

use json::append_string;

/// Annotations of one request at most.
const MOST: usize = 1024;

/// Most of their texts are known when this is built.
type Text = Cow<'static, str>;

#[derive(Clone, Default)]
pub struct Annotations(Vec<(Text, Text)>);

impl Annotations {
    /// Adds one. One that is there already stays.
    pub fn add(&mut self, key: Text, value: Text) {
        if let Err(at) = self.place(&key)
            && self.0.len() < MOST
        {
            self.0.insert(at, (key, value));
        }
    }

    /// Adds one that has to be there, and is about what we did ourselves.
    pub fn set(&mut self, key: Text, value: Text) {
        match self.place(&key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    fn place(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(key))
    }

    /// The field of an event, if there are any.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        if self.0.is_empty() {
            return;
        }
        out.extend_from_slice(b",\"annotations\":");
        for (at, (key, value)) in self.0.iter().enumerate() {
            out.push(if at == 0 { b'{' } else { b',' });
            append_string(out, key);
            out.push(b':');
            append_string(out, value);
        }
        out.push(b'}');
    }

    #[cfg(test)]
    pub fn all(&self) -> Vec<(String, String)> {
        self.0.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_few_and_in_order_and_the_first_one_stays() {
        let mut annotations = Annotations::default();
        for key in ["b", "a", "c", "a"] {
            annotations.add(key.into(), format!("{key}{}", annotations.0.len()).into());
        }
        let mut text = Vec::new();
        annotations.append_to(&mut text);
        assert_eq!(text, br#","annotations":{"a":"a1","b":"b0","c":"c2"}"#);
        for number in 0..MOST {
            annotations.add(number.to_string().into(), "".into());
        }
        assert_eq!(annotations.0.len(), MOST);
        annotations.set("a".into(), "b".into());
        annotations.set("z".into(), "b".into());
        assert_eq!((annotations.0.len(), annotations.all().last().unwrap().0.as_str()), (MOST + 1, "z"));
    }
}
