//! URLs, read as Go's net/url reads them.

use super::check;

#[test]
fn parts_of_urls() {
    check("url('https://user:p@Example.com:8080/a%20b?x=1&x=2&y=%26#part').getScheme()", "\"https\"");
    check("url('https://user:p@Example.com:8080/a').getHost()", "\"Example.com:8080\"");
    check("url('https://example.com:8080/a').getHostname()", "\"example.com\"");
    check("url('https://[::1]:80/').getHostname()", "\"::1\"");
    check("url('https://[::1]:80/').getPort()", "\"80\"");
    check("url('https://example.com/').getPort()", "\"\"");
    check("url('https://example.com/path with spaces/').getEscapedPath()", "\"/path%20with%20spaces/\"");
    check("url('https://example.com/a%20b').getEscapedPath()", "\"/a%20b\"");
    check("url('/absolute?k1=a&k2=b&k1=c%26').getQuery()", "{\"k1\": [\"a\", \"c&\"], \"k2\": [\"b\"]}");
    check("url('https://example.com:80/') == url('https://example.com:80/')", "true");
    check("isURL('https://a:80/') && isURL('/absolute/path') && isURL('mailto:a@b')", "true");
    check(
        "isURL('../relative') || isURL('https://a:8x/') || isURL(':80') || isURL('https://a b/') || isURL('')",
        "false",
    );
    let wrong = "error: URL parse error during conversion from string: parse \"../a\": invalid URI for request";
    check("url('../a')", wrong);
}

#[test]
fn urls_are_those_of_go() {
    let is_url = |text: &str, expected: bool| check(&format!("isURL(r\"{text}\")"), &expected.to_string());
    for right in [
        "*",
        "//h/p",
        "/p?%zz",
        "http://a/%20 b",
        "http://%C3%A9/",
        "http://u%20:p@h/",
        "mailto:%zz",
        "http://[::1]:80",
    ] {
        is_url(right, true);
    }
    for wrong in [
        "http://#%blah$#@",
        "http://a:80#x",
        "/p#%zz",
        "http://a%zz/",
        "http://a%20b/",
        "http://a%41/",
        "http://us er@h/",
        "http://u%zz@h/",
        "http://[::1",
        "http://[a]/",
        "http://[1.2.3.4]/",
        "http://a[::1]/",
        "http://[::1%25]/",
        "http://[fe80::1%25a%41b%0a]/",
        "#x",
    ] {
        is_url(wrong, false);
    }
}

#[test]
fn hosts_and_paths_are_those_of_go() {
    check("url('//h/p').getHost()", "\"h\"");
    check("url('//h/p').getEscapedPath()", "\"/p\"");
    check("url('///h/p').getEscapedPath()", "\"///h/p\"");
    check("url('*').getEscapedPath()", "\"*\"");
    check("url('mailto:a@b').getEscapedPath()", "\"\"");
    check("url('http://[fe80::1%25en0]:8/').getHost()", "\"[fe80::1%en0]:8\"");
    check("url('http://[fe80::1%25en0]:8/').getHostname()", "\"fe80::1%en0\"");
    check("url('http://[fe80::1%25en0]:8/').getPort()", "\"8\"");
    check("url('http://%C3%A9/').getHost()", "\"é\"");
    check("url('http://a/b#c?d').getQuery().size()", "0");
    check("url('http://a/b c\\'%41').getEscapedPath()", "\"/b%20c%27A\"");
    check("url('http://a/b%41').getEscapedPath()", "\"/b%41\"");
    check("url('http://%41@a/') == url('http://A@a/')", "true");
    check("url('http://a/?') == url('http://a/')", "false");
    check("url('http://a/#') == url('http://a/')", "true");
    // The first reading takes this for a path and the second for a host.
    check("isURL('//[/p')", "true");
    let failed = "error: URL parse error during conversion from string: parse";
    check("url('//[/p')", &format!("{failed} \"//[/p\": missing ']' in host"));
    check("url('http://a%41/')", &format!("{failed} \"http://a%41/\": invalid URL escape \"%41\""));
    check("url('http://u ser@h/')", &format!("{failed} \"http://u ser@h/\": net/url: invalid userinfo"));
    check("url('http://a b/')", &format!("{failed} \"http://a b/\": invalid character \" \" in host name"));
}
