//! `forward`: which names are asked elsewhere, of whom and how. Pure.

use std::net::SocketAddr;

use clock::Duration;
use hickory_proto::op::ResponseCode;

use super::{Around, Directive, Error, Line, values};

/// CoreDNS' bound.
const MAX_SERVERS: usize = 15;
/// How many different questions one `forward` has on their way at the most. CoreDNS has no bound unless one is set.
const MAX_CONCURRENT: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Random,
    RoundRobin,
    Sequential,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub from: String,
    pub except: Vec<String>,
    pub servers: Vec<SocketAddr>,
    pub policy: Policy,
    pub force_tcp: bool,
    pub prefer_udp: bool,
    /// Failures in a row after which a server counts as down; 0 means never.
    pub max_fails: u32,
    pub read_timeout: Duration,
    pub check: Check,
    pub max_concurrent: usize,
    /// Whether nobody is asked while all servers are down.
    pub failfast: bool,
    /// Codes after which the next server is asked.
    pub failover: Vec<ResponseCode>,
    /// Codes after which the next `forward` is asked.
    pub next: Vec<ResponseCode>,
}

/// How a server that failed is asked whether it is back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub every: Duration,
    pub recursion_desired: bool,
    pub name: String,
}

impl Forward {
    pub fn read(directive: &Directive, around: &Around) -> Result<Self, Error> {
        let Some((from, to)) = directive.args.split_first().filter(|(_, to)| !to.is_empty()) else {
            return Err(directive.wrong());
        };
        let mut servers: Vec<SocketAddr> = Vec::new();
        for word in to {
            for server in values::servers(word, &around.resolv_conf).map_err(|what| directive.error(what))? {
                if !servers.contains(&server) {
                    servers.push(server);
                }
            }
        }
        if servers.len() > MAX_SERVERS {
            return Err(directive.error(format!("more than {MAX_SERVERS} TOs configured: {}", servers.len())));
        }
        let from = values::zones(from).map_err(|what| directive.error(what))?;
        let mut forward = Forward::to(from.into_iter().next().unwrap_or_default(), servers);
        for line in &directive.body {
            forward.set(line)?;
        }
        Ok(forward)
    }

    /// With everything else as CoreDNS has it.
    pub fn to(from: String, servers: Vec<SocketAddr>) -> Self {
        Forward {
            from,
            except: Vec::new(),
            servers,
            policy: Policy::Random,
            force_tcp: false,
            prefer_udp: false,
            max_fails: 2,
            read_timeout: Duration::from_secs(2),
            check: Check { every: Duration::from_millis(500), recursion_desired: true, name: String::new() },
            max_concurrent: MAX_CONCURRENT,
            failfast: false,
            failover: Vec::new(),
            next: Vec::new(),
        }
    }

    fn set(&mut self, line: &Line) -> Result<(), Error> {
        match line.property() {
            "except" => self.except = line.read_all(values::zones)?.into_iter().flatten().collect(),
            "force_tcp" => (self.force_tcp, _) = (true, line.bare()?),
            "prefer_udp" => (self.prefer_udp, _) = (true, line.bare()?),
            "failfast_all_unhealthy_upstreams" => (self.failfast, _) = (true, line.bare()?),
            "max_fails" => self.max_fails = line.read(|w| values::number(w, 0, 1_000_000))?,
            "max_concurrent" => {
                let max = line.read(|w| values::number(w, 0, 100_000))?;
                self.max_concurrent = if max == 0 { MAX_CONCURRENT } else { max };
            }
            // Connections are not kept, so no bound on kept ones is passed.
            "expire" => drop(line.read(values::duration)?),
            "max_idle_conns" => drop(line.read(|w| values::number(w, 0_u32, u32::MAX))?),
            "read_timeout" => {
                self.read_timeout = line.read(values::duration)?;
                if self.read_timeout.is_zero() || self.read_timeout > Duration::from_secs(30) {
                    return Err(line.error("read_timeout is more than nothing and at most 30s"));
                }
            }
            "policy" => {
                self.policy = line.read(|word| match word {
                    "random" => Ok(Policy::Random),
                    "round_robin" => Ok(Policy::RoundRobin),
                    "sequential" => Ok(Policy::Sequential),
                    _ => Err(format!("unknown policy '{word}'")),
                })?;
            }
            "health_check" => self.check = check(line)?,
            "failover" | "next" => {
                let codes = line.read_all(values::response_code)?;
                if line.property() == "failover" && codes.contains(&ResponseCode::NoError) {
                    return Err(line.error("failover NOERROR is not allowed"));
                }
                *(if line.property() == "next" { &mut self.next } else { &mut self.failover }) = codes;
            }
            _ => return Err(line.unknown()),
        }
        Ok(())
    }
}

fn check(line: &Line) -> Result<Check, Error> {
    let Some((every, options)) = line.args().split_first() else { return Err(line.wrong()) };
    let every = values::duration(every).map_err(|what| line.error(what))?;
    if every < Duration::from_millis(100) {
        return Err(line.error("health_check asks at most ten times a second"));
    }
    let mut check = Check { every, recursion_desired: true, name: String::new() };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match (option.as_str(), options.as_slice()) {
            ("no_rec", _) => check.recursion_desired = false,
            ("domain", [name, ..]) => {
                check.name = values::name(name).map_err(|what| line.error(what))?;
                options.next();
            }
            _ => return Err(line.error(format!("health_check: unknown option {option}"))),
        }
    }
    Ok(check)
}
