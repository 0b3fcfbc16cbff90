//! Probes: one task per container asks on schedule and tells the worker when the answer changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::EventKind;
use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::{io::AsyncReadExt, io::AsyncWriteExt, net::TcpStream, sync::mpsc, task::JoinHandle};

use crate::{node::Node, running::Ran, wanted::Wanted};

/// What a probe has found out about a container.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    Started(String),
    Ready(String, bool),
    /// To be killed; the text of the event.
    Condemned(String, String),
}

/// The running probes of one Pod by container id. Dropping it ends them.
#[derive(Default)]
pub struct Probes(BTreeMap<String, JoinHandle<()>>);

impl Drop for Probes {
    fn drop(&mut self) {
        self.0.values().for_each(JoinHandle::abort);
    }
}

impl Probes {
    /// Starts what is missing and ends what belongs to containers that are gone.
    pub fn follow(
        &mut self,
        node: &Arc<Node>,
        wanted: &Wanted,
        ips: &[String],
        alive: &[Ran],
        news: &mpsc::Sender<News>,
    ) {
        self.0.retain(|id, task| {
            let keep = alive.iter().any(|r| r.id == *id);
            if !keep {
                task.abort();
            }
            keep
        });
        for ran in alive {
            let Some(container) = wanted.container(&ran.name) else { continue };
            if self.0.contains_key(&ran.id) {
                continue;
            }
            let ip = if wanted.host_network() {
                node.config.node_ip.to_string()
            } else {
                ips.first().cloned().unwrap_or_default()
            };
            let prober = Prober {
                node: node.clone(),
                wanted: wanted.clone(),
                container: container.clone(),
                id: ran.id.clone(),
                ip,
                news: news.clone(),
            };
            self.0.insert(ran.id.clone(), tokio::spawn(prober.run()));
        }
    }
}

struct Prober {
    node: Arc<Node>,
    wanted: Wanted,
    container: Container,
    id: String,
    ip: String,
    news: mpsc::Sender<News>,
}

/// A count of equal answers in a row, and what is taken for true.
struct Series {
    good: i32,
    bad: i32,
}

impl Prober {
    async fn run(self) {
        if let Some(probe) = self.container.startup_probe.clone()
            && !self.watch(&probe, "Startup").await
        {
            return;
        }
        self.tell(News::Started(self.id.clone())).await;
        let liveness = async {
            if let Some(probe) = &self.container.liveness_probe {
                self.watch(probe, "Liveness").await;
            }
        };
        let readiness = async {
            match &self.container.readiness_probe {
                Some(probe) => {
                    self.watch(probe, "Readiness").await;
                }
                None => self.tell(News::Ready(self.id.clone(), true)).await,
            }
        };
        tokio::join!(liveness, readiness);
    }

    async fn tell(&self, news: News) {
        // The worker is gone with its Pod.
        let _ = self.news.send(news).await;
    }

    /// Asks again and again. A startup probe ends with success; it and a liveness probe end with the container's doom.
    async fn watch(&self, probe: &Probe, kind: &str) -> bool {
        let seconds =
            |v: Option<i32>, default: i32| Duration::from_secs(v.unwrap_or(default).max(0).unsigned_abs().into());
        clock::sleep(seconds(probe.initial_delay_seconds, 0)).await;
        let (enough, too_many) = (probe.success_threshold.unwrap_or(1), probe.failure_threshold.unwrap_or(3));
        let mut series = Series { good: 0, bad: 0 };
        loop {
            let limit = seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1));
            match self.ask(probe, limit).await {
                Ok(()) => {
                    series = Series { good: series.good + 1, bad: 0 };
                    if series.good == enough {
                        match kind {
                            "Startup" => return true,
                            "Readiness" => self.tell(News::Ready(self.id.clone(), true)).await,
                            _ => {}
                        }
                    }
                }
                Err(output) => {
                    series = Series { good: 0, bad: series.bad + 1 };
                    let text = format!("{kind} probe failed: {output}");
                    self.node.pod_event(
                        &self.wanted,
                        Some(&self.container.name),
                        EventKind::Warning,
                        "Unhealthy",
                        &text,
                    );
                    if series.bad == too_many {
                        if kind == "Readiness" {
                            self.tell(News::Ready(self.id.clone(), false)).await;
                        } else {
                            let kind = kind.to_lowercase();
                            let text =
                                format!("Container {} failed {kind} probe, will be restarted", self.container.name);
                            self.tell(News::Condemned(self.id.clone(), text)).await;
                            return false;
                        }
                    }
                }
            }
            clock::sleep(seconds(probe.period_seconds, 10).max(Duration::from_secs(1))).await;
        }
    }

    async fn ask(&self, probe: &Probe, limit: Duration) -> Result<(), String> {
        let asked = async {
            if let Some(exec) = &probe.exec {
                let command = exec.command.clone().unwrap_or_default();
                let answer = self.node.config.runtime.exec_sync(&self.id, command, limit).await;
                let answer = answer.map_err(|e| e.to_string())?;
                let text = String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
                return if answer.exit_code == 0 { Ok(()) } else { Err(text) };
            }
            if let Some(get) = &probe.http_get {
                return http_get(get, &self.container, &self.ip).await;
            }
            if let Some(tcp) = &probe.tcp_socket {
                let (host, port) = (tcp.host.as_deref().unwrap_or(&self.ip), port(&tcp.port, &self.container)?);
                return TcpStream::connect((host, port))
                    .await
                    .map(drop)
                    .map_err(|e| format!("dial tcp {host}:{port}: {e}"));
            }
            if let Some(grpc) = &probe.grpc {
                return health(&self.ip, grpc.port, grpc.service.as_deref().unwrap_or_default()).await;
            }
            Ok(())
        };
        match clock::timeout(limit + Duration::from_millis(200), asked).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("command timed out: context deadline exceeded after {}s", limit.as_secs())),
        }
    }
}

/// A port by number or by the name that the container gives it.
pub fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => name.parse().ok().or_else(|| {
            let ports = container.ports.iter().flatten();
            ports.filter(|p| p.name.as_ref() == Some(name)).map(|p| p.container_port).next()
        }),
    };
    number.and_then(|n| u16::try_from(n).ok()).ok_or_else(|| "couldn't find port".to_owned())
}

/// One GET; 200 to 399 is well. TLS is taken without looking at the certificate, as upstream does.
pub async fn http_get(get: &HTTPGetAction, container: &Container, ip: &str) -> Result<(), String> {
    let (host, port) = (get.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(ip), port(&get.port, container)?);
    let path = get.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mut request =
        format!("GET {path} HTTP/1.1\r\nConnection: close\r\nUser-Agent: kube-probe/1.35\r\nAccept: */*\r\n");
    let headers = get.http_headers.as_deref().unwrap_or_default();
    if !headers.iter().any(|h| h.name.eq_ignore_ascii_case("host")) {
        request.push_str(&format!("Host: {host}:{port}\r\n"));
    }
    for header in headers {
        request.push_str(&format!("{}: {}\r\n", header.name, header.value));
    }
    request.push_str("\r\n");
    let url = format!("{}://{host}:{port}{path}", get.scheme.as_deref().unwrap_or("HTTP").to_lowercase());
    let words = |e: std::io::Error| format!("Get \"{url}\": {e}");
    let stream = TcpStream::connect((host, port)).await.map_err(words)?;
    let head = if get.scheme.as_deref() == Some("HTTPS") {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(crate::trust::anyone()));
        let name = rustls_pki_types::ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
        first_line(connector.connect(name, stream).await.map_err(words)?, &request).await.map_err(words)?
    } else {
        first_line(stream, &request).await.map_err(words)?
    };
    match head.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()) {
        Some(200..=399) => Ok(()),
        Some(code) => Err(format!("HTTP probe failed with statuscode: {code}")),
        None => Err(format!("Get \"{url}\": malformed HTTP response \"{}\"", head.trim_end())),
    }
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

/// grpc.health.v1.Health/Check.
async fn health(ip: &str, port: i32, service: &str) -> Result<(), String> {
    match runtime::grpc_health::check(ip, port, service).await {
        Ok(true) => Ok(()),
        Ok(false) => Err("service unhealthy (responded with \"NOT_SERVING\")".to_owned()),
        Err(message) => Err(format!("error: {message}")),
    }
}
