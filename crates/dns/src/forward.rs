//! Questions that are not about the cluster go to the node's own resolvers, in their order.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{Name, RecordType},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

/// How long one resolver gets before the next is asked.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many of the same question may be on their way at once. A resolver that asks us back (a circle that no file shows)
/// would otherwise keep all of us busy with one question.
const SAME: usize = 32;

/// The resolvers for names that are not the cluster's.
pub struct Outside {
    resolvers: Vec<SocketAddr>,
    under_way: Mutex<HashMap<(Name, RecordType), usize>>,
}

impl Outside {
    /// The resolvers that a resolv.conf names, but for ourselves. Loopback ones count too: the question is asked from the
    /// node.
    pub fn new(resolv_conf: &Path, listen: SocketAddr, own: &[IpAddr]) -> Self {
        let text = std::fs::read_to_string(resolv_conf).unwrap_or_default();
        let resolvers = parse(&text).into_iter().filter(|r| {
            let ours = *r == listen || own.contains(&r.ip());
            if ours {
                tracing::warn!(resolver = %r, file = %resolv_conf.display(), "this resolver is cluster DNS itself, left out");
            }
            !ours
        });
        Outside { resolvers: resolvers.collect(), under_way: Mutex::default() }
    }

    /// Passes a question on and gives the answer back; SERVFAIL when nobody answers.
    pub async fn ask(&self, question: &Message, over_tcp: bool) -> Message {
        let answered = match self.enter(question) {
            Some(_entered) => ask(question, &self.resolvers, over_tcp).await,
            None => None,
        };
        let Some(mut answer) = answered else {
            let mut failed =
                Message::error_msg(question.metadata.id, question.metadata.op_code, ResponseCode::ServFail);
            failed.add_queries(question.queries.clone());
            return failed;
        };
        // A client that does not speak the extension must not see it.
        if question.edns.is_none() {
            answer.edns = None;
        }
        answer
    }

    fn enter(&self, question: &Message) -> Option<Entered<'_>> {
        let query = question.queries.first()?;
        let key = (query.name().to_lowercase(), query.query_type());
        let mut under_way = self.under_way.lock();
        let count = under_way.entry(key.clone()).or_default();
        if *count >= SAME {
            tracing::warn!(name = %key.0, "the same question again and again: do the node's resolvers ask cluster DNS?");
            return None;
        }
        *count += 1;
        Some(Entered { outside: self, key })
    }
}

/// A question that is on its way.
struct Entered<'a> {
    outside: &'a Outside,
    key: (Name, RecordType),
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut under_way = self.outside.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.key);
            }
        }
    }
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let addresses = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()?.parse::<IpAddr>().ok())?
    });
    addresses.map(|ip| SocketAddr::new(ip, 53)).collect()
}

async fn ask(question: &Message, resolvers: &[SocketAddr], over_tcp: bool) -> Option<Message> {
    let bytes = question.to_vec().ok()?;
    for resolver in resolvers {
        let attempt = async {
            if over_tcp { ask_tcp(&bytes, *resolver).await } else { ask_udp(&bytes, question, *resolver).await }
        };
        match clock::timeout(PATIENCE, attempt).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(%resolver, %error, "resolver failed"),
            Err(_) => tracing::debug!(%resolver, "resolver did not answer in time"),
        }
    }
    None
}

async fn ask_udp(bytes: &[u8], question: &Message, resolver: SocketAddr) -> std::io::Result<Message> {
    let any = if resolver.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything but the answer to this question is noise, or forged.
        if let Ok(answer) = Message::from_vec(&buffer[..length])
            && answers(&answer, question)
        {
            return Ok(answer);
        }
    }
}

fn answers(answer: &Message, question: &Message) -> bool {
    answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == question.metadata.id
        && answer.queries == question.queries
}

async fn ask_tcp(question: &[u8], resolver: SocketAddr) -> std::io::Result<Message> {
    let mut stream = TcpStream::connect(resolver).await?;
    let length = u16::try_from(question.len()).map_err(|_| std::io::Error::other("question too long"))?;
    stream.write_u16(length).await?;
    stream.write_all(question).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Message::from_vec(&answer).map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, str::FromStr};

    use hickory_proto::op::{OpCode, Query};

    use super::*;

    #[test]
    fn circles_are_not_asked() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "nameserver 10.0.0.1\nnameserver 10.96.0.10\nnameserver 10.0.0.2").unwrap();
        let own = ["10.96.0.10".parse().unwrap()];
        let outside = Outside::new(file.path(), "10.0.0.2:53".parse().unwrap(), &own);
        assert_eq!(outside.resolvers, ["10.0.0.1:53".parse().unwrap()]);
        let mut question = Message::new(1, MessageType::Query, OpCode::Query);
        question.add_query(Query::query(Name::from_str("Example.org.").unwrap(), RecordType::A));
        let held: Vec<_> = (0..SAME).map(|_| outside.enter(&question).unwrap()).collect();
        assert!(outside.enter(&question).is_none(), "the same question too often");
        drop(held);
        assert!(outside.enter(&question).is_some());
        assert!(outside.under_way.lock().is_empty());
    }

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let mut question = Message::new(1, MessageType::Query, OpCode::Query);
        question.add_query(Query::query(Name::from_str("example.org.").unwrap(), RecordType::A));
        let mut answer = Message::response(1, OpCode::Query);
        assert!(!answers(&answer, &question), "another question");
        answer.add_queries(question.queries.clone());
        assert!(answers(&answer, &question));
        answer.metadata.id = 2;
        assert!(!answers(&answer, &question), "another id");
        assert!(!answers(&question, &question), "no answer");
    }

    #[test]
    fn resolv_conf() {
        let text = "# comment\nsearch x\nnameserver 10.0.0.1\nnameserver fd00::1 \nnameserver broken\n";
        let found: Vec<String> = parse(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:53", "[fd00::1]:53"]);
    }
}
