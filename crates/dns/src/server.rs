//! The sockets: questions over UDP and TCP, bounded in number, answered to this node and the cluster's Pods only.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, ResponseCode},
    rr::RecordType,
};
use parking_lot::RwLock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
};

use crate::{
    Config, DnsError, forward,
    zone::{Answer, Zone},
};

/// Questions in work at once; more wait in the socket's buffer, and the kernel drops what does not fit there.
const IN_WORK: usize = 1024;
/// The UDP payload that every path carries without fragments.
const SAFE_PAYLOAD: u16 = 1232;
/// A TCP connection that says nothing for so long is closed.
const IDLE: Duration = Duration::from_secs(10);

pub struct Server {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    context: Arc<Context>,
}

struct Context {
    zone: Arc<RwLock<Zone>>,
    resolvers: Vec<SocketAddr>,
    clients: Vec<ipnet::IpNet>,
    own: IpAddr,
    in_work: Arc<Semaphore>,
}

impl Server {
    pub async fn bind(config: &Config, zone: Arc<RwLock<Zone>>) -> Result<Self, DnsError> {
        let failed = |source| DnsError::Listen { address: config.listen, source };
        let udp = Arc::new(UdpSocket::bind(config.listen).await.map_err(failed)?);
        let tcp = TcpListener::bind(config.listen).await.map_err(failed)?;
        let context = Context {
            zone,
            resolvers: forward::resolvers(&config.resolv_conf),
            clients: config.clients.clone(),
            own: config.listen.ip(),
            in_work: Arc::new(Semaphore::new(IN_WORK)),
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
        let Ok(question) = Message::from_vec(&buffer[..length]) else { continue };
        let Ok(permit) = context.in_work.clone().acquire_owned().await else { return };
        let (socket, context) = (socket.clone(), context.clone());
        tokio::spawn(async move {
            let payload = question.edns.as_ref().map_or(512, |e| e.max_payload()).clamp(512, SAFE_PAYLOAD);
            let answer = context.answer(&question, false).await;
            if let Some(bytes) = encode(&answer, usize::from(payload)) {
                // The asker may be gone; it asks again if it is not.
                let _ = socket.send_to(&bytes, from).await;
            }
            drop(permit);
        });
    }
}

async fn serve_tcp(listener: TcpListener, context: Arc<Context>) {
    loop {
        let Ok((stream, from)) = listener.accept().await else { continue };
        if !context.may_ask(from.ip()) {
            continue;
        }
        let Ok(permit) = context.in_work.clone().acquire_owned().await else { return };
        let context = context.clone();
        tokio::spawn(async move {
            let _ = converse(stream, &context).await;
            drop(permit);
        });
    }
}

/// One TCP connection: question after question, each with its length in front.
async fn converse(mut stream: TcpStream, context: &Context) -> std::io::Result<()> {
    loop {
        let length = clock::timeout(IDLE, stream.read_u16()).await??;
        let mut buffer = vec![0; usize::from(length)];
        clock::timeout(IDLE, stream.read_exact(&mut buffer)).await??;
        let question = Message::from_vec(&buffer).map_err(std::io::Error::other)?;
        let answer = context.answer(&question, true).await;
        let Some(bytes) = encode(&answer, usize::from(u16::MAX)) else { return Ok(()) };
        let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
        stream.write_u16(length).await?;
        stream.write_all(&bytes).await?;
    }
}

/// The answer's bytes, truncated (with the flag that says so) when they exceed the limit.
fn encode(answer: &Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = answer.to_vec().ok()?;
    if bytes.len() <= limit { Some(bytes) } else { answer.truncate().to_vec().ok() }
}

impl Context {
    fn may_ask(&self, from: IpAddr) -> bool {
        from.is_loopback() || from == self.own || self.clients.iter().any(|net| net.contains(&from))
    }

    async fn answer(&self, question: &Message, over_tcp: bool) -> Message {
        let id = question.metadata.id;
        let [query] = question.queries.as_slice() else {
            return Message::error_msg(id, question.metadata.op_code, ResponseCode::FormErr);
        };
        if question.metadata.op_code != OpCode::Query || question.metadata.message_type != MessageType::Query {
            return Message::error_msg(id, question.metadata.op_code, ResponseCode::NotImp);
        }
        waypoint::dns::answer("question");
        let found = self.zone.read().answer(query.name(), query.query_type());
        let mut response = Message::response(id, OpCode::Query);
        response.add_query(query.clone());
        response.metadata.recursion_desired = question.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        if question.edns.is_some() {
            let mut edns = hickory_proto::op::Edns::new();
            edns.set_max_payload(SAFE_PAYLOAD);
            response.edns = Some(edns);
        }
        match found {
            Answer::Here { code, mut answers, additionals, authorities } => {
                if answers.len() > 1 {
                    // Clients take the first: each gets another first.
                    let by = clock::random_range(0..answers.len() as u64) as usize;
                    answers.rotate_left(by);
                }
                response.metadata.authoritative = true;
                response.metadata.response_code = code;
                response.add_answers(answers).add_additionals(additionals).add_authorities(authorities);
                response
            }
            Answer::Alias { record, target } => {
                response.add_answer(*record);
                if query.query_type() != RecordType::CNAME {
                    let mut onward = Message::new(id, MessageType::Query, OpCode::Query);
                    onward.metadata.recursion_desired = true;
                    onward.add_query(hickory_proto::op::Query::query(target, query.query_type()));
                    let there = forward::ask(&onward, &self.resolvers, over_tcp).await;
                    response.add_answers(there.answers);
                }
                response
            }
            Answer::Elsewhere => forward::ask(question, &self.resolvers, over_tcp).await,
        }
    }
}
