//! The peers of other organisations, with which private data are exchanged.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{self, Instant};
use base::{Bytes, ChannelId, MspId, TxId};
use ledger::Hash;
use ledger::rwset::PrivateSet;

use crate::Error;
use crate::rows::SetLocation;

/// How long a peer that did not answer in time is left out where an answer is waited for.
pub const SILENCE: Duration = Duration::from_secs(30);

/// Names a set of a transaction in a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetDigest {
    /// Where it belongs.
    pub location: SetLocation,
    /// The transaction.
    pub tx_id: TxId,
    /// The SHA-256 of the set, as the transaction states it.
    pub hash: Hash,
}

/// A peer of another organisation.
#[async_trait]
pub trait MemberPeer: Send + Sync + 'static {
    /// Its organisation, which the link to it proves.
    fn organization(&self) -> &MspId;

    /// Sends it private sets of a transaction, which it keeps until the transaction is ordered. On return they are durable there.
    ///
    /// Dropping the future is safe; the peer may have the sets.
    ///
    /// # Errors
    /// If the peer cannot be reached or refuses; it may have the sets nevertheless.
    async fn push(&self, channel: &ChannelId, tx_id: &TxId, sets: &[PrivateSet]) -> Result<(), Error>;

    /// Asks it for sets. The answer has one item for each, which the caller must check: `None` if the peer does not have the set or
    /// does not give it.
    ///
    /// # Errors
    /// If the peer cannot be reached.
    async fn pull(&self, channel: &ChannelId, wanted: &[SetDigest]) -> Result<Vec<Option<Bytes>>, Error>;
}

/// The peers of other organisations that a peer knows.
#[derive(Default)]
pub struct MemberPeers {
    peers: RwLock<Vec<Arc<dyn MemberPeer>>>,
    silent: Mutex<BTreeMap<MspId, Instant>>,
}

impl MemberPeers {
    /// Adds a peer. An organisation may have several.
    pub fn add(&self, peer: Arc<dyn MemberPeer>) {
        self.peers.write().unwrap_or_else(PoisonError::into_inner).push(peer);
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<dyn MemberPeer>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those that `is_member` selects, without organisations that lately did not answer in time.
    pub fn responsive(&self, is_member: impl Fn(&MspId) -> bool) -> Vec<Arc<dyn MemberPeer>> {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_silent = |organization: &MspId| silent.get(organization).is_some_and(|until| rt::now() < *until);
        let mut peers = self.all();
        peers.retain(|peer| is_member(peer.organization()) && !is_silent(peer.organization()));
        peers
    }

    /// Notes that an organisation did not answer in time.
    pub fn note_silence(&self, organization: &MspId) {
        let until = rt::now() + SILENCE;
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).insert(organization.clone(), until);
    }
}

impl fmt::Debug for MemberPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all().iter().map(|peer| peer.organization().clone())).finish()
    }
}
