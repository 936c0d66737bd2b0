//! A channel of a remote peer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::net::rpc::{RpcClient, RpcError};
use base::rt::{self, CancellationToken, Instant};
use base::{Bytes, ErrorKind, TxId};
use prost::Message;

use super::MOVING_MAX;
use ledger::ChannelConfig;
use ledger::Code;
use rules::access::{ChannelPolicies, CurrentPolicies};

use super::messages::{
    Ask, BlockAt, BlockResponse, CommitNotification, ConfigResponse, PeerRequest, StatusRequest, StatusResponse, decode,
};
use super::private_messages::{PrivateBlock, PrivateBlockResponse};
use super::target::PeerTarget;
use crate::Error;
use crate::commit::recent::{CommittedBlock, RecentCommittedBlocks};
use crate::commit::recent_writes::{RecentWrites, WrittenRows};
use crate::commit::waiters::{TxStatus, TxWaiters};
use crate::private_block::TransactionPrivateData;
use crate::view::ChannelView;

/// The link to the peer, while there is one.
pub(super) struct PeerConnection {
    pub(super) name: String,
    target: PeerTarget,
    state: Mutex<ConnectionState>,
    /// How often the link has come up.
    ups: WatchSender<u64>,
}

enum ConnectionState {
    Up(RpcClient),
    Down {
        reason: String,
        /// When the link was lost; `None` until it was up for the first time.
        since: Option<Instant>,
    },
}

impl PeerConnection {
    pub(super) fn new(name: String, target: PeerTarget) -> PeerConnection {
        let state = ConnectionState::Down { reason: "it has not been reached yet".to_owned(), since: None };
        PeerConnection { name, target, state: Mutex::new(state), ups: watch(0).0 }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectionState> {
        self.state.lock().expect("no holder of this lock panics")
    }

    pub(super) fn up(&self, caller: RpcClient) {
        *self.lock() = ConnectionState::Up(caller);
        self.ups.send_modify(|ups| *ups += 1);
    }

    pub(super) fn down(&self, reason: String) {
        let mut state = self.lock();
        let since = match &*state {
            ConnectionState::Up(_) => Some(rt::now()),
            ConnectionState::Down { since, .. } => *since,
        };
        *state = ConnectionState::Down { reason, since };
    }

    /// Ends the link, if there is one.
    pub(super) fn drop_link(&self) {
        if let ConnectionState::Up(caller) = &*self.lock() {
            caller.end();
        }
    }

    /// How much longer a peer that cannot be reached may be in a failover to another compute node.
    fn moving(&self) -> Option<Duration> {
        match &*self.lock() {
            _ if !self.target.moves() => None,
            ConnectionState::Up(_) => Some(MOVING_MAX),
            ConnectionState::Down { since, .. } => since.and_then(|since| MOVING_MAX.checked_sub(since.elapsed())),
        }
    }

    /// Why the peer cannot be asked; `None` if it can.
    pub(super) fn problem(&self) -> Option<Error> {
        match &*self.lock() {
            ConnectionState::Up(_) => None,
            ConnectionState::Down { reason, .. } => Some(self.unreachable(reason.clone())),
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { name: self.name.clone(), address: self.target.addresses().join(" or "), reason }
    }

    /// Sends a request. No request changes the peer, so a request whose answer was lost may be repeated; during a
    /// failover of the peer it is.
    pub(super) async fn request(&self, ask: Ask) -> Result<Bytes, Error> {
        let since = rt::now();
        let mut ups = self.ups.subscribe();
        loop {
            let seen = *ups.borrow_and_update();
            let error = match self.request_once(ask.clone()).await {
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

    async fn request_once(&self, ask: Ask) -> Result<Bytes, Error> {
        let caller = match &*self.lock() {
            ConnectionState::Up(caller) => caller.clone(),
            ConnectionState::Down { reason, .. } => return Err(self.unreachable(reason.clone())),
        };
        send_request(&caller, ask).await.map_err(|error| match error {
            RpcError::Rejected(refusal) => {
                Error::Rejected { name: self.name.clone(), kind: refusal.kind, reason: refusal.text }
            }
            other => self.unreachable(other.to_string()),
        })
    }

    pub(super) fn malformed(&self, what: &str, error: &dyn std::fmt::Display) -> Error {
        let reason = format!("{what} cannot be read: {error}");
        Error::Rejected { name: self.name.clone(), kind: ErrorKind::Corrupt, reason }
    }
}

/// One request over a link.
pub(super) async fn send_request(caller: &RpcClient, ask: Ask) -> Result<Bytes, RpcError> {
    caller.call(PeerRequest { ask: Some(ask) }.encode_to_vec()).await
}

/// A channel that a remote peer has joined. [`super::RemotePeer`] creates it.
pub struct RemoteChannel {
    connection: Arc<PeerConnection>,
    policies: CurrentPolicies,
    /// Notices of a change of configuration since the newest configuration was last asked for.
    config_notices: AtomicU64,
    height: WatchSender<u64>,
    recent: RecentCommittedBlocks,
    waiters: TxWaiters,
    writes: RecentWrites,
    failure: Mutex<Option<Arc<Error>>>,
    failed: CancellationToken,
}

impl RemoteChannel {
    pub(super) fn new(connection: Arc<PeerConnection>, policies: Arc<ChannelPolicies>) -> RemoteChannel {
        RemoteChannel {
            connection,
            policies: CurrentPolicies::new(policies),
            config_notices: AtomicU64::new(0),
            height: watch(0).0,
            recent: RecentCommittedBlocks::default(),
            waiters: TxWaiters::default(),
            writes: RecentWrites::default(),
            failure: Mutex::new(None),
            failed: CancellationToken::new(),
        }
    }

    /// Counts a notice of a change of configuration. Returns whether nobody is asking for the newest configuration yet.
    pub(super) fn count_config_notice(&self) -> bool {
        self.config_notices.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// The number of notices of a changed configuration that a request sent now covers.
    pub(super) fn config_notices(&self) -> u64 {
        self.config_notices.load(Ordering::Acquire)
    }

    /// Clears the count if it is still `answered`, which is what it was before the last request. Returns false if
    /// further notices have arrived since: the newest configuration must then be requested again.
    pub(super) fn answer_config_notices(&self, answered: u64) -> bool {
        self.config_notices.compare_exchange(answered, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes over the configuration and the definitions that the peer says are the newest.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub(super) fn set_config(&self, newest: &ConfigResponse) -> Result<(), Error> {
        let current = self.policies.get();
        let definitions = newest.definitions();
        let is_same_config = *current.config().content() == newest.content;
        if is_same_config && *current.on_ledger() == definitions {
            return Ok(());
        }
        let config = match is_same_config {
            true => current.config().clone(),
            false => Arc::new(ChannelConfig::from_state(self.policies.channel(), newest.content.clone())?),
        };
        self.policies.replace(Arc::new(current.under(config).defining(definitions)));
        Ok(())
    }

    /// Following starts at this height: everything below it is committed.
    pub(super) fn raise_height(&self, height: u64) {
        self.height.send_if_modified(|known| {
            let is_higher = height > *known;
            *known = (*known).max(height);
            is_higher
        });
    }

    pub(super) fn handle_notification(&self, notice: CommitNotification) {
        if let Some(reason) = notice.failure {
            let name = self.connection.name.clone();
            let failure = Error::Rejected { name, kind: ErrorKind::Closed, reason };
            *self.failure.lock().expect("no holder of this lock panics") = Some(Arc::new(failure));
            self.failed.cancel();
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
        self.raise_height(height);
        // If there are none, or they are malformed, transactions are ordered as usual.
        if let Ok(rows) = WrittenRows::decode(notice.written_rows) {
            self.writes.note(notice.number, &rows);
        }
        self.waiters.notify(notice.number, transactions.iter().map(|(tx_id, code)| (tx_id, *code)));
    }

    /// The link has ended: waiting callers ask again.
    pub(super) fn interrupted(&self) {
        self.waiters.abandon();
    }
}

#[async_trait]
impl ChannelView for RemoteChannel {
    fn policies(&self) -> Arc<ChannelPolicies> {
        self.policies.get()
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
        let ask = Ask::Block(BlockAt { channel: self.policies.channel().to_string(), number });
        let answer = self.connection.request(ask).await?;
        let answer =
            BlockResponse::decode(answer).map_err(|error| self.connection.malformed("a block's answer", &error))?;
        Ok(answer.block)
    }

    async fn committed_block(&self, number: u64) -> Result<Option<Arc<CommittedBlock>>, Error> {
        self.recent.get_or_read(number, self.read_block(number)).await
    }

    async fn tx_status(&self, tx_id: &TxId) -> Result<Option<TxStatus>, Error> {
        let ask = Ask::Status(StatusRequest { channel: self.policies.channel().to_string(), tx_id: tx_id.to_string() });
        let answer = self.connection.request(ask).await?;
        let answer = StatusResponse::decode(answer).map_err(|error| self.connection.malformed("a status", &error))?;
        Ok(answer
            .status
            .map(|place| TxStatus { code: Code(u8::try_from(place.code).unwrap_or(u8::MAX)), block: place.block }))
    }

    async fn wait_committed(&self, tx_id: &TxId) -> Result<TxStatus, Error> {
        loop {
            // Registered before the request: see the head of `remote`.
            let waiter = self.waiters.register(tx_id.clone());
            if let Some(status) = self.tx_status(tx_id).await? {
                return Ok(status);
            }
            match waiter?.wait().await {
                // The next request waits for the peer.
                Err(Error::Stopped) if self.connection.moving().is_some() && !self.failed.is_cancelled() => {}
                Err(Error::Stopped) => return Err(self.connection.problem().unwrap_or(Error::Stopped)),
                outcome => return outcome,
            }
        }
    }

    async fn private_data(&self, number: u64, request: &Bytes) -> Result<Vec<TransactionPrivateData>, Error> {
        let (channel, request) = (self.policies.channel().to_string(), request.clone());
        let answer = self.connection.request(Ask::PrivateBlock(PrivateBlock { channel, number, request })).await?;
        let answer: PrivateBlockResponse =
            decode(answer).map_err(|error| self.connection.malformed("private data", &error))?;
        Ok(answer.into_private_data())
    }

    fn recent_writes(&self) -> Option<&RecentWrites> {
        Some(&self.writes)
    }

    fn failure(&self) -> Option<Arc<Error>> {
        let failure = self.failure.lock().expect("no holder of this lock panics").clone();
        let problem = || self.connection.problem().filter(|_| self.connection.moving().is_none());
        failure.or_else(|| problem().map(Arc::new))
    }

    async fn stopped(&self) {
        self.failed.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use base::rt::production;
    use ledger::config::EndorsementRule;

    use super::*;
    use crate::support::{Consortium, ConsortiumConfig};
    use rules::definitions::ContractDefinitions;

    /// Regression: a peer sent a notice of a block with the largest number that there is. Computing the number after it
    /// ended the gateway's task.
    #[test]
    fn numbers_that_no_chain_has_end_nothing() {
        production::run(async {
            let consortium = Consortium::create(ConsortiumConfig::seeded(1, EndorsementRule::Any));
            let config = Arc::new(ChannelConfig::from_block(&consortium.genesis).expect("a genesis block"));
            let rules = Arc::new(ChannelPolicies::new(config, ContractDefinitions::new()).expect("no policies"));
            let connection = Arc::new(PeerConnection::new("peer0".to_owned(), PeerTarget::Node("nowhere".to_owned())));
            let channel = RemoteChannel::new(connection, rules);
            channel.handle_notification(CommitNotification { number: 6, ..CommitNotification::default() });
            assert_eq!(channel.height(), 7);
            channel.handle_notification(CommitNotification { number: u64::MAX, ..CommitNotification::default() });
            assert_eq!(channel.height(), 7);
            channel.handle_notification(CommitNotification { number: u64::MAX - 1, ..CommitNotification::default() });
            channel.handle_notification(CommitNotification { number: u64::MAX - 1, ..CommitNotification::default() });
            assert_eq!(channel.height(), u64::MAX);
        });
    }
}
