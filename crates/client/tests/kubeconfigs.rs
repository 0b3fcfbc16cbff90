//! Kubeconfig files that are nearly right: they are read or refused in a sentence that shows nothing of the credentials in them.

use std::path::Path;

use client::Kubeconfig;
use fuzz::Target;

const SECRET: &str = "s3cr3t-of-the-user";

#[test]
fn kubeconfig() {
    let good = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: k\n  cluster:\n    server: https://10.0.0.1:6443\n    \
         insecure-skip-tls-verify: true\ncontexts:\n- name: c\n  context: {{cluster: k, user: u, namespace: n}}\nusers:\n- name: u\n  \
         user: {{token: {SECRET}}}\npreferences: {{}}\n"
    );
    let json = format!(
        r#"{{"clusters":[{{"name":"k","cluster":{{"server":"http://h","tls-server-name":"x","proxy-url":"http://p"}}}}],"contexts":[{{"name":"c",
        "context":{{"cluster":"k","user":"u"}}}}],"users":[{{"name":"u","user":{{"username":"a","password":"{SECRET}","as":"b","exec":null}}}}],
        "current-context":"c"}}"#
    );
    let anchors = "a: &a [1, 2]\nclusters: *a\nusers: null\ncurrent-context: ''\n".to_owned();
    let words = [
        "clusters:",
        "users:",
        "contexts:",
        "current-context: c",
        "client-certificate-data: ",
        "client-key-data: ",
        "tokenFile: /etc/passwd",
        "exec: {command: sh}",
        "auth-provider: {}",
        "as: root",
        "as-groups: [a]",
        "certificate-authority-data: ",
        "&a ",
        "*a",
        "<<: *a",
        "!!binary ",
        "- ",
        "null",
        "server: ",
        "|\n ",
        SECRET,
    ];
    let found = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/found"));
    let seeds = [good, json, anchors].map(String::into_bytes).into();
    fuzz::run(&Target { name: "kubeconfig", seeds, words: &words, found }, |input| {
        let text = String::from_utf8_lossy(input);
        let read = match Kubeconfig::parse(&text) {
            Ok(read) => read,
            // The place in the file is shown by the parser, whoever reads that can read the file.
            Err(error) => return error.to_string(),
        };
        let _ = read.first_cluster();
        match read.current() {
            Ok(_) => "read".to_owned(),
            Err(error) => {
                let said = error.to_string();
                // The same word may also have become a name, which may be shown.
                let is_token_alone =
                    text.matches(SECRET).count() == 1 && text.contains(&format!("{{token: {SECRET}}}"));
                assert!(!(is_token_alone && said.contains(SECRET)), "{said}");
                said
            }
        }
    });
}
