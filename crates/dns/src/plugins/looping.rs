//! Whether the servers that are asked ask us back. A name that nobody else can know is asked for once; when the question
//! for it arrives here, it went in a circle, and every question that is passed on would.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use hickory_proto::rr::RecordType;

use super::forward::Forward;
use crate::question::{Packet, Question};

pub struct Probe {
    name: String,
    zone: String,
    found: AtomicBool,
}

impl Probe {
    pub fn new(zone: &str) -> Self {
        let mut bytes = [0; 16];
        clock::fill_random(&mut bytes);
        let number = u128::from_be_bytes(bytes);
        let (one, two) = ((number >> 64) as u64, number as u64);
        let name = if zone.is_empty() { format!("{one}.{two}") } else { format!("{one}.{two}.{zone}") };
        Probe { name, zone: zone.to_owned(), found: AtomicBool::new(false) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Asks for the name. The answer does not matter.
    pub fn send(&self, forward: Arc<Forward>) {
        let packet = Packet { id: 0, size: 0, payload: 0, from: ([127, 0, 0, 1], 0).into() };
        let root = hickory_proto::rr::Name::root();
        let question = Question::new(&root, RecordType::HINFO, packet).about(&self.name);
        tokio::spawn(async move {
            if let Some(question) = question {
                forward.ask(&question).await;
            }
        });
    }

    /// Whether the question is our own, come back.
    pub fn is_back(&self, question: &Question) -> bool {
        let back = question.kind == RecordType::HINFO && question.text == self.name;
        if back && !self.found.swap(true, Relaxed) {
            let zone = if self.zone.is_empty() { "." } else { &self.zone };
            tracing::error!(
                zone, from = %question.packet.from,
                "Loop detected: a server that cluster DNS passes questions to asks cluster DNS; nothing is passed on in this zone until the Corefile changes"
            );
        }
        back
    }

    pub fn found_a_loop(&self) -> bool {
        self.found.load(Relaxed)
    }
}
