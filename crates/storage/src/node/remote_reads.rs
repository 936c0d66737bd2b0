//! Reads blocks and history of a channel on a storage node, for a follower.

use std::fmt;
use std::sync::Arc;

use base::{BlockNumber, Bytes, TxId};
use wire::Malformed;

use super::RESPONSE_TIMEOUT;
use super::client::{NodeSession, RemoteStoreConfig};
use super::message::{self, LinkPurpose, Request, response};
use super::view::ViewId;
use crate::Error;
use crate::blocks::{StoredBlocks, TransactionLocation};
use crate::history::{History, HistoryQuery};

/// Reads the durable blocks of a channel, whichever primary writes it. Each read asks the node, and asks again after a lost
/// link; if the node does not have the channel yet, the read fails.
pub struct RemoteReads {
    session: NodeSession,
}

impl RemoteReads {
    /// Contacts no node yet; the epoch is ignored.
    pub fn new(options: RemoteStoreConfig) -> RemoteReads {
        RemoteReads { session: NodeSession::new(options, LinkPurpose::Reader, Arc::new(|_| {})) }
    }

    /// Confirms that this is the newest view of the channel's copies that the node has.
    ///
    /// # Errors
    /// `Retry` if it has another one, or gives no answer; its refusal.
    pub async fn check_view(&self, view: ViewId) -> Result<(), Error> {
        self.ask(Request::CheckView(view).encode()).await.map(drop)
    }

    async fn ask(&self, request: impl Into<base::rt::net::GatherList>) -> Result<Bytes, Error> {
        self.session.ask(request, RESPONSE_TIMEOUT).await
    }

    fn malformed(&self, malformed: Malformed) -> Error {
        self.session.options().malformed(malformed)
    }
}

#[async_trait::async_trait]
impl StoredBlocks for RemoteReads {
    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        let response = self.ask(Request::Read(number).encode()).await?;
        response::read_maybe_block(response).map_err(|malformed| self.malformed(malformed))
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        let response = self.ask(Request::NumberByHash(*header_hash).encode()).await?;
        let number = response::read_maybe_number(response).map_err(|malformed| self.malformed(malformed))?;
        Ok(number.map(BlockNumber))
    }

    async fn find_transaction(&self, id: &TxId) -> Result<Option<TransactionLocation>, Error> {
        let response = self.ask(message::find_transactions(std::slice::from_ref(id))).await?;
        let mut places = Vec::with_capacity(1);
        response::read_places(response, 1, &mut places).map_err(|malformed| self.malformed(malformed))?;
        Ok(places.pop().flatten())
    }
}

#[async_trait::async_trait]
impl History for RemoteReads {
    async fn blocks_of(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error> {
        self.session.blocks_of(query).await
    }
}

impl fmt::Debug for RemoteReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteReads").field("options", self.session.options()).finish_non_exhaustive()
    }
}
