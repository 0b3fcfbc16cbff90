//! Answers for people: indented for those who ask with `pretty`, and for curl, wget and browsers.

use api::rules::url::query_pairs;
use http::{HeaderMap, header};

use crate::http::{body::Response, request::Info, respond};

/// The agents that read for people unless they say otherwise.
const AGENTS: &[&str] = &["curl", "Wget", "Mozilla/5.0"];

/// The values of `pretty` that mean it, unlike those of options.
const YES: &[&str] = &["1", "t", "T", "TRUE", "true", "True"];

/// Whether the answer to this request is to be indented: objects and discovery are, streams of changes are not.
pub fn wanted(info: &Info, query: &str, headers: &HeaderMap) -> bool {
    if !info.is_document() {
        return false;
    }
    let asked = || query_pairs(query).find(|(key, value)| key == "pretty" && !value.is_empty());
    if let Some((_, value)) = query.contains("pretty").then(asked).flatten() {
        return YES.contains(&value.as_str());
    }
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
    AGENTS.iter().any(|known| agent.starts_with(known))
}

/// Indents an answer.
pub fn indented(response: Response) -> Response {
    let media_type = response.headers().get(header::CONTENT_TYPE).cloned().unwrap_or(respond::JSON);
    let mut indenter = Indenter::default();
    respond::rewritten(response, media_type, move |json| indenter.push(json))
}

/// JSON text, indented by two spaces.
pub fn text(json: &str) -> String {
    String::from_utf8(Indenter::default().push(json.as_bytes())).unwrap_or_default()
}

/// Indents JSON that comes in pieces.
#[derive(Default)]
struct Indenter {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// An object or array has begun and nothing is in it yet.
    opened: bool,
}

impl Indenter {
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len() * 2);
        for &c in bytes {
            if self.in_string {
                out.push(c);
                self.in_string = self.escaped || c != b'"';
                self.escaped = !self.escaped && c == b'\\';
            } else if !c.is_ascii_whitespace() {
                self.structure(c, &mut out);
            }
        }
        out
    }

    fn structure(&mut self, c: u8, out: &mut Vec<u8>) {
        let ends = matches!(c, b'}' | b']');
        if ends {
            self.depth = self.depth.saturating_sub(1);
        }
        // Before the first thing inside, and before an end that has something before it.
        if self.opened != ends {
            self.line(out);
        }
        self.opened = matches!(c, b'{' | b'[');
        out.push(c);
        match c {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b',' => self.line(out),
            b':' => out.push(b' '),
            _ => {}
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.depth, b' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn json_is_indented_as_go_does() {
        let given = "{\"a\":[1,{\"b\":\"x{,:\\\\\\\"\"}],\"c\":{},\"d\":[]}\n";
        let expected =
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x{,:\\\\\\\"\"\n    }\n  ],\n  \"c\": {},\n  \"d\": []\n}";
        assert_eq!(text(given), expected);
        for cut in 0..given.len() {
            let mut pieces = Indenter::default();
            let mut out = pieces.push(&given.as_bytes()[..cut]);
            out.extend(pieces.push(&given.as_bytes()[cut..]));
            assert_eq!(out, expected.as_bytes(), "cut at {cut}");
        }
    }

    #[test]
    fn people_get_it_and_programs_do_not() {
        for (path, query, agent, expected) in [
            ("/api/v1/pods", "", "curl/8.0", true),
            ("/api/v1/pods", "", "kubectl/v1.35", false),
            ("/api/v1/pods", "pretty=true", "kubectl/v1.35", true),
            ("/api/v1/pods", "pretty=0", "curl/8.0", false),
            ("/api/v1/pods", "pretty=no", "curl/8.0", false),
            ("/api/v1/pods", "pretty=tRUE", "curl/8.0", false),
            ("/api/v1/pods", "watch=1", "curl/8.0", false),
            ("/apis", "", "Mozilla/5.0 (X11)", true),
            ("/api/v1/namespaces/a/pods/p/log", "", "curl/8.0", false),
            ("/openapi/v2", "", "curl/8.0", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            let registrations = Default::default();
            let served = crate::http::request::Served { kinds: api::kinds::built_in(), registrations: &registrations };
            let info = Info::resolve(&Method::GET, path, query, served);
            assert_eq!(wanted(&info, query, &headers), expected, "{path}?{query} {agent}");
        }
    }
}
