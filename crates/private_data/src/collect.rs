//! Step 2: before a peer appends a block, it gathers the private data of the block's transactions.
//!
//! The peer first looks among its transient sets, then asks the peers of the other members, all at once and at most
//! [`PULL_MAX`]. A peer that does not answer in time is not asked here again for [`SILENCE`](crate::members::SILENCE), so that an
//! organisation that withholds data holds up others no longer than that. What is not found is noted as missing.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{BlockNumber, Bytes, MspId, TxId, Version, rt};
use futures_util::future::join_all;
use ledger::hash::sha256;
use ledger::rwset::{CollectionReadWriteSet, ReadWriteSet, private_writes, without_keys};
use ledger::{Block, Hash, Transaction};
use storage::PrivateRow;
use storage::blocks::Blocks;

use crate::channel::{PrivateChannel, SETS_MAX};
use crate::members::SetDigest;
use crate::policies::{CollectionPolicies, keeps};
use crate::rows::{self, FOREIGN, MISSING, PURGES, SETS, SWEEPS, SetLocation};
use crate::{Error, events};

/// How long the commit of a block waits for the peers of other members.
pub const PULL_MAX: Duration = Duration::from_secs(1);

/// How long a fault point delays a step.
const DELAY: Duration = Duration::from_millis(100);

/// A transaction of a block that is about to be appended.
#[derive(Clone, Copy, Debug)]
pub struct BlockTransaction<'a> {
    /// Its position in the block.
    pub position: u32,
    /// Its id.
    pub tx_id: &'a TxId,
    /// Its read-write set.
    pub set: &'a ReadWriteSet,
    /// Whether it takes effect.
    pub is_valid: bool,
}

/// What a transaction says about its private writes to one collection.
#[derive(Clone, Debug)]
pub struct HashedSet {
    /// Names the set.
    pub digest: SetDigest,
    /// The writes, by the hash of the key.
    writes: BTreeMap<Vec<u8>, HashedWrite>,
}

#[derive(Clone, Debug)]
struct HashedWrite {
    /// `None` for a delete.
    value_hash: Option<Bytes>,
    is_purge: bool,
}

impl HashedSet {
    /// The private sets that a transaction names. Of several with one name the first counts.
    pub fn of_transaction(tx_id: &TxId, version: Version, set: &ReadWriteSet) -> Vec<HashedSet> {
        let mut sets: Vec<HashedSet> = Vec::new();
        for namespace in set.namespaces.iter().filter(|namespace| namespace.collections > 0) {
            for collection in set.collections(namespace) {
                let Ok(hash) = Hash::try_from(set.private_hash(&collection)) else { continue };
                let location = SetLocation {
                    contract: set.name(namespace).to_owned(),
                    collection: set.collection_name(&collection).to_owned(),
                    version,
                };
                if sets.iter().any(|known| known.digest.location == location) {
                    continue;
                }
                let digest = SetDigest { location, tx_id: tx_id.clone(), hash };
                sets.push(HashedSet { digest, writes: hashed_writes(set, &collection) });
            }
        }
        sets
    }

    /// What a stored transaction says about a set; `None` if its block does not have it.
    ///
    /// # Errors
    /// The block store's; if the block cannot be read.
    pub(crate) async fn stored(at: &SetLocation, blocks: &dyn Blocks) -> Result<Option<HashedSet>, Error> {
        let Some(bytes) = blocks.read(BlockNumber(at.version.block)).await? else { return Ok(None) };
        let block = Block::parse(&bytes)?;
        let position = at.version.tx as usize;
        if position >= block.len() {
            return Ok(None);
        }
        let sets = (|| {
            let transaction = Transaction::decode(&block.envelope(position)).ok()?;
            let results = transaction.action().ok()?.outcome(transaction.header()).ok()?.results();
            let set = ReadWriteSet::decode(results).ok()?;
            Some(HashedSet::of_transaction(&transaction.header().to_tx_id(), at.version, &set))
        })();
        Ok(sets.unwrap_or_default().into_iter().find(|set| set.digest.location == *at))
    }
    /// The keys that a valid transaction purges, as rows.
    fn purges(&self) -> impl Iterator<Item = PrivateRow> {
        let SetLocation { contract, collection, version } = &self.digest.location;
        let purged = self.writes.iter().filter(|(_, write)| write.is_purge);
        purged.flat_map(move |(hash, _)| {
            let key = rows::purge_key(contract, collection, hash);
            [rows::marker(PURGES, key.clone(), *version), rows::marker(SWEEPS, key, *version)]
        })
    }

    /// The rows of a set: the set itself and, if the transaction is valid, the values whose hashes the transaction has.
    fn rows(&self, set: &Bytes, is_valid: bool, is_kept: impl Fn(&[u8]) -> bool) -> Vec<PrivateRow> {
        let at = &self.digest.location;
        let mut written = vec![rows::row(SETS, at.key(), at.version, Some(set.clone()))];
        // A set that cannot be read has the hash that its endorsers signed. It is passed on, and has no values.
        let writes = if is_valid { private_writes(set).unwrap_or_default() } else { Vec::new() };
        let values = rows::values(&at.contract, &at.collection);
        for write in writes {
            let hash = sha256(write.key.as_bytes());
            let matches = self.writes.get(&hash[..]).is_some_and(|hashed| match (&hashed.value_hash, &write.value) {
                (Some(hash), Some(value)) => is_hash_of(hash, value),
                (None, None) => true,
                _ => false,
            });
            if matches && is_kept(&hash[..]) {
                written.push(rows::row(&values, write.key.into(), at.version, write.value));
            }
        }
        written
    }
}

/// Whether bytes, which may be another organisation's, have this hash.
fn is_hash_of(hash: &[u8], bytes: &[u8]) -> bool {
    *hash == sha256(bytes)[..] || rt::fault_point("private.collect.mutant.unchecked")
}

fn hashed_writes(set: &ReadWriteSet, collection: &CollectionReadWriteSet) -> BTreeMap<Vec<u8>, HashedWrite> {
    let writes = set.hashed_writes(collection).map(|write| {
        let hashed = HashedWrite { value_hash: set.write_value(&write), is_purge: write.is_purge };
        (set.write_hash(&write).to_vec(), hashed)
    });
    writes.collect()
}

impl PrivateChannel {
    /// The rows to be written before a block is appended: the private data of its transactions that this peer could get, and notes of
    /// those that it lacks. Empty if the block has no private data.
    ///
    /// # Errors
    /// The tables'.
    pub async fn collect(
        &self,
        block: u64,
        transactions: impl Iterator<Item = BlockTransaction<'_>>,
        policies: &dyn CollectionPolicies,
    ) -> Result<Vec<PrivateRow>, Error> {
        let (mut written, mut wanted) = (Vec::new(), Vec::new());
        for BlockTransaction { position, tx_id, set, is_valid } in transactions {
            for set in HashedSet::of_transaction(tx_id, Version::new(block, position), set) {
                let SetDigest { location, hash, .. } = &set.digest;
                if is_valid {
                    written.extend(set.purges());
                }
                if !keeps(policies, &self.own, &location.contract, &location.collection) {
                    // It may become a member later, and then asks for the data, but not for what was purged before.
                    if is_valid {
                        written.push(rows::marker(FOREIGN, location.key(), location.version));
                    }
                    continue;
                }
                match self.store.staged(tx_id, &location.contract, &location.collection, hash).await? {
                    Some(found) => written.extend(set.rows(&found, is_valid, |_| true)),
                    // Others keep the sets of invalid transactions too, but nobody needs them.
                    None if is_valid => wanted.push(set),
                    None => {}
                }
            }
        }
        let pulled = self.pull_in_time(&wanted, policies).await;
        for (set, pulled) in wanted.iter().zip(pulled) {
            match pulled {
                Some(found) => written.extend(set.rows(&found, true, |_| true)),
                None if rt::fault_point("private.collect.mutant.forgets_missing") => {}
                None => {
                    events::PrivateSetsMissing.add(1);
                    written.push(rows::marker(MISSING, set.digest.location.key(), set.digest.location.version));
                }
            }
        }
        if !written.is_empty() {
            rt::fault::hold_up("private.collect.found", DELAY).await;
        }
        Ok(written)
    }

    /// Asks the other members for sets, all at once. A set in the answer has the hash that was asked for.
    async fn pull_in_time(&self, wanted: &[HashedSet], policies: &dyn CollectionPolicies) -> Vec<Option<Bytes>> {
        let mut found: Vec<Option<Bytes>> = vec![None; wanted.len()];
        if wanted.is_empty() {
            return found;
        }
        let has = |organization: &MspId, set: &HashedSet| {
            let SetLocation { contract, collection, .. } = &set.digest.location;
            keeps(policies, organization, contract, collection)
        };
        let is_member =
            |organization: &MspId| *organization != self.own && wanted.iter().any(|set| has(organization, set));
        let asking = self.members.responsive(is_member).into_iter().map(|peer| {
            let places: Vec<usize> =
                (0..wanted.len()).filter(|place| has(peer.organization(), &wanted[*place])).take(SETS_MAX).collect();
            let digests: Vec<SetDigest> = places.iter().map(|place| wanted[*place].digest.clone()).collect();
            async move {
                let answer = rt::timeout(PULL_MAX, peer.pull(&self.channel, &digests)).await;
                match answer {
                    _ if rt::fault_point("private.collect.answer_lost") => Vec::new(),
                    Ok(Ok(sets)) => places.into_iter().zip(sets).collect(),
                    Ok(Err(error)) => {
                        tracing::debug!(channel = %self.channel, organization = %peer.organization(), %error, "no private data");
                        Vec::new()
                    }
                    Err(_) => {
                        self.members.note_silence(peer.organization());
                        Vec::new()
                    }
                }
            }
        });
        for (place, set) in join_all(asking).await.into_iter().flatten() {
            if let Some(set) = set.filter(|set| is_hash_of(&wanted[place].digest.hash, set)) {
                found[place] = Some(set);
            }
        }
        found
    }

    /// The rows of a set that was missing: everything but what was purged since. `None` if the set is not the transaction's.
    ///
    /// # Errors
    /// The tables'.
    pub(crate) async fn late_rows(&self, hashed: &HashedSet, set: &Bytes) -> Result<Option<Vec<PrivateRow>>, Error> {
        let at = &hashed.digest.location;
        let is_whole = is_hash_of(&hashed.digest.hash, set);
        let Ok(writes) = private_writes(set) else {
            return Ok(is_whole.then(|| hashed.rows(set, false, |_| false)));
        };
        let held: Vec<Hash> = writes.iter().map(|write| sha256(write.key.as_bytes())).collect();
        let mut purged = Vec::new();
        for key in hashed.writes.keys() {
            if self.store.is_purged(at, key).await? {
                purged.push(key.clone());
            } else if !is_whole && !held.iter().any(|held| held[..] == key[..]) {
                return Ok(None);
            }
        }
        let is_purged = |key: &[u8]| purged.iter().any(|purged| purged[..] == *key);
        // The sender may not know of a purge yet, which is complete here.
        let kept = without_keys(set, |key| is_purged(&sha256(key.as_bytes())[..])).ok().flatten();
        let written = hashed.rows(kept.as_ref().unwrap_or(set), true, |key| !is_purged(key));
        // Besides the row of the set, one for each write that is the transaction's and is not purged.
        let expected = held.iter().filter(|held| !purged.iter().any(|purged| purged[..] == held[..])).count() + 1;
        Ok((is_whole || written.len() == expected).then_some(written))
    }
}
