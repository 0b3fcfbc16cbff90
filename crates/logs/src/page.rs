//! `/debug/flags/v`: the verbosity, set while the process runs. Whether somebody may is for the server to say that asks here.
//! Upstream counterpart: k8s.io/apiserver/pkg/server/routes/flags.go, `GlogSetter` of k8s.io/component-base/logs.

/// No verbosity is longer than this body.
pub const LONGEST: usize = 64;

/// A page below `/debug/flags`: its code and its text, which is HTML for the list of flags.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub code: u16,
    pub text: String,
    pub is_html: bool,
}

/// The answer to a request, where `rest` follows `/debug/flags` in its path.
pub fn answer(method: &str, rest: &str, body: &[u8]) -> Page {
    let plain = |code: u16, text: &str| Page { code, text: format!("{text}\n"), is_html: false };
    match (rest, method) {
        ("/v", "PUT") => match level(body) {
            Ok(level) => {
                crate::set_verbosity(level);
                plain(200, &format!("successfully set klog.logging.verbosity to {level}"))
            }
            Err(why) => plain(400, &why),
        },
        ("/v", _) => plain(406, "unsupported http method"),
        _ => Page { code: 200, text: INDEX.to_owned(), is_html: true },
    }
}

/// Errors are in the words of Go's parser.
fn level(body: &[u8]) -> Result<u32, String> {
    let given = String::from_utf8_lossy(&body[..body.len().min(LONGEST)]);
    let wrong = |why: &str| Err(format!("strconv.ParseUint: parsing \"{}\": {why}", given.escape_default()));
    if body.is_empty() || body.len() > LONGEST || !body.iter().all(u8::is_ascii_digit) {
        return wrong("invalid syntax");
    }
    match given.parse::<u32>() {
        Ok(level) => Ok(level),
        Err(_) => wrong("value out of range"),
    }
}

const INDEX: &str = "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\nflags:<br>\n<table>\n\n\
                     <tr>v<br>\n\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verbosity_is_put_and_nothing_else_is_done() {
        let said = |method: &str, body: &[u8]| {
            let page = answer(method, "/v", body);
            format!("{} {}", page.code, page.text.trim_end())
        };
        assert_eq!(said("PUT", b"5"), "200 successfully set klog.logging.verbosity to 5");
        assert_eq!(crate::verbosity(), 5);
        assert_eq!(said("GET", b"7"), "406 unsupported http method");
        assert_eq!(said("POST", b"7"), "406 unsupported http method");
        for (wrong, why) in [
            (&b""[..], "400 strconv.ParseUint: parsing \"\": invalid syntax"),
            (b"-1", "400 strconv.ParseUint: parsing \"-1\": invalid syntax"),
            (b"4\n", "400 strconv.ParseUint: parsing \"4\\n\": invalid syntax"),
            (b"4294967296", "400 strconv.ParseUint: parsing \"4294967296\": value out of range"),
        ] {
            assert_eq!(said("PUT", wrong), why);
        }
        assert!(answer("PUT", "/v", &[b'1'; 100_000]).text.len() < 200);
        assert_eq!(crate::verbosity(), 5, "what is refused changes nothing");
        assert!(answer("GET", "", b"").is_html);
    }
}
