//! Blocks that a primary holds until the storage node has made them durable.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use base::rt::CancellationToken;
use base::rt::channel::WatchSender;
use base::rt::sync::Notify;
use base::{Bytes, ErrorKind, Map, TxId, TxIndex};

use super::client::RemoteStoreConfig;
use super::message::Welcome;
use super::tx_id_filter::TxIdFilter;
use crate::blocks::{ChainTip, NewBlock, StoredBlock, TransactionLocation};
use crate::{Error, lock};

pub(super) struct RemoteBlocksCore {
    pub(super) options: RemoteStoreConfig,
    pub(super) state: Mutex<RemoteBlocksState>,
    /// The ids of all blocks, pending ones included. Locked after the state, where both are locked.
    pub(super) tx_id_filter: Mutex<TxIdFilter>,
    pub(super) durable: WatchSender<u64>,
    /// There may be something to send.
    pub(super) work: Notify,
    /// Stopped once an error has ended the object.
    pub(super) failed: CancellationToken,
}

pub(super) struct RemoteBlocksState {
    /// The end of the chain, pending blocks included.
    pub(super) tip: ChainTip,
    /// The newest block that is durable at the node, and its hash.
    pub(super) durable: (u64, [u8; 32]),
    /// The blocks from the durable height on.
    pub(super) pending: VecDeque<Arc<PendingBlock>>,
    pub(super) pending_bytes: usize,
    /// The first places of pending transactions.
    pub(super) locations: Map<TxId, TransactionLocation>,
    pub(super) failure: Option<Error>,
}

pub(super) struct PendingBlock {
    pub(super) block: StoredBlock,
    pub(super) parts: Vec<Bytes>,
}

impl PendingBlock {
    pub(super) fn bytes(&self) -> usize {
        let transactions: usize = self.block.transactions.iter().map(|(id, _)| id.len() + 5).sum();
        self.parts.iter().map(Bytes::len).sum::<usize>() + transactions
    }

    pub(super) fn new_block(&self) -> NewBlock<'_> {
        NewBlock {
            number: self.block.number,
            header_hash: self.block.header_hash,
            previous_hash: self.block.previous_hash,
            epoch: self.block.epoch,
            parts: &self.parts,
            transactions: &self.block.transactions,
        }
    }

    pub(super) fn payload(&self) -> Bytes {
        match &self.parts[..] {
            [one] => one.clone(),
            parts => parts.concat().into(),
        }
    }

    pub(super) fn stored(&self) -> StoredBlock {
        StoredBlock { payload: self.payload(), ..self.block.clone() }
    }
}

impl RemoteBlocksState {
    pub(super) fn push(&mut self, pending: Arc<PendingBlock>) {
        let block = &pending.block;
        self.tip = ChainTip { height: block.number.get() + 1, header_hash: block.header_hash, epoch: block.epoch };
        for (index, (id, code)) in block.transactions.iter().enumerate().filter(|(_, (id, _))| !id.is_empty()) {
            let place = TransactionLocation { block: block.number, index: TxIndex(index as u32), code: *code };
            self.locations.entry(id.clone()).or_insert(place);
        }
        self.pending_bytes += pending.bytes();
        self.pending.push_back(pending);
    }

    /// Removes the pending blocks below a height.
    fn forget_durable(&mut self, durable: u64) {
        while let Some(pending) = self.pending.front()
            && pending.block.number.get() < durable
        {
            for (id, _) in &pending.block.transactions {
                if self.locations.get(id).is_some_and(|place| place.block == pending.block.number) {
                    self.locations.remove(id);
                }
            }
            self.durable = (pending.block.number.get() + 1, pending.block.header_hash);
            self.pending_bytes -= pending.bytes();
            self.pending.pop_front();
        }
    }

    /// Step 3: takes the node's end of the chain as the answer to every block that was sent.
    pub(super) fn resolve(&self, opened: &Welcome) -> Result<(), (ErrorKind, String)> {
        let ChainTip { height, header_hash, .. } = opened.tip;
        let (durable, durable_hash) = self.durable;
        if height < durable {
            let text = format!("it has {height} blocks and had reported {durable} as durable: blocks are lost");
            return Err((ErrorKind::Corrupt, text));
        }
        let known = match height - durable {
            0 => Some(durable_hash),
            ahead => usize::try_from(ahead - 1)
                .ok()
                .and_then(|place| self.pending.get(place))
                .map(|pending| pending.block.header_hash),
        };
        match known == Some(header_hash) {
            true => Ok(()),
            false => Err((
                ErrorKind::Fenced,
                format!("its block {} was not appended by this primary", height.saturating_sub(1)),
            )),
        }
    }
}

impl RemoteBlocksCore {
    pub(super) fn advance_durable(&self, durable: u64) -> u64 {
        let height = {
            let mut state = lock(&self.state);
            state.forget_durable(durable);
            state.durable.0
        };
        self.durable.send_if_modified(|known| {
            let newer = height > *known;
            *known = height.max(*known);
            newer
        });
        height
    }

    pub(super) fn fail(&self, error: Error) {
        tracing::error!(channel = self.options.channel, %error, "no more blocks can be appended");
        lock(&self.state).failure.get_or_insert(error);
        self.failed.cancel();
    }

    pub(super) fn pending_at(&self, number: u64) -> Option<Arc<PendingBlock>> {
        let state = lock(&self.state);
        let place = usize::try_from(number.checked_sub(state.durable.0)?).ok()?;
        state.pending.get(place).cloned()
    }
}
