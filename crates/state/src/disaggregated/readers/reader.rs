//! The reader's end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::{WatchReceiver, WatchSender, bounded, watch};
use base::rt::net::{Link, LinkSender};
use base::rt::{self, AbortOnDrop, Instant};
use storage::StateStore;

use super::super::cache::{Kept, Kind, Known};
use super::super::delta::{Place, Written};
use super::super::fault::{Mutant, hold_up, mutant};
use super::super::index::KeyHash;
use super::super::memory::{LentMemory, MemoryError};
use super::super::pointer::Pointer;
use super::super::record::Name;
use super::super::{DisaggregatedSettings, Shared, View};
use super::message::{Change, Malformed, ToPrimary, ToReader, VERSION, Write, WritePlace, Writes};
use super::work::{Helper, NO_WORK, PIECES_MAX};
use super::{JOIN_MAX, LEASELESS_MAX, Life, Role, SILENCE_MAX};
use crate::{Error, Snapshot, events};

/// Requests that may wait for the link; further ones are dropped.
const REQUESTS_MAX: usize = 64;
/// The pause before it joins anew; about as much again by chance.
const PAUSE: Duration = Duration::from_millis(20);
/// How often storage is looked at for rows that were asked for, and how often they are asked for.
const ROWS_PERIOD: Duration = Duration::from_millis(20);
/// How often a reader looks whether it has a lease, when somebody wants to know that it has none.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// How long rows are waited for.
const ROWS_MAX: Duration = Duration::from_secs(5);

/// Where a reader finds what it needs. It is asked anew each time the reader joins.
#[async_trait]
pub trait Surroundings: Send + Sync + 'static {
    /// A link to the peer's primary, whichever node that is by now.
    ///
    /// # Errors
    /// If it cannot be reached: `TimedOut` where it may live all the same, anything else where there is none.
    async fn primary(&self) -> std::io::Result<Link>;

    /// Memory with no section yet.
    ///
    /// # Errors
    /// If it cannot be had.
    async fn memory(&self) -> Result<Arc<dyn LentMemory>, MemoryError>;

    /// The peer's rows, to read.
    ///
    /// # Errors
    /// If they cannot be opened.
    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error>;

    /// Who does the primary's work here, if anybody does.
    fn helper(&self) -> Option<Arc<dyn Helper>> {
        None
    }
}

/// A compute node of a peer that reads. See [`super`]. Dropping it ends it.
pub struct Reader {
    inner: Arc<Inner>,
    _following: AbortOnDrop<()>,
}

/// How long a reader does without a lease before somebody is to take its primary's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// While every way to a primary is refused: its process has ended.
    pub gone: Duration,
    /// While it is silent: it may be paused or cut off, or busy, and lives.
    pub silent: Duration,
}

/// How much slower patience runs out while a primary that has begun lets this reader wait: it has blocks to apply again.
const OPENING_FACTOR: u32 = 20;

/// What is known of the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    /// Nothing for certain.
    None,
    /// There is none at any place where one could be.
    Refused,
    /// It has answered and has not let this reader in yet.
    Opening,
    /// It lets this reader follow.
    Followed,
}

struct Inner {
    word: Mutex<Word>,
    surroundings: Arc<dyn Surroundings>,
    settings: DisaggregatedSettings,
    /// What it serves from between one joining and the next.
    present: Mutex<Option<Arc<Shared>>>,
    height: WatchSender<u64>,
}

/// Why a life ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("no link to the primary: {0}")]
    Link(std::io::Error),
    #[error("no memory: {0}")]
    Memory(#[from] MemoryError),
    #[error("no rows: {0}")]
    Rows(#[from] storage::Error),
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("the primary speaks version {0}, this node {VERSION}; run the same release on both")]
    Version(u32),
    #[error("the link ended")]
    Closed,
    #[error("nothing was heard of the primary, or no lease was given")]
    Silence,
}

impl Reader {
    /// Begins to join, and joins again whenever it has to.
    pub fn start(surroundings: Arc<dyn Surroundings>, settings: DisaggregatedSettings) -> Reader {
        let inner = Arc::new(Inner {
            word: Mutex::new(Word::None),
            surroundings,
            settings,
            present: Mutex::default(),
            height: watch(0).0,
        });
        let following = Arc::clone(&inner);
        let following = rt::spawn(async move { following.keep_following().await }).abort_on_drop();
        Reader { inner, _following: following }
    }

    /// A view of the newest height that is known here. Waits a little for a lease that has lapsed.
    ///
    /// # Errors
    /// [`Error::NoLease`]: ask again, or another compute node.
    pub async fn view(&self) -> Result<Arc<View>, Error> {
        let present = self.present().ok_or(Error::NoLease)?;
        if let Some(life) = present.role.life()
            && !life.is_live_soon().await
        {
            return Err(Error::NoLease);
        }
        self.snapshot_now()
    }

    /// As [`Reader::view`], for those who know snapshots.
    ///
    /// # Errors
    /// As [`Reader::view`].
    pub async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error> {
        Ok(self.view().await?)
    }

    /// As [`Reader::view`], without waiting.
    ///
    /// # Errors
    /// As [`Reader::view`].
    pub fn snapshot_now(&self) -> Result<Arc<View>, Error> {
        let present = self.present().ok_or(Error::NoLease)?;
        let view = present.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Behind the view: whatever was raised before this lease was granted is in it.
        match present.role.life().is_some_and(Life::is_live) {
            true => view.ok_or(Error::NoLease),
            false => Err(Error::NoLease),
        }
    }

    /// Whether it could answer now.
    pub fn is_live(&self) -> bool {
        self.present().is_some_and(|present| present.role.life().is_some_and(Life::is_live))
    }

    /// Completes when it has held no lease for too long: its primary has gone, or cannot be reached, and somebody may take its
    /// place. Whoever does so begins an epoch at storage first, after which nothing that the old one still does takes
    /// effect: to be mistaken costs what is in memory, and nothing else.
    pub async fn orphaned(&self, patience: Patience) {
        let (mut refused, mut without) = (Duration::ZERO, Duration::ZERO);
        while refused < patience.gone && without < patience.silent {
            let looked = rt::now();
            rt::sleep(LOOK_PERIOD).await;
            // Time in which this node itself stood still says nothing of the primary.
            let passed = looked.elapsed().min(2 * LOOK_PERIOD);
            if self.is_live() {
                (refused, without) = (Duration::ZERO, Duration::ZERO);
                continue;
            }
            let word = *self.inner.word.lock().unwrap_or_else(PoisonError::into_inner);
            without += if word == Word::Opening { passed / OPENING_FACTOR } else { passed };
            refused = if word == Word::Refused { refused + passed } else { Duration::ZERO };
        }
    }

    /// Follows the height that is known here. It falls when the reader joins a primary that is yet behind.
    pub fn heights(&self) -> WatchReceiver<u64> {
        self.inner.height.subscribe()
    }

    /// Bytes that its metadata and data caches are charged with.
    pub fn cache_bytes(&self) -> (usize, usize) {
        self.present().map_or((0, 0), |present| present.caches.bytes())
    }

    fn present(&self) -> Option<Arc<Shared>> {
        self.inner.present.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.inner.end();
    }
}

impl Inner {
    async fn keep_following(&self) {
        loop {
            let Err(ended) = self.live().await;
            self.end();
            match &ended {
                Ended::Link(error) if error.kind() != std::io::ErrorKind::TimedOut => self.heard(Word::Refused),
                _ => self.heard(Word::None),
            }
            tracing::debug!(%ended, "joining the primary anew");
            rt::sleep(PAUSE + PAUSE.mul_f64(rt::random_below(1000) as f64 / 1000.0)).await;
        }
    }

    fn heard(&self, word: Word) {
        *self.word.lock().unwrap_or_else(PoisonError::into_inner) = word;
    }

    /// Nothing of the present life counts any more.
    fn end(&self) {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(present) = present {
            if let Some(life) = present.role.life() {
                life.end();
            }
            // It leads back.
            *present.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// From a joining on, until it has to join anew.
    async fn live(&self) -> Result<Infallible, Ended> {
        let surroundings = &self.surroundings;
        let late = |_| Ended::Silence;
        let link = rt::timeout(JOIN_MAX, surroundings.primary()).await.map_err(late)?.map_err(Ended::Link)?;
        self.heard(Word::Opening);
        let memory = rt::timeout(JOIN_MAX, surroundings.memory()).await.map_err(late)??;
        let store = rt::timeout(JOIN_MAX, surroundings.store()).await.map_err(late)??;
        let (sender, mut receiver) = link.split();
        let join = ToPrimary::Join { version: VERSION };
        sender.send(join.encode()).await.map_err(|_| Ended::Closed)?;
        let welcome = rt::timeout(JOIN_MAX, receiver.receive()).await.map_err(late)?;
        let welcome = ToReader::decode(welcome.map_err(|_| Ended::Closed)?)?;
        let ToReader::Welcome { version, seed, base, settled, forgotten, budget_bytes } = welcome else {
            return Err(Ended::Closed);
        };
        if version != VERSION {
            return Err(Ended::Version(version));
        }
        self.heard(Word::Followed);
        let sender = Arc::new(sender);
        let (requests, mut waiting) = bounded::<Bytes>(REQUESTS_MAX);
        let asking = Arc::clone(&sender);
        let _asking = rt::spawn(async move {
            while let Some(request) = waiting.recv().await {
                if asking.send(request).await.is_err() {
                    return;
                }
            }
        })
        .abort_on_drop();
        let shared = Shared::new(
            Arc::clone(&memory) as _,
            store,
            self.settings.clone(),
            Role::Reader(Life::new(requests)),
            seed,
            base,
            budget_bytes,
        );
        shared.settled.store(settled, Ordering::Release);
        shared.forgotten.store(forgotten, Ordering::Release);
        let shared = Arc::new(shared);
        Shared::publish(&shared, base);
        let helper = surroundings.helper();
        let (leased, is_present, working) = (rt::now(), false, Vec::new());
        let mut following = Following { inner: self, shared, memory, sender, leased, is_present, helper, working };
        loop {
            let message = rt::timeout(SILENCE_MAX, receiver.receive()).await.map_err(|_| Ended::Silence)?;
            following.heard(message.map_err(|_| Ended::Closed)?).await?;
        }
    }
}

/// Steps 3 and 5.
struct Following<'a> {
    inner: &'a Inner,
    shared: Arc<Shared>,
    memory: Arc<dyn LentMemory>,
    sender: Arc<LinkSender>,
    /// When it last got a lease, or began to wait for its first.
    leased: Instant,
    is_present: bool,
    helper: Option<Arc<dyn Helper>>,
    /// Pieces of work that are being done.
    working: Vec<AbortOnDrop<()>>,
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        if !self.is_present {
            *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

impl Following<'_> {
    async fn heard(&mut self, message: Bytes) -> Result<(), Ended> {
        match ToReader::decode(message)? {
            ToReader::Welcome { .. } => return Err(Ended::Closed),
            ToReader::Part { changes } => {
                self.put_in_force(changes)?;
                self.leased = rt::now();
            }
            ToReader::Update { sequence, granted, oldest, notes_uses, changes } => {
                if mutant(Mutant::AckEarly) {
                    self.acknowledge(sequence).await?;
                    rt::sleep(Duration::from_millis(3)).await;
                }
                hold_up("state.readers.follow").await;
                self.put_in_force(changes)?;
                let shared = &self.shared;
                shared.admitted.fetch_max(oldest, Ordering::AcqRel);
                shared.heat.note_uses(notes_uses);
                if granted > 0 && granted <= rt::now().nanos() {
                    let life = shared.role.life().expect("it is a reader");
                    life.renew(Instant::from_nanos(granted));
                    self.leased = rt::now();
                }
                if !self.is_present {
                    self.is_present = true;
                    *self.inner.present.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(shared));
                    // There may have been no block since.
                    self.inner.height.send(shared.height.load(Ordering::Acquire));
                }
                if !mutant(Mutant::AckEarly) {
                    hold_up("state.readers.ack").await;
                    self.acknowledge(sequence).await?;
                }
            }
            ToReader::Ask { number, candidates } => {
                let shared = &self.shared;
                let uses =
                    |pointer: Pointer, hash| shared.heat.take(pointer.address()) | shared.caches.has(hash, pointer);
                let in_use = candidates.iter().map(|one| uses(one.pointer, one.hash)).collect();
                let answer = ToPrimary::InUse { number, in_use };
                self.sender.send(answer.encode()).await.map_err(|_| Ended::Closed)?;
            }
            ToReader::Work { number, height, piece } => self.work(number, height, piece).await?,
        }
        if self.leased.elapsed() > LEASELESS_MAX { Err(Ended::Silence) } else { Ok(()) }
    }

    async fn acknowledge(&self, sequence: u64) -> Result<(), Ended> {
        let (floor, asked) = (self.shared.floor(), rt::now().nanos());
        let load = self.helper.as_ref().map_or(NO_WORK, |helper| helper.load());
        let ack = ToPrimary::Ack { sequence, asked, floor, load };
        self.sender.send(ack.encode()).await.map_err(|_| Ended::Closed)
    }

    /// Step 4 of [`super::work`].
    async fn work(&mut self, number: u64, height: u64, piece: Bytes) -> Result<(), Ended> {
        self.working.retain(|one| !one.is_finished());
        let began = self.shared.height.load(Ordering::Acquire);
        let is_live = |shared: &Shared| shared.role.life().is_some_and(Life::is_live);
        let is_fit = began >= height && self.working.len() < PIECES_MAX && is_live(&self.shared);
        let done = move |answer| ToPrimary::Done { number, height: began, answer }.encode();
        let Some(helper) = self.helper.clone().filter(|_| is_fit) else {
            return self.sender.send(done(Bytes::new())).await.map_err(|_| Ended::Closed);
        };
        let (shared, sender) = (Arc::clone(&self.shared), Arc::clone(&self.sender));
        let doing = async move {
            let answer = helper.work(piece).await.filter(|_| is_live(&shared));
            hold_up("state.readers.done").await;
            // The link's end is noticed where it is read.
            let _ = sender.send(done(answer.unwrap_or_default())).await;
        };
        self.working.push(rt::spawn(doing).abort_on_drop());
        Ok(())
    }

    fn put_in_force(&self, mut changes: Bytes) -> Result<(), Ended> {
        while let Some(change) = Change::next(&mut changes)? {
            self.follow(change)?;
        }
        Ok(())
    }

    fn follow(&self, change: Change) -> Result<(), Ended> {
        let shared = &self.shared;
        match change {
            Change::Section { section, place } => {
                if let Err(error) = self.memory.enter(&section, &place) {
                    tracing::debug!(%error, section = section.id, "a section cannot be read here");
                }
            }
            Change::Gone { base } => {
                shared.mark_gone(base);
                shared.directory.forget(|subtable| shared.base(subtable.address) == base);
                self.memory.leave(base);
            }
            Change::Subtable(subtable) => shared.directory.set(subtable),
            Change::Detached { namespace, key, pointer } => {
                let name = Name { namespace: &namespace, key: &key };
                let hash = KeyHash::new(name, shared.seed);
                shared.caches.detach(hash, name, pointer);
                shared.delta_mut().detach(hash, name, pointer);
            }
            Change::Evicted { namespace, key, pointer } => {
                let name = Name { namespace: &namespace, key: &key };
                shared.caches.evict(KeyHash::new(name, shared.seed), name, pointer);
            }
            Change::Forgotten { height } => drop(shared.forgotten.fetch_max(height, Ordering::AcqRel)),
            Change::Settled { height } => {
                let height = height.min(shared.height.load(Ordering::Acquire));
                shared.delta_mut().forget_below(height);
                shared.settled.fetch_max(height, Ordering::AcqRel);
            }
            Change::Block { number, writes } => {
                if number != shared.height.load(Ordering::Acquire) {
                    // Not what follows what is here.
                    return Err(Ended::Closed);
                }
                self.follow_block(number, &writes);
            }
        }
        Ok(())
    }

    fn follow_block(&self, number: u64, writes: &Writes) {
        let shared = &self.shared;
        // Values that came with the block; the delta and the caches share them.
        let mut values = VecDeque::new();
        let written = writes.iter().map(|Write { name, version, place }| {
            let place = match place {
                WritePlace::Deleted => Place::Deleted,
                WritePlace::Remote(pointer, bytes) => Place::Remote(pointer, bytes),
                // Of its own: what came with it is not kept for as long.
                WritePlace::Here(value) => {
                    let value = Bytes::copy_from_slice(value);
                    values.push_back(value.clone());
                    Place::Here(Box::new(value))
                }
                WritePlace::Storage => Place::Storage,
            };
            let text = move || (Arc::from(name.namespace), Arc::from(name.key));
            (KeyHash::new(name, shared.seed), name, text, Written { version, place })
        });
        shared.delta_mut().add(number, written);
        for Write { name, version, place } in writes.iter() {
            let (kind, pointer, bytes) = match place {
                WritePlace::Deleted => (Kind::Deleted, Pointer::NULL, 0),
                WritePlace::Remote(pointer, bytes) => (Kind::Live, pointer, bytes),
                WritePlace::Here(_) | WritePlace::Storage => (Kind::Live, Pointer::NULL, 0),
            };
            let value = matches!(place, WritePlace::Here(_)).then(|| values.pop_front()).flatten();
            let known = Known { pointer, version, kind, bytes };
            let kept = value.map(|value| Kept { version, bytes: value.len(), value: Some(value), prev: Pointer::NULL });
            shared.caches.replace(KeyHash::new(name, shared.seed), name, known, kept);
        }
        shared.height.store(number + 1, Ordering::Release);
        Shared::publish(shared, number + 1);
        shared.floor();
        self.inner.height.send(number + 1);
        events::BlocksFollowed.add(1);
    }
}

impl Shared {
    /// What a reader does where the primary has storage make rows: it asks for that, and waits until they are there.
    pub(in super::super) async fn await_rows(&self, life: &Life, height: u64) -> Result<(), Error> {
        let since = rt::now();
        while self.store.savepoint().height < height {
            if since.elapsed() > ROWS_MAX {
                return Err(Error::Busy);
            }
            if !life.is_live_soon().await {
                return Err(Error::NoLease);
            }
            life.ask(ToPrimary::Persist { height }.encode());
            let mut savepoint = self.store.subscribe_savepoint();
            let _woken = rt::timeout(ROWS_PERIOD, savepoint.wait_for(|reached| *reached >= height)).await;
        }
        Ok(())
    }

    /// What a reader does where the primary fills: it asks for that.
    pub(in super::super) fn wish_for(life: &Life, name: Name<'_>) {
        // A simulation may have it get lost.
        if !rt::fault_point("state.readers.fill") {
            life.ask(ToPrimary::Fill { namespace: name.namespace.into(), key: name.key.into() }.encode());
        }
    }
}
