//! The addresses and ports that Services hold out of a limited supply.
//!
//! The store alone says what is taken: an IPAddress for each address, one map for all node ports. A write of a Service takes
//! and gives back in the transaction that writes the Service itself (`reservation.rs`), so the two cannot come apart by a
//! crash or by another server over the same store. Somebody who changes the IPAddresses by hand can part them, or a store
//! that an older version wrote; `repair.rs` mends that.
//! Upstream counterpart: pkg/registry/core/service/storage/alloc.go.

mod addresses;
pub mod families;
mod mend;
mod port_map;
pub mod ports;
mod repair;
mod reservation;
mod span;
#[cfg(test)]
mod tests;

use std::{net::IpAddr, ops::RangeInclusive, sync::Arc};

use api::status::StatusError;
use api::validation::field::{Errors, FieldError, Path};
use api::{Value, meta};
use futures::{FutureExt, future::BoxFuture};
use ipnet::IpNet;
use json::json;

use crate::admission::attributes::Allocation;
use crate::storage::{commit::Companions, error::store_error, object_store::ObjectStore};
use addresses::Addresses;
use families::Family;
use port_map::PortMap;
use reservation::{Address, Ports, Reservation};
use span::Span;

/// The kind whose allocation this is.
pub const KEY: (&str, &str) = ("", "services");

/// Why something cannot be had, in upstream's words.
const TAKEN_ADDRESS: &str = "provided IP is already allocated";
const NO_RANGE: &str = "the provided network does not match the current range";
const TAKEN_PORT: &str = "provided port is already allocated";
const FULL: &str = "range is full";
/// The first node port that a dry run shows.
const SHOWN_PORT: u16 = 32769;

/// Gives cluster addresses and node ports to Services.
pub struct ServiceAllocation {
    families: Vec<Family>,
    ranges: Vec<IpNet>,
    objects: Arc<ObjectStore>,
    addresses: Arc<Addresses>,
    node_ports: RangeInclusive<u16>,
    turn: Arc<tokio::sync::Mutex<()>>,
    _repair: repair::Task,
}

/// Everything that a Service holds.
fn held(service: &Value) -> (Vec<IpAddr>, Vec<u16>) {
    let addresses = if families::needs_address(service) { families::addresses(service) } else { Vec::new() };
    let mut ports = ports::held(service);
    ports.sort_unstable();
    ports.dedup();
    (addresses, ports)
}

fn key(service: &Value) -> String {
    format!("{}/{}", meta::namespace(service), meta::name(service))
}

impl ServiceAllocation {
    /// `ranges` are those of the flag, the main one first: their families are the cluster's. When this returns, what is
    /// stored is in order.
    pub async fn start(
        objects: Arc<ObjectStore>,
        ranges: &[IpNet],
        node_ports: RangeInclusive<u16>,
    ) -> Result<Self, StatusError> {
        let addresses = Arc::new(Addresses::new(objects.clone()).await?);
        let repair = repair::Repair::new(objects.clone(), addresses.clone(), ranges, node_ports.clone());
        Ok(ServiceAllocation {
            ranges: ranges.to_vec(),
            families: ranges.iter().map(|range| Family::of(&range.addr())).collect(),
            objects,
            addresses,
            node_ports,
            turn: Arc::default(),
            _repair: repair.start().await?,
        })
    }

    async fn assign(&self, old: Option<&Value>, new: &mut Value, dry_run: bool) -> Result<Reservation, StatusError> {
        families::carry_over(old, new);
        ports::carry_over(old, new);
        let name = meta::name(new).to_owned();
        let invalid = |errors: Errors| StatusError::invalid("", "Service", &name, &errors);
        families::settle(new, old, &self.families).map_err(invalid)?;
        let (had_addresses, had_ports) = old.map(held).unwrap_or_default();
        let mut reservation = Reservation { service: key(new), addresses: Vec::new(), ports: None };
        let settled = old.map_or(0, families::settled);
        self.assign_addresses(new, settled, dry_run, &mut reservation).await?;
        let wanted = ports::wanted(new, old);
        let had = old.map(|_| &had_ports[..]);
        let taken = self.assign_ports(new, wanted, had, dry_run, &mut reservation).await?;
        let (has_addresses, has_ports) = held(new);
        self.give_back(&mut reservation, had_addresses.iter().filter(|address| !has_addresses.contains(address)));
        let given = had_ports.into_iter().filter(|port| !has_ports.contains(port)).collect();
        self.change_ports(&mut reservation, taken, given).await?;
        Ok(reservation)
    }

    /// Gives the Service its addresses behind the first `settled` ones.
    async fn assign_addresses(
        &self,
        new: &mut Value,
        settled: usize,
        dry_run: bool,
        reservation: &mut Reservation,
    ) -> Result<(), StatusError> {
        if !families::needs_address(new) {
            return Ok(());
        }
        let wanted: Vec<Family> = families::listed(new);
        let mut ips = families::addresses(new);
        for (at, family) in wanted.iter().enumerate().skip(settled) {
            let address = match ips.get(at).copied() {
                Some(given) => {
                    if let Some(why) = self.refusal(&given).await? {
                        let path = Path::new("spec").child("clusterIPs");
                        let why = format!("failed to allocate IP {given}: {why}");
                        let error = FieldError::invalid(&path, &ips, &why);
                        return Err(StatusError::invalid("", "Service", meta::name(new), &[error]));
                    }
                    given
                }
                None => {
                    let full = || StatusError::internal(format!("failed to allocate a serviceIP: {FULL}"));
                    let drawn = match self.shown_address(*family).filter(|_| dry_run) {
                        Some(shown) => shown,
                        None => self.addresses.draw(*family).await?.ok_or_else(full)?,
                    };
                    ips.push(drawn);
                    drawn
                }
            };
            let object = addresses::stored_form(&address, meta::namespace(new), meta::name(new));
            reservation.addresses.push(Address::Take { key: self.addresses.key(&address), object });
        }
        if let Some(first) = ips.first() {
            new["spec"]["clusterIP"] = json!(first);
            new["spec"]["clusterIPs"] = json!(ips);
        }
        Ok(())
    }

    /// The address that a dry run shows, upstream's: that of the range itself, which no Service ever has.
    fn shown_address(&self, family: Family) -> Option<IpAddr> {
        self.ranges.iter().map(IpNet::network).find(|address| Family::of(address) == family)
    }

    /// Why a Service cannot have the address that it names.
    async fn refusal(&self, address: &IpAddr) -> Result<Option<&'static str>, StatusError> {
        if !self.addresses.offers(address).await? {
            return Ok(Some(NO_RANGE));
        }
        let (taken, _) = self.objects.store.get(&self.addresses.key(address)).await.map_err(store_error)?;
        Ok(taken.map(|_| TAKEN_ADDRESS))
    }

    /// Gives the Service's new node ports; returns them. `before` are those of the old Service, if there is one.
    async fn assign_ports(
        &self,
        new: &mut Value,
        wanted: Vec<ports::Want>,
        before: Option<&[u16]>,
        dry_run: bool,
        reservation: &mut Reservation,
    ) -> Result<Vec<u16>, StatusError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let known = self.stored_ports(reservation).await?;
        let span = Span::of_ports(&self.node_ports);
        let mut taken: Vec<u16> = Vec::new();
        let mut named = ports::Named::new(before);
        let mut shares = ports::Shares::of(new);
        for want in wanted {
            let port = match want.given {
                Some(given) => match named.find(&want, given)? {
                    Some(port) => port,
                    None => {
                        let refused = |why: String| want.refused(meta::name(new), given, &why);
                        let port = self.free_port(given, known, &taken).map_err(refused)?;
                        taken.push(port);
                        named.note(&want, port);
                        port
                    }
                },
                None => match shares.find(&want) {
                    Some(port) => port,
                    // A dry run counts on from what it has, or from a number of upstream's choice.
                    None if dry_run => {
                        let next = taken.iter().max().map_or(SHOWN_PORT, |last| last.saturating_add(1));
                        taken.push(next);
                        next
                    }
                    None => {
                        let free = |span: Span| {
                            let taken = |n: u128| u16::try_from(n).is_ok_and(|n| known.has(n) || taken.contains(&n));
                            span.draw(taken).and_then(|number| u16::try_from(number).ok())
                        };
                        let what = if want.is_health_check() { "HealthCheck NodePort 0" } else { "nodePort" };
                        let full = || StatusError::internal(format!("failed to allocate a {what}: {FULL}"));
                        let next = span.and_then(free).ok_or_else(full)?;
                        taken.push(next);
                        next
                    }
                },
            };
            ports::set(new, &want, port);
            shares.note(&want, port);
        }
        Ok(taken)
    }

    /// The port of a number that a client names, or why the Service cannot have it.
    fn free_port(&self, number: i64, known: &PortMap, taken: &[u16]) -> Result<u16, String> {
        let Some(port) = u16::try_from(number).ok().filter(|port| self.node_ports.contains(port)) else {
            let range = format!("{}-{}", self.node_ports.start(), self.node_ports.end());
            return Err(format!("provided port is not in the valid range. The range of valid ports is {range}"));
        };
        if known.has(port) || taken.contains(&port) { Err(TAKEN_PORT.to_owned()) } else { Ok(port) }
    }

    /// The map of node ports as it is stored, which the reservation keeps.
    async fn stored_ports<'r>(&self, reservation: &'r mut Reservation) -> Result<&'r PortMap, StatusError> {
        let (stored, _) = self.objects.store.get(port_map::KEY).await.map_err(store_error)?;
        let map = match &stored {
            None => PortMap::new(&self.node_ports),
            Some(entry) => PortMap::decode(&entry.value, &self.node_ports).map_err(StatusError::internal)?,
        };
        let ports = reservation.ports.insert(Ports {
            range: self.node_ports.clone(),
            map,
            seen: stored.map(|entry| entry.modified),
            take: Vec::new(),
            give: Vec::new(),
            turn: self.turn.clone(),
        });
        Ok(&ports.map)
    }

    async fn change_ports(
        &self,
        reservation: &mut Reservation,
        take: Vec<u16>,
        give: Vec<u16>,
    ) -> Result<(), StatusError> {
        if take.is_empty() && give.is_empty() {
            reservation.ports = None;
            return Ok(());
        }
        if reservation.ports.is_none() {
            self.stored_ports(reservation).await?;
        }
        if let Some(ports) = &mut reservation.ports {
            (ports.take, ports.give) = (take, give);
        }
        Ok(())
    }

    fn give_back<'a>(&self, reservation: &mut Reservation, addresses: impl IntoIterator<Item = &'a IpAddr>) {
        for address in addresses {
            let known = self.addresses.holding(address);
            let own = |holding: &addresses::Holding| {
                holding.service.as_ref() == Some(&reservation.service) && !holding.has_finalizers
            };
            // An address that is not in the book as expected is looked at in the store: no state has the revision 0.
            let seen = known.filter(own).map_or(0, |holding| holding.revision);
            reservation.addresses.push(Address::Give { key: self.addresses.key(address), seen });
        }
    }
}

impl Allocation for ServiceAllocation {
    fn allocate<'a>(
        &'a self,
        old: Option<&'a Value>,
        new: &'a mut Value,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Box<dyn Companions>, StatusError>> {
        let boxed = |reservation| Box::new(reservation) as Box<dyn Companions>;
        async move { self.assign(old, new, dry_run).await.map(boxed) }.boxed()
    }

    fn release<'a>(&'a self, object: &'a Value) -> BoxFuture<'a, Result<Box<dyn Companions>, StatusError>> {
        async move {
            let (addresses, ports) = held(object);
            let mut reservation = Reservation { service: key(object), addresses: Vec::new(), ports: None };
            self.give_back(&mut reservation, &addresses);
            self.change_ports(&mut reservation, Vec::new(), ports).await?;
            Ok(Box::new(reservation) as Box<dyn Companions>)
        }
        .boxed()
    }
}
