//! The blocks of a channel on several copies, as the primary sees them.

use std::fmt;
use std::sync::Arc;

use base::rt;
use base::rt::channel::WatchReceiver;
use base::{BlockNumber, Bytes, ErrorKind, TxId};
use storage::Error;
use storage::blocks::{Blocks, ChainTip, NewBlock, StoredBlock, TransactionLocation};

use crate::copies_core::Session;
use crate::limits::CLOSE_TIMEOUT;
use crate::member::Member;
use crate::set::error;

/// Blocks that are durable once every complete copy has them; see [the crate](crate).
pub struct CopiedBlocks {
    session: Arc<Session>,
}

impl CopiedBlocks {
    pub(crate) fn new(session: Arc<Session>) -> CopiedBlocks {
        CopiedBlocks { session }
    }

    /// The number of blocks that every complete copy has made durable, and the header hash of the last of them.
    pub fn durable_tip(&self) -> (u64, [u8; 32]) {
        self.session.core.durable_tip()
    }

    /// Appends a block to one copy. `Ok` also if the copy is left out meanwhile.
    async fn append_at(&self, member: &Member, block: &NewBlock<'_>) -> Result<(), Error> {
        let tip = member.blocks.tip();
        if tip.height == block.number.get() + 1 && tip.header_hash == block.header_hash {
            // An earlier call was dropped after this copy had got the block.
            return Ok(());
        }
        let NewBlock { number, header_hash, previous_hash, parts, transactions, .. } = *block;
        let epoch = self.session.core.epoch;
        let block = NewBlock { number, header_hash, previous_hash, epoch, parts, transactions };
        match member.left_out.run_until_cancelled(member.blocks.append(block)).await {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => match member.fatal().is_none() && member.blocks.failure().is_some() {
                // The copy is lost. The keeper leaves it out, or ends the session.
                true => {
                    let ended = self.session.core.failed.clone();
                    let _ = ended.run_until_cancelled(member.left_out.cancelled()).await;
                    self.session.core.check()
                }
                false => Err(error),
            },
        }
    }
}

#[async_trait::async_trait]
impl Blocks for CopiedBlocks {
    async fn append(&self, block: NewBlock<'_>) -> Result<(), Error> {
        let _in_order = self.session.core.appending.lock().await;
        self.session.core.check()?;
        for member in self.session.core.appended_to() {
            self.append_at(&member, &block).await?;
        }
        self.session.core.check()
    }

    async fn sync(&self) -> Result<u64, Error> {
        let target = self.tip().height;
        let mut durable = self.session.core.durable.subscribe();
        let reached = self.session.core.failed.run_until_cancelled(durable.wait_for(|height| *height >= target)).await;
        let durable = self.durable_height();
        if reached.is_some() || durable >= target {
            return Ok(durable);
        }
        self.session.core.check().map(|()| durable)
    }

    fn tip(&self) -> ChainTip {
        // A block that an append has not sent to every copy yet is not appended.
        let tips = self.session.core.members().into_iter().map(|member| member.blocks.tip());
        tips.min_by_key(|tip| tip.height).expect("there is a complete copy")
    }

    fn durable_height(&self) -> u64 {
        *self.session.core.durable.borrow()
    }

    fn subscribe_durable(&self) -> WatchReceiver<u64> {
        self.session.core.durable.subscribe()
    }

    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        self.session.core.read(|member| async move { member.blocks.read(number).await }).await
    }

    async fn read_stored(&self, number: BlockNumber) -> Result<Option<StoredBlock>, Error> {
        self.session.core.read(|member| async move { member.blocks.read_stored(number).await }).await
    }

    async fn read_page(&self, from: BlockNumber, limit: usize) -> Result<Vec<StoredBlock>, Error> {
        self.session.core.read(|member| async move { member.blocks.read_page(from, limit).await }).await
    }

    async fn transactions(&self, number: BlockNumber) -> Result<Option<Vec<(TxId, u8)>>, Error> {
        self.session.core.read(|member| async move { member.blocks.transactions(number).await }).await
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        let hash = *header_hash;
        self.session.core.read(|member| async move { member.blocks.number_by_hash(&hash).await }).await
    }

    async fn find_transactions(&self, ids: &[TxId]) -> Result<Vec<Option<TransactionLocation>>, Error> {
        self.session.core.read(|member| async move { member.blocks.find_transactions(ids).await }).await
    }

    async fn close(&self) -> Result<(), Error> {
        let synced = rt::timeout(CLOSE_TIMEOUT, self.sync()).await;
        let late = |_| {
            let text = format!("blocks were not durable within {} s", CLOSE_TIMEOUT.as_secs());
            error(self.session.core.set.first(), ErrorKind::Ambiguous, text)
        };
        synced.map_err(late)?.map(drop)
    }
}

impl fmt::Debug for CopiedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedBlocks").field("durable", &self.durable_height()).finish_non_exhaustive()
    }
}
