//! A channel of a peer elsewhere.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base::rt::Stop;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::net::call::{CallError, Caller};
use base::{Bytes, ErrorKind, TxId};
use ledger::Block;
use prost::Message;

use super::messages::{Ask, BlockAnswer, BlockAt, Notice, Request, StatusAnswer, StatusOf};
use crate::Error;
use crate::access::Rules;
use crate::commit::recent::{CommittedBlock, Recent};
use crate::commit::waiters::{TxStatus, Waiters};
use crate::validate::Code;
use crate::view::ChannelView;

/// How to ask the peer, as long as it can be asked.
pub(super) struct Connection {
    pub(super) name: String,
    pub(super) address: String,
    state: Mutex<State>,
}

enum State {
    Up(Caller),
    Down(String),
}

impl Connection {
    pub(super) fn new(name: String, address: String) -> Connection {
        Connection { name, address, state: Mutex::new(State::Down("it has not been reached yet".to_owned())) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    pub(super) fn up(&self, caller: Caller) {
        *self.lock() = State::Up(caller);
    }

    pub(super) fn down(&self, reason: String) {
        *self.lock() = State::Down(reason);
    }

    /// Why the peer cannot be asked, if it cannot.
    pub(super) fn problem(&self) -> Option<Error> {
        match &*self.lock() {
            State::Up(_) => None,
            State::Down(reason) => Some(self.unreachable(reason.clone())),
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { name: self.name.clone(), address: self.address.clone(), reason }
    }

    /// Asks. Nothing that is asked changes the peer, so an answer that was lost may be asked for again.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Bytes, Error> {
        let caller = match &*self.lock() {
            State::Up(caller) => caller.clone(),
            State::Down(reason) => return Err(self.unreachable(reason.clone())),
        };
        call(&caller, ask).await.map_err(|error| match error {
            CallError::Refused(refusal) => {
                Error::Refused { name: self.name.clone(), kind: refusal.kind, reason: refusal.text }
            }
            other => self.unreachable(other.to_string()),
        })
    }

    pub(super) fn malformed(&self, what: &str, error: &prost::DecodeError) -> Error {
        let reason = format!("{what} cannot be read: {error}");
        Error::Refused { name: self.name.clone(), kind: ErrorKind::Corrupt, reason }
    }
}

/// One question over a link.
pub(super) async fn call(caller: &Caller, ask: Ask) -> Result<Bytes, CallError> {
    caller.call(Request { ask: Some(ask) }.encode_to_vec()).await
}

/// A channel that a peer elsewhere has joined. Made by [`super::RemotePeer`].
pub struct RemoteChannel {
    connection: Arc<Connection>,
    rules: Arc<Rules>,
    height: WatchSender<u64>,
    recent: Recent,
    waiters: Waiters,
    failure: Mutex<Option<Arc<Error>>>,
    failed: Stop,
}

impl RemoteChannel {
    pub(super) fn new(connection: Arc<Connection>, rules: Arc<Rules>) -> RemoteChannel {
        RemoteChannel {
            connection,
            rules,
            height: watch(0).0,
            recent: Recent::default(),
            waiters: Waiters::default(),
            failure: Mutex::new(None),
            failed: Stop::new(),
        }
    }

    /// Following begins at this height: everything below it is committed.
    pub(super) fn begin(&self, height: u64) {
        self.height.send_if_modified(|known| {
            let is_higher = height > *known;
            *known = (*known).max(height);
            is_higher
        });
    }

    pub(super) fn noticed(&self, notice: Notice) {
        if let Some(reason) = notice.failure {
            let name = self.connection.name.clone();
            let failure = Error::Refused { name, kind: ErrorKind::Closed, reason };
            *self.failure.lock().expect("no holder of this lock panics") = Some(Arc::new(failure));
            self.failed.stop();
            self.waiters.close();
            return;
        }
        let transactions: Vec<(TxId, Code)> = notice
            .transactions
            .into_iter()
            .map(|transaction| (TxId::new(transaction.tx_id), Code(u8::try_from(transaction.code).unwrap_or(u8::MAX))))
            .collect();
        self.begin(notice.number + 1);
        self.waiters.tell(notice.number, transactions.iter().map(|(tx_id, code)| (tx_id, *code)));
    }

    /// The link has ended: who waits asks again.
    pub(super) fn interrupted(&self) {
        self.waiters.abandon();
    }
}

#[async_trait]
impl ChannelView for RemoteChannel {
    fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    fn height(&self) -> u64 {
        *self.height.borrow()
    }

    fn committed(&self) -> WatchReceiver<u64> {
        self.height.subscribe()
    }

    async fn read_block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        if number >= self.height() {
            return Ok(None);
        }
        let ask = Ask::Block(BlockAt { channel: self.rules.channel().to_string(), number });
        let answer = self.connection.ask(ask).await?;
        let answer =
            BlockAnswer::decode(answer).map_err(|error| self.connection.malformed("a block's answer", &error))?;
        Ok(answer.block)
    }

    async fn committed_block(&self, number: u64) -> Result<Option<Arc<CommittedBlock>>, Error> {
        if let Some(block) = self.recent.get(number) {
            return Ok(Some(block));
        }
        let Some(bytes) = self.read_block(number).await? else { return Ok(None) };
        let block = Arc::new(CommittedBlock::of_stored(Block::parse(&bytes)?)?);
        self.recent.offer(block.clone());
        Ok(Some(block))
    }

    async fn tx_status(&self, tx_id: &TxId) -> Result<Option<TxStatus>, Error> {
        let ask = Ask::Status(StatusOf { channel: self.rules.channel().to_string(), tx_id: tx_id.to_string() });
        let answer = self.connection.ask(ask).await?;
        let answer = StatusAnswer::decode(answer).map_err(|error| self.connection.malformed("a status", &error))?;
        Ok(answer
            .status
            .map(|place| TxStatus { code: Code(u8::try_from(place.code).unwrap_or(u8::MAX)), block: place.block }))
    }

    async fn wait_committed(&self, tx_id: &TxId) -> Result<TxStatus, Error> {
        // Registered before asking: see the head of `remote`.
        let waiter = self.waiters.register(tx_id.clone());
        if let Some(status) = self.tx_status(tx_id).await? {
            return Ok(status);
        }
        waiter?.wait().await.map_err(|error| match (error, self.connection.problem()) {
            (Error::Stopped, Some(problem)) => problem,
            (error, _) => error,
        })
    }

    fn failure(&self) -> Option<Arc<Error>> {
        let failure = self.failure.lock().expect("no holder of this lock panics").clone();
        failure.or_else(|| self.connection.problem().map(Arc::new))
    }

    async fn stopped(&self) {
        self.failed.stopped().await;
    }
}
