//! From a packet to a question, and from an answer to a packet. Pure, and the one place where packets of clients are read.

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, ResponseCode},
    rr::{DNSClass, Record, RecordType},
};

use crate::question::{Answer, Packet, Question};

/// The UDP payload that every path carries without fragments.
pub const SAFE_PAYLOAD: u16 = 1232;

/// Reads a packet. A broken one gets an error in return if its sender can be told from an answer's.
pub fn parse(packet: &[u8]) -> Result<Message, Option<Box<Message>>> {
    if let Ok(message) = Message::from_vec(packet) {
        // Answering answers would let two servers talk for ever.
        return if message.metadata.message_type == MessageType::Query { Ok(message) } else { Err(None) };
    }
    let header = packet.get(..12).filter(|h| h[2] & 0x80 == 0);
    let error = |h: &[u8]| Message::error_msg(u16::from_be_bytes([h[0], h[1]]), OpCode::Query, ResponseCode::FormErr);
    Err(header.map(|h| Box::new(error(h))))
}

/// The question of a packet, or why it is not even looked at.
pub fn question(
    asked: &Message,
    size: usize,
    from: std::net::SocketAddr,
    over_tcp: bool,
) -> Result<Question, Box<Message>> {
    if let Some(code) = refusal(asked) {
        let mut response = response(asked);
        response.metadata.response_code = code;
        if code == ResponseCode::BADVERS {
            // The code's upper half is in the extension.
            response.metadata.response_code = ResponseCode::NoError;
            response.edns.get_or_insert_with(Edns::new).set_rcode_high(1);
        }
        return Err(Box::new(response));
    }
    let query = &asked.queries[0];
    let packet = Packet { id: asked.metadata.id, size, payload: asked.max_payload(), from };
    let mut question = Question::new(query.name(), query.query_type(), packet);
    question.class = query.query_class();
    question.dnssec_ok = asked.edns.as_ref().is_some_and(|e| e.flags().dnssec_ok);
    question.checking_disabled = asked.metadata.checking_disabled;
    question.recursion_desired = asked.metadata.recursion_desired;
    question.over_tcp = over_tcp;
    Ok(question)
}

fn refusal(asked: &Message) -> Option<ResponseCode> {
    if asked.metadata.op_code != OpCode::Query {
        return Some(ResponseCode::NotImp);
    }
    let [query] = asked.queries.as_slice() else { return Some(ResponseCode::FormErr) };
    if asked.edns.as_ref().is_some_and(|e| e.version() > 0) {
        return Some(ResponseCode::BADVERS);
    }
    let whole_zone = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
    (query.query_class() != DNSClass::IN || whole_zone).then_some(ResponseCode::Refused)
}

/// An empty response to a packet.
fn response(asked: &Message) -> Message {
    let mut response = Message::response(asked.metadata.id, asked.metadata.op_code);
    response.metadata.recursion_desired = asked.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.add_queries(asked.queries.iter().cloned());
    // A client that does not speak the extension must not see it.
    if let Some(edns) = &asked.edns {
        let mut own = Edns::new();
        own.set_max_payload(SAFE_PAYLOAD);
        own.set_dnssec_ok(edns.flags().dnssec_ok);
        response.edns = Some(own);
    }
    response
}

/// The packet of an answer. Records of the name that was asked for show it as the client wrote it.
pub fn message(asked: &Message, answer: Answer) -> Message {
    let mut response = response(asked);
    let metadata = &mut response.metadata;
    metadata.checking_disabled = asked.metadata.checking_disabled;
    metadata.authoritative = answer.authoritative;
    metadata.recursion_available = answer.recursion_available;
    metadata.authentic_data = answer.authentic;
    metadata.truncation = answer.truncated;
    // Codes with an upper half are about the way to another server, not to us.
    metadata.response_code = if answer.code.high() == 0 { answer.code } else { ResponseCode::ServFail };
    let as_asked = |mut record: Record| {
        if let Some(query) = asked.queries.first().filter(|q| *q.name() == record.name) {
            record.name = query.name().clone();
        }
        record
    };
    response.add_answers(answer.answers.into_iter().map(as_asked));
    response.add_authorities(answer.authorities).add_additionals(answer.additionals);
    response
}

/// The answer's bytes within the limit. What is too much is left out from the end: first what comes on top, without a
/// word, then records that were asked for, with the flag that says so.
pub fn encode(mut answer: Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = answer.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    shorten(&mut answer, limit, |m| &mut m.additionals);
    let sections: [fn(&mut Message) -> &mut Vec<Record>; 2] = [|m| &mut m.authorities, |m| &mut m.answers];
    for section in sections {
        if fits(&answer, limit) {
            break;
        }
        answer.metadata.truncation = true;
        shorten(&mut answer, limit, section);
    }
    answer.to_vec().ok().filter(|bytes| bytes.len() <= limit)
}

fn fits(answer: &Message, limit: usize) -> bool {
    answer.to_vec().is_ok_and(|bytes| bytes.len() <= limit)
}

/// Keeps as many records of a section as fit.
fn shorten(answer: &mut Message, limit: usize, section: fn(&mut Message) -> &mut Vec<Record>) {
    let mut rest = std::mem::take(section(answer));
    let (mut low, mut high) = (0, rest.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        *section(answer) = rest[..middle].to_vec();
        if fits(answer, limit) { low = middle } else { high = middle - 1 }
    }
    rest.truncate(low);
    *section(answer) = rest;
}

/// How long a UDP answer to this question may be.
pub fn udp_limit(question: &Message) -> usize {
    question.edns.as_ref().map_or(512, |e| e.max_payload()).clamp(512, SAFE_PAYLOAD).into()
}

/// How long an answer is as a packet.
pub fn size(question: &Question, answer: &Answer) -> usize {
    let mut asked = Message::new(0, MessageType::Query, OpCode::Query);
    asked.add_query(hickory_proto::op::Query::query(question.name.clone(), question.kind));
    message(&asked, answer.clone()).to_vec().map_or(0, |bytes| bytes.len())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_proto::{
        op::Query,
        rr::{Name, RData, rdata::A},
    };

    use super::*;

    fn asked(name: &str, kind: RecordType) -> Message {
        let mut asked = Message::new(7, MessageType::Query, OpCode::Query);
        asked.metadata.recursion_desired = true;
        // Not `from_str`, which lowers the case.
        asked.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        asked
    }

    fn read(asked: &Message) -> Result<Question, Box<Message>> {
        question(asked, 40, "10.0.0.1:9".parse().unwrap(), false)
    }

    fn addresses(name: &str, count: u8) -> Answer {
        let owner = Name::from_ascii(name).unwrap().to_lowercase();
        let record = |n| Record::from_rdata(owner.clone(), 5, RData::A(A(Ipv4Addr::new(10, 0, 0, n))));
        Answer { additionals: (0..3).map(record).collect(), ..Answer::own((0..count).map(record).collect()) }
    }

    #[test]
    fn what_is_not_looked_at() {
        let with = |change: fn(&mut Message)| {
            let mut asked = asked("web.default.svc.cluster.local.", RecordType::A);
            change(&mut asked);
            read(&asked).map_or_else(|m| format!("{:?}", m.metadata.response_code), |q| q.text)
        };
        assert_eq!(with(|_| {}), "web.default.svc.cluster.local");
        assert_eq!(with(|m| m.queries[0].query_class = DNSClass::CH), "Refused");
        assert_eq!(with(|m| m.queries[0].query_type = RecordType::AXFR), "Refused");
        assert_eq!(with(|m| m.metadata.op_code = OpCode::Update), "NotImp");
        assert_eq!(with(|m| m.queries.push(m.queries[0].clone())), "FormErr");
        let mut asked = asked("a.", RecordType::A);
        asked.edns = Some(Edns::new());
        asked.edns.as_mut().unwrap().set_version(1);
        assert_eq!(read(&asked).unwrap_err().edns.unwrap().rcode_high(), 1, "a version of EDNS that is not known");
    }

    #[test]
    fn answers_keep_the_case_and_the_question() {
        let asked = asked("wEb.Default.svc.cluster.LOCAL.", RecordType::A);
        let answer = message(&asked, addresses("web.default.svc.cluster.local.", 1));
        assert_eq!(answer.answers[0].name.to_ascii(), "wEb.Default.svc.cluster.LOCAL.");
        assert_eq!(answer.queries, asked.queries);
        assert!(answer.metadata.authoritative && answer.metadata.recursion_desired && answer.edns.is_none());
    }

    #[test]
    fn what_is_too_long_is_given_as_far_as_it_fits() {
        let mut asked = asked("many.default.svc.cluster.local.", RecordType::A);
        let sent = |asked: &Message, count, limit| {
            let answer = message(asked, addresses("many.default.svc.cluster.local.", count));
            let bytes = encode(answer, limit).unwrap();
            assert!(bytes.len() <= limit);
            Message::from_vec(&bytes).unwrap()
        };
        // A name of 32 bytes in the question, and 16 bytes for each address.
        let short = sent(&asked, 40, udp_limit(&asked));
        assert!(short.metadata.truncation && short.additionals.is_empty());
        assert_eq!(short.answers.len(), (512 - 12 - 36) / 16);
        let long = sent(&asked, 40, usize::from(u16::MAX));
        assert!(!long.metadata.truncation && long.answers.len() == 40 && long.additionals.len() == 3);
        let without_extras = sent(&asked, 28, udp_limit(&asked));
        assert!(!without_extras.metadata.truncation, "only what comes on top is missing");
        asked.edns = Some(Edns::new());
        asked.edns.as_mut().unwrap().set_max_payload(4096);
        assert_eq!(udp_limit(&asked), usize::from(SAFE_PAYLOAD));
        assert_eq!(sent(&asked, 40, udp_limit(&asked)).answers.len(), 40);
    }

    #[test]
    fn broken_packets_are_errors_or_nothing() {
        assert!(matches!(parse(b""), Err(None)));
        assert!(matches!(parse(&[1, 2, 3]), Err(None)));
        let mut header = [0; 12];
        (header[0], header[1], header[5]) = (0x12, 0x34, 9);
        let Err(Some(error)) = parse(&header) else { panic!("an error is due") };
        assert_eq!((error.metadata.id, error.metadata.response_code), (0x1234, ResponseCode::FormErr));
        header[2] = 0x80;
        assert!(matches!(parse(&header), Err(None)), "a broken answer is not answered");
    }
}
