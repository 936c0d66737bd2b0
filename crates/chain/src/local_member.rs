//! The peer of another organisation in the same process.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use base::{Bytes, ChannelId, ErrorKind, MspId, TxId};
use ledger::rwset::PrivateSet;

use private_data::{Error, MemberPeer, SetDigest};

use crate::endorse::{EndorsingChannel, HostsChannels};

/// A peer of another organisation that runs in this process.
pub struct LocalMember<H: ?Sized> {
    /// The organisation that asks.
    own: MspId,
    organization: MspId,
    /// Its compute nodes. Weak, since the peers of a process know one another.
    nodes: Vec<Weak<H>>,
}

impl<H: HostsChannels + ?Sized> LocalMember<H> {
    /// The peer of `organization` with these compute nodes, for a peer of the organisation `own`.
    pub fn new(own: MspId, organization: MspId, nodes: &[Arc<H>]) -> LocalMember<H> {
        LocalMember { own, organization, nodes: nodes.iter().map(Arc::downgrade).collect() }
    }

    fn channel(&self, name: &ChannelId) -> Result<Arc<dyn EndorsingChannel>, Error> {
        let mut nodes = self.nodes.iter().filter_map(Weak::upgrade);
        let channel = nodes.find_map(|node| node.endorsing_channel(name.as_str()));
        channel.ok_or_else(|| Error::Member {
            organization: self.organization.clone(),
            kind: ErrorKind::Retry,
            reason: format!("it does not serve channel {name} now"),
        })
    }
}

#[async_trait]
impl<H: HostsChannels + ?Sized> MemberPeer for LocalMember<H> {
    fn organization(&self) -> &MspId {
        &self.organization
    }

    async fn push(&self, channel: &ChannelId, tx_id: &TxId, sets: &[PrivateSet]) -> Result<(), Error> {
        let channel = self.channel(channel)?;
        channel.private().accept(&self.own, &*channel.policies(), channel.height(), tx_id, sets).await
    }

    async fn pull(&self, channel: &ChannelId, wanted: &[SetDigest]) -> Result<Vec<Option<Bytes>>, Error> {
        let channel = self.channel(channel)?;
        channel.private().provide(&self.own, &*channel.policies(), channel.height(), wanted).await
    }
}
