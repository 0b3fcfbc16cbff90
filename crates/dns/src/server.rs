//! The sockets: questions over UDP and TCP, bounded in number, answered to this node and the cluster's Pods only.

use std::{net::IpAddr, sync::Arc, time::Duration};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::RecordType,
};
use listener::{Accepted, Bounds, Listener, Places};
use parking_lot::RwLock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

use crate::{
    Config, DnsError,
    forward::Outside,
    reply::{self, Reply},
    zone::Zone,
};

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
    zone: Arc<RwLock<Zone>>,
    outside: Outside,
    clients: Vec<ipnet::IpNet>,
    own: IpAddr,
    in_work: Arc<Places>,
}

impl Server {
    pub async fn bind(config: &Config, zone: Arc<RwLock<Zone>>) -> Result<Self, DnsError> {
        let failed = |source| DnsError::Listen { address: config.listen, source };
        let udp = Arc::new(UdpSocket::bind(config.listen).await.map_err(failed)?);
        let tcp = TcpListener::bind(config.listen).await.map_err(failed)?;
        let context = Context {
            zone,
            outside: Outside::new(&config.resolv_conf, config.listen, &config.own_addresses),
            clients: config.clients.clone(),
            own: config.listen.ip(),
            in_work: Places::new(IN_WORK.0, IN_WORK.1),
        };
        Ok(Server { udp, tcp, context: Arc::new(context) })
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
        let question = match reply::parse(&buffer[..length]) {
            Ok(question) => question,
            Err(error) => {
                if let Some(bytes) = error.and_then(|e| reply::encode(&e, 512)) {
                    let _ = socket.try_send_to(&bytes, from);
                }
                continue;
            }
        };
        let Ok(place) = context.in_work.take(&from.ip()) else { continue };
        let (socket, context) = (socket.clone(), context.clone());
        tokio::spawn(async move {
            let answer = context.answer(&question, false).await;
            if let Some(bytes) = reply::encode(&answer, reply::udp_limit(&question)) {
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
            let _ = converse(socket, address.ip(), &context).await;
            drop(place);
        });
    }
}

/// One TCP connection: question after question, each with its length in front.
async fn converse(mut stream: TcpStream, from: IpAddr, context: &Context) -> std::io::Result<()> {
    loop {
        let length = clock::timeout(IDLE, stream.read_u16()).await??;
        let mut buffer = vec![0; usize::from(length)];
        clock::timeout(IDLE, stream.read_exact(&mut buffer)).await??;
        let Ok(_place) = context.in_work.take(&from) else { return Ok(()) };
        let answer = match reply::parse(&buffer) {
            Ok(question) => context.answer(&question, true).await,
            Err(Some(error)) => *error,
            Err(None) => return Ok(()),
        };
        let Some(bytes) = reply::encode(&answer, usize::from(u16::MAX)) else { return Ok(()) };
        let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
        clock::timeout(IDLE, stream.write_u16(length)).await??;
        clock::timeout(IDLE, stream.write_all(&bytes)).await??;
    }
}

impl Context {
    fn may_ask(&self, from: IpAddr) -> bool {
        from.is_loopback() || from == self.own || self.clients.iter().any(|net| net.contains(&from))
    }

    async fn answer(&self, question: &Message, over_tcp: bool) -> Message {
        waypoint::dns::answer("question");
        let decided = reply::reply(question, &self.zone.read());
        match decided {
            Reply::Done(mut response) => {
                if response.answers.len() > 1 && !response.answers.iter().any(|r| r.record_type() == RecordType::CNAME)
                {
                    // Clients take the first: each gets another first.
                    let by = clock::random_range(0..response.answers.len() as u64) as usize;
                    response.answers.rotate_left(by);
                }
                *response
            }
            Reply::Follow { mut response, target } => {
                let mut onward = Message::new(question.metadata.id, MessageType::Query, OpCode::Query);
                onward.metadata.recursion_desired = true;
                onward.add_queries(question.queries.iter().map(|q| Query::query(target.clone(), q.query_type())));
                let there = self.outside.ask(&onward, over_tcp).await;
                response.metadata.response_code = there.metadata.response_code;
                response.add_answers(there.answers);
                *response
            }
            Reply::Forward => self.outside.ask(question, over_tcp).await,
        }
    }
}
