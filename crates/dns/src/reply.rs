//! From a packet to its answer, or to the server that it is passed on to. Pure, and the one place where packets are read.

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RecordType},
};

use crate::zone::{Answer, Zone};

/// The UDP payload that every path carries without fragments.
pub const SAFE_PAYLOAD: u16 = 1232;
/// How many aliases are followed inside the zone; more are a circle.
const ALIASES: usize = 8;

/// The decision about a question.
#[derive(Debug)]
pub enum Reply {
    Done(Box<Message>),
    /// The question is not ours: pass it on as it is.
    Forward,
    /// The name is an alias for one outside: look that up and add what is found.
    Follow {
        response: Box<Message>,
        target: Name,
    },
}

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

/// Decides about a question.
pub fn reply(question: &Message, zone: &Zone) -> Reply {
    let mut response = Message::response(question.metadata.id, question.metadata.op_code);
    response.metadata.recursion_desired = question.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.add_queries(question.queries.iter().cloned());
    if let Some(asked) = &question.edns {
        let mut edns = Edns::new();
        edns.set_max_payload(SAFE_PAYLOAD);
        edns.set_dnssec_ok(asked.flags().dnssec_ok);
        response.edns = Some(edns);
    }
    match refusal(question) {
        Some(ResponseCode::BADVERS) => {
            // The code's upper half is in the extension.
            response.metadata.response_code = ResponseCode::NoError;
            response.edns.get_or_insert_with(Edns::new).set_rcode_high(1);
            return Reply::Done(Box::new(response));
        }
        Some(code) => {
            response.metadata.response_code = code;
            return Reply::Done(Box::new(response));
        }
        None => {}
    }
    look_up(&question.queries[0], zone, response)
}

/// Why a question is not even looked at.
fn refusal(question: &Message) -> Option<ResponseCode> {
    if question.metadata.op_code != OpCode::Query {
        return Some(ResponseCode::NotImp);
    }
    let [query] = question.queries.as_slice() else { return Some(ResponseCode::FormErr) };
    if question.edns.as_ref().is_some_and(|e| e.version() > 0) {
        return Some(ResponseCode::BADVERS);
    }
    let whole_zone = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
    (query.query_class() != DNSClass::IN || whole_zone).then_some(ResponseCode::Refused)
}

fn look_up(query: &Query, zone: &Zone, mut response: Message) -> Reply {
    let mut name = query.name().clone();
    for _ in 0..=ALIASES {
        match zone.answer(&name, query.query_type()) {
            Answer::Here { code, answers, additionals, authorities } => {
                response.metadata.authoritative = true;
                response.metadata.response_code = code;
                response.add_answers(answers).add_additionals(additionals).add_authorities(authorities);
                return Reply::Done(Box::new(response));
            }
            Answer::Alias { record, target } => {
                response.metadata.authoritative = true;
                response.add_answer(*record);
                if query.query_type() == RecordType::CNAME {
                    return Reply::Done(Box::new(response));
                }
                name = target;
            }
            Answer::Elsewhere if response.answers.is_empty() => return Reply::Forward,
            Answer::Elsewhere => return Reply::Follow { response: Box::new(response), target: name },
        }
    }
    response.metadata.response_code = ResponseCode::ServFail;
    Reply::Done(Box::new(response))
}

/// The answer's bytes, truncated (with the flag that says so) when they exceed the limit.
pub fn encode(answer: &Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = answer.to_vec().ok()?;
    if bytes.len() <= limit { Some(bytes) } else { answer.truncate().to_vec().ok() }
}

/// How long a UDP answer to this question may be.
pub fn udp_limit(question: &Message) -> usize {
    question.edns.as_ref().map_or(512, |e| e.max_payload()).clamp(512, SAFE_PAYLOAD).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::tests::zone;

    fn question(name: &str, kind: RecordType) -> Message {
        let mut question = Message::new(7, MessageType::Query, OpCode::Query);
        question.metadata.recursion_desired = true;
        // Not `from_str`, which lowers the case.
        question.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        question
    }

    fn show(reply: &Reply) -> String {
        match reply {
            Reply::Forward => "forward".to_owned(),
            Reply::Follow { response, target } => format!("{} then {target}", response.answers.len()),
            Reply::Done(m) => {
                let data: Vec<String> = m.answers.iter().map(|r| r.data.to_string()).collect();
                format!("{:?} {}", m.metadata.response_code, data.join(" "))
            }
        }
    }

    #[test]
    fn questions_and_their_fate() {
        use RecordType as T;
        let zone = zone();
        for (name, kind, expected) in [
            ("web.default.svc.cluster.local.", T::A, "NoError 10.96.0.7"),
            ("example.org.", T::A, "forward"),
            ("out.default.svc.cluster.local.", T::A, "1 then example.org."),
            ("out.default.svc.cluster.local.", T::CNAME, "NoError example.org."),
            ("inside.default.svc.cluster.local.", T::A, "NoError web.default.svc.cluster.local. 10.96.0.7"),
            ("web.default.svc.cluster.local.", T::AXFR, "Refused "),
        ] {
            assert_eq!(show(&reply(&question(name, kind), &zone)), expected, "{name} {kind}");
        }
        let circle = reply(&question("circle.default.svc.cluster.local.", T::A), &zone);
        assert!(show(&circle).starts_with("ServFail"), "{}", show(&circle));
        let mut chaos = question("version.bind.", T::TXT);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert_eq!(show(&reply(&chaos, &zone)), "Refused ");
        let mut update = question("web.default.svc.cluster.local.", T::A);
        update.metadata.op_code = OpCode::Update;
        assert_eq!(show(&reply(&update, &zone)), "NotImp ");
        let mut two = question("web.default.svc.cluster.local.", T::A);
        two.add_query(two.queries[0].clone());
        assert_eq!(show(&reply(&two, &zone)), "FormErr ");
    }

    #[test]
    fn answers_keep_the_case_and_the_question() {
        let mut asked = question("wEb.Default.svc.cluster.LOCAL.", RecordType::A);
        let Reply::Done(answer) = reply(&asked, &zone()) else { panic!("ours") };
        assert_eq!(answer.answers[0].name.to_ascii(), "wEb.Default.svc.cluster.LOCAL.");
        assert_eq!(answer.queries, asked.queries);
        assert!(answer.metadata.authoritative && answer.metadata.recursion_desired && answer.edns.is_none());
        let mut edns = Edns::new();
        edns.set_version(1);
        asked.edns = Some(edns);
        let Reply::Done(answer) = reply(&asked, &zone()) else { panic!("ours") };
        assert_eq!(answer.edns.as_ref().unwrap().rcode_high(), 1, "a version of EDNS that is not known");
        assert!(answer.answers.is_empty());
    }

    #[test]
    fn what_is_too_long_says_so() {
        let asked = question("many.default.svc.cluster.local.", RecordType::A);
        let Reply::Done(answer) = reply(&asked, &zone()) else { panic!("ours") };
        let short = Message::from_vec(&encode(&answer, udp_limit(&asked)).unwrap()).unwrap();
        assert!(short.metadata.truncation && short.answers.is_empty());
        let long = Message::from_vec(&encode(&answer, usize::from(u16::MAX)).unwrap()).unwrap();
        assert!(!long.metadata.truncation && long.answers.len() == 100);
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

    /// Packets that are right but for a few bytes: nothing may panic, and what comes back must be a packet.
    #[test]
    fn no_packet_does_harm() {
        let zone = zone();
        let mut edns = question("_http._tcp.web.default.svc.cluster.local.", RecordType::SRV);
        edns.edns = Some(Edns::new());
        let seeds = [
            question("web.default.svc.cluster.local.", RecordType::A).to_vec().unwrap(),
            question("7.0.96.10.in-addr.arpa.", RecordType::PTR).to_vec().unwrap(),
            edns.to_vec().unwrap(),
        ];
        let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        for round in 0..20_000 {
            let mut packet = seeds[round % seeds.len()].clone();
            for _ in 0..=random(6) {
                let at = random(packet.len());
                match random(4) {
                    0 => packet[at] = u8::try_from(random(256)).unwrap(),
                    1 => packet[at] = 0xc0,
                    2 => packet.truncate(at.max(1)),
                    _ => packet.insert(at, u8::try_from(random(256)).unwrap()),
                }
            }
            let answer = match parse(&packet) {
                Ok(question) => match reply(&question, &zone) {
                    Reply::Done(answer) => encode(&answer, udp_limit(&question)),
                    Reply::Follow { response, .. } => encode(&response, udp_limit(&question)),
                    Reply::Forward => continue,
                },
                Err(Some(error)) => encode(&error, 512),
                Err(None) => continue,
            };
            let answer = answer.unwrap_or_else(|| panic!("round {round}: {packet:?}"));
            assert!(answer.len() <= usize::from(SAFE_PAYLOAD) && Message::from_vec(&answer).is_ok(), "round {round}");
        }
    }
}
