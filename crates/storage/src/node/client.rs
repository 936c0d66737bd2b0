//! Links to a storage node, from the side of its clients.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::rt::net::Parts;
use base::rt::net::call::{CallError, Caller};
use base::rt::sync::Mutex as AsyncMutex;
use base::rt::{self, net};
use base::{Bytes, Epoch, ErrorKind};

use super::message::{Hello, Malformed, Notice, Opened, Request, Role, VERSION, answer};
use super::{ANSWER_TIME_MAX, ASK_ATTEMPTS_MAX, Backoff, REQUESTS_MAX, WORK_TIME_MAX};
use crate::tables::Savepoint;
use crate::{Error, events};

/// Where a channel is kept, and under which epoch it is written.
#[derive(Clone)]
pub struct RemoteOptions {
    /// Where the node serves links.
    pub address: String,
    /// What the node asks for.
    pub token: Bytes,
    pub channel: String,
    /// The primary's. Given out by whoever makes a compute node the primary; never used for two.
    pub epoch: Epoch,
}

/// The channels that a storage node has blocks of, in the order of their names.
///
/// # Errors
/// `Retry` when the node cannot be reached; its refusal.
pub async fn channels(address: &str, token: &Bytes) -> Result<Vec<String>, Error> {
    let options =
        RemoteOptions { address: address.to_owned(), token: token.clone(), channel: String::new(), epoch: Epoch(0) };
    let (caller, _) = connect(&options, Role::Reader, |_| {}).await?;
    let names = call(&options, &caller, Request::Channels.encode(), ANSWER_TIME_MAX).await?;
    answer::read_names(names).map_err(|malformed| options.malformed(malformed))
}

/// The newest epoch of a channel; 0 where there is none.
///
/// # Errors
/// As [`channels`].
pub async fn newest_epoch(address: &str, token: &Bytes, channel: &str) -> Result<Epoch, Error> {
    ask_epoch(address, token, Request::Epoch(channel.to_owned())).await
}

/// A new epoch for the next primary of a channel. Nobody else is given it, ever, and from now on earlier ones are fenced.
///
/// # Errors
/// As [`channels`]. Where the answer is lost, so may be an epoch; another one is begun by asking again.
pub async fn begin_epoch(address: &str, token: &Bytes, channel: &str) -> Result<Epoch, Error> {
    ask_epoch(address, token, Request::Begin(channel.to_owned())).await
}

/// As [`begin_epoch`], if `newest` is still the newest epoch: of several that would succeed the same primary, one does.
///
/// # Errors
/// `Fenced` when another one has begun; as [`begin_epoch`].
pub async fn begin_epoch_after(address: &str, token: &Bytes, channel: &str, newest: Epoch) -> Result<Epoch, Error> {
    ask_epoch(address, token, Request::BeginAfter { newest, channel: channel.to_owned() }).await
}

async fn ask_epoch(address: &str, token: &Bytes, request: Request) -> Result<Epoch, Error> {
    let options =
        RemoteOptions { address: address.to_owned(), token: token.clone(), channel: String::new(), epoch: Epoch(0) };
    let (caller, _) = connect(&options, Role::Reader, |_| {}).await?;
    let number = call(&options, &caller, request.encode(), ANSWER_TIME_MAX).await?;
    answer::read_number(number).map(Epoch).map_err(|malformed| options.malformed(malformed))
}

/// A link that was opened, with the bytes of the node's answer.
pub async fn connect(
    options: &RemoteOptions,
    role: Role,
    noticed: impl FnMut(Notice) + Send + 'static,
) -> Result<(Caller, Bytes), Error> {
    let unreachable = |text: String| options.error(ErrorKind::Retry, text);
    let link = rt::timeout(ANSWER_TIME_MAX, net::connect(&options.address)).await;
    let link = link.map_err(|_| unreachable("it does not answer".to_owned()))?;
    let link = link.map_err(|error| unreachable(format!("it cannot be reached: {error}")))?;
    events::NodeLinksOpened.add(1);
    let mut noticed = noticed;
    let caller = Caller::new(link, REQUESTS_MAX, move |bytes| {
        // A later release may have notices that this one does not know.
        if let Ok(notice) = Notice::decode(bytes) {
            noticed(notice);
        }
    });
    let hello = Hello {
        version: VERSION,
        role,
        epoch: options.epoch,
        token: options.token.clone(),
        channel: options.channel.clone(),
    };
    let answer = call(options, &caller, hello.encode().into(), ANSWER_TIME_MAX).await.map_err(|error| match error {
        // Opening twice is as opening once.
        Error::Remote { node, kind: ErrorKind::Ambiguous | ErrorKind::Closed, text } => {
            Error::Remote { node, kind: ErrorKind::Retry, text }
        }
        error => error,
    })?;
    Ok((caller, answer))
}

/// One call, which ends the link when it takes too long: nothing else could be known of it.
pub async fn call(
    options: &RemoteOptions,
    caller: &Caller,
    request: Parts,
    time_max: Duration,
) -> Result<Bytes, Error> {
    match rt::timeout(time_max, caller.call(request)).await {
        Ok(outcome) => outcome.map_err(|error| options.call_error(error)),
        Err(_) => {
            caller.end();
            let text = format!("no answer came within {} s", time_max.as_secs());
            Err(options.error(ErrorKind::Ambiguous, text))
        }
    }
}

impl RemoteOptions {
    pub(super) fn error(&self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::Remote { node: self.address.as_str().into(), kind, text: text.into() }
    }

    pub(super) fn call_error(&self, error: CallError) -> Error {
        self.error(error.kind(), error.to_string())
    }

    pub(super) fn malformed(&self, malformed: Malformed) -> Error {
        self.error(ErrorKind::Corrupt, malformed.to_string())
    }
}

/// Asks a node what may be asked twice, over a link that is made again when it is lost.
pub struct Session {
    options: RemoteOptions,
    role: Role,
    /// Told what each opening found, and every notice.
    noticed: Arc<dyn Fn(Notice) + Send + Sync>,
    /// The rows that the node has said are durable: a link on which it has fewer is not used.
    relied_on: Box<dyn Fn() -> Savepoint + Send + Sync>,
    caller: AsyncMutex<Option<Caller>>,
}

impl Session {
    pub fn new(options: RemoteOptions, role: Role, noticed: Arc<dyn Fn(Notice) + Send + Sync>) -> Session {
        Session { options, role, noticed, relied_on: Box::new(Savepoint::default), caller: AsyncMutex::new(None) }
    }

    /// Has every link checked against the rows that the caller relies on.
    pub fn relying_on(self, relied_on: impl Fn() -> Savepoint + Send + Sync + 'static) -> Session {
        Session { relied_on: Box::new(relied_on), ..self }
    }

    pub fn options(&self) -> &RemoteOptions {
        &self.options
    }

    /// Opens a link, if none is open.
    pub async fn open(&self) -> Result<Caller, Error> {
        let mut current = self.caller.lock().await;
        if let Some(caller) = current.as_ref().filter(|caller| !caller.has_ended()) {
            return Ok(caller.clone());
        }
        *current = None;
        // Before the link: what comes over it may be newer than what the node says in its answer.
        let relied_on = (self.relied_on)();
        let noticed = Arc::clone(&self.noticed);
        let (caller, answer) = connect(&self.options, self.role, move |notice| noticed(notice)).await?;
        let opened = Opened::decode(answer).map_err(|malformed| self.options.malformed(malformed))?;
        self.check_rows(&caller, relied_on, opened.savepoint).await?;
        (self.noticed)(Notice::Durable(opened.durable));
        (self.noticed)(Notice::Savepoint(opened.savepoint));
        *current = Some(caller.clone());
        Ok(caller)
    }

    /// Makes sure that the node still has the rows that it once said are durable: after the loss of a disk's contents, or
    /// when an operator restores a backup, it comes back with those of an earlier block, which answer reads with old values.
    /// The primary has them made again from the blocks; a reader waits for that.
    async fn check_rows(&self, caller: &Caller, relied_on: Savepoint, found: Savepoint) -> Result<(), Error> {
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
                    "its tables have the rows of {} blocks, and it had said that those of {known} are durable; restore its \
                     directory, or remove its tables so that they are made again from the blocks",
                    now.height
                ),
            )
        };
        if self.role != Role::Materializer {
            return Err(lost(found, ErrorKind::Retry));
        }
        let mut now = found;
        if found.height < known {
            let request = Request::Materialize { epoch: self.options.epoch, height: known };
            let answer = call(&self.options, caller, request.encode(), WORK_TIME_MAX).await?;
            now = answer::read_savepoint(answer).map_err(|malformed| self.options.malformed(malformed))?;
        }
        if parted(now) {
            return Err(lost(now, ErrorKind::Corrupt));
        }
        Ok(())
    }

    /// Asks until an answer comes, at most [`ASK_ATTEMPTS_MAX`] times.
    ///
    /// # Errors
    /// The node's refusal; `Retry` when the node could not be asked.
    pub async fn ask(&self, request: impl Into<Parts>, time_max: Duration) -> Result<Bytes, Error> {
        let request = request.into();
        let mut backoff = Backoff::new();
        let mut attempt = 1;
        loop {
            let error = match self.ask_once(&request, time_max).await {
                Ok(answer) => return Ok(answer),
                Err(Unanswered::Refused(error)) => return Err(error),
                Err(Unanswered::Lost(error)) => error,
            };
            if attempt >= ASK_ATTEMPTS_MAX {
                return Err(self.options.error(ErrorKind::Retry, format!("asked {attempt} times: {error}")));
            }
            attempt += 1;
            backoff.wait().await;
        }
    }

    async fn ask_once(&self, request: &Parts, time_max: Duration) -> Result<Bytes, Unanswered> {
        let caller = self.open().await.map_err(|error| match error.kind() {
            ErrorKind::Retry | ErrorKind::Closed | ErrorKind::Ambiguous => Unanswered::Lost(error),
            _ => Unanswered::Refused(error),
        })?;
        let asked = rt::timeout(time_max, caller.call(request.clone())).await;
        let error = match asked {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => CallError::Ambiguous,
        };
        let closed = error.kind() == ErrorKind::Closed;
        let is_answer = matches!(error, CallError::Refused(_) | CallError::TooLarge(_));
        let error = self.options.call_error(error);
        if is_answer && !closed {
            return Err(Unanswered::Refused(error));
        }
        // Nothing more is known of this link, or the node has closed the channel: it is to be opened again.
        caller.end();
        Err(Unanswered::Lost(error))
    }
}

/// Why a question has no answer.
enum Unanswered {
    /// The node has said why.
    Refused(Error),
    /// It may be asked again.
    Lost(Error),
}

impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the token.
        f.debug_struct("RemoteOptions")
            .field("address", &self.address)
            .field("channel", &self.channel)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}
