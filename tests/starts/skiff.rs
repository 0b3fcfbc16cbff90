//! The binary: a command that is refused, and a server that runs until the test ends.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Long enough for a start on a slow machine; reached only when something is broken.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skiff"));
    // A configuration file of this machine is none of the test's.
    command.args(args).env("SKIFF_CONFIG", "/dev/null").env_remove("SKIFF_TOKEN").stdin(Stdio::null());
    command
}

/// The command fails with one line that contains all of the words; returns what it said.
#[track_caller]
pub fn refused(args: &[&str], words: &[&str]) -> String {
    let output = command(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} should have failed: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: {word:?} is not in {said:?}");
    }
    for debug in ["Error {", "Error(", "Os {", "kind: ", "Some(", "panicked", "source: "] {
        assert!(!said.contains(debug), "{args:?} speaks Rust: {said}");
    }
    said
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A control plane without scheduler and DNS.
pub struct Server {
    process: Child,
    log: PathBuf,
    pub port: u16,
}

impl Server {
    /// Starts one on the data folder and waits until it answers. `log` must not be on a disk that is full.
    pub fn start(data: &Path, log: &Path) -> Server {
        Self::start_with(data, log, &[])
    }

    /// The same with more flags; scheduler and DNS are left out where no other part is.
    pub fn start_with(data: &Path, log: &Path, more: &[&str]) -> Server {
        Self::start_at(free_port(), data, log, more)
    }

    /// The same at a port that an earlier one had.
    pub fn start_at(port: u16, data: &Path, log: &Path, more: &[&str]) -> Server {
        let (data, number) = (text(data), port.to_string());
        let mut server = command(&["server", "--bind-address=127.0.0.1", "--advertise-address=10.255.0.1"]);
        server
            .args(["--data-dir", &data, "--secure-port", &number])
            .args((!more.iter().any(|flag| flag.starts_with("--disable"))).then_some("--disable=scheduler,dns"))
            .args(more);
        Self::run(server, log, port)
    }

    /// Runs the command, and waits until the server of it answers.
    pub fn run(mut server: Command, log: &Path, port: u16) -> Server {
        let process = server.stdout(Stdio::null()).stderr(fs::File::create(log).unwrap()).spawn().unwrap();
        let mut server = Server { process, log: log.to_owned(), port };
        let deadline = Instant::now() + PATIENCE;
        while !server.log().contains("the API server answers") {
            let ended = server.process.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "no server ({ended:?}):\n{}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it in order.
    pub fn stop(mut self) {
        let ended = Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        assert!(ended.success());
        self.process.wait().unwrap();
    }

    /// Sends one request as the administrator of the data folder, over HTTP/1.1; gives status and body.
    pub fn ask(&self, data: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
        self.ask_as(Some(pki::Subject::client("admin", Some("system:masters"))), data, (method, path), body)
    }

    /// The answer to this user, or to a client that shows no certificate.
    pub fn ask_as(
        &self,
        user: Option<pki::Subject>,
        data: &Path,
        (method, path): (&str, &str),
        body: &str,
    ) -> (u16, String) {
        let read = |name: &str| fs::read_to_string(data.join("pki").join(name)).unwrap();
        let authority = pki::Authority::load(&read("ca.crt"), &read("ca.key")).unwrap();
        let shown = user.map(|user| authority.issue(&user).unwrap());
        let config = pki::client_config(authority.certificate(), shown.as_ref(), &["http/1.1"]).unwrap();
        let name = rustls_pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let mut tls = tokio_rustls::rustls::ClientConnection::new(config.into(), name).unwrap();
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut stream = tokio_rustls::rustls::Stream::new(&mut tls, &mut socket);
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A server that ends the connection without a farewell has said all the same.
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(answer.len());
        let (head, body) = (String::from_utf8_lossy(&answer[..end]), answer.get(end + 4..).unwrap_or_default());
        let code = head.split(' ').nth(1).and_then(|c| c.parse().ok()).unwrap_or_else(|| panic!("{head:?}"));
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked { whole(body) } else { body.to_owned() };
        (code, String::from_utf8_lossy(&body).into_owned())
    }
}

/// A body that came in chunks, each behind a line with its length.
fn whole(mut chunked: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = chunked.windows(2).position(|two| two == b"\r\n")
        && let Ok(length @ 1..) = usize::from_str_radix(&String::from_utf8_lossy(&chunked[..end]), 16)
        && chunked.len() >= end + length + 4
    {
        body.extend_from_slice(&chunked[end + 2..][..length]);
        chunked = &chunked[end + length + 4..];
    }
    body
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
