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

/// Asks once; no answer within `limit` is a failure.
pub async fn ask(probe: &Probe, target: &Target<'_>, limit: Duration) -> Result<(), ProbeError> {
    let (ip, container) = (target.ip, target.container);
    if let Some(exec) = &probe.exec {
        return command(exec.command.clone().unwrap_or_default(), target, limit).await;
    }
    let seconds = limit.as_secs();
    let (asked, late) = if let Some(get) = &probe.http_get {
        let url = Url::of(get, container, ip).map_err(ProbeError::Errored)?;
        let late = format!("Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)");
        (clock::timeout(limit, url.get(get)).await, late)
    } else if let Some(tcp) = &probe.tcp_socket {
        let port = port(&tcp.port, container).map_err(ProbeError::Errored)?;
        let host = tcp.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(ip);
        let late = format!("dial tcp {}: i/o timeout", ip::with_port(host, port));
        (clock::timeout(limit, async { dial(host, port).await.map(drop) }).await, late)
    } else if let Some(grpc) = &probe.grpc {
        let at = format!("{ip}:{}", grpc.port);
        let late = format!("timeout: failed to connect service \"{at}\" within {seconds}s: context deadline exceeded");
        let service = grpc.service.as_deref().unwrap_or_default();
        let health = async {
            match grpc_health::check(ip, grpc.port, service).await {
                Err(Unhealthy::Unreachable(_)) => Err(late.clone()),
                other => other.map_err(|e| e.to_string()),
            }
        };
        (clock::timeout(limit, health).await, late)
    } else {
        return Ok(());
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

/// Where a GET goes.
struct Url {
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
    fn of(get: &HTTPGetAction, container: &Container, ip: &str) -> Result<Url, String> {
        let path = get.path.as_deref().unwrap_or_default();
        Ok(Url {
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
            ("User-Agent", format!("kube-probe/{major}.{minor}")),
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

    /// 200 to 399 is well. TLS is taken without looking at the certificate, as upstream does.
    async fn get(&self, get: &HTTPGetAction) -> Result<(), String> {
        let failed = |why: String| format!("Get \"{self}\": {why}");
        let stream = dial(&self.host, self.port).await.map_err(failed)?;
        let request = self.request(get);
        let read = |e: io::Error| failed(e.to_string());
        let head = if self.scheme == "https" {
            let config = pki::client_config_believing_all(None, &[]).map_err(|e| e.to_string())?;
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            let name = rustls_pki_types::ServerName::try_from(self.host.clone()).map_err(|e| e.to_string())?;
            first_line(connector.connect(name, stream).await.map_err(read)?, &request).await.map_err(read)?
        } else {
            first_line(stream, &request).await.map_err(read)?
        };
        match head.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()) {
            Some(200..=399) => Ok(()),
            Some(code) => Err(format!("HTTP probe failed with statuscode: {code}")),
            None if head.is_empty() => Err(failed("EOF".to_owned())),
            None => Err(failed(format!(
                "net/http: HTTP/1.x transport connection broken: malformed HTTP response \"{head}\""
            ))),
        }
    }
}

/// One GET without a time limit, for hooks.
pub async fn http_get(get: &HTTPGetAction, container: &Container, ip: &str) -> Result<(), String> {
    Url::of(get, container, ip)?.get(get).await
}

async fn first_line(mut io: impl AsyncReadExt + AsyncWriteExt + Unpin, request: &str) -> std::io::Result<String> {
    io.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    let mut buffer = [0u8; 512];
    while !head.contains(&b'\n') && head.len() < 4096 {
        match io.read(&mut buffer).await? {
            0 => break,
            read => head.extend_from_slice(&buffer[..read]),
        }
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
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

    async fn answer(probe: json::Value) -> Result<(), ProbeError> {
        let (runtime, container) = (Fake::default(), container());
        let target = Target { runtime: &runtime, container: &container, id: "x", ip: "127.0.0.1" };
        ask(&json::from_value(probe).unwrap(), &target, Duration::from_secs(1)).await
    }

    fn failed(text: impl Into<String>) -> Result<(), ProbeError> {
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
            ("HTTP/1.1 200 OK\r\n\r\n", Ok(())),
            ("HTTP/1.1 302 Found\r\n\r\n", Ok(())),
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
        assert_eq!(answer(json!({"tcpSocket": {"port": port}})).await, Ok(()));
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
        assert_eq!(ask(&probe, &target, limit).await, Ok(()));
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
