//! Answers that are kept for as long as they say, within bounds: a number of them, and memory for all together.

use std::collections::HashMap;

use clock::Instant;
use hickory_proto::{
    op::ResponseCode,
    rr::{DNSClass, RData, RecordType},
};
use parking_lot::Mutex;

use crate::{
    corefile::cache::{Cache as Settings, Part},
    question::{Answer, Question, within},
};

/// Longer answers are not kept; all that one half keeps is bounded as well.
const MAX_ANSWER: usize = 4 << 10;
const MAX_BYTES: usize = 16 << 20;
/// The bytes of an entry beside its records, and of a record beside its names.
const OVERHEAD: (usize, usize) = (256, 160);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    name: String,
    kind: RecordType,
    class: DNSClass,
    dnssec_ok: bool,
    checking_disabled: bool,
}

struct Entry {
    key: Key,
    answer: Answer,
    kept: Instant,
    seconds: u32,
    bytes: usize,
}

/// Entries by key; the list makes the choice of a random one cheap.
#[derive(Default)]
struct Half {
    places: HashMap<Key, usize>,
    entries: Vec<Entry>,
    bytes: usize,
}

/// One `cache` of a server block.
pub struct Cache {
    settings: Settings,
    success: Mutex<Half>,
    denial: Mutex<Half>,
}

impl Cache {
    pub fn new(settings: Settings) -> Self {
        Cache { settings, success: Mutex::default(), denial: Mutex::default() }
    }

    /// How many answers are kept, and how many denials.
    pub fn len(&self) -> (usize, usize) {
        (self.success.lock().entries.len(), self.denial.lock().entries.len())
    }

    /// Whether answers about the name are kept here.
    pub fn is_about(&self, question: &Question) -> bool {
        self.settings.zones.iter().any(|zone| within(&question.text, zone))
    }

    /// An answer that is still good, with the time that it has left. Answers over TCP are whole, as all that are kept.
    pub fn get(&self, question: &Question, now: Instant) -> Option<Answer> {
        let key = key(question);
        [&self.denial, &self.success].into_iter().find_map(|half| half.lock().get(&key, now, self.settings.keep_ttl))
    }

    /// Keeps an answer if it may be kept.
    pub fn keep(&self, question: &Question, answer: &Answer, now: Instant) {
        let Some((denial, seconds)) = self.lifetime(question, answer) else { return };
        let (half, part) =
            if denial { (&self.denial, &self.settings.denial) } else { (&self.success, &self.settings.success) };
        let bytes = size(question, answer);
        if seconds == 0 || bytes > MAX_ANSWER || excepted(part, question) {
            return;
        }
        let entry = Entry { key: key(question), answer: answer.clone(), kept: now, seconds, bytes };
        half.lock().put(entry, part.capacity);
        // The answer of the other sort, if there was one, is over.
        let other = if denial { &self.success } else { &self.denial };
        other.lock().remove(&key(question));
    }

    /// Whether an answer is a denial, and for how many seconds it is kept.
    fn lifetime(&self, question: &Question, answer: &Answer) -> Option<(bool, u32)> {
        let settings = &self.settings;
        if answer.truncated {
            return None;
        }
        let soa = answer.authorities.iter().find_map(|r| match &r.data {
            RData::SOA(soa) => Some(r.ttl.min(soa.minimum)),
            _ => None,
        });
        let least = |records: &mut dyn Iterator<Item = u32>| records.min().unwrap_or(5);
        let clamp = |part: &Part, seconds: u32| seconds.max(part.least).min(part.most);
        let all = least(&mut answer.records().map(|r| r.ttl));
        match answer.code {
            ResponseCode::ServFail | ResponseCode::NotImp => Some((true, settings.failure)),
            ResponseCode::NXDomain => soa.map(|s| (true, clamp(&settings.denial, s.min(all)))),
            ResponseCode::NoError if has_data(question, answer) => Some((false, clamp(&settings.success, all))),
            ResponseCode::NoError => match soa {
                Some(seconds) => Some((true, clamp(&settings.denial, seconds.min(all)))),
                // Without a SOA nobody says for how long: an alias that leads nowhere is asked again.
                None if answer.answers.is_empty() => Some((false, clamp(&settings.success, 5.min(all)))),
                None => None,
            },
            _ => None,
        }
    }
}

/// Whether the records asked for are there, and not only an alias on the way to them.
fn has_data(question: &Question, answer: &Answer) -> bool {
    let wanted = |kind| kind == question.kind || question.kind == RecordType::ANY;
    answer.answers.iter().any(|record| wanted(record.record_type()))
}

fn excepted(part: &Part, question: &Question) -> bool {
    part.except.iter().any(|zone| within(&question.text, zone))
}

fn key(question: &Question) -> Key {
    Key {
        name: question.text.clone(),
        kind: question.kind,
        class: question.class,
        dnssec_ok: question.dnssec_ok,
        checking_disabled: question.checking_disabled,
    }
}

/// The memory that an answer takes, about.
fn size(question: &Question, answer: &Answer) -> usize {
    let of_data = |data: &RData| match data {
        RData::A(_) | RData::AAAA(_) => 0,
        other => other.to_string().len(),
    };
    let records = answer.records().map(|r| OVERHEAD.1 + r.name.len() + of_data(&r.data)).sum::<usize>();
    OVERHEAD.0 + 2 * question.text.len() + records
}

impl Half {
    fn get(&mut self, key: &Key, now: Instant, keep_ttl: bool) -> Option<Answer> {
        let entry = &self.entries[*self.places.get(key)?];
        let passed = u32::try_from(now.saturating_duration_since(entry.kept).as_secs()).unwrap_or(u32::MAX);
        let Some(left) = entry.seconds.checked_sub(passed).filter(|left| *left > 0) else {
            self.remove(key);
            return None;
        };
        let mut answer = entry.answer.clone();
        for record in answer.records_mut() {
            record.ttl = if keep_ttl { record.ttl } else { left };
        }
        Some(answer)
    }

    fn put(&mut self, entry: Entry, capacity: usize) {
        self.remove(&entry.key);
        while !self.entries.is_empty() && (self.entries.len() >= capacity || self.bytes + entry.bytes > MAX_BYTES) {
            let any = usize::try_from(clock::random_range(0..self.entries.len() as u64)).unwrap_or(0);
            self.remove_at(any);
        }
        self.bytes += entry.bytes;
        self.places.insert(entry.key.clone(), self.entries.len());
        self.entries.push(entry);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(place) = self.places.get(key).copied() {
            self.remove_at(place);
        }
    }

    fn remove_at(&mut self, place: usize) {
        let gone = self.entries.swap_remove(place);
        self.places.remove(&gone.key);
        self.bytes -= gone.bytes;
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.key.clone(), place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hickory_proto::rr::{
        Name, Record,
        rdata::{A, CNAME, SOA},
    };

    use super::*;
    use crate::{corefile, question::tests::question};

    fn cache(text: &str) -> Cache {
        let blocks = corefile::parse(&format!(". {{\n {text}\n}}"), &corefile::Around::default()).unwrap();
        Cache::new(blocks.into_iter().next().unwrap().settings.cache.unwrap())
    }

    fn address(ttl: u32) -> Answer {
        Answer::own(vec![Record::from_rdata(Name::root(), ttl, RData::A(A([10, 0, 0, 1].into())))])
    }

    fn denied(code: ResponseCode, ttl: u32) -> Answer {
        let soa = RData::SOA(SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, ttl));
        Answer { authorities: vec![Record::from_rdata(Name::root(), 3600, soa)], ..Answer::new(code) }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_age_and_end() {
        let (asked, begun) = (question("a.example.", RecordType::A), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        for (text, answer, alive, left) in [
            ("cache", address(60), 59, Some(1)),
            ("cache 30", address(60), 29, Some(1)),
            ("cache", address(1), 4, Some(1)),
            ("cache {\n keepttl\n }", address(60), 59, Some(60)),
            ("cache", denied(ResponseCode::NXDomain, 20), 19, Some(1)),
            ("cache", denied(ResponseCode::NoError, 20), 19, Some(1)),
            ("cache {\n servfail 10s\n }", Answer::failed(), 9, None),
        ] {
            let cache = cache(text);
            cache.keep(&asked, &answer, begun);
            let kept = cache.get(&asked, after(alive)).unwrap_or_else(|| panic!("{text}: still good"));
            assert_eq!(kept.records().next().map(|r| r.ttl), left, "{text}");
            let seconds = alive + 1;
            assert!(cache.get(&asked, after(seconds)).is_none(), "{text}: over");
            assert_eq!(cache.len(), (0, 0), "{text}: and gone");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_kept() {
        let (asked, now) = (question("a.example.", RecordType::A), Instant::now());
        let alias = RData::CNAME(CNAME(Name::root()));
        let nowhere = Answer::own(vec![Record::from_rdata(Name::root(), 60, alias)]);
        let long = Answer::own(vec![address(60).answers[0].clone(); 100]);
        for (text, answer) in [
            ("cache", Answer { truncated: true, ..address(60) }),
            ("cache", Answer::new(ResponseCode::NXDomain)),
            ("cache", Answer::new(ResponseCode::Refused)),
            ("cache", nowhere),
            ("cache", long),
            ("cache {\n servfail 0\n }", Answer::failed()),
            ("cache {\n disable success example\n }", address(60)),
            ("cache {\n disable denial\n }", denied(ResponseCode::NXDomain, 60)),
        ] {
            let cache = cache(text);
            cache.keep(&asked, &answer, now);
            assert_eq!(cache.len(), (0, 0), "{text} {answer:?}");
        }
        assert!(!cache("cache 30 other.example").is_about(&asked));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_answer_takes_the_place_of_a_denial() {
        let (cache, asked, now) = (cache("cache"), question("a.example.", RecordType::A), Instant::now());
        cache.keep(&asked, &denied(ResponseCode::NXDomain, 60), now);
        cache.keep(&asked, &address(60), now);
        assert_eq!(cache.len(), (1, 0));
        let mut signed = asked.clone();
        signed.dnssec_ok = true;
        assert!(cache.get(&signed, now).is_none(), "who wants signatures is answered with them");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_answers_is_bounded() {
        let (cache, now) = (cache("cache {\n success 1024\n }"), Instant::now());
        for n in 0..5000 {
            cache.keep(&question(&format!("a{n}.example."), RecordType::A), &address(60), now);
        }
        assert_eq!(cache.len(), (1024, 0));
        let half = cache.success.lock();
        assert_eq!(half.bytes, half.entries.iter().map(|e| e.bytes).sum::<usize>());
        assert!(half.places.iter().all(|(key, place)| half.entries[*place].key == *key));
    }
}
