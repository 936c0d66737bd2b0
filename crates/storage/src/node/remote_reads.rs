//! Blocks and history of a channel at a storage node, for a compute node that is not the primary.

use std::fmt;
use std::sync::Arc;

use base::{BlockNumber, Bytes, TxId};

use super::ANSWER_TIME_MAX;
use super::client::{RemoteOptions, Session};
use super::message::{self, Malformed, Request, Role, answer};
use crate::Error;
use crate::blocks::{StoredBlocks, TransactionPlace};
use crate::history::{HISTORY_BLOCKS_MAX, History};
use crate::tables::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX};

/// Reads what is durable of a channel, whoever writes it. The node is asked when something is read, and again after a lost link;
/// a channel that it does not have yet is an error of that read.
pub struct RemoteReads {
    session: Session,
}

impl RemoteReads {
    /// Nothing is asked yet; the epoch is not looked at.
    pub fn new(options: RemoteOptions) -> RemoteReads {
        RemoteReads { session: Session::new(options, Role::Reader, Arc::new(|_| {})) }
    }

    async fn ask(&self, request: impl Into<base::rt::net::Parts>) -> Result<Bytes, Error> {
        self.session.ask(request, ANSWER_TIME_MAX).await
    }

    fn malformed(&self, malformed: Malformed) -> Error {
        self.session.options().malformed(malformed)
    }
}

#[async_trait::async_trait]
impl StoredBlocks for RemoteReads {
    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        let answer = self.ask(Request::Read(number).encode()).await?;
        answer::read_maybe_block(answer).map_err(|malformed| self.malformed(malformed))
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        let answer = self.ask(Request::NumberByHash(*header_hash).encode()).await?;
        let number = answer::read_maybe_number(answer).map_err(|malformed| self.malformed(malformed))?;
        Ok(number.map(BlockNumber))
    }

    async fn find_transaction(&self, id: &TxId) -> Result<Option<TransactionPlace>, Error> {
        let answer = self.ask(message::find_transactions(std::slice::from_ref(id))).await?;
        let mut places = Vec::with_capacity(1);
        answer::read_places(answer, 1, &mut places).map_err(|malformed| self.malformed(malformed))?;
        Ok(places.pop().flatten())
    }
}

#[async_trait::async_trait]
impl History for RemoteReads {
    async fn blocks_of(
        &self,
        namespace: &str,
        key: &[u8],
        below: BlockNumber,
        limit: usize,
    ) -> Result<Vec<BlockNumber>, Error> {
        let limits = [(namespace.len(), NAMESPACE_BYTES_MAX), (key.len(), KEY_BYTES_MAX)];
        if let Some((given, max)) = limits.into_iter().find(|(given, max)| given > max) {
            return Err(Error::TooLarge { what: "bytes of a key", given: given as u64, max: max as u64 });
        }
        let limit = limit.min(HISTORY_BLOCKS_MAX);
        let answer = self.ask(message::history(below, limit as u32, namespace, key)).await?;
        answer::read_numbers(answer, limit).map_err(|malformed| self.malformed(malformed))
    }
}

impl fmt::Debug for RemoteReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteReads").field("options", self.session.options()).finish_non_exhaustive()
    }
}
