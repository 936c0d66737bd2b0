//! The peer of another organisation, with which private data are exchanged over links.

use std::sync::Arc;

use async_trait::async_trait;
use base::{Bytes, ChannelId, ErrorKind, MspId, TxId};
use ledger::rwset::PrivateSet;

use super::RemotePeer;
use super::messages::{Ask, decode};
use super::private_messages::{PrivatePull, PrivatePullResponse, PrivatePush};
use private_data::{Error, MemberPeer, SetDigest};

/// A peer of another organisation. Its compute nodes share their private data, so any of them may answer.
pub struct RemoteMember {
    /// This process's organisation.
    own: MspId,
    organization: MspId,
    nodes: Vec<Arc<RemotePeer>>,
}

impl RemoteMember {
    /// The peer of `organization` with these compute nodes, which accept links of the organisation `own`.
    pub fn new(own: MspId, organization: MspId, nodes: Vec<Arc<RemotePeer>>) -> RemoteMember {
        RemoteMember { own, organization, nodes }
    }

    /// Asks the compute nodes in turn until one answers.
    async fn ask(&self, ask: Ask) -> Result<Bytes, Error> {
        let mut error = self.error(ErrorKind::Retry, "no compute node of its peer is known".to_owned());
        for node in &self.nodes {
            let failed = match node.ask(ask.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            error = self.error(failed.kind(), failed.to_string());
            if failed.kind() == ErrorKind::Rejected {
                break;
            }
        }
        Err(error)
    }

    fn error(&self, kind: ErrorKind, reason: String) -> Error {
        Error::Member { organization: self.organization.clone(), kind, reason }
    }
}

#[async_trait]
impl MemberPeer for RemoteMember {
    fn organization(&self) -> &MspId {
        &self.organization
    }

    async fn push(&self, channel: &ChannelId, tx_id: &TxId, sets: &[PrivateSet]) -> Result<(), Error> {
        self.ask(Ask::PrivatePush(PrivatePush::new(channel, &self.own, tx_id, sets))).await.map(drop)
    }

    async fn pull(&self, channel: &ChannelId, wanted: &[SetDigest]) -> Result<Vec<Option<Bytes>>, Error> {
        let answer = self.ask(Ask::PrivatePull(PrivatePull::new(channel, &self.own, wanted))).await?;
        let answer: PrivatePullResponse = decode(answer)
            .map_err(|error| self.error(ErrorKind::Corrupt, format!("its answer cannot be read: {error}")))?;
        Ok(answer.sets.into_iter().map(|set| set.writes).take(wanted.len()).collect())
    }
}
