//! Questions that are not about the cluster go to the node's own resolvers, in their order.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use hickory_proto::op::{Message, ResponseCode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

/// How long one resolver gets before the next is asked.
const PATIENCE: Duration = Duration::from_secs(2);

/// The resolvers that a resolv.conf names. Loopback ones count too: the question is asked from the node.
pub fn resolvers(path: &Path) -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    parse(&text)
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let addresses = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()?.parse::<IpAddr>().ok())?
    });
    addresses.map(|ip| SocketAddr::new(ip, 53)).collect()
}

/// Passes a question on and gives the answer back as it came; SERVFAIL when nobody answers.
pub async fn ask(question: &Message, resolvers: &[SocketAddr], over_tcp: bool) -> Message {
    if let Ok(bytes) = question.to_vec() {
        for resolver in resolvers {
            let attempt = async {
                if over_tcp {
                    ask_tcp(&bytes, *resolver).await
                } else {
                    ask_udp(&bytes, question.metadata.id, *resolver).await
                }
            };
            match clock::timeout(PATIENCE, attempt).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(error)) => tracing::debug!(%resolver, %error, "resolver failed"),
                Err(_) => tracing::debug!(%resolver, "resolver did not answer in time"),
            }
        }
    }
    let mut failed = Message::error_msg(question.metadata.id, question.metadata.op_code, ResponseCode::ServFail);
    failed.add_queries(question.queries.clone());
    failed
}

async fn ask_udp(question: &[u8], id: u16, resolver: SocketAddr) -> std::io::Result<Message> {
    let any = if resolver.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything but the answer to this question is noise, or forged.
        if let Ok(answer) = Message::from_vec(&buffer[..length])
            && answer.metadata.id == id
        {
            return Ok(answer);
        }
    }
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
    #[test]
    fn resolv_conf() {
        let text = "# comment\nsearch x\nnameserver 10.0.0.1\nnameserver fd00::1 \nnameserver broken\n";
        let found: Vec<String> = super::parse(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:53", "[fd00::1]:53"]);
    }
}
