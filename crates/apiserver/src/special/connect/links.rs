//! Links in what a proxied server answers, made to lead through the proxy: a page that says `/style.css` means its own
//! server, and a browser would ask the API server for it.
//! Upstream counterpart: apimachinery/pkg/util/proxy/transport.go.

/// The attributes that hold an address, by element.
const ADDRESSES: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "formaction", "usemap"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is text, whatever it looks like.
const TEXTS: [&str; 4] = ["script", "style", "textarea", "title"];

/// A tag that is longer than this is passed on as it is.
const TAG_MAX: usize = 64 * 1024;

/// Where a proxied server is, seen from a client.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The path that leads to the server's root, without a slash at its end.
    pub base: String,
    /// The names by which the server's answers may call it: its address, and what the client called the API server.
    pub hosts: [String; 2],
}

impl Place {
    /// The address through the proxy; `None` where the address is right as it is.
    pub(super) fn through(&self, address: &str) -> Option<String> {
        let rest = match address.split_once("://") {
            Some((scheme, rest)) if scheme.bytes().all(|b| b.is_ascii_alphanumeric()) => Some(rest),
            _ => address.strip_prefix("//"),
        };
        let path = match rest {
            None => address,
            Some(rest) => {
                let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
                self.hosts.iter().any(|known| known == host).then(|| &rest[host.len()..])?
            }
        };
        let own =
            path.strip_prefix(&*self.base).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
        match path.starts_with('/') {
            // Another server of the same name is the API server itself.
            true if own => rest.map(|_| path.to_owned()),
            true => Some(format!("{}{path}", self.base)),
            false => None,
        }
    }
}

/// Goes over a page piece by piece.
pub(super) struct Page {
    place: Place,
    state: State,
    /// The beginning of a tag, or what may be the end of a text.
    held: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    /// In a tag, and in which quotation marks.
    Tag(Option<u8>),
    Comment,
    /// In an element whose content is text.
    Element(&'static str),
}

impl Page {
    pub(super) fn new(place: Place) -> Self {
        Page { place, state: State::Text, held: Vec::new() }
    }

    /// The bytes to pass on now that this much more of the page is known.
    pub(super) fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(piece.len() + 256);
        for byte in piece {
            self.step(*byte, &mut out);
        }
        out
    }

    /// The bytes that are left when the page ends.
    pub(super) fn end(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.held.push(byte);
        match self.state {
            State::Text if byte == b'<' => {
                self.held.pop();
                out.append(&mut self.held);
                self.held.push(byte);
                self.state = State::Tag(None);
            }
            State::Text => out.append(&mut self.held),
            State::Tag(_) if self.held.len() > TAG_MAX || self.held.len() == 2 && !begins_tag(byte) => {
                self.flush(State::Text, out);
            }
            State::Tag(_) if self.held == b"<!--" => self.flush(State::Comment, out),
            State::Tag(None) if byte == b'>' => {
                let (tag, name) = rewritten(&self.held, &self.place);
                self.held = tag;
                let text = TEXTS.into_iter().find(|text| name.eq_ignore_ascii_case(text));
                self.flush(text.map_or(State::Text, State::Element), out);
            }
            State::Tag(None) if matches!(byte, b'"' | b'\'') => self.state = State::Tag(Some(byte)),
            State::Tag(Some(mark)) if byte == mark => self.state = State::Tag(None),
            State::Tag(_) => {}
            State::Comment if self.held.ends_with(b"-->") => self.flush(State::Text, out),
            State::Comment => self.keep_last(3, out),
            State::Element(name) => {
                let end = self.held.len().saturating_sub(name.len() + 2);
                let tail = &self.held[end..];
                if tail.starts_with(b"</") && tail[2..].eq_ignore_ascii_case(name.as_bytes()) {
                    self.flush(State::Text, out);
                } else {
                    self.keep_last(name.len() + 2, out);
                }
            }
        }
    }

    fn flush(&mut self, next: State, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        self.state = next;
    }

    /// Passes on all but the last bytes, by which an end is recognized.
    fn keep_last(&mut self, count: usize, out: &mut Vec<u8>) {
        let ready = self.held.len().saturating_sub(count);
        out.extend(self.held.drain(..ready));
    }
}

/// Whether a `<` with this behind it begins a tag.
fn begins_tag(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'!' | b'/' | b'?')
}

/// A tag with its addresses changed, and the name of the element that it begins.
fn rewritten(tag: &[u8], place: &Place) -> (Vec<u8>, String) {
    let whole = || (tag.to_vec(), String::new());
    let Ok(text) = std::str::from_utf8(tag) else { return whole() };
    let inner = text.trim_start_matches('<');
    let name_end = inner.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(inner.len());
    let name = inner[..name_end].to_ascii_lowercase();
    let Some((_, attributes)) = ADDRESSES.iter().find(|(element, _)| *element == name) else {
        return (tag.to_vec(), name);
    };
    let mut out = String::from(&text[..text.len() - inner.len() + name_end]);
    let mut rest = &inner[name_end..];
    while let Some((attribute, value)) = next_attribute(rest) {
        let end = value.start + value.text.len();
        out.push_str(&rest[..value.start]);
        let known = attributes.iter().any(|known| attribute.eq_ignore_ascii_case(known));
        let changed = known.then(|| place.through(&value.text.replace("&amp;", "&"))).flatten();
        match changed {
            Some(address) => out.push_str(&address.replace('&', "&amp;").replace('"', "&#34;").replace('\'', "&#39;")),
            None => out.push_str(value.text),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    (out.into_bytes(), name)
}

struct AttributeValue<'t> {
    /// Where it begins in what was searched.
    start: usize,
    text: &'t str,
}

/// The next attribute with a value: its name, and the value without its quotation marks.
fn next_attribute(text: &str) -> Option<(&str, AttributeValue<'_>)> {
    let equals = text.find('=')?;
    let name = text[..equals].trim_end();
    let begin = name.rfind(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '"' | '\'')).map_or(0, |at| at + 1);
    let behind = &text[equals + 1..];
    let trimmed = behind.trim_start();
    let start = text.len() - trimmed.len();
    let (start, value) = match trimmed.as_bytes().first() {
        Some(mark @ (b'"' | b'\'')) => {
            let value = &trimmed[1..];
            (start + 1, &value[..value.find(char::from(*mark)).unwrap_or(value.len())])
        }
        _ => {
            let end = trimmed.find(|c: char| c.is_ascii_whitespace() || c == '>').unwrap_or(trimmed.len());
            (start, &trimmed[..end])
        }
    };
    Some((&name[begin..], AttributeValue { start, text: value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        let hosts = ["10.0.0.9:80".to_owned(), "api:6443".to_owned()];
        Place { base: "/api/v1/namespaces/n/services/s/proxy".to_owned(), hosts }
    }

    #[test]
    fn addresses_lead_through_the_proxy() {
        let base = place().base;
        let check = |address: &str, expected: Option<&str>| {
            let expected = expected.map(|path| path.replace("BASE", &base));
            assert_eq!(place().through(&address.replace("BASE", &base)), expected, "{address}");
        };
        check("/a", Some("BASE/a"));
        check("/", Some("BASE/"));
        check("/a/?q=/b#c", Some("BASE/a/?q=/b#c"));
        check("a/b", None);
        check("../b", None);
        check("?q", None);
        check("#c", None);
        check("mailto:a@b", None);
        check("http://elsewhere/a", None);
        check("//elsewhere/a", None);
        check("http://10.0.0.9:80/a", Some("BASE/a"));
        check("https://api:6443/a", Some("BASE/a"));
        check("//api:6443/a", Some("BASE/a"));
        check("BASE/a", None);
        check("https://api:6443BASE/a", Some("BASE/a"));
        check("BASEic/a", Some("BASEBASEic/a"));
    }

    fn page(text: &str) -> String {
        let whole = |sizes: usize| {
            let mut page = Page::new(place());
            let mut out: Vec<u8> = text.as_bytes().chunks(sizes).flat_map(|piece| page.take(piece)).collect();
            out.extend(page.end());
            String::from_utf8(out).expect("text")
        };
        // Where the pieces end changes nothing.
        let all = whole(text.len().max(1));
        for size in 1..7 {
            assert_eq!(whole(size), all, "{text}");
        }
        all.replace(&place().base, "BASE")
    }

    #[test]
    fn pages_are_passed_on_with_other_links() {
        let check = |text: &str, expected: &str| assert_eq!(page(text), expected);
        check(r#"<a href="/x">y</a>"#, r#"<a href="BASE/x">y</a>"#);
        check("<A class=b HREF='/x' >", "<A class=b HREF='BASE/x' >");
        check("<a href=/x>", "<a href=BASE/x>");
        check("<a title='href=/y' href=/x>", "<a title='href=/y' href=BASE/x>");
        check(r#"<a href = "/x?a=1&amp;b=2">"#, r#"<a href = "BASE/x?a=1&amp;b=2">"#);
        check(r#"<img alt=">" src="/i.png"/>"#, r#"<img alt=">" src="BASE/i.png"/>"#);
        check(r#"<p href="/x">"#, r#"<p href="/x">"#);
        check(r#"<!-- <a href="/x"> --><a href="/x">"#, r#"<!-- <a href="/x"> --><a href="BASE/x">"#);
        check(
            r#"<script src="/s.js">"<a href='/x'>"</script><a href="/x">"#,
            r#"<script src="BASE/s.js">"<a href='/x'>"</script><a href="BASE/x">"#,
        );
        check("1 < 2 and <3", "1 < 2 and <3");
        check("<a href=\"/x", "<a href=\"/x");
        check("", "");
    }

    #[test]
    fn a_tag_without_end_is_not_kept() {
        let mut page = Page::new(place());
        let out = page.take(&[b"<a ".as_slice(), &vec![b'x'; 3 * TAG_MAX]].concat());
        assert!(out.len() >= 2 * TAG_MAX && page.held.len() <= TAG_MAX, "{}", page.held.len());
    }

    /// A page comes from whoever runs a Pod: whatever it is, it comes through whole, the same however it is cut, and nothing of it
    /// is held for long.
    #[test]
    fn pages_that_are_nearly_right() {
        let seeds = [
            "<!DOCTYPE html><html><head><base href=\"/\"><link rel=a href='/style.css'></head><body background=/b.png>",
            "<a href=\"http://10.0.0.9:80/x?a=b&amp;c\" title='>'>t</a><script>if (a < b) { c = '</a>' }</script><!-- <a href=/x> -->",
            "<img src=/a.png srcset=\"/b 1x\"><form action=\"//api:6443/f\"><input formaction='/g'></form><textarea><a href=/x></textarea>",
        ];
        let words = [
            "<a href=\"/",
            "<script",
            "</script",
            "<!--",
            "-->",
            "\"",
            "'",
            ">",
            "<",
            "href=",
            "=",
            "<base href=/>",
            "\u{0}",
            "é",
        ];
        let found = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/parsers/found"));
        let seeds = seeds.map(|text| text.as_bytes().to_vec()).into();
        fuzz::run(&fuzz::Target { name: "links", seeds, words: &words, found }, |input| {
            let passed = |pieces: &[&[u8]]| {
                let mut page = Page::new(place());
                let mut out: Vec<u8> = pieces.iter().flat_map(|piece| page.take(piece)).collect();
                assert!(page.held.len() <= TAG_MAX, "{} bytes are held", page.held.len());
                out.extend(page.end());
                out
            };
            let whole = passed(&[input]);
            for at in [1, 7, input.len() / 2] {
                let (left, right) = input.split_at(at.min(input.len()));
                assert_eq!(passed(&[left, right]), whole, "cut at {at}");
            }
            assert!(whole.len() <= input.len() * 60 + 60, "{} of {}", whole.len(), input.len());
            if whole == input { "as it was".to_owned() } else { String::from_utf8_lossy(&whole).into_owned() }
        });
    }
}
