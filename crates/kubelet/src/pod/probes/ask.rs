//! One question to a container, as probes and hooks put it: a command, a GET, a connection, or gRPC's own health check. The
//! answers that users read are in Go's words.

use std::{io, sync::Arc, time::Duration};

use api::rules::ip;
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use runtime::{
    Runtime,
    grpc_health::{self, Unhealthy},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Why a question was not answered well.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeError {
    /// The container says so, or does not answer.
    Failed(String),
    /// It could not even be asked.
    Errored(String),
}

/// The container that is asked, and the way to it.
pub struct Target<'a> {
    pub runtime: &'a dyn Runtime,
    pub container: &'a Container,
    pub id: &'a str,
    pub ip: &'a str,
}

/// Asks once; no answer within `limit` is a failure. An answer that is good enough may come with a warning.
pub async fn ask(probe: &Probe, target: &Target<'_>, limit: Duration) -> Result<Option<String>, ProbeError> {
    let (ip, container) = (target.ip, target.container);
    if let Some(exec) = &probe.exec {
        return command(exec.command.clone().unwrap_or_default(), target, limit).await.map(|()| None);
    }
    let seconds = limit.as_secs();
    let (asked, late) = if let Some(get) = &probe.http_get {
        let url = Url::of(get, container, ip, PROBE).map_err(ProbeError::Errored)?;
        let late = format!("Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)");
        (clock::timeout(limit, url.get(get)).await, late)
    } else if let Some(tcp) = &probe.tcp_socket {
        let port = port(&tcp.port, container).map_err(ProbeError::Errored)?;
        let host = tcp.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(ip);
        let late = format!("dial tcp {}: i/o timeout", ip::with_port(host, port));
        (clock::timeout(limit, async { dial(host, port).await.map(|_| None) }).await, late)
    } else if let Some(grpc) = &probe.grpc {
        let at = format!("{ip}:{}", grpc.port);
        let late = format!("timeout: failed to connect service \"{at}\" within {seconds}s: context deadline exceeded");
        let service = grpc.service.as_deref().unwrap_or_default();
        let health = async {
            match grpc_health::check(ip, grpc.port, service).await {
                Err(Unhealthy::Unreachable(_)) => Err(late.clone()),
                other => other.map(|()| None).map_err(|e| e.to_string()),
            }
        };
        (clock::timeout(limit, health).await, late)
    } else {
        return Ok(None);
    };
    asked.unwrap_or(Err(late)).map_err(ProbeError::Failed)
}

async fn command(command: Vec<String>, target: &Target<'_>, limit: Duration) -> Result<(), ProbeError> {
    let late = || {
        let shown = command.join(" ");
        ProbeError::Failed(format!("command timed out: \"{shown}\" timed out after {}s", limit.as_secs()))
    };
    // The engine ends the command in time; that it does not answer at all is another matter.
    let asked = target.runtime.exec_sync(target.id, command.clone(), limit);
    match clock::timeout(limit + Duration::from_secs(2), asked).await {
        Ok(Ok(answer)) if answer.exit_code == 0 => Ok(()),
        Ok(Ok(answer)) => {
            let text = [answer.stdout, answer.stderr].concat();
            Err(ProbeError::Failed(String::from_utf8_lossy(&text[..text.len().min(MOST)]).into_owned()))
        }
        Ok(Err(error)) if error.is_deadline() => Err(late()),
        Ok(Err(error)) => Err(ProbeError::Errored(error.to_string())),
        Err(_) => Err(late()),
    }
}

/// This many bytes of a command's output are kept.
const MOST: usize = 10 << 10;

/// A failed connection in Go's words.
fn words(error: &io::Error) -> String {
    use io::ErrorKind::*;
    let text = match error.kind() {
        ConnectionRefused => "connect: connection refused",
        HostUnreachable => "connect: no route to host",
        NetworkUnreachable => "connect: network is unreachable",
        TimedOut => "connect: connection timed out",
        _ => return error.to_string(),
    };
    text.to_owned()
}

async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let dialled = TcpStream::connect((host, port)).await;
    dialled.map_err(|e| format!("dial tcp {}: {}", ip::with_port(host, port), words(&e)))
}

/// A port by number or by the name that the container gives it.
fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let name = match port {
        IntOrString::Int(number) => {
            return u16::try_from(*number).map_err(|_| format!("invalid port number: {number}"));
        }
        IntOrString::String(name) => name,
    };
    let named = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
    let number = named.and_then(|p| u16::try_from(p.container_port).ok()).or_else(|| name.parse().ok());
    number.ok_or_else(|| format!("couldn't find port: \"{name}\""))
}

/// As who a GET is sent: these and the release are the User-Agent.
const PROBE: &str = "kube-probe";
const HOOK: &str = "kube-lifecycle";

/// Where a GET goes, and as who.
#[derive(Clone)]
struct Url {
    agent: &'static str,
    scheme: String,
    host: String,
    port: u16,
    path: String,
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, ip::with_port(&self.host, self.port), self.path)
    }
}

impl Url {
    fn of(get: &HTTPGetAction, container: &Container, ip: &str, agent: &'static str) -> Result<Url, String> {
        let path = get.path.as_deref().unwrap_or_default();
        Ok(Url {
            agent,
            scheme: get.scheme.as_deref().unwrap_or("HTTP").to_lowercase(),
            host: get.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(ip).to_owned(),
            port: port(&get.port, container)?,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        })
    }

    fn request(&self, get: &HTTPGetAction) -> String {
        let headers = get.http_headers.as_deref().unwrap_or_default();
        let given = |name: &str| headers.iter().any(|h| h.name.eq_ignore_ascii_case(name));
        let (major, minor) = api::release();
        let mut request = format!("GET {} HTTP/1.1\r\nConnection: close\r\n", self.path);
        for (name, value) in [
            ("Host", ip::with_port(&self.host, self.port)),
            ("User-Agent", format!("{}/{major}.{minor}", self.agent)),
            ("Accept", "*/*".into()),
        ] {
            if !given(name) {
                request.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        // An empty value of these two means that they are not sent at all.
        let sent = |h: &&k8s_openapi::api::core::v1::HTTPHeader| {
            !(h.value.is_empty() && ["accept", "user-agent"].contains(&h.name.to_lowercase().as_str()))
        };
        for header in headers.iter().filter(sent) {
            request.push_str(&format!("{}: {}\r\n", header.name, header.value));
        }
        request + "\r\n"
    }

    /// 200 to 399 is well. A redirect to another host is warned of.
    async fn get(self, get: &HTTPGetAction) -> Result<Option<String>, String> {
        let answer = self.follow(get).await.map_err(|failure| failure.why)?;
        match answer.code {
            200..300 => Ok(None),
            300..400 => Ok(Some(format!("Probe terminated redirects, Response body: {}", answer.body))),
            code => Err(format!("HTTP probe failed with statuscode: {code}")),
        }
    }

    /// A redirect on the same host is followed, as Go's client does it; one to another host is not. TLS is taken without
    /// looking at the certificate, as upstream does.
    async fn follow(mut self, get: &HTTPGetAction) -> Result<Reply, Failure> {
        const MOST_REDIRECTS: usize = 10;
        let mut asked = 0;
        loop {
            asked += 1;
            let answer = self.fetch(get).await?;
            let next = answer.location.as_ref().filter(|_| matches!(answer.code, 301 | 302 | 303 | 307 | 308));
            let next = match next {
                Some(location) => Some(
                    self.resolve(location)
                        .ok_or_else(|| format!("Get \"{self}\": failed to parse Location header \"{location}\""))
                        .map_err(Failure::from)?,
                ),
                None => None,
            };
            match next.filter(|next| next.host == self.host) {
                Some(next) if asked >= MOST_REDIRECTS => {
                    return Err(format!("Get \"{next}\": stopped after {MOST_REDIRECTS} redirects").into());
                }
                Some(next) => self = next,
                None => return Ok(answer),
            }
        }
    }

    /// Where a `Location` leads from here; `None` if it is no URL that a GET can follow.
    fn resolve(&self, location: &str) -> Option<Url> {
        let here = |path: String| Url { path, ..self.clone() };
        let location = location.split('#').next().unwrap_or_default();
        if location.chars().any(|c| c.is_ascii_whitespace() || c.is_control()) {
            return None;
        }
        let own = self.path.split('?').next().unwrap_or_default();
        if location.starts_with('/') && !location.starts_with("//") {
            return Some(here(location.to_owned()));
        }
        if location.is_empty() || location.starts_with('?') {
            return Some(here(format!("{own}{location}")));
        }
        let whole = match location.strip_prefix("//") {
            Some(rest) => format!("{}://{rest}", self.scheme),
            None if location.contains("://") => location.to_owned(),
            None => return Some(here(format!("{}/{location}", own.rsplit_once('/')?.0))),
        };
        let uri: http::Uri = whole.parse().ok()?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme))?.to_owned();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        let host = uri.host()?.trim_matches(['[', ']']).to_owned();
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Some(Url { agent: self.agent, scheme, host, port, path })
    }

    async fn fetch(&self, get: &HTTPGetAction) -> Result<Reply, Failure> {
        let failed = |why: String| format!("Get \"{self}\": {why}");
        let stream = dial(&self.host, self.port).await.map_err(failed)?;
        let request = self.request(get);
        let read = |e: io::Error| failed(e.to_string());
        let text = if self.scheme == "https" {
            let config = pki::client_config_believing_all(None, &[]).map_err(|e| e.to_string())?;
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            let name = rustls_pki_types::ServerName::try_from(self.host.clone()).map_err(|e| e.to_string())?;
            let io = connector.connect(name, stream).await.map_err(|error| Failure {
                speaks_no_tls: error.kind() == io::ErrorKind::InvalidData,
                ..read(error).into()
            })?;
            exchange(io, &request).await.map_err(read)?
        } else {
            exchange(stream, &request).await.map_err(read)?
        };
        let broken = || match text.lines().next() {
            None => failed("EOF".to_owned()),
            Some(line) => {
                failed(format!("net/http: HTTP/1.x transport connection broken: malformed HTTP response \"{line}\""))
            }
        };
        Ok(Reply::parse(&text).ok_or_else(broken)?)
    }
}

/// Why there is no answer.
struct Failure {
    why: String,
    /// TLS was asked for, and the server speaks something else.
    speaks_no_tls: bool,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Failure { why, speaks_no_tls: false }
    }
}

/// The part of an answer that counts.
struct Reply {
    code: u16,
    location: Option<String>,
    /// Its beginning, as far as it came.
    body: String,
}

impl Reply {
    fn parse(text: &str) -> Option<Reply> {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let code = head.lines().next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let location = headers.filter(|(name, _)| name.eq_ignore_ascii_case("location")).map(|(_, v)| v.trim()).next();
        Some(Reply { code, location: location.map(str::to_owned), body: body.to_owned() })
    }
}

/// One GET without a time limit, for hooks. Any answer is well, as with upstream. A server that speaks no TLS although it should
/// is asked without it; then the result is the host that did so.
pub async fn http_get(get: &HTTPGetAction, container: &Container, ip: &str) -> Result<Option<String>, String> {
    let url = Url::of(get, container, ip, HOOK)?;
    let failure = match url.clone().follow(get).await {
        Ok(_) => return Ok(None),
        Err(failure) => failure,
    };
    if !failure.speaks_no_tls {
        return Err(failure.why);
    }
    // Nobody on the way is to read the credentials.
    let is_secret = |name: &str| name.eq_ignore_ascii_case("Authorization");
    let headers = get.http_headers.iter().flatten().filter(|header| !is_secret(&header.name)).cloned().collect();
    let bare = HTTPGetAction { http_headers: Some(headers), ..get.clone() };
    match (Url { scheme: "http".to_owned(), ..url.clone() }).follow(&bare).await {
        Ok(_) => Ok(Some(ip::with_port(&url.host, url.port))),
        Err(_) => Err(failure.why),
    }
}

/// Sends a request and reads the answer's beginning: its head and, of a redirect, as much of the body as a warning shows.
async fn exchange(mut io: impl AsyncReadExt + AsyncWriteExt + Unpin, request: &str) -> std::io::Result<String> {
    const HEAD: usize = 64 << 10;
    io.write_all(request.as_bytes()).await?;
    let mut got = Vec::new();
    let mut buffer = [0u8; 2048];
    let end = |got: &[u8]| got.windows(4).position(|four| four == b"\r\n\r\n");
    loop {
        let is_enough = match end(&got) {
            // Only the head of a good or a bad answer counts.
            Some(head) => {
                !got[..head].split(|b| *b == b' ').nth(1).is_some_and(|code| code.starts_with(b"3"))
                    || got.len() - head > MOST
            }
            None => got.len() >= HEAD,
        };
        if is_enough {
            break;
        }
        match io.read(&mut buffer).await {
            Ok(0) => break,
            Ok(read) => got.extend_from_slice(&buffer[..read]),
            // A server that ends its connection rudely after its answer has answered.
            Err(_) if end(&got).is_some() => break,
            Err(error) => return Err(error),
        }
    }
    got.truncate(end(&got).map_or(HEAD, |head| head + 4 + MOST));
    Ok(String::from_utf8_lossy(&got).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;
    use k8s_cri::v1::ExecSyncResponse;
    use runtime::fake::Fake;
    use tokio::net::TcpListener;

    fn container() -> Container {
        json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]})).unwrap()
    }

    async fn answer(probe: json::Value) -> Result<Option<String>, ProbeError> {
        let (runtime, container) = (Fake::default(), container());
        let target = Target { runtime: &runtime, container: &container, id: "x", ip: "127.0.0.1" };
        ask(&json::from_value(probe).unwrap(), &target, Duration::from_secs(1)).await
    }

    fn failed(text: impl Into<String>) -> Result<Option<String>, ProbeError> {
        Err(ProbeError::Failed(text.into()))
    }

    /// A server that says one thing to the first client; its port, and what the client said.
    async fn server(says: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            stream.write_all(says.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&buffer[..read]).into_owned()
        });
        (port, task)
    }

    #[tokio::test]
    async fn a_get_is_answered_by_its_code() {
        for (says, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Ok(None)),
            ("HTTP/1.1 304 x\r\n\r\nold", Ok(Some("Probe terminated redirects, Response body: old".to_owned()))),
            ("HTTP/1.1 404 Not Found\r\n\r\n", failed("HTTP probe failed with statuscode: 404")),
            ("HTTP/1.1 503 x\r\n\r\n", failed("HTTP probe failed with statuscode: 503")),
        ] {
            let (port, said) = server(says).await;
            let headers = json!([{"name": "X-A", "value": "b"}, {"name": "user-agent", "value": ""}]);
            assert_eq!(
                answer(json!({"httpGet": {"port": port, "path": "healthz", "httpHeaders": headers}})).await,
                expected
            );
            let said = said.await.unwrap();
            let expected = format!(
                "GET /healthz HTTP/1.1\r\nConnection: close\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\nX-A: b\r\n\r\n"
            );
            assert_eq!(said, expected);
        }
    }

    /// A server that answers each path with its own text; the requests are counted.
    async fn pages(pages: &'static [(&'static str, &'static str)]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = vec![0; 4096];
                let read = stream.read(&mut buffer).await.unwrap();
                let said = String::from_utf8_lossy(&buffer[..read]).into_owned();
                let path = said.split(' ').nth(1).unwrap();
                let page = pages.iter().find(|(known, _)| *known == path).map_or("HTTP/1.1 404 x\r\n\r\n", |(_, p)| p);
                stream.write_all(page.as_bytes()).await.unwrap();
            }
        });
        port
    }

    #[tokio::test]
    async fn a_redirect_is_followed_on_its_own_host_alone() {
        let port = pages(&[
            ("/good", "HTTP/1.1 302 Found\r\nLocation: /fine?a=b#c\r\n\r\n"),
            ("/fine?a=b", "HTTP/1.1 200 OK\r\n\r\n"),
            ("/bad", "HTTP/1.1 301 x\r\nlocation:  gone\r\n\r\n"),
            ("/round", "HTTP/1.1 307 x\r\nLocation: ?\r\n\r\n"),
            ("/round?", "HTTP/1.1 307 x\r\nLocation: ?\r\n\r\n"),
            ("/away", "HTTP/1.1 302 x\r\nLocation: http://elsewhere.example/\r\n\r\nover there"),
            ("/nowhere", "HTTP/1.1 302 x\r\n\r\n"),
        ])
        .await;
        let get = async |path: &str| answer(json!({"httpGet": {"port": port, "path": path}})).await;
        assert_eq!(get("/good").await, Ok(None));
        assert_eq!(get("/bad").await, failed("HTTP probe failed with statuscode: 404"));
        let round = format!("Get \"http://127.0.0.1:{port}/round?\": stopped after 10 redirects");
        assert_eq!(get("/round").await, failed(round));
        let warned = |body: &str| Ok(Some(format!("Probe terminated redirects, Response body: {body}")));
        assert_eq!(get("/away").await, warned("over there"));
        assert_eq!(get("/nowhere").await, warned(""));
    }

    #[tokio::test]
    async fn a_hook_takes_any_answer_and_does_without_tls_where_there_is_none() {
        let get = |port: u16, scheme: &str| -> HTTPGetAction {
            let headers = json!([{"name": "authorization", "value": "s3cret"}, {"name": "X-A", "value": "b"}]);
            json::from_value(json!({"port": port, "scheme": scheme, "httpHeaders": headers})).unwrap()
        };
        let (port, said) = server("HTTP/1.1 500 x\r\n\r\n").await;
        assert_eq!(http_get(&get(port, "HTTP"), &container(), "127.0.0.1").await, Ok(None));
        let said = said.await.unwrap();
        let (major, minor) = api::release();
        assert!(said.contains(&format!("\r\nUser-Agent: kube-lifecycle/{major}.{minor}\r\n")), "{said}");
        assert!(said.contains("s3cret"), "{said}");
        // A server that answers TLS as servers without TLS do.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let said = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 4096];
                let read = stream.read(&mut buffer).await.unwrap();
                stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTPS request").await.unwrap();
                if buffer.starts_with(b"GET") {
                    return String::from_utf8_lossy(&buffer[..read]).into_owned();
                }
            }
        });
        let fell_back = http_get(&get(port, "HTTPS"), &container(), "127.0.0.1").await;
        assert_eq!(fell_back, Ok(Some(format!("127.0.0.1:{port}"))));
        let said = said.await.unwrap();
        assert!(said.contains("X-A: b") && !said.contains("s3cret"), "{said}");
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        for scheme in ["HTTP", "HTTPS"] {
            let refused = http_get(&get(free, scheme), &container(), "127.0.0.1").await.unwrap_err();
            assert!(refused.ends_with("connect: connection refused"), "{refused}");
        }
    }

    #[tokio::test]
    async fn who_does_not_answer_is_called_by_gos_words() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let refused = format!("dial tcp 127.0.0.1:{free}: connect: connection refused");
        assert_eq!(answer(json!({"tcpSocket": {"port": free}})).await, failed(&refused));
        let get = format!("Get \"http://127.0.0.1:{free}/\": {refused}");
        assert_eq!(answer(json!({"httpGet": {"port": free}})).await, failed(get));
        let (port, _said) = server("").await;
        let end = format!("Get \"http://127.0.0.1:{port}/\": EOF");
        assert_eq!(answer(json!({"httpGet": {"port": port}})).await, failed(end));
        let nobody = Err(ProbeError::Errored("couldn't find port: \"db\"".to_owned()));
        assert_eq!(answer(json!({"tcpSocket": {"port": "db"}})).await, nobody);
        let (port, _said) = server("").await;
        assert_eq!(answer(json!({"tcpSocket": {"port": port}})).await, Ok(None));
        let connect =
            format!("timeout: failed to connect service \"127.0.0.1:{free}\" within 1s: context deadline exceeded");
        assert_eq!(answer(json!({"grpc": {"port": free}})).await, failed(connect));
    }

    #[tokio::test]
    async fn a_command_is_answered_by_its_exit_code() {
        let (runtime, container) = (Fake::default(), container());
        let target = Target { runtime: &runtime, container: &container, id: "x", ip: "" };
        let probe: Probe = json::from_value(json!({"exec": {"command": ["test", "-f"]}})).unwrap();
        let limit = Duration::from_secs(1);
        assert_eq!(ask(&probe, &target, limit).await, Ok(None));
        let answer = ExecSyncResponse { exit_code: 1, stdout: b"no ".to_vec(), stderr: b"file".to_vec() };
        runtime.answer_exec(answer);
        assert_eq!(ask(&probe, &target, limit).await, failed("no file"));
        runtime.fail("exec x test -f", "gone");
        assert_eq!(ask(&probe, &target, limit).await, Err(ProbeError::Errored("gone".to_owned())));
    }

    #[test]
    fn ports_go_by_number_or_by_name() {
        for (asked, expected) in [
            (IntOrString::Int(80), Ok(80)),
            (IntOrString::String("web".into()), Ok(8080)),
            (IntOrString::String("81".into()), Ok(81)),
            (IntOrString::Int(70_000), Err("invalid port number: 70000".to_owned())),
            (IntOrString::String("db".into()), Err("couldn't find port: \"db\"".to_owned())),
        ] {
            assert_eq!(port(&asked, &container()), expected);
        }
    }
}
