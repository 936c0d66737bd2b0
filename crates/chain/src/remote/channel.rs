//! A channel of a peer elsewhere.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::net::call::{CallError, Caller};
use base::rt::{self, Instant, Stop};
use base::{Bytes, ErrorKind, TxId};
use ledger::Block;
use prost::Message;

use super::MOVING_MAX;
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
    addresses: Vec<String>,
    state: Mutex<State>,
    /// Times that it came to be up.
    ups: WatchSender<u64>,
}

enum State {
    Up(Caller),
    Down {
        reason: String,
        /// When it was lost; nothing before it was up for the first time.
        since: Option<Instant>,
    },
}

impl Connection {
    pub(super) fn new(name: String, addresses: Vec<String>) -> Connection {
        let state = State::Down { reason: "it has not been reached yet".to_owned(), since: None };
        Connection { name, addresses, state: Mutex::new(state), ups: watch(0).0 }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    pub(super) fn up(&self, caller: Caller) {
        *self.lock() = State::Up(caller);
        self.ups.send_modify(|ups| *ups += 1);
    }

    pub(super) fn down(&self, reason: String) {
        let mut state = self.lock();
        let since = match &*state {
            State::Up(_) => Some(rt::now()),
            State::Down { since, .. } => *since,
        };
        *state = State::Down { reason, since };
    }

    /// Ends the link, if there is one.
    pub(super) fn drop_link(&self) {
        if let State::Up(caller) = &*self.lock() {
            caller.end();
        }
    }

    /// For how much longer a peer that is away may be on its way to another compute node.
    fn moving(&self) -> Option<Duration> {
        match &*self.lock() {
            _ if self.addresses.len() < 2 => None,
            State::Up(_) => Some(MOVING_MAX),
            State::Down { since, .. } => since.and_then(|since| MOVING_MAX.checked_sub(since.elapsed())),
        }
    }

    /// Why the peer cannot be asked, if it cannot.
    pub(super) fn problem(&self) -> Option<Error> {
        match &*self.lock() {
            State::Up(_) => None,
            State::Down { reason, .. } => Some(self.unreachable(reason.clone())),
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { name: self.name.clone(), address: self.addresses.join(" or "), reason }
    }

    /// Asks. Nothing that is asked changes the peer, so an answer that was lost may be asked for again; of a peer that moves
    /// it is.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Bytes, Error> {
        let since = rt::now();
        let mut ups = self.ups.subscribe();
        loop {
            let seen = *ups.borrow_and_update();
            let error = match self.ask_once(ask.clone()).await {
                Err(error @ Error::Unreachable { .. }) => error,
                outcome => return outcome,
            };
            let rest = self.moving().and_then(|rest| rest.min(MOVING_MAX).checked_sub(since.elapsed()));
            let Some(rest) = rest else { return Err(error) };
            if rt::timeout(rest, ups.wait_for(|ups| *ups > seen)).await.is_err() {
                return Err(error);
            }
        }
    }

    async fn ask_once(&self, ask: Ask) -> Result<Bytes, Error> {
        let caller = match &*self.lock() {
            State::Up(caller) => caller.clone(),
            State::Down { reason, .. } => return Err(self.unreachable(reason.clone())),
        };
        call(&caller, ask).await.map_err(|error| match error {
            CallError::Refused(refusal) => {
                Error::Refused { name: self.name.clone(), kind: refusal.kind, reason: refusal.text }
            }
            other => self.unreachable(other.to_string()),
        })
    }

    pub(super) fn malformed(&self, what: &str, error: &dyn std::fmt::Display) -> Error {
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
        let Some(height) = notice.number.checked_add(1) else {
            tracing::warn!(peer = self.connection.name, "a notice of a block that no chain can have");
            return;
        };
        let transactions: Vec<(TxId, Code)> = notice
            .transactions
            .into_iter()
            .map(|transaction| (TxId::new(transaction.tx_id), Code(u8::try_from(transaction.code).unwrap_or(u8::MAX))))
            .collect();
        self.begin(height);
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
        loop {
            // Registered before asking: see the head of `remote`.
            let waiter = self.waiters.register(tx_id.clone());
            if let Some(status) = self.tx_status(tx_id).await? {
                return Ok(status);
            }
            match waiter?.wait().await {
                // Asked again, which waits for the peer.
                Err(Error::Stopped) if self.connection.moving().is_some() && !self.failed.is_stopped() => {}
                Err(Error::Stopped) => return Err(self.connection.problem().unwrap_or(Error::Stopped)),
                outcome => return outcome,
            }
        }
    }

    fn failure(&self) -> Option<Arc<Error>> {
        let failure = self.failure.lock().expect("no holder of this lock panics").clone();
        let problem = || self.connection.problem().filter(|_| self.connection.moving().is_none());
        failure.or_else(|| problem().map(Arc::new))
    }

    async fn stopped(&self) {
        self.failed.stopped().await;
    }
}

#[cfg(test)]
mod tests {
    use base::rt::production;
    use ledger::ChannelConfig;
    use ledger::config::EndorsementRule;

    use super::*;
    use crate::access::Definitions;
    use crate::support::{Consortium, Terms_};

    /// A peer noticed a block with the last number that there is: its successor's number ended the gateway's task.
    #[test]
    fn numbers_that_no_chain_has_end_nothing() {
        production::run(async {
            let consortium = Consortium::found(Terms_::seeded(1, EndorsementRule::Any));
            let config = Arc::new(ChannelConfig::from_block(&consortium.genesis).expect("a genesis block"));
            let rules = Arc::new(Rules::new(config, Definitions::new()).expect("no policies"));
            let connection = Arc::new(Connection::new("peer0".to_owned(), vec!["nowhere".to_owned()]));
            let channel = RemoteChannel::new(connection, rules);
            channel.noticed(Notice { number: 6, ..Notice::default() });
            assert_eq!(channel.height(), 7);
            channel.noticed(Notice { number: u64::MAX, ..Notice::default() });
            assert_eq!(channel.height(), 7);
            channel.noticed(Notice { number: u64::MAX - 1, ..Notice::default() });
            channel.noticed(Notice { number: u64::MAX - 1, ..Notice::default() });
            assert_eq!(channel.height(), u64::MAX);
        });
    }
}
