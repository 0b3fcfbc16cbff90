//! `cache`: how many answers are kept and how long. Pure.

use super::{Directive, Error, Line, values};

/// CoreDNS' size of one cache, and the least it takes.
const CAPACITY: usize = 9984;
const LEAST: usize = 1024;
const MOST: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    pub zones: Vec<String>,
    pub success: Part,
    pub denial: Part,
    /// How long a failure is kept, in seconds.
    pub failure: u32,
    pub keep_ttl: bool,
}

/// One half: answers, or that there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub capacity: usize,
    /// Bounds on how long something is kept, in seconds.
    pub most: u32,
    pub least: u32,
    /// Zones of which nothing is kept.
    pub except: Vec<String>,
}

impl Cache {
    pub fn read(directive: &Directive, block: &[String]) -> Result<Self, Error> {
        let (mut zones, mut most) = (directive.args.as_slice(), None);
        if let Some((first, rest)) = zones.split_first()
            && first.bytes().all(|b| b.is_ascii_digit())
        {
            most = Some(values::number(first, 1, 86_400).map_err(|what| directive.error(what))?);
            zones = rest;
        }
        let part = |standard| Part {
            capacity: CAPACITY,
            most: most.unwrap_or(standard),
            least: 5.min(most.unwrap_or(5)),
            except: Vec::new(),
        };
        let mut cache = Cache {
            zones: directive.zones(zones, block)?,
            success: part(3600),
            denial: part(1800),
            failure: 5,
            keep_ttl: false,
        };
        for line in &directive.body {
            cache.set(line)?;
        }
        Ok(cache)
    }

    fn set(&mut self, line: &Line) -> Result<(), Error> {
        match line.property() {
            "success" => self.success.set(line)?,
            "denial" => self.denial.set(line)?,
            "servfail" => {
                let time = line.read(values::duration)?.as_secs();
                self.failure = u32::try_from(time)
                    .ok()
                    .filter(|s| *s <= 300)
                    .ok_or_else(|| line.error("caching SERVFAIL responses over 5 minutes is not permitted"))?;
            }
            "keepttl" => (self.keep_ttl, _) = (true, line.bare()?),
            "disable" => {
                let everything = [String::new()];
                let (which, zones) = line.args().split_first().ok_or_else(|| line.wrong())?;
                let zones = values::zones_or(zones, &everything).map_err(|what| line.error(what))?;
                match which.as_str() {
                    "success" => self.success.except = zones,
                    "denial" => self.denial.except = zones,
                    _ => {
                        return Err(
                            line.error(format!("cache type for disable must be \"success\" or \"denial\": {which}"))
                        );
                    }
                }
            }
            "prefetch" | "serve_stale" | "serve_stale_policy" => {
                return Err(line.error(format!("{} is not supported", line.property())));
            }
            _ => return Err(line.unknown()),
        }
        Ok(())
    }
}

impl Part {
    fn set(&mut self, line: &Line) -> Result<(), Error> {
        let numbers = line.read_all(|word| values::number::<u32>(word, 0, 86_400 * 30))?;
        let (capacity, rest) = numbers.split_first().ok_or_else(|| line.wrong())?;
        self.capacity = usize::try_from(*capacity).unwrap_or(MOST).clamp(LEAST, MOST);
        match rest {
            [] => {}
            [most] => self.most = *most,
            [most, least] => (self.most, self.least) = (*most, *least),
            _ => return Err(line.wrong()),
        }
        self.least = self.least.min(self.most);
        Ok(())
    }
}
