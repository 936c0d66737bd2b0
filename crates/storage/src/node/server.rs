//! The server's side of links to a storage node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base::rt::net::rpc::{Notifier, Rejection, ResponseFuture, RpcHandler, serve_admitted};
use base::rt::net::{GatherList, Link, LinkAcceptor, LinkPermit, Parties};
use base::rt::sync::Mutex as AsyncMutex;
use base::rt::{self, AbortOnDrop, CancellationToken};
use base::{Bytes, Epoch, ErrorKind, TxId};
use wire::hello::HelloAnswer;

use super::channel::StoredChannel;
use super::config::{BLOCKS, EPOCHS, StorageNodeConfig};
use super::engine_failure::EngineFailure;
use super::message::{
    Hello, LinkPurpose, Notification, PROTOCOL_VERSIONS, Request, response, response::ResponseWriter,
};
use super::private_message::{PrivateAsk, PrivateRequest, SCAN_ROWS_LIMIT, scanned};
use super::view::{CopyStatus, Installation, ViewId};
use super::{CHANNEL_BYTES_MAX, CHANNELS_MAX, LINKS_MAX, REQUESTS_MAX, RESPONSE_BYTES_SOFT_MAX};
use crate::blocks::Blocks;
use crate::private::{PrivateRows, PrivateTable};
use crate::state_store::StateStore;
use crate::tables::RangeQuery;
use crate::{Error, HistoryQuery, lock};

/// Keys or ids of one request that are looked up together.
const LOOKED_UP_AT_ONCE: usize = 512;

/// A storage node; see [the module](super). Dropping it without [`StorageNode::stop`] has the effect of a crash.
pub struct StorageNode {
    shared: Arc<StorageNodeCore>,
    listeners: Mutex<Vec<AbortOnDrop<()>>>,
}

struct StorageNodeCore {
    options: StorageNodeConfig,
    engine: Arc<EngineFailure>,
    channels: AsyncMutex<BTreeMap<String, Arc<StoredChannel>>>,
    links: AtomicU64,
    stop: CancellationToken,
}

impl StorageNode {
    /// Opens a node over a data directory. It opens a channel when a client first asks for it.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for a token that is too long.
    pub async fn open(options: StorageNodeConfig) -> Result<StorageNode, Error> {
        if options.token.len() > super::TOKEN_BYTES_MAX {
            let (given, max) = (options.token.len() as u64, super::TOKEN_BYTES_MAX as u64);
            return Err(Error::TooLarge { what: "bytes of a token", given, max });
        }
        let shared = StorageNodeCore {
            options,
            engine: Arc::default(),
            channels: AsyncMutex::default(),
            links: AtomicU64::new(1),
            stop: CancellationToken::new(),
        };
        Ok(StorageNode { shared: Arc::new(shared), listeners: Mutex::default() })
    }

    /// Serves links of `clients` at an address until the node stops.
    ///
    /// # Errors
    /// Errors of listening on the address.
    pub async fn serve(&self, address: &str, clients: &Parties) -> Result<(), Error> {
        let door = LinkAcceptor::open(address, clients, LINKS_MAX).await.map_err(|source| Error::Remote {
            node: self.shared.options.name.as_str().into(),
            kind: ErrorKind::of_io(&source),
            text: format!("listening at {address}: {source}"),
        })?;
        let task = rt::spawn(accept(Arc::clone(&self.shared), door)).abort_on_drop();
        lock(&self.listeners).push(task);
        Ok(())
    }

    /// Completes when the tables' engine takes no more writes or a port has ended, and returns the reason. The caller must
    /// then stop the node, open the engine again, and open the node over it. Until then the node serves what it can.
    pub async fn failed(&self) -> Error {
        self.shared.engine.recorded.cancelled().await;
        self.shared.engine.error.get().cloned().expect("an error is noted before it is told")
    }

    /// Ends all links, waits for writes that have begun, materialises all blocks and makes everything durable.
    ///
    /// # Errors
    /// The first error of a channel; the other channels are closed nevertheless.
    pub async fn stop(&self) -> Result<(), Error> {
        self.shared.stop.cancel();
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
        self.shared.stop.cancel();
    }
}

async fn accept(shared: Arc<StorageNodeCore>, mut door: LinkAcceptor) {
    while let Some(Ok((link, place))) = shared.stop.run_until_cancelled(door.accept()).await {
        drop(rt::spawn(serve_link(Arc::clone(&shared), link, place)));
    }
    if !shared.stop.is_cancelled() {
        shared.engine.end(shared.error(ErrorKind::Closed, "its port has ended: no client can reach it any more"));
    }
}

async fn serve_link(shared: Arc<StorageNodeCore>, link: Link, place: LinkPermit) {
    let number = shared.links.fetch_add(1, Ordering::AcqRel);
    let (stop, stale) = (shared.stop.clone(), CancellationToken::new());
    let client = Arc::new(ClientLink {
        shared: Arc::clone(&shared),
        number,
        stale: stale.clone(),
        identity: Arc::default(),
        notifier: OnceLock::new(),
    });
    let ended = stop.run_until_cancelled(serve_admitted((link, place), client, REQUESTS_MAX, stale)).await;
    tracing::debug!(node = shared.options.name, number, ?ended, "a link ended");
}

impl StorageNodeCore {
    /// The channel of this name; opens it if it is not open or must be opened again.
    async fn channel(&self, name: &str, create: bool) -> Result<Arc<StoredChannel>, Error> {
        check_channel_name(name)?;
        let mut channels = self.channels.lock().await;
        if self.stop.is_cancelled() {
            return Err(self.error(ErrorKind::Closed, "it is stopping"));
        }
        if let Some(channel) = channels.get(name) {
            if channel.is_writable() {
                return Ok(Arc::clone(channel));
            }
            // Its store must have ended before another store opens the same files.
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
        let channel = StoredChannel::open(&self.options, &self.engine, name).await?;
        channels.insert(name.to_owned(), Arc::clone(&channel));
        Ok(channel)
    }

    /// The channels that have a directory here.
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

    async fn begin_in(&self, name: &str, epoch: Epoch, newest: ViewId) -> Result<GatherList, Error> {
        Ok(self.channel(name, true).await?.begin_in(epoch, newest).await?.encode().into())
    }

    async fn install(&self, name: &str, installation: Installation) -> Result<(), Error> {
        if !installation.registered.is_learner() {
            return self.channel(name, true).await?.install_member(installation).await;
        }
        let channel = self.channel(name, true).await?;
        // Nobody opens the channel meanwhile.
        let mut channels = self.channels.lock().await;
        let outcome = channel.install_learner(&self.options, installation).await;
        if !channel.is_writable() {
            channel.end().await;
            channels.remove(name);
        }
        outcome
    }

    /// The newest epoch of a channel; 0 if the channel does not exist.
    async fn epoch(&self, name: &str) -> Result<Epoch, Error> {
        check_channel_name(name)?;
        Ok(super::epoch::read(&self.options.data.subdirectory(EPOCHS).await?, name)?.epoch)
    }

    fn error(&self, kind: ErrorKind, text: &str) -> Error {
        Error::Remote { node: self.options.name.as_str().into(), kind, text: text.to_owned() }
    }
}

/// What this node has of a channel; the channel is not created. In a task: a caller may not wait as long as opening takes, and asks
/// again.
async fn copy_status(shared: Arc<StorageNodeCore>, name: String) -> Result<GatherList, Error> {
    let task = rt::spawn(async move {
        check_channel_name(&name)?;
        let is_known = shared.names().await?.contains(&name) || shared.epoch(&name).await? > Epoch(0);
        let status = if is_known { shared.channel(&name, true).await?.copy_status() } else { CopyStatus::default() };
        Ok(status.encode().into())
    });
    task.await.unwrap_or(Err(Error::Invalid("the node stopped before the channel was open")))
}

/// A channel's name becomes the name of directories and files.
fn check_channel_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let begins = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    match begins && name.len() <= CHANNEL_BYTES_MAX && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(Error::Invalid("a channel's name has a letter first, then a-z, 0-9, '.' and '-', 249 at most")),
    }
}

/// Compares in a time that depends only on the lengths.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |differs, (one, other)| std::hint::black_box(differs | (one ^ other)));
    one.len() == other.len() && differs == 0
}

/// The client of one link.
struct ClientLink {
    shared: Arc<StorageNodeCore>,
    number: u64,
    /// Ends the link when its channel ends: its client must read the channel that is opened next.
    stale: CancellationToken,
    identity: Arc<OnceLock<LinkIdentity>>,
    notifier: OnceLock<Notifier>,
}

/// What a link has declared about itself.
struct LinkIdentity {
    purpose: LinkPurpose,
    epoch: Epoch,
    /// `None` for a link that only asks for the names of channels or about epochs.
    channel: Option<Arc<StoredChannel>>,
    /// They send notices to the client and end the link with the channel. They end with the link.
    _watchers: Vec<AbortOnDrop<()>>,
}

impl LinkIdentity {
    /// Whether the link may ask this of private rows: all but the primary only read those of committed transactions.
    fn may_ask(&self, request: &PrivateRequest) -> bool {
        let is_primary = |epoch: &Epoch| self.purpose == LinkPurpose::Materializer && *epoch == self.epoch;
        match &request.ask {
            PrivateAsk::Write { epoch, .. } => request.table == PrivateTable::Transient || is_primary(epoch),
            PrivateAsk::Prune { epoch, .. } | PrivateAsk::Copy { epoch, .. } => is_primary(epoch),
            PrivateAsk::Scan { .. } => self.purpose == LinkPurpose::Materializer,
            PrivateAsk::Rows { .. } | PrivateAsk::Range { .. } => true,
        }
    }
}

fn not_permitted() -> Rejection {
    Rejection::new(ErrorKind::Rejected, "the role or epoch of this link does not permit the request")
}

impl RpcHandler for ClientLink {
    fn opened(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    fn request(&self, request: GatherList) -> ResponseFuture {
        let Some(greeted) = self.identity.get() else { return self.greet(request.concat()) };
        let request = match Request::decode(request) {
            Ok(request) => request,
            Err(malformed) => return reject(Rejection::new(ErrorKind::Rejected, malformed.to_string())),
        };
        let Some(channel) = greeted.channel.clone() else {
            let shared = Arc::clone(&self.shared);
            return Box::pin(async move {
                match request {
                    Request::Channels => {
                        shared.channels_with_blocks().await.map(|names| response::names(&names)).map_err(rejection)
                    }
                    Request::Epoch(name) => {
                        shared.epoch(&name).await.map(|epoch| response::number(epoch.get())).map_err(rejection)
                    }
                    Request::Begin(name) => {
                        shared.begin(&name, None).await.map(|epoch| response::number(epoch.get())).map_err(rejection)
                    }
                    Request::BeginAfter { newest, channel } => shared
                        .begin(&channel, Some(newest))
                        .await
                        .map(|epoch| response::number(epoch.get()))
                        .map_err(rejection),
                    Request::CopyStatus(name) => copy_status(shared, name).await.map_err(rejection),
                    Request::BeginIn { epoch, newest, channel } => {
                        shared.begin_in(&channel, epoch, newest).await.map_err(rejection)
                    }
                    Request::Install { installation, channel } => {
                        shared.install(&channel, installation).await.map(|()| GatherList::default()).map_err(rejection)
                    }
                    _ => Err(Rejection::new(ErrorKind::Rejected, "this link was opened without a channel")),
                }
            });
        };
        if channel.has_ended() {
            return reject(Rejection::new(ErrorKind::Closed, "the channel was closed; open it again"));
        }
        if let Request::Private(body) = request {
            return match PrivateRequest::decode(body) {
                Err(malformed) => reject(Rejection::new(ErrorKind::Rejected, malformed.to_string())),
                Ok(request) if !greeted.may_ask(&request) => reject(not_permitted()),
                Ok(request) => Box::pin(async move { answer_private(channel, request).await.map_err(rejection) }),
            };
        }
        let allowed = match &request {
            Request::Append(_) => greeted.purpose == LinkPurpose::Appender,
            Request::Close => greeted.purpose != LinkPurpose::Reader,
            Request::Materialize { epoch, .. } | Request::Prune { epoch, .. } | Request::Confirm { epoch } => {
                greeted.purpose == LinkPurpose::Materializer && *epoch == greeted.epoch
            }
            _ => true,
        };
        if !allowed {
            return reject(not_permitted());
        }
        if let Request::Append(block) = request {
            // Queued here, to keep the order of sending.
            return match channel.append(block, self.number) {
                Err(error) => reject(rejection(error)),
                Ok(answered) => Box::pin(async move {
                    let closed = || Rejection::new(ErrorKind::Closed, "the channel was closed");
                    answered.await.map_err(|_| closed())?.map(response::number).map_err(rejection)
                }),
            };
        }
        Box::pin(async move { answer_request(channel, request).await.map_err(rejection) })
    }
}

impl ClientLink {
    /// Step 1 of the node.
    fn greet(&self, request: Bytes) -> ResponseFuture {
        let hello = match Hello::decode(request) {
            Err(malformed) => return reject(Rejection::new(ErrorKind::Rejected, malformed.to_string())),
            Ok(Err(versions)) => {
                let ours = PROTOCOL_VERSIONS;
                tracing::warn!(%versions, %ours, "a client speaks other versions of the storage messages; upgrade the older side");
                let refusal = Bytes::copy_from_slice(&HelloAnswer::refuse(ours).encode());
                return Box::pin(async move { Ok(refusal.into()) });
            }
            Ok(Ok(hello)) => hello,
        };
        if !equal(&hello.token, &self.shared.options.token) {
            let text = "the token is not this node's: compare the two configurations";
            return reject(Rejection::new(ErrorKind::Rejected, text));
        }
        let Some(notifier) = self.notifier.get().cloned() else {
            return reject(Rejection::new(ErrorKind::Closed, "the link is closing"));
        };
        let (shared, known, number) = (Arc::clone(&self.shared), Arc::clone(&self.identity), self.number);
        let stale = self.stale.clone();
        Box::pin(async move {
            let Hello { versions, purpose: role, epoch, channel, .. } = hello;
            let mut greeted = LinkIdentity { purpose: role, epoch, channel: None, _watchers: Vec::new() };
            let mut reply = vec![Bytes::copy_from_slice(&HelloAnswer::to(PROTOCOL_VERSIONS, versions).encode())];
            if !channel.is_empty() {
                let channel = shared.channel(&channel, role != LinkPurpose::Reader).await.map_err(rejection)?;
                let opened = channel.admit(role, epoch, number).await.map_err(rejection)?;
                reply.push(opened.encode());
                greeted._watchers = notify_progress(&channel, &notifier, opened.durable, opened.savepoint.height);
                let watched = Arc::clone(&channel);
                let ending = async move {
                    watched.ended().await;
                    stale.cancel();
                };
                greeted._watchers.push(rt::spawn(ending).abort_on_drop());
                greeted.channel = Some(channel);
            }
            let again = || Rejection::new(ErrorKind::Rejected, "this link is open already; a link is opened once");
            known.set(greeted).map_err(|_| again())?;
            Ok(reply.into())
        })
    }
}

/// Step 5 of the node: notifies a client of each durable height and savepoint above those that it knows.
fn notify_progress(
    channel: &Arc<StoredChannel>,
    notifier: &Notifier,
    durable: u64,
    savepoint: u64,
) -> Vec<AbortOnDrop<()>> {
    let mut heights = channel.blocks().subscribe_durable();
    let mut savepoints = channel.state().subscribe_savepoint();
    let (told, tells, channel) = (notifier.clone(), notifier.clone(), Arc::clone(channel));
    let durable = async move {
        let mut known = durable;
        while let Ok(height) = heights.wait_for(|height| *height > known).await {
            known = height;
            if told.notify(Notification::Durable(height).encode()).await.is_err() {
                return;
            }
        }
    };
    let savepoint = async move {
        let mut known = savepoint;
        while savepoints.wait_for(|height| *height > known).await.is_ok() {
            let savepoint = channel.state().savepoint();
            known = savepoint.height;
            if tells.notify(Notification::Savepoint(savepoint).encode()).await.is_err() {
                return;
            }
        }
    };
    vec![rt::spawn(durable).abort_on_drop(), rt::spawn(savepoint).abort_on_drop()]
}

/// Answers all requests of an open link except appends.
async fn answer_request(channel: Arc<StoredChannel>, request: Request) -> Result<GatherList, Error> {
    let (blocks, state) = (channel.blocks(), channel.state());
    Ok(match request {
        Request::Append(_)
        | Request::Channels
        | Request::Epoch(_)
        | Request::Begin(_)
        | Request::BeginAfter { .. }
        | Request::CopyStatus(_)
        | Request::BeginIn { .. }
        | Request::Install { .. }
        | Request::Private(_) => {
            return Err(Error::Invalid("this request is not answered on the link of a channel"));
        }
        Request::Close => {
            blocks.close().await?;
            response::number(blocks.durable_height())
        }
        Request::Read(number) => response::maybe_block(blocks.read(number)?),
        Request::Page { from, limit } => {
            response::blocks(&blocks.read_page(from, usize::try_from(limit).unwrap_or(usize::MAX)).await?)
        }
        Request::Transactions(number) => response::maybe_transactions(blocks.transactions(number)?),
        Request::NumberByHash(hash) => response::maybe_number(blocks.number_by_hash(&hash)?.map(|number| number.get())),
        Request::FindTransactions(ids) => {
            let (mut asked, mut response) = (ids.iter().peekable(), ResponseWriter::default());
            while asked.peek().is_some() {
                let some: Vec<TxId> = asked.by_ref().take(LOOKED_UP_AT_ONCE).map(TxId::new).collect();
                blocks.find_transactions(&some).await?.into_iter().for_each(|place| response.place(place));
            }
            response.done()
        }
        Request::Tags(shard) => response::tags(&blocks.transaction_tags(shard)),
        Request::Rows { through, keys } => {
            let (mut response, mut bytes) = (ResponseWriter::default(), 0_usize);
            for (namespace, key) in keys.iter() {
                let row = state.get(namespace, key, through).await?;
                response.row(row.as_ref());
                bytes = bytes.saturating_add(row.and_then(|row| row.value).map_or(0, |value| value.len()));
                if bytes >= RESPONSE_BYTES_SOFT_MAX {
                    break;
                }
            }
            response.done()
        }
        Request::Versions { through, keys } => {
            let (mut asked, mut response) = (keys.iter().peekable(), ResponseWriter::default());
            while asked.peek().is_some() {
                let some: Vec<(&str, &[u8])> = asked.by_ref().take(LOOKED_UP_AT_ONCE).collect();
                state.versions(&some, through).await?.into_iter().for_each(|version| response.version(version));
            }
            response.done()
        }
        Request::Range { through, limit, namespace, start, end } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            response::page(
                &state.range(RangeQuery { namespace: &namespace, start: &start, end: &end, through, limit }).await?,
            )
        }
        Request::Namespaces => response::names(&state.namespaces().await?),
        Request::History { below, limit, namespace, key } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            response::numbers(&channel.history(HistoryQuery { namespace: &namespace, key: &key, below, limit }).await?)
        }
        Request::Materialize { epoch, height } => response::savepoint(&channel.materialize(epoch, height).await?),
        Request::Prune { epoch, oldest } => {
            Arc::clone(&channel).prune(epoch, oldest).await?;
            GatherList::default()
        }
        Request::Confirm { epoch } => {
            channel.confirm(epoch)?;
            GatherList::default()
        }
        Request::CheckView(view) => {
            channel.check_view(view)?;
            GatherList::default()
        }
    })
}

/// Answers a request for private rows.
async fn answer_private(channel: Arc<StoredChannel>, request: PrivateRequest) -> Result<GatherList, Error> {
    let PrivateRequest { table, ask } = request;
    Ok(match ask {
        PrivateAsk::Write { epoch, copied, rows } => {
            channel.write_private(table, epoch, copied, rows).await?;
            GatherList::default()
        }
        PrivateAsk::Copy { epoch, rows } => {
            channel.copy_private(table, epoch, rows).await?;
            GatherList::default()
        }
        PrivateAsk::Scan { from, limit } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(SCAN_ROWS_LIMIT);
            scanned(&channel.private(table).scan(&from, limit)?)
        }
        PrivateAsk::Rows { through, keys } => {
            let (mut response, mut bytes) = (ResponseWriter::default(), 0_usize);
            for key in keys.iter() {
                let row = channel.private(table).get_many(&[key], through).await?.pop().flatten();
                response.row(row.as_ref());
                bytes = bytes.saturating_add(row.and_then(|row| row.value).map_or(0, |value| value.len()));
                if bytes >= RESPONSE_BYTES_SOFT_MAX {
                    break;
                }
            }
            response.done()
        }
        PrivateAsk::Range { through, limit, namespace, start, end } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let query = RangeQuery { namespace: &namespace, start: &start, end: &end, through, limit };
            response::page(&channel.private(table).range(query).await?)
        }
        PrivateAsk::Prune { epoch, oldest } => {
            response::number(u64::from(channel.prune_private(table, epoch, oldest).await?))
        }
    })
}

fn reject(refusal: Rejection) -> ResponseFuture {
    Box::pin(std::future::ready(Err(refusal)))
}

fn rejection(error: Error) -> Rejection {
    match error {
        // The node's own refusal: the client adds the node's name.
        Error::Remote { kind, text, .. } => Rejection::new(kind, text),
        error => Rejection::new(error.kind(), error.to_string()),
    }
}

impl fmt::Debug for StorageNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageNode").field("name", &self.shared.options.name).finish_non_exhaustive()
    }
}
