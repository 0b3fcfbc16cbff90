//! Forgets UDP flows that lead to endpoints which are gone. TCP notices by itself; a UDP client that keeps its port
//! would send into the void for as long as it goes on sending.
//! Upstream counterpart: pkg/proxy/conntrack/cleanup.go.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use futures::StreamExt;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
    conntrack::{ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol, Tuple},
};
use netlink_proto::ConnectionHandle;
use netlink_sys::{SocketAddr, protocols::NETLINK_NETFILTER};
use nft::Family;

use crate::{endpoints::Target, item::Door};

#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    #[error("cannot open a netfilter socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("cannot speak to the kernel: {0}")]
    Request(String),
}

/// A flow as connection tracking sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flow {
    /// The direction in which it began, as the kernel wants to read it again.
    original: Vec<Tuple>,
    /// Where the client sent to.
    called: (IpAddr, u16),
    /// The endpoint that answers.
    answering: (IpAddr, u16),
}

/// Forgets the flows through these doors that lead to none of the targets that they may. Returns how many.
pub async fn forget(family: Family, doors: &BTreeMap<Door, BTreeSet<Target>>) -> Result<usize, ConntrackError> {
    let (connection, handle, _) = netlink_proto::new_connection::<NetfilterMessage>(NETLINK_NETFILTER)?;
    let connection = tokio::spawn(connection);
    let outcome = forget_through(&handle, family, doors).await;
    connection.abort();
    outcome
}

async fn forget_through(
    handle: &ConnectionHandle<NetfilterMessage>,
    family: Family,
    doors: &BTreeMap<Door, BTreeSet<Target>>,
) -> Result<usize, ConntrackError> {
    let mut stale = Vec::new();
    let mut answers = handle
        .clone()
        .request(message(family, ConntrackMessage::Get(Vec::new()), NLM_F_DUMP), SocketAddr::new(0, 0))
        .map_err(refused)?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::InnerMessage(NetfilterMessage { inner: NetfilterMessageInner::Conntrack(entry), .. }) =
            answer.payload
            && let ConntrackMessage::New(attributes) = entry
            && let Some(flow) = udp_flow(&attributes)
            && is_stale(&flow, doors)
        {
            stale.push(flow);
        }
    }
    let count = stale.len();
    for flow in stale {
        let request = ConntrackMessage::Delete(vec![ConntrackAttribute::CtaTupleOrig(flow.original)]);
        let mut done =
            handle.clone().request(message(family, request, NLM_F_ACK), SocketAddr::new(0, 0)).map_err(refused)?;
        // An error means that it ended by itself meanwhile.
        while done.next().await.is_some() {}
    }
    Ok(count)
}

fn refused(error: impl std::fmt::Display) -> ConntrackError {
    ConntrackError::Request(error.to_string())
}

fn message(family: Family, request: ConntrackMessage, flags: u16) -> NetlinkMessage<NetfilterMessage> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let family = match family {
        Family::V4 => NetfilterProtoFamily::IPv4,
        Family::V6 => NetfilterProtoFamily::IPv6,
    };
    let inner = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), request);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(inner));
    message.finalize();
    message
}

/// The flow of an entry, if it is one of UDP.
fn udp_flow(attributes: &[ConntrackAttribute]) -> Option<Flow> {
    let mut original = None;
    let mut reply = None;
    for attribute in attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => original = Some(tuple.clone()),
            ConntrackAttribute::CtaTupleReply(tuple) => reply = Some(tuple.clone()),
            _ => {}
        }
    }
    let (original, reply) = (original?, reply?);
    let is_udp = protocols(&original).any(|p| matches!(p, ProtoTuple::Protocol(Protocol::Udp)));
    if !is_udp {
        return None;
    }
    let called =
        addresses(&original).find_map(|a| if let IPTuple::DestinationAddress(ip) = a { Some(*ip) } else { None })?;
    let called_port =
        protocols(&original).find_map(|p| if let ProtoTuple::DestinationPort(n) = p { Some(*n) } else { None })?;
    let answering =
        addresses(&reply).find_map(|a| if let IPTuple::SourceAddress(ip) = a { Some(*ip) } else { None })?;
    let answering_port =
        protocols(&reply).find_map(|p| if let ProtoTuple::SourcePort(n) = p { Some(*n) } else { None })?;
    Some(Flow { original, called: (called, called_port), answering: (answering, answering_port) })
}

fn addresses(tuple: &[Tuple]) -> impl Iterator<Item = &IPTuple> {
    tuple.iter().flat_map(|t| if let Tuple::Ip(list) = t { list.as_slice() } else { &[] })
}

fn protocols(tuple: &[Tuple]) -> impl Iterator<Item = &ProtoTuple> {
    tuple.iter().flat_map(|t| if let Tuple::Proto(list) = t { list.as_slice() } else { &[] })
}

fn is_stale(flow: &Flow, doors: &BTreeMap<Door, BTreeSet<Target>>) -> bool {
    let (ip, port) = flow.called;
    let answering = Target { ip: flow.answering.0, port: flow.answering.1 };
    let through = |door: Door| doors.get(&door).is_some_and(|allowed| !allowed.contains(&answering));
    // A flow to a node port is one whose destination was rewritten; others may use the same port number for themselves.
    let rewritten = flow.called != flow.answering;
    through(Door::Address(ip, port)) || (rewritten && through(Door::NodePort(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flows_to_what_is_gone_are_stale() {
        let target = |last: u8, port| Target { ip: [10, 244, 0, last].into(), port };
        let vip = IpAddr::from([10, 96, 0, 10]);
        let doors = BTreeMap::from([
            (Door::Address(vip, 53), BTreeSet::from([target(1, 5353)])),
            (Door::NodePort(30053), BTreeSet::from([target(1, 5353)])),
        ]);
        let check = |called: (IpAddr, u16), answering: (u8, u16), expected: bool| {
            let answering = (IpAddr::from([10, 244, 0, answering.0]), answering.1);
            let flow = Flow { original: Vec::new(), called, answering };
            assert_eq!(is_stale(&flow, &doors), expected, "{flow:?}");
        };
        check((vip, 53), (1, 5353), false);
        check((vip, 53), (2, 5353), true);
        check((vip, 53), (1, 53), true);
        check((vip, 54), (2, 5353), false);
        check(([192, 168, 0, 1].into(), 30053), (2, 5353), true);
        check(([192, 168, 0, 1].into(), 30053), (1, 5353), false);
        check(([10, 244, 0, 9].into(), 30053), (9, 30053), false);
    }
}
