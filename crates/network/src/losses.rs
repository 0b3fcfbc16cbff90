//! The kernel says when links, addresses, routes and neighbours change: somebody may take from the overlay by hand, or a link
//! may go down, which takes its routes along without another word.

use futures::{StreamExt, channel::mpsc::UnboundedReceiver};
use rtnetlink::{
    Handle, MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::RouteNetlinkMessage,
    sys::SocketAddr,
};
use tokio::task::JoinSet;

use crate::error::{LinkError, system};

/// The changes that the kernel tells from the moment of listening on. The kernel drops what a slow reader leaves, and
/// then ends the telling.
pub struct Losses {
    messages: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    #[allow(dead_code, reason = "the connection ends without it")]
    handle: Handle,
    #[allow(dead_code, reason = "dropping the set ends the connection")]
    connection: JoinSet<()>,
}

impl Losses {
    pub fn listen() -> Result<Self, LinkError> {
        let groups =
            [MulticastGroup::Link, MulticastGroup::Neigh, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv4Route];
        let opened = rtnetlink::new_multicast_connection(&groups);
        let (open, handle, messages) = opened.map_err(system("listen to the kernel's network"))?;
        let mut connection = JoinSet::new();
        connection.spawn(open);
        Ok(Losses { messages, handle, connection })
    }

    /// The next change; `None` when something was missed and there will be no more.
    pub async fn next(&mut self) -> Option<RouteNetlinkMessage> {
        loop {
            let (message, _) = self.messages.next().await?;
            match message.payload {
                NetlinkPayload::InnerMessage(change) => return Some(change),
                NetlinkPayload::Overrun(_) => return None,
                _ => {}
            }
        }
    }
}
