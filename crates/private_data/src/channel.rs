//! The private data of one channel at one peer, and the other peers with which it exchanges them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::{Bytes, ChannelId, ErrorKind, MspId, TxId};
use identity::Identity;
use ledger::rwset::PrivateSet;
use storage::PrivateRow;

use crate::Error;
use crate::members::{MemberPeers, SetDigest};
use crate::policies::{CollectionPolicies, keeps};
use crate::rows::{MISSING, SWEEPS, SetLocation};
use crate::store::PrivateStore;
use crate::values::PrivateValues;

/// Sets that one message may carry or ask for.
pub const SETS_MAX: usize = 256;
/// Bytes of sets in one message.
pub const SET_BYTES_MAX: usize = 32 << 20;
/// Bytes of sets that an organisation may send in [`FORGET_PERIOD_BLOCKS`](crate::upkeep::FORGET_PERIOD_BLOCKS) blocks.
pub const ORGANIZATION_BYTES_MAX: usize = 256 << 20;
/// What a set counts beyond its own bytes, for its key and for the work that even an empty one makes.
const SET_OVERHEAD_BYTES: usize = 256;
/// The length of a transaction's id: a SHA-256 in hexadecimal.
const TX_ID_BYTES: usize = 64;

/// The private data of one channel at one peer.
#[derive(Debug)]
pub struct PrivateChannel {
    pub(crate) channel: ChannelId,
    pub(crate) own: MspId,
    pub(crate) store: PrivateStore,
    pub(crate) members: Arc<MemberPeers>,
    /// Bytes of sets that each organisation has sent in the present period.
    received: Mutex<BTreeMap<MspId, usize>>,
    /// Whether sets may be missing.
    pub(crate) has_missing: AtomicBool,
    /// Whether purges may be incomplete.
    pub(crate) has_purges: AtomicBool,
}

impl PrivateChannel {
    /// The private data in `store`, of a peer of the organisation `own`.
    pub fn new(channel: ChannelId, own: MspId, store: PrivateStore, members: Arc<MemberPeers>) -> PrivateChannel {
        PrivateChannel {
            channel,
            own,
            store,
            members,
            received: Mutex::default(),
            // Until the tables were looked at.
            has_missing: AtomicBool::new(true),
            has_purges: AtomicBool::new(true),
        }
    }

    /// The tables.
    pub fn store(&self) -> &PrivateStore {
        &self.store
    }

    /// The values that this peer has.
    pub fn values(&self) -> Arc<dyn PrivateValues> {
        Arc::new(self.store.clone())
    }

    /// Takes the private sets of a transaction from an organisation that a link has proven. `height` is that of the channel.
    ///
    /// # Errors
    /// `Rejected` for sets that this peer must not have or that are too many; `Retry` beyond the organisation's share; the tables'.
    pub async fn accept(
        &self,
        from: &MspId,
        policies: &dyn CollectionPolicies,
        height: u64,
        tx_id: &TxId,
        sets: &[PrivateSet],
    ) -> Result<(), Error> {
        let rejected = |reason: &str| Error::refused(from, reason);
        let bytes = sets.iter().map(|set| set.writes.len()).sum::<usize>();
        if sets.len() > SETS_MAX || bytes > SET_BYTES_MAX {
            return Err(rejected("too many sets, or bytes of them, in one message"));
        }
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if tx_id.len() != TX_ID_BYTES || !tx_id.as_str().bytes().all(is_digit) {
            return Err(rejected("the transaction has no valid id"));
        }
        if !policies.is_member(from) {
            return Err(rejected("it is no member of the channel"));
        }
        let is_kept = |set: &PrivateSet| keeps(policies, &self.own, &set.namespace, &set.collection);
        if !sets.iter().all(is_kept) {
            return Err(rejected("this organisation is no member of a collection"));
        }
        {
            let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
            let received = received.entry(from.clone()).or_default();
            let counted = counted_bytes(sets);
            if received.saturating_add(counted) > ORGANIZATION_BYTES_MAX {
                return Err(Error::Member {
                    organization: from.clone(),
                    kind: ErrorKind::Retry,
                    reason: "too many of its sets wait for their transactions; send them again later".to_owned(),
                });
            }
            *received += counted;
        }
        self.store.stage(tx_id, height, sets, Some(from)).await
    }

    /// Answers an organisation that a link has proven: the sets of collections of which it is a member.
    ///
    /// # Errors
    /// `Rejected` for too many; the tables'.
    pub async fn provide(
        &self,
        to: &MspId,
        policies: &dyn CollectionPolicies,
        height: u64,
        wanted: &[SetDigest],
    ) -> Result<Vec<Option<Bytes>>, Error> {
        if wanted.len() > SETS_MAX {
            return Err(Error::refused(to, format!("more than {SETS_MAX} sets were asked for at once")));
        }
        let (mut found, mut bytes) = (Vec::with_capacity(wanted.len()), 0);
        for SetDigest { location, tx_id, hash } in wanted {
            let may_have = keeps(policies, to, &location.contract, &location.collection)
                && !self.has_expired(policies, location, height);
            let set = match may_have && bytes < SET_BYTES_MAX {
                false => None,
                true => match self.store.set(location).await? {
                    Some(set) => Some(set),
                    None => self.store.staged(tx_id, &location.contract, &location.collection, hash).await?,
                },
            };
            bytes += set.as_ref().map_or(0, Bytes::len);
            found.push(set);
        }
        Ok(found)
    }

    /// The sets of a committed transaction that `client` may have, if this peer has them: those of collections that anybody may
    /// read, and those of which the client is a member. In the order of contracts and collections.
    ///
    /// # Errors
    /// The tables'.
    pub async fn sets_for(
        &self,
        client: &Arc<Identity>,
        policies: &dyn CollectionPolicies,
        height: u64,
        locations: &[SetLocation],
    ) -> Result<Vec<(SetLocation, Bytes)>, Error> {
        let mut sets = Vec::new();
        for location in locations {
            let access = policies.access(&location.contract, &location.collection);
            let may_read = access.is_some_and(|access| !access.member_only_read || access.is_member(client));
            if may_read
                && !self.has_expired(policies, location, height)
                && let Some(set) = self.store.set(location).await?
            {
                sets.push((location.clone(), set));
            }
        }
        Ok(sets)
    }

    /// Writes the rows that [`PrivateChannel::collect`] has made. Durable on return.
    ///
    /// # Errors
    /// The tables'.
    pub async fn write(&self, rows: Vec<PrivateRow>) -> Result<(), Error> {
        let has = |namespace| rows.iter().any(|row| row.namespace == namespace);
        let (is_missing, is_purged) = (has(MISSING), has(SWEEPS));
        let written = self.store.write(rows).await;
        // Only now would a look into the tables find the rows. After an error they may be there too.
        if is_missing {
            self.note_missing();
        }
        if is_purged {
            self.note_purges();
        }
        written
    }

    /// Whether the data of a transaction have expired for a channel of this height.
    pub(crate) fn has_expired(&self, policies: &dyn CollectionPolicies, at: &SetLocation, height: u64) -> bool {
        let blocks = policies.block_to_live(&at.contract, &at.collection);
        blocks > 0 && at.version.block.saturating_add(blocks).saturating_add(1) < height
    }

    /// Forgets how much each organisation has sent.
    pub(crate) fn forget_received(&self) {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether sets of committed transactions may be missing.
    pub(crate) fn may_lack_sets(&self) -> bool {
        self.has_missing.load(Ordering::Acquire)
    }

    pub(crate) fn note_missing(&self) {
        self.has_missing.store(true, Ordering::Release);
    }

    pub(crate) fn note_purges(&self) {
        self.has_purges.store(true, Ordering::Release);
    }
}

/// What sets count towards the share of the organisation that sends them.
fn counted_bytes(sets: &[PrivateSet]) -> usize {
    sets.iter().map(|set| set.writes.len() + SET_OVERHEAD_BYTES).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the bytes of sets counted, so that an organisation could send any number of empty ones.
    #[test]
    fn empty_sets_count_towards_what_an_organisation_may_send() {
        let empty = PrivateSet { namespace: "vault".to_owned(), collection: "pair".to_owned(), writes: Bytes::new() };
        assert_eq!(counted_bytes(&vec![empty; SETS_MAX]), SETS_MAX * SET_OVERHEAD_BYTES);
    }
}
