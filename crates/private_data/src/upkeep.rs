//! Steps 3 and 4, in the background at the compute node that commits: missing sets are asked for again, expired and purged data
//! are removed.
//!
//! Each step works from notes in the tables, and clears a note only after its work is durable. So a crash repeats work, and
//! skips none.
//!
//! A purge is completed in these steps, once its block is committed:
//!
//! 1. Remove its key from the committed sets of earlier transactions, and from the committed values.
//! 2. Prune these tables, so that the bytes leave the disk.
//! 3. Remove what still waits of the sets of committed transactions, and prune that table ([`crate::settle`]).
//! 4. Remove the note of the purge.
//!
//! From then on nothing brings the key's earlier values back: another copy of a set loses the key before it is kept
//! ([`PrivateChannel::late_rows`]), and a copy that arrives for a committed transaction waits only until the next lap.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::rt::{self, CancellationToken, Instant};
use base::{Bytes, Version};
use futures_util::future::{Either, select};
use ledger::Hash;
use storage::PrivateRow;
use storage::blocks::Blocks;

use crate::channel::PrivateChannel;
use crate::collect::HashedSet;
use crate::members::SetDigest;
use crate::policies::{CollectionPolicies, keeps};
use crate::rows::{self, FOREIGN, MISSING, SetLocation};
use crate::settle::Laps;
use crate::{Error, events};

/// How often the task looks for work.
const PERIOD: Duration = Duration::from_secs(1);
/// The shortest time between two attempts to get missing sets. It doubles up to [`RECONCILE_MAX`] while none is found.
const RECONCILE_MIN: Duration = Duration::from_secs(1);
/// The longest such time, which is Fabric's only one.
const RECONCILE_MAX: Duration = Duration::from_secs(60);
/// How long another peer may take to answer in the background.
const PULL_MAX: Duration = Duration::from_secs(10);
/// How long a fault point delays a step.
const DELAY: Duration = Duration::from_millis(100);
/// Blocks between two removals of rows that no reader sees any more, after which each organisation may send as much as before.
pub const FORGET_PERIOD_BLOCKS: u64 = 100;
/// Blocks behind the newest one at which readers may still read private values.
const READERS_LAG_BLOCKS: u64 = 256;

/// What the task needs of the channel.
pub struct Upkeep {
    /// The private data.
    pub private: Arc<PrivateChannel>,
    /// The stored blocks, which name the missing sets.
    pub blocks: Arc<dyn Blocks>,
}

/// When things are due next.
struct Due {
    /// The policies under which foreign sets were last looked through.
    adopted_under: Option<Hash>,
    forget_at: u64,
    reconcile_at: Instant,
    pause: Duration,
    laps: Laps,
}

impl Due {
    fn new(upkeep: &Upkeep, height: u64) -> Due {
        let (reconcile_at, pause) = (rt::now(), RECONCILE_MIN);
        Due { adopted_under: None, forget_at: height, reconcile_at, pause, laps: upkeep.laps() }
    }
}

impl Upkeep {
    /// Runs until the stop. `current` says how many blocks are committed, and the policies after them.
    ///
    /// # Errors
    /// If the tables have failed and must be opened again.
    pub async fn run(
        self,
        current: impl Fn() -> (u64, Arc<dyn CollectionPolicies>),
        stop: CancellationToken,
    ) -> Result<(), Error> {
        let (working, failing) = (pin!(self.repeat(current, stop)), pin!(self.private.store.failed()));
        match select(working, failing).await {
            Either::Left(((), _)) => Ok(()),
            Either::Right((failure, _)) => Err(failure),
        }
    }

    async fn repeat(&self, current: impl Fn() -> (u64, Arc<dyn CollectionPolicies>), stop: CancellationToken) {
        let mut due = Due::new(self, current().0);
        while stop.run_until_cancelled(rt::sleep(PERIOD)).await.is_some() {
            let (height, policies) = current();
            let working = self.work(&*policies, height, &mut due);
            match stop.run_until_cancelled(working).await {
                None => return,
                Some(Ok(())) => {}
                // The next round tries again.
                Some(Err(error)) => {
                    tracing::warn!(channel = %self.private.channel, %error, "private data cannot be tidied up now");
                }
            }
        }
    }

    async fn work(&self, policies: &dyn CollectionPolicies, height: u64, due: &mut Due) -> Result<(), Error> {
        let expiring = policies.expiring();
        if !expiring.is_empty() && !rt::fault_point("private.upkeep.mutant.keeps_expired") {
            self.expire(&expiring, height).await?;
        }
        let digest = policies.digest();
        if due.adopted_under != Some(digest) && !rt::fault_point("private.upkeep.mutant.ignores_join") {
            self.adopt(policies).await?;
            due.adopted_under = Some(digest);
        }
        if self.private.has_purges.swap(false, Ordering::AcqRel) {
            let completed = self.complete_purges(policies, height, &mut due.laps).await;
            if !matches!(completed, Ok(false)) {
                self.private.note_purges();
            }
            completed?;
        }
        due.laps.go_on(policies, height).await?;
        if self.private.may_lack_sets() && rt::now() >= due.reconcile_at {
            let found = self.reconcile(policies, height).await;
            if found.is_err() {
                self.private.note_missing();
            }
            let found = found?;
            due.pause = if found { RECONCILE_MIN } else { (due.pause * 2).min(RECONCILE_MAX) };
            due.reconcile_at = rt::now() + due.pause;
        }
        if height >= due.forget_at {
            self.private.forget_received();
            self.private.store.prune(height.saturating_sub(READERS_LAG_BLOCKS)).await?;
            due.forget_at = height + FORGET_PERIOD_BLOCKS;
        }
        Ok(())
    }

    fn laps(&self) -> Laps {
        Laps::new(self.private.clone(), self.blocks.clone())
    }

    /// Completes some purges of committed blocks. Returns whether there were any, and more may follow.
    async fn complete_purges(
        &self,
        policies: &dyn CollectionPolicies,
        height: u64,
        laps: &mut Laps,
    ) -> Result<bool, Error> {
        let store = &self.private.store;
        let mut purges = store.sweeps().await?;
        let is_any = !purges.is_empty();
        // Notes are written before their block is appended.
        purges.retain(|purge| purge.version.block < height);
        if !purges.is_empty() {
            store.sweep(&purges).await?;
            laps.make_whole(policies, height).await?;
            rt::fault::hold_up("private.sweep.waiting", DELAY).await;
            store.note_swept(purges).await?;
        }
        Ok(is_any)
    }

    /// Removes what expires up to the newest block.
    async fn expire(&self, expiring: &[(String, String, u64)], height: u64) -> Result<(), Error> {
        let done = self.private.store.expired().await?;
        if done >= height {
            return Ok(());
        }
        for (contract, collection, blocks_to_live) in expiring {
            // Block n + b + 1 removes what block n wrote.
            let lifetime = blocks_to_live.saturating_add(1);
            let blocks = done.saturating_sub(lifetime)..height.saturating_sub(lifetime);
            self.private.store.remove_blocks(contract, collection, blocks, Version::new(height, 0)).await?;
        }
        self.private.store.note_expired(height).await
    }

    /// Makes the sets of collections of which a new definition makes the organisation a member missing ones.
    async fn adopt(&self, policies: &dyn CollectionPolicies) -> Result<(), Error> {
        let (private, mut from) = (&self.private, Bytes::new());
        loop {
            let (foreign, next) = private.store.noted(FOREIGN, &from).await?;
            let is_kept = |at: &&SetLocation| keeps(policies, &private.own, &at.contract, &at.collection);
            let adopted = foreign
                .iter()
                .filter(is_kept)
                .flat_map(|at| [rows::marker(MISSING, at.key(), at.version), rows::removal(FOREIGN, at)]);
            let adopted: Vec<PrivateRow> = adopted.collect();
            if !adopted.is_empty() {
                // After an error the rows may be there too.
                private.note_missing();
                private.store.write(adopted).await?;
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Asks for missing sets. Returns whether some were found. If none is missing, later rounds do not look.
    async fn reconcile(&self, policies: &dyn CollectionPolicies, height: u64) -> Result<bool, Error> {
        let private = &self.private;
        private.has_missing.store(false, Ordering::Release);
        let (mut from, mut found) = (Bytes::new(), false);
        loop {
            let (missing, next) = private.store.noted(MISSING, &from).await?;
            if !missing.is_empty() {
                private.note_missing();
                found |= self.pull(policies, height, &missing).await?;
            }
            match next {
                Some(next) => from = next,
                None => return Ok(found),
            }
        }
    }

    /// Asks the members one after another for some sets. Returns whether some were found.
    async fn pull(
        &self,
        policies: &dyn CollectionPolicies,
        height: u64,
        missing: &[SetLocation],
    ) -> Result<bool, Error> {
        let private = &self.private;
        let mut wanted = Vec::with_capacity(missing.len());
        let (mut rows, mut is_any_found): (Vec<PrivateRow>, bool) = (Vec::new(), false);
        for at in missing {
            // Notes are written before their block is appended.
            if at.version.block >= height {
                continue;
            }
            match HashedSet::stored(at, self.blocks.as_ref()).await? {
                _ if private.has_expired(policies, at, height) => rows.push(rows::removal(MISSING, at)),
                Some(set) => match self.own_rows(&set).await? {
                    Some(own) => {
                        is_any_found = true;
                        rows.extend(own);
                        rows.push(rows::removal(MISSING, at));
                    }
                    None => wanted.push(set),
                },
                // The block is committed and stored, so it is this peer's own note that is wrong.
                None => rows.push(rows::removal(MISSING, at)),
            }
        }
        for peer in private.members.all() {
            let has = |set: &HashedSet| {
                let at = &set.digest.location;
                keeps(policies, peer.organization(), &at.contract, &at.collection)
            };
            if *peer.organization() == private.own || !wanted.iter().any(has) {
                continue;
            }
            let (asked, others): (Vec<_>, Vec<_>) = std::mem::take(&mut wanted).into_iter().partition(has);
            let digests: Vec<SetDigest> = asked.iter().map(|set| set.digest.clone()).collect();
            let answer = rt::timeout(PULL_MAX, peer.pull(&private.channel, &digests)).await;
            let mut answer = answer.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_default();
            answer.resize(asked.len(), None);
            wanted = others;
            for (set, answer) in asked.into_iter().zip(answer) {
                let late = match &answer {
                    Some(answer) => private.late_rows(&set, answer).await?,
                    None => None,
                };
                match late {
                    None => wanted.push(set),
                    Some(late) => {
                        rows.extend(late);
                        rows.push(rows::removal(MISSING, &set.digest.location));
                        events::PrivateSetsReconciled.add(1);
                        is_any_found = true;
                    }
                }
            }
        }
        if !rows.is_empty() {
            rt::fault::hold_up("private.reconcile.found", DELAY).await;
            private.store.write(rows).await?;
        }
        Ok(is_any_found)
    }

    /// The rows of a missing set that arrived after its block was committed; none if the tables have the set already.
    async fn own_rows(&self, set: &HashedSet) -> Result<Option<Vec<PrivateRow>>, Error> {
        let (private, SetDigest { location, tx_id, hash }) = (&self.private, &set.digest);
        if private.store.set(location).await?.is_some() {
            return Ok(Some(Vec::new()));
        }
        match private.store.staged(tx_id, &location.contract, &location.collection, hash).await? {
            Some(found) => private.late_rows(set, &found).await,
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
