//! Builds a copy: steps 8 to 10.

use std::sync::Arc;

use base::rt;
use base::{BlockNumber, Bytes, ErrorKind};
use storage::blocks::{Blocks, NewBlock, StoredBlock};
use storage::node::{CopyReset, View, copy_status};
use storage::{Error, PrivateTable, StateStore};

use crate::copies_core::CopiesCore;
use crate::election::{install_at, within};
use crate::limits::{ATTACH_BLOCKS_MAX, ATTACH_TIMEOUT, COPY_PAGE_BLOCKS, LOST_AFTER, PROBE_TIMEOUT, REPEAT_PAUSE};
use crate::member::Member;
use crate::set::{check_name, error};

/// A node that may become a learner.
pub(crate) struct Prepared {
    pub name: String,
    reset: CopyReset,
    /// The blocks that it has.
    height: u64,
}

/// Finds out what a node has, and so what it must remove.
pub(crate) async fn prepare(core: &CopiesCore, name: &str) -> Result<Prepared, Error> {
    let set = &core.set;
    let node = set.node(name).ok_or(Error::Invalid("the node is not configured"))?;
    let status = within(node, PROBE_TIMEOUT, copy_status(&node.address, &set.token, &core.channel)).await?;
    check_name(node, &status)?;
    let mut reset = CopyReset::PrivateRows;
    if status.epoch > core.epoch {
        reset = CopyReset::Everything;
    } else if let Some(last) = status.tip.height.checked_sub(1) {
        let number = BlockNumber(last);
        let known = core.read(|member| async move { member.blocks.read_stored(number).await }).await?;
        // Blocks of the same epoch and hash are the same, and so are all before them: each was copied, or sent to every copy.
        let is_ours =
            known.is_some_and(|block| (block.header_hash, block.epoch) == (status.tip.header_hash, status.tip.epoch));
        // What was sent to the members and is not durable there yet may still be lost.
        if !is_ours || status.tip.height > core.durable_tip().0 {
            reset = CopyReset::Everything;
        }
    }
    Ok(Prepared { name: name.to_owned(), reset, height: status.tip.height })
}

impl Prepared {
    /// Makes the node a learner.
    pub async fn install(self, core: &CopiesCore, view: &View) -> Result<(), Error> {
        if self.reset == CopyReset::Everything && self.height > 0 {
            let (channel, height) = (&core.channel, self.height);
            let copy = &self.name;
            tracing::warn!(channel, copy, height, "the blocks there are not all of the chain; copying all of them");
        }
        let own = view.copies.iter().position(|copy| copy.name == self.name);
        install_at(&core.set, &core.channel, core.epoch, view, own, self.reset).await
    }
}

/// Opens a learner under this epoch.
pub(crate) async fn open_learner(core: &CopiesCore, name: &str) -> Result<Member, Error> {
    let node = core.set.node(name).ok_or(Error::Invalid("the node is not configured"))?;
    Member::open(&core.set, node, &core.channel, core.epoch, true, LOST_AFTER).await
}

/// Copies everything to a learner, and has it get every block.
pub(crate) async fn build(core: Arc<CopiesCore>, learner: Arc<Member>) -> Result<(), Error> {
    tracing::info!(channel = core.channel, copy = learner.name(), "building a copy");
    // A write that began before the learner got any may still be on its way to the members; the scan must not overtake it.
    drop(core.writing.lock().await);
    // The mutant of the simulation: a copy without what is in no block.
    if !rt::fault_point("storage.copies.mutant.no_private_rows") {
        for table in [PrivateTable::Committed, PrivateTable::Transient] {
            copy_private(&core, &learner, table).await?;
        }
    }
    // The mutant of the simulation: the copy counts as complete before it has the blocks.
    if rt::fault_point("storage.copies.mutant.member_early") {
        return Ok(());
    }
    loop {
        copy_blocks(&core, &learner, ATTACH_BLOCKS_MAX).await?;
        learner.rows.materialize(u64::MAX).await?;
        if rt::timeout(ATTACH_TIMEOUT, attach_last(&core, &learner)).await.unwrap_or(Ok(false))? {
            break;
        }
        rt::sleep(REPEAT_PAUSE).await;
    }
    // A last write, so that all copies have the same number.
    core.write_committed(Vec::new()).await
}

async fn copy_private(core: &CopiesCore, learner: &Member, table: PrivateTable) -> Result<(), Error> {
    let mut from = Bytes::new();
    loop {
        let begin = &from;
        let page = core
            .read(|member| {
                let from = begin.clone();
                async move { member.private(table).scan(from).await }
            })
            .await?;
        let rows = page.rows.len() as u64;
        if rows > 0 {
            learner.private(table).copy(page.rows).await?;
        }
        if let Some(known) = &mut core.lock().learner {
            known.private_rows += rows;
        }
        match page.next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// Copies durable blocks until at most some are missing.
async fn copy_blocks(core: &CopiesCore, learner: &Member, missing_max: u64) -> Result<(), Error> {
    loop {
        let next = learner.blocks.height();
        let durable = core.durable_tip().0;
        if next + missing_max >= durable {
            return Ok(());
        }
        let from = BlockNumber(next);
        let limit = COPY_PAGE_BLOCKS.min(usize::try_from(durable - next).unwrap_or(usize::MAX));
        let page = core.read(|member| async move { member.blocks.read_page(from, limit).await }).await?;
        for block in page {
            append(learner, block).await?;
        }
    }
}

async fn append(learner: &Member, block: StoredBlock) -> Result<(), Error> {
    let StoredBlock { number, header_hash, previous_hash, epoch, payload, transactions } = block;
    let parts = [payload];
    let block = NewBlock { number, header_hash, previous_hash, epoch, parts: &parts, transactions: &transactions };
    learner.blocks.append(block).await
}

/// Step 10. Whether the learner gets every block from now on; false if its rows are behind.
async fn attach_last(core: &CopiesCore, learner: &Arc<Member>) -> Result<bool, Error> {
    let _held_back = core.appending.lock().await;
    loop {
        let next = BlockNumber(learner.blocks.height());
        let page = core.read(|member| async move { member.blocks.read_page(next, COPY_PAGE_BLOCKS).await }).await?;
        if page.is_empty() {
            break;
        }
        for block in page {
            append(learner, block).await?;
        }
    }
    let mut durable = learner.blocks.subscribe_durable();
    let behind = || error(&learner.node, ErrorKind::Retry, "it does not make blocks durable");
    durable.wait_for(|height| *height >= core.durable_tip().0).await.map_err(|_| behind())?;
    let mut state = core.lock();
    // What is reported moves under the same lock.
    if learner.blocks.durable_height() < core.durable_tip().0
        || learner.rows.savepoint().height < core.savepoint().height
    {
        return Ok(false);
    }
    match &mut state.learner {
        Some(known) if Arc::ptr_eq(&known.member, learner) => {
            known.is_attached = true;
            Ok(true)
        }
        _ => Err(error(&learner.node, ErrorKind::Closed, "it was left out")),
    }
}
