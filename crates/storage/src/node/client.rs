//! The client's side of links to a storage node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::rt::net::GatherList;
use base::rt::net::rpc::{RpcClient, RpcError};
use base::rt::sync::Mutex as AsyncMutex;
use base::rt::{self, net};
use base::{BlockNumber, Bytes, Epoch, ErrorKind};
use wire::hello::HelloAnswer;
use wire::{Malformed, Reader};

use super::message::{self, Hello, LinkPurpose, Notification, PROTOCOL_VERSIONS, Request, Welcome, response};
use super::view::{CopyStatus, Installation, ViewId};
use super::{ASK_ATTEMPTS_MAX, REQUESTS_MAX, RESPONSE_TIMEOUT, WORK_TIMEOUT, retry_backoff};
use crate::history::{HISTORY_BLOCKS_MAX, HistoryQuery};
use crate::tables::{Savepoint, check_key};
use crate::{Error, events};

/// Which storage node keeps a channel, and under which epoch it is written.
#[derive(Clone)]
pub struct RemoteStoreConfig {
    /// The address on which the node serves links.
    pub address: String,
    /// The token that the node asks for.
    pub token: Bytes,
    /// The name of the channel, at most [`super::CHANNEL_BYTES_MAX`] bytes.
    pub channel: String,
    /// The primary's epoch, as [`begin_epoch`] returned it; never used by two compute nodes.
    pub epoch: Epoch,
}

/// The channels of which a storage node has blocks, in the order of their names.
///
/// # Errors
/// `Retry` if the node cannot be reached; its refusal.
pub async fn channels(address: &str, token: &Bytes) -> Result<Vec<String>, Error> {
    let options = RemoteStoreConfig {
        address: address.to_owned(),
        token: token.clone(),
        channel: String::new(),
        epoch: Epoch(0),
    };
    let (caller, _) = connect(&options, LinkPurpose::Reader, |_| {}).await?;
    let names = call(&options, &caller, Request::Channels.encode(), RESPONSE_TIMEOUT).await?;
    response::read_names(names).map_err(|malformed| options.malformed(malformed))
}

/// The newest epoch of a channel; 0 if the channel does not exist.
///
/// # Errors
/// As [`channels`].
pub async fn newest_epoch(address: &str, token: &Bytes, channel: &str) -> Result<Epoch, Error> {
    ask_epoch(address, token, Request::Epoch(channel.to_owned())).await
}

/// Begins a new epoch for the next primary of a channel. No other caller ever gets it, and earlier epochs are fenced from
/// now on.
///
/// # Errors
/// As [`channels`]. If the answer is lost, the epoch may be lost with it; ask again to begin another one.
pub async fn begin_epoch(address: &str, token: &Bytes, channel: &str) -> Result<Epoch, Error> {
    ask_epoch(address, token, Request::Begin(channel.to_owned())).await
}

/// As [`begin_epoch`], if `newest` is still the newest epoch: if several nodes try to succeed the same primary, one does.
///
/// # Errors
/// `Fenced` if another epoch has begun; as [`begin_epoch`].
pub async fn begin_epoch_after(address: &str, token: &Bytes, channel: &str, newest: Epoch) -> Result<Epoch, Error> {
    ask_epoch(address, token, Request::BeginAfter { newest, channel: channel.to_owned() }).await
}

/// What a storage node has of a channel.
///
/// # Errors
/// As [`channels`].
pub async fn copy_status(address: &str, token: &Bytes, channel: &str) -> Result<CopyStatus, Error> {
    ask_status(address, token, Request::CopyStatus(channel.to_owned())).await
}

/// Begins an epoch that the caller chose, at one copy of a channel, for the next primary: newer than any that has begun there, and
/// only if the node has no newer view than `newest`. Returns what the node has then, all of it durable.
///
/// # Errors
/// `Fenced` if this or a later epoch has begun; `Retry` if the node has a newer view; as [`channels`]. If the answer is lost, the
/// epoch may have begun.
pub async fn begin_epoch_in(
    address: &str,
    token: &Bytes,
    channel: &str,
    epoch: Epoch,
    newest: ViewId,
) -> Result<CopyStatus, Error> {
    ask_status(address, token, Request::BeginIn { epoch, newest, channel: channel.to_owned() }).await
}

/// Gives a view to one of its copies. Durable on return; repeating it changes nothing.
///
/// # Errors
/// `Fenced` if a later epoch has begun at the node, or it has a newer view; as [`channels`]. If the answer is lost, the node may
/// have the view.
pub async fn install_view(
    address: &str,
    token: &Bytes,
    channel: &str,
    installation: Installation,
) -> Result<(), Error> {
    let options = without_channel(address, token);
    let (caller, _) = connect(&options, LinkPurpose::Reader, |_| {}).await?;
    let request = Request::Install { installation, channel: channel.to_owned() };
    call(&options, &caller, request.encode(), WORK_TIMEOUT).await.map(drop)
}

async fn ask_status(address: &str, token: &Bytes, request: Request) -> Result<CopyStatus, Error> {
    let options = without_channel(address, token);
    let (caller, _) = connect(&options, LinkPurpose::Reader, |_| {}).await?;
    let status = call(&options, &caller, request.encode(), RESPONSE_TIMEOUT).await?;
    CopyStatus::decode(status).map_err(|malformed| options.malformed(malformed))
}

fn without_channel(address: &str, token: &Bytes) -> RemoteStoreConfig {
    RemoteStoreConfig { address: address.to_owned(), token: token.clone(), channel: String::new(), epoch: Epoch(0) }
}

async fn ask_epoch(address: &str, token: &Bytes, request: Request) -> Result<Epoch, Error> {
    let options = RemoteStoreConfig {
        address: address.to_owned(),
        token: token.clone(),
        channel: String::new(),
        epoch: Epoch(0),
    };
    let (caller, _) = connect(&options, LinkPurpose::Reader, |_| {}).await?;
    let number = call(&options, &caller, request.encode(), RESPONSE_TIMEOUT).await?;
    response::read_number(number).map(Epoch).map_err(|malformed| options.malformed(malformed))
}

/// Opens a link; also returns the bytes of the node's answer behind the versions.
pub async fn connect(
    options: &RemoteStoreConfig,
    purpose: LinkPurpose,
    noticed: impl FnMut(Notification) + Send + 'static,
) -> Result<(RpcClient, Bytes), Error> {
    let unreachable = |text: String| options.error(ErrorKind::Retry, text);
    let link = rt::timeout(RESPONSE_TIMEOUT, net::connect(&options.address)).await;
    let link = link.map_err(|_| unreachable("it does not answer the attempt to connect".to_owned()))?;
    let link = link.map_err(|error| unreachable(format!("it cannot be reached: {error}")))?;
    events::NodeLinksOpened.add(1);
    let mut noticed = noticed;
    let caller = RpcClient::new(link, REQUESTS_MAX, move |bytes| {
        // A later release may send notices that this one does not know.
        if let Ok(notice) = Notification::decode(bytes) {
            noticed(notice);
        }
    });
    let hello = Hello {
        versions: PROTOCOL_VERSIONS,
        purpose,
        epoch: options.epoch,
        token: options.token.clone(),
        channel: options.channel.clone(),
    };
    let response =
        call(options, &caller, hello.encode().into(), RESPONSE_TIMEOUT).await.map_err(|error| match error {
            // Opening is idempotent.
            Error::Remote { node, kind: ErrorKind::Ambiguous | ErrorKind::Closed, text } => {
                Error::Remote { node, kind: ErrorKind::Retry, text }
            }
            error => error,
        })?;
    let mut response = Reader::new(response);
    let answer = HelloAnswer::read(&mut response).map_err(|malformed| options.malformed(malformed))?;
    answer.chosen_by(PROTOCOL_VERSIONS).map_err(|mismatch| {
        options.error(ErrorKind::Rejected, format!("it speaks other versions of the storage messages: {mismatch}"))
    })?;
    Ok((caller, response.rest()))
}

/// One call. It ends the link if it takes too long, because the state of the link is then unknown.
pub async fn call(
    options: &RemoteStoreConfig,
    caller: &RpcClient,
    request: GatherList,
    time_max: Duration,
) -> Result<Bytes, Error> {
    match rt::timeout(time_max, caller.call(request)).await {
        Ok(outcome) => outcome.map_err(|error| options.call_error(error)),
        Err(_) => {
            caller.end();
            let text = format!("it did not answer within {} s", time_max.as_secs());
            Err(options.error(ErrorKind::Ambiguous, text))
        }
    }
}

impl RemoteStoreConfig {
    pub(super) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::Remote { node: self.address.as_str().into(), kind, text: text.into() }
    }

    pub(super) fn call_error(&self, error: RpcError) -> Error {
        self.error(error.kind(), error.to_string())
    }

    pub(super) fn malformed(&self, malformed: Malformed) -> Error {
        self.error(ErrorKind::Corrupt, format!("it sent a malformed message: {malformed}"))
    }
}

/// Asks a node idempotent questions, over a link that is opened again when it is lost.
pub struct NodeSession {
    options: RemoteStoreConfig,
    role: LinkPurpose,
    /// Called with the result of each opening, and with every notice.
    on_notification: Arc<dyn Fn(Notification) + Send + Sync>,
    /// The savepoint that the node has reported durable: a link on which the node has less is not used.
    relied_on: Box<dyn Fn() -> Savepoint + Send + Sync>,
    caller: AsyncMutex<Option<RpcClient>>,
}

impl NodeSession {
    pub fn new(
        options: RemoteStoreConfig,
        purpose: LinkPurpose,
        noticed: Arc<dyn Fn(Notification) + Send + Sync>,
    ) -> NodeSession {
        NodeSession {
            options,
            role: purpose,
            on_notification: noticed,
            relied_on: Box::new(Savepoint::default),
            caller: AsyncMutex::new(None),
        }
    }

    /// Checks every link against the savepoint that the caller relies on.
    pub fn relying_on(self, relied_on: impl Fn() -> Savepoint + Send + Sync + 'static) -> NodeSession {
        NodeSession { relied_on: Box::new(relied_on), ..self }
    }

    pub fn options(&self) -> &RemoteStoreConfig {
        &self.options
    }

    /// Opens a link, if none is open.
    pub async fn open(&self) -> Result<RpcClient, Error> {
        let mut current = self.caller.lock().await;
        if let Some(caller) = current.as_ref().filter(|caller| !caller.has_ended()) {
            return Ok(caller.clone());
        }
        *current = None;
        // Read before the link is opened: a notice on the link may carry a newer savepoint than the node's answer.
        let relied_on = (self.relied_on)();
        let noticed = Arc::clone(&self.on_notification);
        let (caller, response) = connect(&self.options, self.role, move |notice| noticed(notice)).await?;
        let opened = Welcome::decode(response).map_err(|malformed| self.options.malformed(malformed))?;
        self.check_rows(&caller, relied_on, opened.savepoint).await?;
        (self.on_notification)(Notification::Durable(opened.durable));
        (self.on_notification)(Notification::Savepoint(opened.savepoint));
        *current = Some(caller.clone());
        Ok(caller)
    }

    /// Makes sure that the node still has the rows that it once reported durable. After the loss of a disk's contents, or
    /// when an operator restores a backup, the node returns with the rows of an earlier block, and would answer reads with
    /// old values. The primary has the node materialise the blocks again; a follower waits for that.
    async fn check_rows(&self, caller: &RpcClient, relied_on: Savepoint, found: Savepoint) -> Result<(), Error> {
        let parted = |found: Savepoint| {
            found.height < relied_on.height
                || found.height == relied_on.height && found.block_hash != relied_on.block_hash
        };
        if !parted(found) {
            return Ok(());
        }
        events::RowsLost.add(1);
        let (channel, known) = (&self.options.channel, relied_on.height);
        tracing::error!(
            channel,
            node = self.options.address,
            rows_of_blocks = found.height,
            known,
            "the storage node has lost rows that were durable: an earlier copy of its tables was restored, or its disk lost data"
        );
        let lost = |now: Savepoint, kind: ErrorKind| {
            self.options.error(
                kind,
                format!(
                    "its tables have the rows of {} blocks, but it had reported those of {known} as durable; restore its \
                     directory, or remove its tables so that it materialises the blocks again",
                    now.height
                ),
            )
        };
        if self.role != LinkPurpose::Materializer {
            return Err(lost(found, ErrorKind::Retry));
        }
        let mut now = found;
        if found.height < known {
            let request = Request::Materialize { epoch: self.options.epoch, height: known };
            let response = call(&self.options, caller, request.encode(), WORK_TIMEOUT).await?;
            now = response::read_savepoint(response).map_err(|malformed| self.options.malformed(malformed))?;
        }
        if parted(now) {
            return Err(lost(now, ErrorKind::Corrupt));
        }
        Ok(())
    }

    /// Asks until an answer arrives, at most [`ASK_ATTEMPTS_MAX`] times.
    ///
    /// # Errors
    /// The node's refusal; `Retry` if no attempt got an answer.
    pub async fn ask(&self, request: impl Into<GatherList>, time_max: Duration) -> Result<Bytes, Error> {
        let request = request.into();
        let mut backoff = retry_backoff();
        let mut attempt = 1;
        loop {
            let error = match self.ask_once(&request, time_max).await {
                Ok(response) => return Ok(response),
                Err(CallFailure::Rejected(error)) => return Err(error),
                Err(CallFailure::Lost(error)) => error,
            };
            if attempt >= ASK_ATTEMPTS_MAX {
                return Err(self.options.error(ErrorKind::Retry, format!("asked {attempt} times: {error}")));
            }
            attempt += 1;
            backoff.wait().await;
        }
    }

    /// Asks for the blocks that wrote a key; see [`History`](crate::History).
    ///
    /// # Errors
    /// As [`NodeSession::ask`]; [`Error::TooLarge`] for a key that no row can have: its length would not fit the message.
    pub async fn blocks_of(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error> {
        let HistoryQuery { namespace, key, below, limit } = query;
        check_key(namespace, key)?;
        let limit = limit.min(HISTORY_BLOCKS_MAX);
        let request = message::history(below, limit as u32, namespace, key);
        let response = self.ask(request, RESPONSE_TIMEOUT).await?;
        response::read_numbers(response, limit).map_err(|malformed| self.options.malformed(malformed))
    }

    async fn ask_once(&self, request: &GatherList, time_max: Duration) -> Result<Bytes, CallFailure> {
        let caller = self.open().await.map_err(|error| match error.kind() {
            ErrorKind::Retry | ErrorKind::Closed | ErrorKind::Ambiguous => CallFailure::Lost(error),
            _ => CallFailure::Rejected(error),
        })?;
        let asked = rt::timeout(time_max, caller.call(request.clone())).await;
        let error = match asked {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => error,
            Err(_) => RpcError::Ambiguous,
        };
        let closed = error.kind() == ErrorKind::Closed;
        let is_answer = matches!(error, RpcError::Rejected(_) | RpcError::TooLarge(_));
        let error = self.options.call_error(error);
        if is_answer && !closed {
            return Err(CallFailure::Rejected(error));
        }
        // The state of this link is unknown, or the node has closed the channel: open it again.
        caller.end();
        Err(CallFailure::Lost(error))
    }
}

/// Why a question has no answer.
enum CallFailure {
    /// The node has refused, with a reason.
    Rejected(Error),
    /// The question may be asked again.
    Lost(Error),
}

impl fmt::Debug for RemoteStoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the token.
        f.debug_struct("RemoteOptions")
            .field("address", &self.address)
            .field("channel", &self.channel)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}
