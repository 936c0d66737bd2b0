//! [`RemoteBlocks`]: the block store of a channel on a storage node, as the primary that appends sees it ([`Blocks`]).
//!
//! 1. [`RemoteBlocks::append`] checks that a block continues the chain, keeps it as **pending**, and wakes the
//!    **driver**, the only task that sends.
//! 2. The driver sends pending blocks in order, [`super::APPENDS_IN_FLIGHT_MAX`] at a time, and takes their answers in
//!    order. Each answer carries the node's durable height; blocks below it are no longer pending.
//! 3. When its link is lost, or the node answers `Retry`, the driver opens another link under the same epoch. The
//!    node's height and hash show which pending block was the last to arrive; the driver continues with the next one.
//!    This resolves an ambiguous append, so that no caller ever sees one.
//! 4. The object ends if the node fences this primary, refuses it for good, or has a chain that differs from the blocks
//!    appended here. Every further append, and every sync of blocks that are not durable, then returns that error.
//!
//! Invariants:
//! * Reads of a pending block are answered here, all other reads by the node. So an appended block is visible at once.
//! * Pending blocks and their bytes are bounded; an append waits while either limit is reached.
//!
//! Every proposal and every wait for a commit looks up a transaction that, in most cases, is in no block yet. A local
//! [filter](super::tx_id_filter) answers most of these look-ups. A call to the node for each would cost more processor
//! time than all other storage work of the transaction.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rt::channel::{WatchReceiver, watch};
use base::rt::sync::Notify;
use base::rt::{self, AbortOnDrop, CancellationToken};
use base::{BlockNumber, Bytes, ErrorKind, Map, TxId};
use wire::Malformed;

use super::append_driver::{drive, learn_ids, open_link};
use super::client::{NodeSession, RemoteStoreConfig};
use super::message::{self, IDS_MAX, LinkPurpose, Request, Welcome, response};
use super::pending_blocks::{PendingBlock, RemoteBlocksCore, RemoteBlocksState};
use super::{PENDING_BLOCKS_MAX, PENDING_BYTES_MAX, RESPONSE_TIMEOUT};
use crate::blocks::{Blocks, ChainTip, NewBlock, PAGE_BLOCKS_MAX, StoredBlock, TransactionLocation};
use crate::{Error, lock};

/// How long closing waits for pending blocks to become durable.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest block that leaves space for the rest of its message.
const BLOCK_BYTES_MAX: usize = base::rt::net::rpc::BODY_BYTES_MAX - (1 << 20);

/// The blocks of one channel on a storage node; see [the module](self).
pub struct RemoteBlocks {
    shared: Arc<RemoteBlocksCore>,
    reads: Arc<NodeSession>,
    keeps_epochs: bool,
    _tasks: [AbortOnDrop<()>; 2],
}

impl RemoteBlocks {
    /// Opens a channel's blocks under the primary's epoch, and creates the channel if the node does not have it. On return,
    /// the blocks of earlier primaries are durable, and no older epoch can append.
    ///
    /// # Errors
    /// `Fenced` if a newer primary has opened the channel; `Retry` if the node cannot be reached; its refusal.
    pub async fn open(options: RemoteStoreConfig) -> Result<RemoteBlocks, Error> {
        RemoteBlocks::open_with(options, false).await
    }

    /// As [`RemoteBlocks::open`], at a copy that is being built: blocks keep the epochs under which they were first appended, as
    /// their [`NewBlock::epoch`] says.
    ///
    /// # Errors
    /// As [`RemoteBlocks::open`].
    pub async fn open_learner(options: RemoteStoreConfig) -> Result<RemoteBlocks, Error> {
        RemoteBlocks::open_with(options, true).await
    }

    async fn open_with(options: RemoteStoreConfig, keeps_epochs: bool) -> Result<RemoteBlocks, Error> {
        let (caller, opened) = open_link(&options).await?;
        let Welcome { tip, durable, .. } = opened;
        if durable != tip.height {
            return Err(
                options.error(ErrorKind::Corrupt, "it opened the channel and reports blocks that are not durable")
            );
        }
        let state = RemoteBlocksState {
            tip,
            durable: (tip.height, tip.header_hash),
            pending: VecDeque::new(),
            pending_bytes: 0,
            locations: Map::default(),
            failure: None,
        };
        let shared = Arc::new(RemoteBlocksCore {
            options: options.clone(),
            state: Mutex::new(state),
            tx_id_filter: Mutex::default(),
            durable: watch(durable).0,
            work: Notify::new(),
            failed: CancellationToken::new(),
        });
        let driver = rt::spawn(drive(Arc::clone(&shared), caller)).abort_on_drop();
        let reads = Arc::new(NodeSession::new(options, LinkPurpose::Reader, Arc::new(|_| {})));
        let learning = rt::spawn(learn_ids(Arc::clone(&shared), Arc::clone(&reads))).abort_on_drop();
        Ok(RemoteBlocks { shared, reads, keeps_epochs, _tasks: [driver, learning] })
    }

    /// The number of blocks that are known to be durable on the node, and the header hash of the last of them.
    pub fn durable_tip(&self) -> (u64, [u8; 32]) {
        lock(&self.shared.state).durable
    }

    /// Why no more blocks can be appended; `None` while they can.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.shared.state).failure.clone()
    }

    fn malformed(&self, malformed: Malformed) -> Error {
        self.shared.options.malformed(malformed)
    }

    async fn ask(&self, request: Request) -> Result<Bytes, Error> {
        self.reads.ask(request.encode(), RESPONSE_TIMEOUT).await
    }

    /// A pending block; `None` if the block is on the node; `BeyondHeight` at and above the height.
    fn pending(&self, number: BlockNumber) -> Result<Option<Arc<PendingBlock>>, BeyondHeight> {
        let state = lock(&self.shared.state);
        if number.get() >= state.tip.height {
            return Err(BeyondHeight);
        }
        let first = state.durable.0;
        let place = number.get().checked_sub(first).and_then(|place| usize::try_from(place).ok());
        Ok(place.and_then(|place| state.pending.get(place)).cloned())
    }
}

/// The block's number is at or above the height.
struct BeyondHeight;

#[async_trait::async_trait]
impl Blocks for RemoteBlocks {
    async fn append(&self, block: NewBlock<'_>) -> Result<(), Error> {
        let mut durable = self.shared.durable.subscribe();
        let parts = block.parts.to_vec();
        let stored = StoredBlock {
            number: block.number,
            header_hash: block.header_hash,
            previous_hash: block.previous_hash,
            // Every block of this object belongs to its own epoch, whatever epoch the caller names, unless it is copied.
            epoch: if self.keeps_epochs { block.epoch } else { self.shared.options.epoch },
            payload: Bytes::new(),
            transactions: block.transactions.to_vec(),
        };
        let pending = Arc::new(PendingBlock { block: stored, parts });
        let bytes = pending.bytes();
        if bytes > BLOCK_BYTES_MAX {
            let (given, max) = (bytes as u64, BLOCK_BYTES_MAX as u64);
            return Err(Error::TooLarge { what: "bytes of a block", given, max });
        }
        loop {
            {
                let mut state = lock(&self.shared.state);
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                let tip = state.tip;
                if block.number.get() != tip.height {
                    return Err(Error::OutOfOrder { given: block.number, height: tip.height });
                }
                if block.previous_hash != tip.header_hash {
                    return Err(Error::WrongPrevious { given: block.number });
                }
                let is_first = state.pending.is_empty();
                if is_first
                    || (state.pending.len() < PENDING_BLOCKS_MAX && state.pending_bytes + bytes <= PENDING_BYTES_MAX)
                {
                    let mut absence = lock(&self.shared.tx_id_filter);
                    block.transactions.iter().for_each(|(id, _)| absence.enter_id(id));
                    drop(absence);
                    state.push(pending);
                    break;
                }
            }
            // The next round finds an error in the state.
            let _ = self.shared.failed.run_until_cancelled(durable.changed()).await;
        }
        self.shared.work.notify_one();
        Ok(())
    }

    async fn sync(&self) -> Result<u64, Error> {
        let target = lock(&self.shared.state).tip.height;
        let mut durable = self.shared.durable.subscribe();
        let reached = self.shared.failed.run_until_cancelled(durable.wait_for(|height| *height >= target)).await;
        let durable = self.durable_height();
        if reached.is_some() || durable >= target {
            return Ok(durable);
        }
        let failure = lock(&self.shared.state).failure.clone();
        Err(failure.expect("a failure is noted before it is told"))
    }

    fn tip(&self) -> ChainTip {
        lock(&self.shared.state).tip
    }

    fn durable_height(&self) -> u64 {
        *self.shared.durable.borrow()
    }

    fn subscribe_durable(&self) -> WatchReceiver<u64> {
        self.shared.durable.subscribe()
    }

    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        match self.pending(number) {
            Err(BeyondHeight) => Ok(None),
            Ok(Some(pending)) => Ok(Some(pending.payload())),
            Ok(None) => {
                let response = self.ask(Request::Read(number)).await?;
                response::read_maybe_block(response).map_err(|malformed| self.malformed(malformed))
            }
        }
    }

    async fn read_stored(&self, number: BlockNumber) -> Result<Option<StoredBlock>, Error> {
        Ok(self.read_page(number, 1).await?.pop())
    }

    async fn read_page(&self, from: BlockNumber, limit: usize) -> Result<Vec<StoredBlock>, Error> {
        let limit = limit.min(PAGE_BLOCKS_MAX);
        match self.pending(from) {
            Err(BeyondHeight) => Ok(Vec::new()),
            Ok(Some(_)) => {
                let (mut page, mut next) = (Vec::new(), from);
                while page.len() < limit
                    && let Ok(Some(pending)) = self.pending(next)
                {
                    page.push(pending.stored());
                    next = next.next();
                }
                // All of them may have become durable in between.
                if page.is_empty() && limit > 0 { self.stored_page(from, limit).await } else { Ok(page) }
            }
            Ok(None) => self.stored_page(from, limit).await,
        }
    }

    async fn transactions(&self, number: BlockNumber) -> Result<Option<Vec<(TxId, u8)>>, Error> {
        match self.pending(number) {
            Err(BeyondHeight) => Ok(None),
            Ok(Some(pending)) => Ok(Some(pending.block.transactions.clone())),
            Ok(None) => {
                let response = self.ask(Request::Transactions(number)).await?;
                response::read_maybe_transactions(response).map_err(|malformed| self.malformed(malformed))
            }
        }
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        let pending = {
            let state = lock(&self.shared.state);
            state.pending.iter().find(|pending| pending.block.header_hash == *header_hash).cloned()
        };
        if let Some(pending) = pending {
            return Ok(Some(pending.block.number));
        }
        let response = self.ask(Request::NumberByHash(*header_hash)).await?;
        let number = response::read_maybe_number(response).map_err(|malformed| self.malformed(malformed))?;
        Ok(number.map(BlockNumber))
    }

    async fn find_transactions(&self, ids: &[TxId]) -> Result<Vec<Option<TransactionLocation>>, Error> {
        let possible: Vec<usize> = {
            let absence = lock(&self.shared.tx_id_filter);
            (0..ids.len()).filter(|at| !absence.is_absent(&ids[*at])).collect()
        };
        let mut places = vec![None; ids.len()];
        if possible.is_empty() {
            return Ok(places);
        }
        let ids: Vec<TxId> = possible.iter().map(|at| ids[*at].clone()).collect();
        // Looked up before the node is asked: a block that stops being pending after this look-up is found on the node.
        let pending: Vec<_> = {
            let state = lock(&self.shared.state);
            ids.iter().map(|id| state.locations.get(id).copied()).collect()
        };
        let mut stored = Vec::with_capacity(ids.len());
        for some in ids.chunks(IDS_MAX) {
            let response = self.reads.ask(message::find_transactions(some), RESPONSE_TIMEOUT).await?;
            response::read_places(response, some.len(), &mut stored).map_err(|malformed| self.malformed(malformed))?;
        }
        // The node's places are in older blocks, or are the same.
        for (at, (stored, pending)) in possible.into_iter().zip(stored.into_iter().zip(pending)) {
            places[at] = stored.or(pending);
        }
        Ok(places)
    }

    // Written out as the attribute would expand an `async fn`, so that the common answer allocates no state for a call to
    // the node.
    fn find_transaction<'blocks, 'id, 'found>(
        &'blocks self,
        id: &'id TxId,
    ) -> Pin<Box<dyn Future<Output = Result<Option<TransactionLocation>, Error>> + Send + 'found>>
    where
        'blocks: 'found,
        'id: 'found,
    {
        match lock(&self.shared.tx_id_filter).is_absent(id) {
            true => Box::pin(ready(Ok(None))),
            false => {
                Box::pin(async move { Ok(self.find_transactions(std::slice::from_ref(id)).await?.pop().flatten()) })
            }
        }
    }

    async fn close(&self) -> Result<(), Error> {
        let synced = rt::timeout(CLOSE_TIMEOUT, self.sync()).await;
        synced.map_err(|_| {
            let text = format!("blocks were not durable within {} s", CLOSE_TIMEOUT.as_secs());
            self.shared.options.error(ErrorKind::Ambiguous, text)
        })??;
        Ok(())
    }
}

impl RemoteBlocks {
    async fn stored_page(&self, from: BlockNumber, limit: usize) -> Result<Vec<StoredBlock>, Error> {
        let response = self.ask(Request::Page { from, limit: limit as u32 }).await?;
        let blocks = response::read_blocks(response, limit).map_err(|malformed| self.malformed(malformed))?;
        let numbers = (from.get()..).take(limit);
        let in_order = blocks.iter().zip(numbers).all(|(block, number)| block.number.get() == number);
        match in_order && (limit == 0 || !blocks.is_empty()) {
            true => Ok(blocks),
            false => Err(self.malformed(Malformed { what: "it holds other blocks than the client asked for", at: 0 })),
        }
    }
}

impl fmt::Debug for RemoteBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
        f.debug_struct("RemoteBlocks")
            .field("height", &state.tip.height)
            .field("pending", &state.pending.len())
            .finish_non_exhaustive()
    }
}
