//! The node's side of links.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base::rt::net::call::{Answer, Handler, Notifier, Refusal, serve_in};
use base::rt::net::{Door, Link, Parties, Parts, Place};
use base::rt::sync::Mutex as AsyncMutex;
use base::rt::{self, AbortOnDrop, Stop};
use base::{Bytes, Epoch, ErrorKind, TxId};

use super::channel::Channel;
use super::message::{Hello, Notice, Request, Role, VERSION, answer, answer::Answering};
use super::{ANSWER_BYTES_SOFT_MAX, CHANNEL_BYTES_MAX, CHANNELS_MAX, LINKS_MAX, REQUESTS_MAX};
use crate::blocks::{BlockOptions, Blocks};
use crate::state_store::{Materializer, StateStore};
use crate::tables::TablesEngine;
use crate::{DataDirectory, Error, GroupSync, lock};

/// Keys or ids of one question that are looked up together.
const LOOKED_UP_AT_ONCE: usize = 512;
/// The directory of block stores in the node's data directory.
pub(super) const BLOCKS: &str = "blocks";
/// The directory of epoch files.
pub(super) const EPOCHS: &str = "epochs";

/// What a storage node is made of.
#[derive(Clone)]
pub struct NodeOptions {
    /// For logs and errors.
    pub name: String,
    /// Holds a block store and an epoch for each channel.
    pub data: DataDirectory,
    /// Shared with whoever else writes to the same disk.
    pub sync: GroupSync,
    /// Holds the rows of each channel.
    pub tables: Arc<dyn TablesEngine>,
    /// Reads blocks.
    pub materializer: Arc<dyn Materializer>,
    /// What clients must present; empty where nothing is asked.
    pub token: Bytes,
    pub blocks: BlockOptions,
}

/// The first failure of the tables' engine. The tables of a channel that is opened again are still the engine's, which takes
/// no more writes after some errors (a full disk, a failed fsync) until it is opened anew itself: with the whole node.
#[derive(Default)]
pub(super) struct EngineFailure {
    error: OnceLock<Error>,
    noted: Stop,
}

impl EngineFailure {
    /// Notes what writing or opening tables came upon, if the engine is of no more use after it.
    pub(super) fn note<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &outcome
            && matches!(error, Error::Broken { .. } | Error::Engine { .. })
            && matches!(error.kind(), ErrorKind::Closed | ErrorKind::Ambiguous)
        {
            self.end(error.clone());
        }
        outcome
    }

    /// Notes why the node is of no more use.
    fn end(&self, error: Error) {
        self.error.get_or_init(|| error);
        self.noted.stop();
    }
}

/// A storage node; see [the module](super). Dropping it without [`StorageNode::stop`] ends it as a crash would.
pub struct StorageNode {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<AbortOnDrop<()>>>,
}

struct Shared {
    options: NodeOptions,
    engine: Arc<EngineFailure>,
    channels: AsyncMutex<BTreeMap<String, Arc<Channel>>>,
    links: AtomicU64,
    stop: Stop,
}

impl StorageNode {
    /// A node over a data directory. Channels are opened when they are first asked for.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for a token that is too long.
    pub async fn open(options: NodeOptions) -> Result<StorageNode, Error> {
        if options.token.len() > super::TOKEN_BYTES_MAX {
            let (given, max) = (options.token.len() as u64, super::TOKEN_BYTES_MAX as u64);
            return Err(Error::TooLarge { what: "bytes of a token", given, max });
        }
        let shared = Shared {
            options,
            engine: Arc::default(),
            channels: AsyncMutex::default(),
            links: AtomicU64::new(1),
            stop: Stop::new(),
        };
        Ok(StorageNode { shared: Arc::new(shared), listeners: Mutex::default() })
    }

    /// Serves links of `clients` at an address until the node stops.
    ///
    /// # Errors
    /// When the address cannot be listened at.
    pub async fn serve(&self, address: &str, clients: &Parties) -> Result<(), Error> {
        let door = Door::open(address, clients, LINKS_MAX).await.map_err(|source| Error::Remote {
            node: self.shared.options.name.as_str().into(),
            kind: ErrorKind::of_io(&source),
            text: format!("listening at {address}: {source}"),
        })?;
        let task = rt::spawn(accept(Arc::clone(&self.shared), door)).abort_on_drop();
        lock(&self.listeners).push(task);
        Ok(())
    }

    /// Completes when the engine behind the tables takes no more writes, or a port has ended, and says why: the node is then to
    /// be stopped, and opened again over an engine that was opened again. Until then it serves what it has.
    pub async fn failed(&self) -> Error {
        self.shared.engine.noted.stopped().await;
        self.shared.engine.error.get().cloned().expect("an error is noted before it is told")
    }

    /// Ends all links, lets writes that have begun end, makes all blocks into rows and everything durable.
    ///
    /// # Errors
    /// The first error of a channel; the others are closed all the same.
    pub async fn stop(&self) -> Result<(), Error> {
        self.shared.stop.stop();
        lock(&self.listeners).clear();
        let channels = std::mem::take(&mut *self.shared.channels.lock().await);
        let mut outcome = Ok(());
        for channel in channels.into_values() {
            let closed = channel.close().await;
            outcome = outcome.and(closed);
        }
        outcome
    }
}

impl Drop for StorageNode {
    fn drop(&mut self) {
        self.shared.stop.stop();
    }
}

async fn accept(shared: Arc<Shared>, mut door: Door) {
    while let Some(Ok((link, place))) = shared.stop.or_stopped(door.accept()).await {
        drop(rt::spawn(serve_link(Arc::clone(&shared), link, place)));
    }
    if !shared.stop.is_stopped() {
        shared.engine.end(shared.error(ErrorKind::Closed, "its port has ended: nobody can reach it any more"));
    }
}

async fn serve_link(shared: Arc<Shared>, link: Link, place: Place) {
    let number = shared.links.fetch_add(1, Ordering::AcqRel);
    let (stop, stale) = (shared.stop.clone(), Stop::new());
    let client = Arc::new(Client {
        shared: Arc::clone(&shared),
        number,
        stale: stale.clone(),
        known: Arc::default(),
        notifier: OnceLock::new(),
    });
    let ended = stop.or_stopped(serve_in((link, place), client, REQUESTS_MAX, stale)).await;
    tracing::debug!(node = shared.options.name, number, ?ended, "a link ended");
}

impl Shared {
    /// The channel of a name, opened when it is not open or must be opened again.
    async fn channel(&self, name: &str, create: bool) -> Result<Arc<Channel>, Error> {
        check_channel_name(name)?;
        let mut channels = self.channels.lock().await;
        if self.stop.is_stopped() {
            return Err(self.error(ErrorKind::Closed, "it is stopping"));
        }
        if let Some(channel) = channels.get(name) {
            if channel.is_whole() {
                return Ok(Arc::clone(channel));
            }
            // Its store must have ended before another opens the same files.
            channel.end().await;
            channels.remove(name);
        }
        if !create && !self.names().await?.iter().any(|known| known == name) {
            return Err(self.error(ErrorKind::Rejected, &format!("there is no channel {name} here")));
        }
        if channels.len() >= CHANNELS_MAX {
            let text = format!("it keeps {CHANNELS_MAX} channels already; put this one on another node");
            return Err(self.error(ErrorKind::Rejected, &text));
        }
        let channel = Channel::open(&self.options, &self.engine, name).await?;
        channels.insert(name.to_owned(), Arc::clone(&channel));
        Ok(channel)
    }

    /// The channels whose directories are here.
    async fn names(&self) -> Result<Vec<String>, Error> {
        let directory = self.options.data.subdirectory(BLOCKS).await?;
        let names = directory.list().map_err(|error| Error::io("listing", directory.path(), error))?;
        Ok(names.into_iter().filter(|name| check_channel_name(name).is_ok()).collect())
    }

    /// The channels that have blocks.
    async fn channels_with_blocks(&self) -> Result<Vec<String>, Error> {
        let mut names = self.names().await?;
        let mut kept = Vec::with_capacity(names.len());
        for name in names.drain(..) {
            if self.channel(&name, false).await?.blocks().height() > 0 {
                kept.push(name);
            }
        }
        Ok(kept)
    }

    async fn begin(&self, name: &str, newest: Option<Epoch>) -> Result<Epoch, Error> {
        self.channel(name, true).await?.begin(newest).await
    }

    /// The newest epoch of a channel; 0 where there is none.
    async fn epoch(&self, name: &str) -> Result<Epoch, Error> {
        check_channel_name(name)?;
        super::epoch::read(&self.options.data.subdirectory(EPOCHS).await?, name)
    }

    fn error(&self, kind: ErrorKind, text: &str) -> Error {
        Error::Remote { node: self.options.name.as_str().into(), kind, text: text.to_owned() }
    }
}

/// Names become names of directories and files.
fn check_channel_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let begins = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    match begins && name.len() <= CHANNEL_BYTES_MAX && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(Error::Invalid("a channel's name has a letter first, then a-z, 0-9, '.' and '-', 249 at most")),
    }
}

/// Compares in a time that depends on the lengths alone.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |differs, (one, other)| std::hint::black_box(differs | (one ^ other)));
    one.len() == other.len() && differs == 0
}

/// The other end of a link.
struct Client {
    shared: Arc<Shared>,
    number: u64,
    /// Ends the link when its channel has: whoever opens the next one must be what its clients read.
    stale: Stop,
    known: Arc<OnceLock<Greeted>>,
    notifier: OnceLock<Notifier>,
}

/// What a link has said about itself.
struct Greeted {
    role: Role,
    epoch: Epoch,
    /// None for a link that only asks which channels there are.
    channel: Option<Arc<Channel>>,
    /// Tell the client what moves, and end the link with the channel. They end with the link.
    _watchers: Vec<AbortOnDrop<()>>,
}

impl Handler for Client {
    fn opened(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    fn request(&self, request: Parts) -> Answer {
        let Some(greeted) = self.known.get() else { return self.greet(request.concat()) };
        let request = match Request::decode(request) {
            Ok(request) => request,
            Err(malformed) => return refuse(Refusal::new(ErrorKind::Rejected, malformed.to_string())),
        };
        let Some(channel) = greeted.channel.clone() else {
            let shared = Arc::clone(&self.shared);
            return Box::pin(async move {
                match request {
                    Request::Channels => {
                        shared.channels_with_blocks().await.map(|names| answer::names(&names)).map_err(refusal)
                    }
                    Request::Epoch(name) => {
                        shared.epoch(&name).await.map(|epoch| answer::number(epoch.get())).map_err(refusal)
                    }
                    Request::Begin(name) => {
                        shared.begin(&name, None).await.map(|epoch| answer::number(epoch.get())).map_err(refusal)
                    }
                    Request::BeginAfter { newest, channel } => shared
                        .begin(&channel, Some(newest))
                        .await
                        .map(|epoch| answer::number(epoch.get()))
                        .map_err(refusal),
                    _ => Err(Refusal::new(ErrorKind::Rejected, "this link names no channel")),
                }
            });
        };
        if channel.has_ended() {
            return refuse(Refusal::new(ErrorKind::Closed, "the channel was closed; open it again"));
        }
        let allowed = match &request {
            Request::Append(_) => greeted.role == Role::Appender,
            Request::Close => greeted.role != Role::Reader,
            Request::Materialize { epoch, .. } | Request::Prune { epoch, .. } | Request::Confirm { epoch } => {
                greeted.role == Role::Materializer && *epoch == greeted.epoch
            }
            _ => true,
        };
        if !allowed {
            return refuse(Refusal::new(ErrorKind::Rejected, "this link was not opened for that"));
        }
        if let Request::Append(block) = request {
            // Queued here, in the order of sending.
            return match channel.append(block, self.number) {
                Err(error) => refuse(refusal(error)),
                Ok(answered) => Box::pin(async move {
                    let closed = || Refusal::new(ErrorKind::Closed, "the channel was closed");
                    answered.await.map_err(|_| closed())?.map(answer::number).map_err(refusal)
                }),
            };
        }
        Box::pin(async move { answer_request(channel, request).await.map_err(refusal) })
    }
}

impl Client {
    /// Step 1 of the node.
    fn greet(&self, request: Bytes) -> Answer {
        let hello = match Hello::decode(request) {
            Err(malformed) => return refuse(Refusal::new(ErrorKind::Rejected, malformed.to_string())),
            Ok((version, None)) => {
                let text = format!(
                    "it speaks version {VERSION} of the storage messages and the caller version {version}: run the same \
                     release of heddle on compute and storage nodes"
                );
                return refuse(Refusal::new(ErrorKind::Rejected, text));
            }
            Ok((_, Some(hello))) => hello,
        };
        if !equal(&hello.token, &self.shared.options.token) {
            let text = "the token is not this node's: compare the two configurations";
            return refuse(Refusal::new(ErrorKind::Rejected, text));
        }
        let Some(notifier) = self.notifier.get().cloned() else {
            return refuse(Refusal::new(ErrorKind::Closed, "the link is closing"));
        };
        let (shared, known, number) = (Arc::clone(&self.shared), Arc::clone(&self.known), self.number);
        let stale = self.stale.clone();
        Box::pin(async move {
            let Hello { role, epoch, channel, .. } = hello;
            let mut greeted = Greeted { role, epoch, channel: None, _watchers: Vec::new() };
            let mut reply = Parts::default();
            if !channel.is_empty() {
                let channel = shared.channel(&channel, role != Role::Reader).await.map_err(refusal)?;
                let opened = channel.admit(role, epoch, number).await.map_err(refusal)?;
                reply = opened.encode().into();
                greeted._watchers = notices(&channel, &notifier, opened.durable, opened.savepoint.height);
                let watched = Arc::clone(&channel);
                let ending = async move {
                    watched.ended().await;
                    stale.stop();
                };
                greeted._watchers.push(rt::spawn(ending).abort_on_drop());
                greeted.channel = Some(channel);
            }
            let again = || Refusal::new(ErrorKind::Rejected, "a link says once what it is for");
            known.set(greeted).map_err(|_| again())?;
            Ok(reply)
        })
    }
}

/// Step 5 of the node: tells a client what becomes durable, from what it knows on.
fn notices(channel: &Arc<Channel>, notifier: &Notifier, durable: u64, savepoint: u64) -> Vec<AbortOnDrop<()>> {
    let mut heights = channel.blocks().subscribe_durable();
    let mut savepoints = channel.state().subscribe_savepoint();
    let (told, tells, channel) = (notifier.clone(), notifier.clone(), Arc::clone(channel));
    let durable = async move {
        let mut known = durable;
        while let Ok(height) = heights.wait_for(|height| *height > known).await {
            known = height;
            if told.notify(Notice::Durable(height).encode()).await.is_err() {
                return;
            }
        }
    };
    let savepoint = async move {
        let mut known = savepoint;
        while savepoints.wait_for(|height| *height > known).await.is_ok() {
            let savepoint = channel.state().savepoint();
            known = savepoint.height;
            if tells.notify(Notice::Savepoint(savepoint).encode()).await.is_err() {
                return;
            }
        }
    };
    vec![rt::spawn(durable).abort_on_drop(), rt::spawn(savepoint).abort_on_drop()]
}

/// Answers what reads, and what writes other than blocks.
async fn answer_request(channel: Arc<Channel>, request: Request) -> Result<Parts, Error> {
    let (blocks, state) = (channel.blocks(), channel.state());
    Ok(match request {
        Request::Append(_) | Request::Channels | Request::Epoch(_) | Request::Begin(_) | Request::BeginAfter { .. } => {
            return Err(Error::Invalid("a request that was answered elsewhere"));
        }
        Request::Close => {
            blocks.close().await?;
            answer::number(blocks.durable_height())
        }
        Request::Read(number) => answer::maybe_block(blocks.read(number)?),
        Request::Page { from, limit } => {
            answer::blocks(&blocks.read_page(from, usize::try_from(limit).unwrap_or(usize::MAX)).await?)
        }
        Request::Transactions(number) => answer::maybe_transactions(blocks.transactions(number)?),
        Request::NumberByHash(hash) => answer::maybe_number(blocks.number_by_hash(&hash)?.map(|number| number.get())),
        Request::FindTransactions(ids) => {
            let (mut asked, mut answer) = (ids.iter().peekable(), Answering::default());
            while asked.peek().is_some() {
                let some: Vec<TxId> = asked.by_ref().take(LOOKED_UP_AT_ONCE).map(TxId::new).collect();
                blocks.find_transactions(&some).await?.into_iter().for_each(|place| answer.place(place));
            }
            answer.done()
        }
        Request::Tags(shard) => answer::tags(&blocks.transaction_tags(shard)),
        Request::Rows { through, keys } => {
            let (mut answer, mut bytes) = (Answering::default(), 0_usize);
            for (namespace, key) in keys.iter() {
                let row = state.get(namespace, key, through).await?;
                answer.row(row.as_ref());
                bytes = bytes.saturating_add(row.and_then(|row| row.value).map_or(0, |value| value.len()));
                if bytes >= ANSWER_BYTES_SOFT_MAX {
                    break;
                }
            }
            answer.done()
        }
        Request::Versions { through, keys } => {
            let (mut asked, mut answer) = (keys.iter().peekable(), Answering::default());
            while asked.peek().is_some() {
                let some: Vec<(&str, &[u8])> = asked.by_ref().take(LOOKED_UP_AT_ONCE).collect();
                state.versions(&some, through).await?.into_iter().for_each(|version| answer.version(version));
            }
            answer.done()
        }
        Request::Range { through, limit, namespace, start, end } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            answer::page(&state.range(&namespace, &start, &end, through, limit).await?)
        }
        Request::Namespaces => answer::names(&state.namespaces().await?),
        Request::History { below, limit, namespace, key } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            answer::numbers(&channel.history(&namespace, &key, below, limit).await?)
        }
        Request::Materialize { epoch, height } => answer::savepoint(&channel.materialize(epoch, height).await?),
        Request::Prune { epoch, oldest } => {
            Arc::clone(&channel).prune(epoch, oldest).await?;
            Parts::default()
        }
        Request::Confirm { epoch } => {
            channel.confirm(epoch)?;
            Parts::default()
        }
    })
}

fn refuse(refusal: Refusal) -> Answer {
    Box::pin(std::future::ready(Err(refusal)))
}

fn refusal(error: Error) -> Refusal {
    match error {
        // Said by the node itself: the client adds its name.
        Error::Remote { kind, text, .. } => Refusal::new(kind, text),
        error => Refusal::new(error.kind(), error.to_string()),
    }
}

impl fmt::Debug for StorageNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageNode").field("name", &self.shared.options.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for NodeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the token.
        f.debug_struct("NodeOptions").field("name", &self.name).finish_non_exhaustive()
    }
}
