//! The links over which peers of different organisations exchange private data.
//!
//! Every compute node serves the other organisations at a separate address, and knows all compute nodes of their peers. At the
//! fault point [`MEMBER_LIES`], a peer of another organisation answers a request for sets with forged ones.

use std::sync::Arc;

use async_trait::async_trait;
use base::rt::net::Parties;
use base::rt::{self, AbortOnDrop, CancellationToken};
use base::{Bytes, ChannelId, MspId, TxId};
use chain::endorse::{Endorse, HostsChannels};
use chain::remote::{PeerTarget, RemoteMember, RemotePeer, RemotePeerConfig, ServiceScope, serve_peer};
use chain::view::PeerView;
use ledger::rwset::PrivateSet;
use private_data::{MemberPeer, MemberPeers, SetDigest};
use prost::Message as _;
use proto::kvrwset::{KvWrite, KvrwSet};

use super::Network;
use super::members::ORGANIZATIONS;
use crate::coverage::MEMBER_LIES;

/// The name of an organisation.
pub fn organization(place: usize) -> MspId {
    MspId::new(format!("Org{}MSP", place + 1))
}

/// The address at which a compute node serves peers of other organisations.
fn others_address(node: &str) -> String {
    format!("{node} others")
}

/// The peers of the other organisations, as a node of an organisation's peer reaches them; none in a seed without private data.
/// Their links end when the last reference to them is dropped.
pub fn member_peers(network: &Network, own: usize) -> Arc<MemberPeers> {
    let members = Arc::new(MemberPeers::default());
    if network.scenario.private_data.is_none() {
        return members;
    }
    for other in (0..ORGANIZATIONS).filter(|other| *other != own) {
        let nodes = network.scenario.compute_nodes(other).into_iter().map(|node| {
            Arc::new(RemotePeer::new(RemotePeerConfig {
                target: PeerTarget::Node(others_address(&node)),
                name: node,
                parties: Parties::anyone(),
                definitions: network.definitions(),
            }))
        });
        let remote = RemoteMember::new(organization(own), organization(other), nodes.collect());
        members.add(Arc::new(UnreliableMember(remote)));
    }
    members
}

/// Serves the other organisations until it is dropped.
pub struct OthersService {
    stop: CancellationToken,
    _accepting: AbortOnDrop<()>,
}

impl Drop for OthersService {
    fn drop(&mut self) {
        // The links are tasks of their own.
        self.stop.cancel();
    }
}

/// Serves the other organisations; `None` in a seed without private data.
///
/// # Errors
/// If the address is in use.
pub async fn serve_others<P: PeerView + Endorse + HostsChannels>(
    network: &Network,
    node: &str,
    peer: Arc<P>,
) -> Result<Option<OthersService>, chain::Error> {
    if network.scenario.private_data.is_none() {
        return Ok(None);
    }
    let stop = CancellationToken::new();
    let (address, parties) = (others_address(node), Parties::anyone());
    let serving = serve_peer(peer, ServiceScope::Others, &address, &parties, stop.clone());
    Ok(Some(OthersService { _accepting: serving.await?.abort_on_drop(), stop }))
}

/// A peer of another organisation, which lies now and then.
struct UnreliableMember(RemoteMember);

#[async_trait]
impl MemberPeer for UnreliableMember {
    fn organization(&self) -> &MspId {
        self.0.organization()
    }

    async fn push(&self, channel: &ChannelId, tx_id: &TxId, sets: &[PrivateSet]) -> Result<(), private_data::Error> {
        self.0.push(channel, tx_id, sets).await
    }

    async fn pull(&self, channel: &ChannelId, wanted: &[SetDigest]) -> Result<Vec<Option<Bytes>>, private_data::Error> {
        let answer = self.0.pull(channel, wanted).await?;
        if !rt::fault_point(MEMBER_LIES) {
            return Ok(answer);
        }
        let mut lies: Vec<Option<Bytes>> =
            answer.into_iter().map(|set| Some(forged_set(set.as_ref(), "a lie"))).collect();
        match rt::random_below(4) {
            0 => drop(lies.pop()),
            1 => lies.push(Some(Bytes::from_static(b"no set"))),
            2 => lies.reverse(),
            _ => {}
        }
        Ok(lies)
    }
}

/// A set of the same keys with other values.
pub fn forged_set(set: Option<&Bytes>, value: &str) -> Bytes {
    let set = set.and_then(|set| KvrwSet::decode(set.clone()).ok()).unwrap_or_default();
    let writes = set.writes.into_iter().map(|write| KvWrite {
        key: write.key,
        is_delete: false,
        value: Bytes::copy_from_slice(value.as_bytes()),
    });
    KvrwSet { writes: writes.collect(), ..KvrwSet::default() }.encode_to_vec().into()
}
