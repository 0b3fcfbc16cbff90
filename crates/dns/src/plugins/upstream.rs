//! One other server: a question to it over UDP or TCP, and whether it is up.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query},
    rr::{Name, RecordType},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

use crate::{
    corefile::forward::Check,
    question::{Answer, Question},
    reply::SAFE_PAYLOAD,
};

pub struct Upstream {
    pub address: SocketAddr,
    /// Failures since it last answered.
    fails: AtomicU32,
    /// Whether somebody asks it already whether it is back.
    checked: AtomicBool,
}

impl Upstream {
    pub fn new(address: SocketAddr) -> Self {
        Upstream { address, fails: AtomicU32::new(0), checked: AtomicBool::new(false) }
    }

    /// Whether it failed too often; `max` 0 means never.
    pub fn is_down(&self, max: u32) -> bool {
        max > 0 && self.fails.load(Relaxed) > max
    }

    /// Asks, and gives back what it answers.
    pub async fn ask(&self, question: &Question, over_tcp: bool) -> std::io::Result<Answer> {
        let message = message(question);
        let answer = if over_tcp { self.tcp(&message).await? } else { self.udp(&message).await? };
        Ok(plain(answer))
    }

    async fn udp(&self, question: &Message) -> std::io::Result<Message> {
        let any = if self.address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        // A socket of its own for each question: who forges answers has to guess its port as well as the number. A
        // connected one takes nothing from elsewhere.
        let socket = UdpSocket::bind(any).await?;
        socket.connect(self.address).await?;
        socket.send(&question.to_vec().map_err(std::io::Error::other)?).await?;
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

    async fn tcp(&self, question: &Message) -> std::io::Result<Message> {
        let bytes = question.to_vec().map_err(std::io::Error::other)?;
        let mut stream = TcpStream::connect(self.address).await?;
        let length = u16::try_from(bytes.len()).map_err(|_| std::io::Error::other("question too long"))?;
        stream.write_u16(length).await?;
        stream.write_all(&bytes).await?;
        let length = stream.read_u16().await?;
        let mut answer = vec![0; usize::from(length)];
        stream.read_exact(&mut answer).await?;
        let answer = Message::from_vec(&answer).map_err(std::io::Error::other)?;
        if answers(&answer, question) {
            Ok(answer)
        } else {
            Err(std::io::Error::other("the answer to another question"))
        }
    }

    pub fn answered(&self) {
        self.fails.store(0, Relaxed);
    }

    /// Counts a failure, and has the server asked from time to time until it is back.
    pub fn failed(self: &Arc<Self>, check: &Check, patience: clock::Duration) {
        self.fails.fetch_add(1, Relaxed);
        if self.checked.swap(true, Relaxed) {
            return;
        }
        // The task ends with the last forward that uses the server.
        let (server, check) = (Arc::downgrade(self), check.clone());
        tokio::spawn(async move {
            loop {
                clock::sleep(check.every).await;
                let Some(server) = server.upgrade() else { return };
                match clock::timeout(patience, server.udp(&probe(&check))).await {
                    Ok(Ok(_)) => {
                        server.answered();
                        server.checked.store(false, Relaxed);
                        return;
                    }
                    Ok(Err(_)) | Err(_) => drop(server.fails.fetch_add(1, Relaxed)),
                }
            }
        });
    }
}

/// The question as another server gets it: with a number of its own, and nothing of the client's but what the answer
/// depends on.
fn message(question: &Question) -> Message {
    let mut message = Message::new(number(), MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = question.recursion_desired;
    message.metadata.checking_disabled = question.checking_disabled;
    let mut query = Query::query(question.name.clone(), question.kind);
    query.set_query_class(question.class);
    message.add_query(query);
    let mut edns = Edns::new();
    edns.set_max_payload(SAFE_PAYLOAD);
    edns.set_dnssec_ok(question.dnssec_ok);
    message.edns = Some(edns);
    message
}

fn probe(check: &Check) -> Message {
    let mut message = Message::new(number(), MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = check.recursion_desired;
    let name = Name::from_ascii(format!("{}.", check.name)).unwrap_or_else(|_| Name::root());
    message.add_query(Query::query(name, RecordType::NS));
    message
}

/// A number that nobody can guess.
fn number() -> u16 {
    let mut bytes = [0; 2];
    clock::fill_random(&mut bytes);
    u16::from_be_bytes(bytes)
}

fn answers(answer: &Message, question: &Message) -> bool {
    answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == question.metadata.id
        && answer.queries == question.queries
}

fn plain(message: Message) -> Answer {
    Answer {
        code: message.metadata.response_code,
        authoritative: message.metadata.authoritative,
        recursion_available: message.metadata.recursion_available,
        authentic: message.metadata.authentic_data,
        truncated: message.metadata.truncation,
        answers: message.answers,
        authorities: message.authorities,
        additionals: message.additionals,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::tests::question;

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let asked = message(&question("example.org.", RecordType::A));
        let mut answer = Message::response(asked.metadata.id, OpCode::Query);
        assert!(!answers(&answer, &asked), "another question");
        answer.add_queries(asked.queries.clone());
        assert!(answers(&answer, &asked));
        answer.metadata.id = asked.metadata.id.wrapping_add(1);
        assert!(!answers(&answer, &asked), "another number");
        assert!(!answers(&asked, &asked), "no answer");
    }

    #[test]
    fn nothing_of_the_client_goes_on() {
        let mut asked = question("Example.org.", RecordType::A);
        asked.packet.id = 7;
        let numbers: std::collections::HashSet<u16> = (0..64).map(|_| message(&asked).metadata.id).collect();
        assert!(numbers.len() > 32, "numbers are new for each question");
        assert!(!message(&asked).edns.unwrap().flags().dnssec_ok);
    }
}
