//! The sockets: questions over UDP and TCP, bounded in number, answered to this node and the cluster's Pods only.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::op::Message;
use listener::{Accepted, Bounds, Listener, Places};
use parking_lot::RwLock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

use crate::{Config, DnsError, figures::Figures, plugins::Chains, reply};

/// Questions in work at once, in all and of one client; more are dropped, and their clients ask again.
const IN_WORK: (usize, usize) = (1024, 256);
/// TCP connections at once.
const CONNECTIONS: Bounds = Bounds { remote: 256, each: 16 };
/// The silence after which a TCP connection is closed.
const IDLE: Duration = Duration::from_secs(10);

pub struct Server {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    context: Arc<Context>,
}

struct Context {
    /// The chains in force: a new Corefile puts others in their place.
    chains: Arc<RwLock<Arc<Chains>>>,
    figures: Arc<Figures>,
    clients: Vec<ipnet::IpNet>,
    own: IpAddr,
    in_work: Arc<Places>,
}

impl Server {
    pub async fn bind(
        config: &Config,
        chains: Arc<RwLock<Arc<Chains>>>,
        figures: Arc<Figures>,
    ) -> Result<Self, DnsError> {
        let failed = |source| DnsError::Listen { address: config.listen, source };
        let udp = Arc::new(UdpSocket::bind(config.listen).await.map_err(failed)?);
        // One port for both, also where the kernel chooses it.
        let tcp = TcpListener::bind(udp.local_addr().map_err(failed)?).await.map_err(failed)?;
        let context = Context {
            chains,
            figures,
            clients: config.clients.clone(),
            own: config.listen.ip(),
            in_work: Places::new(IN_WORK.0, IN_WORK.1),
        };
        Ok(Server { udp, tcp, context: Arc::new(context) })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Answers for ever.
    pub async fn serve(self) {
        tokio::join!(serve_udp(self.udp, self.context.clone()), serve_tcp(self.tcp, self.context));
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, context: Arc<Context>) {
    let mut buffer = vec![0; 4096];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        if !context.may_ask(from.ip()) {
            continue;
        }
        let asked = match reply::parse(&buffer[..length]) {
            Ok(asked) => asked,
            Err(error) => {
                if let Some(bytes) = error.and_then(|e| reply::encode(*e, 512)) {
                    let _ = socket.try_send_to(&bytes, from);
                }
                continue;
            }
        };
        let Ok(place) = context.in_work.take(&from.ip()) else { continue };
        let (socket, context) = (socket.clone(), context.clone());
        tokio::spawn(async move {
            let answer = context.answer(&asked, length, from, false).await;
            if let Some(bytes) = reply::encode(answer, reply::udp_limit(&asked)) {
                // The asker may be gone; it asks again if it is not.
                let _ = socket.send_to(&bytes, from).await;
            }
            drop(place);
        });
    }
}

async fn serve_tcp(listener: TcpListener, context: Arc<Context>) {
    let mut listener = Listener::new(listener, "DNS", CONNECTIONS, Arc::default());
    loop {
        let Accepted { socket, address, place } = listener.accept().await;
        if !context.may_ask(address.ip()) {
            continue;
        }
        let context = context.clone();
        tokio::spawn(async move {
            let _ = converse(socket, address, &context).await;
            drop(place);
        });
    }
}

/// One TCP connection: question after question, each with its length in front.
async fn converse(mut stream: TcpStream, from: SocketAddr, context: &Context) -> std::io::Result<()> {
    loop {
        let length = clock::timeout(IDLE, stream.read_u16()).await??;
        let mut buffer = vec![0; usize::from(length)];
        clock::timeout(IDLE, stream.read_exact(&mut buffer)).await??;
        let Ok(_place) = context.in_work.take(&from.ip()) else { return Ok(()) };
        let answer = match reply::parse(&buffer) {
            Ok(asked) => context.answer(&asked, buffer.len(), from, true).await,
            Err(Some(error)) => *error,
            Err(None) => return Ok(()),
        };
        let Some(bytes) = reply::encode(answer, usize::from(u16::MAX)) else { return Ok(()) };
        let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
        clock::timeout(IDLE, stream.write_u16(length)).await??;
        clock::timeout(IDLE, stream.write_all(&bytes)).await??;
    }
}

impl Context {
    fn may_ask(&self, from: IpAddr) -> bool {
        from.is_loopback() || from == self.own || self.clients.iter().any(|net| net.contains(&from))
    }

    async fn answer(&self, asked: &Message, size: usize, from: SocketAddr, over_tcp: bool) -> Message {
        waypoint::dns::answer("question");
        let question = match reply::question(asked, size, from, over_tcp) {
            Ok(question) => question,
            Err(response) => return *response,
        };
        let chains = self.chains.read().clone();
        let answer = chains.answer(question.clone()).await;
        self.figures.answered(&question, &answer);
        reply::message(asked, answer)
    }
}
