//! What becomes of waiting sets once their transactions are committed.
//!
//! Sets wait in the transient table from their endorsement on ([`crate::distribute`]), and copies may arrive at any time, through
//! any compute node of the peer. The compute node that commits looks through the table in laps:
//!
//! 1. **Look up.** Read a page of waiting sets and ask the block store for their transactions. A transaction counts as
//!    committed once its block does, whether it is valid or not.
//! 2. **Adopt.** A set may have arrived after its block was committed without it. If it is noted as missing and has the
//!    transaction's hash, write it among the committed sets, without the keys that were purged since, and remove the note.
//! 3. **Remove** the waiting sets of committed transactions, and those that arrived [`STAGED_BLOCKS_MAX`] blocks ago.
//! 4. **Prune.** At the end of a lap that removed sets, prune the table, so that their bytes leave the disk. The first lap of
//!    a process prunes in any case: an earlier process may have ended between steps 3 and 4.
//!
//! A lap begins after new blocks, and at the latest [`LATE_PERIOD`] after the previous one. Each round of the task looks through
//! [`PAGES_MAX`] pages. The completion of a purge makes a whole lap of its own.
//!
//! Invariants:
//! 1. A set is removed as committed only after its block is durable, and with it everything of the set that the peer keeps.
//! 2. Each step follows from the tables and the blocks alone, and the next one begins once it is durable. So a crash repeats
//!    steps, and skips none.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Instant};
use base::{BlockNumber, Bytes, TxId};
use storage::PrivateRow;
use storage::blocks::Blocks;
use storage::tables::RangeEntry;

use crate::Error;
use crate::channel::PrivateChannel;
use crate::collect::HashedSet;
use crate::policies::CollectionPolicies;
use crate::rows::{self, MISSING, SetLocation, WaitingSet};

/// Blocks after which a set is forgotten whose transaction was not ordered, as in Fabric.
pub(crate) const STAGED_BLOCKS_MAX: u64 = 1000;
/// The longest time between two laps.
const LATE_PERIOD: Duration = Duration::from_secs(10);
/// Pages of waiting sets that one round looks through.
const PAGES_MAX: usize = 16;
/// How long a fault point delays a step.
const DELAY: Duration = Duration::from_millis(100);

/// A contract, its collection, and a block.
type CollectionBlock<'a> = (&'a str, &'a str, u64);

/// A set of a committed transaction that is noted as missing.
struct MissingSet {
    at: SetLocation,
    tx_id: TxId,
}

/// The laps through a channel's waiting sets.
pub(crate) struct Laps {
    private: Arc<PrivateChannel>,
    blocks: Arc<dyn Blocks>,
    /// Where the present lap goes on; `None` between two laps.
    from: Option<Bytes>,
    /// The height of the channel when the last lap began.
    begun_at: Option<u64>,
    /// When the next one begins at the latest.
    due: Instant,
    /// Whether the table may hold removed sets.
    is_unpruned: bool,
}

impl Laps {
    pub(crate) fn new(private: Arc<PrivateChannel>, blocks: Arc<dyn Blocks>) -> Laps {
        Laps { private, blocks, from: None, begun_at: None, due: rt::now(), is_unpruned: true }
    }

    /// Goes on with the present lap, or begins one if it is due. `height` is that of the channel.
    ///
    /// # Errors
    /// The tables' and the block store's. A later call continues.
    pub(crate) async fn go_on(&mut self, policies: &dyn CollectionPolicies, height: u64) -> Result<(), Error> {
        if self.from.is_none() {
            if self.begun_at == Some(height) && rt::now() < self.due {
                return Ok(());
            }
            self.begun_at = Some(height);
            self.from = Some(Bytes::new());
        }
        for _ in 0..PAGES_MAX {
            let Some(from) = self.from.clone() else { break };
            self.from = self.settle(policies, height, &from).await?;
        }
        if self.from.is_none() {
            self.prune().await?;
            self.due = rt::now() + LATE_PERIOD;
        }
        Ok(())
    }

    /// Makes a whole lap.
    ///
    /// # Errors
    /// As [`Laps::go_on`].
    pub(crate) async fn make_whole(&mut self, policies: &dyn CollectionPolicies, height: u64) -> Result<(), Error> {
        let mut from = Some(Bytes::new());
        while let Some(start) = from {
            from = self.settle(policies, height, &start).await?;
        }
        self.prune().await
    }

    /// Step 4.
    async fn prune(&mut self) -> Result<(), Error> {
        if self.is_unpruned {
            self.private.store.prune_waiting().await?;
            self.is_unpruned = false;
        }
        Ok(())
    }

    /// Steps 1 to 3 for one page. Returns where the next one begins.
    async fn settle(
        &mut self,
        policies: &dyn CollectionPolicies,
        height: u64,
        from: &[u8],
    ) -> Result<Option<Bytes>, Error> {
        let store = &self.private.store;
        let page = store.waiting(from).await?;
        let mut sets: Vec<(Option<WaitingSet>, RangeEntry)> = Vec::with_capacity(page.entries.len());
        sets.extend(page.entries.into_iter().map(|entry| (WaitingSet::of_key(&entry.key), entry)));
        let blocks = self.blocks_of(sets.iter().filter_map(|(set, _)| set.as_ref()), height).await?;
        let block_of = |set: &Option<WaitingSet>| set.as_ref().and_then(|set| blocks.get(&set.tx_id)).copied();
        let kept_from = height.saturating_sub(STAGED_BLOCKS_MAX);
        sets.retain(|(set, entry)| block_of(set).is_some() || entry.version.block < kept_from);
        if sets.is_empty() {
            return Ok(page.next);
        }
        let committed = sets.iter().filter_map(|(set, entry)| Some((set.as_ref()?, block_of(set)?, &entry.value)));
        let adopted = self.adopted(policies, height, committed).await?;
        if !adopted.is_empty() {
            store.write(adopted).await?;
        }
        rt::fault::hold_up("private.settle.adopted", DELAY).await;
        self.is_unpruned = true;
        store.remove_waiting(sets.into_iter().map(|(_, entry)| entry).collect()).await?;
        rt::fault::hold_up("private.settle.removed", DELAY).await;
        Ok(page.next)
    }

    /// The blocks of those of the sets' transactions that are committed in a channel of this height.
    async fn blocks_of<'set>(
        &self,
        sets: impl Iterator<Item = &'set WaitingSet>,
        height: u64,
    ) -> Result<BTreeMap<TxId, u64>, Error> {
        let mut ids: Vec<TxId> = sets.map(|set| set.tx_id.clone()).collect();
        ids.dedup();
        if ids.is_empty() || rt::fault_point("private.settle.mutant.keeps_committed") {
            return Ok(BTreeMap::new());
        }
        let found = self.blocks.find_transactions(&ids).await?;
        let blocks = ids.into_iter().zip(found).filter_map(|(id, found)| Some((id, found?.block.get())));
        // The store may have more blocks than are committed.
        Ok(blocks.filter(|(_, block)| *block < height).collect())
    }

    /// The rows of those of the sets that are noted as missing. Each set comes with the block of its transaction.
    async fn adopted<'set>(
        &self,
        policies: &dyn CollectionPolicies,
        height: u64,
        sets: impl Iterator<Item = (&'set WaitingSet, u64, &'set Bytes)>,
    ) -> Result<Vec<PrivateRow>, Error> {
        let private = &self.private;
        let (mut written, mut adopted) = (Vec::new(), Vec::new());
        if !private.may_lack_sets() {
            return Ok(written);
        }
        let mut known: BTreeMap<CollectionBlock<'_>, Vec<MissingSet>> = BTreeMap::new();
        for (set, block, writes) in sets {
            let place = (set.contract.as_str(), set.collection.as_str(), block);
            let missing = match known.entry(place) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.missing_of(place).await?),
            };
            for MissingSet { at, .. } in missing.iter().filter(|missing| missing.tx_id == set.tx_id) {
                if adopted.contains(at) || private.has_expired(policies, at, height) {
                    continue;
                }
                let Some(hashed) =
                    HashedSet::stored(at, self.blocks.as_ref()).await?.filter(|hashed| hashed.digest.hash == set.hash)
                else {
                    continue;
                };
                if let Some(late) = private.late_rows(&hashed, writes).await? {
                    written.extend(late);
                    written.push(rows::removal(MISSING, at));
                    adopted.push(at.clone());
                }
            }
        }
        Ok(written)
    }

    /// The sets of a collection in a block that are noted as missing.
    async fn missing_of(&self, (contract, collection, block): CollectionBlock<'_>) -> Result<Vec<MissingSet>, Error> {
        let missing = self.private.store.missing_of(contract, collection, block).await?;
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let transactions = self.blocks.transactions(BlockNumber(block)).await?.unwrap_or_default();
        let named = missing.into_iter().filter_map(|at| {
            let (tx_id, _) = transactions.get(at.version.tx as usize)?;
            Some(MissingSet { at, tx_id: tx_id.clone() })
        });
        Ok(named.collect())
    }
}
