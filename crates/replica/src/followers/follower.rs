//! The follower's end of its link to the primary.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::{WatchReceiver, WatchSender, bounded, watch};
use base::rt::net::{Link, LinkSender};
use base::rt::{self, AbortOnDrop, Instant};
use futures_util::future::{Either, select};
use wire::Malformed;
use wire::hello::VersionMismatch;

use crate::fault::{Mutant, hold_up, mutant};
use crate::followers::message::{ANNOUNCED_SINCE, Announcement, Candidate, PROTOCOL_VERSIONS, ToFollower, ToPrimary};
use crate::followers::work::{NO_WORK, WORK_ITEMS_MAX, WorkHandler};
use crate::followers::{JOIN_TIMEOUT, JoinedState, LEASELESS_TIMEOUT, SILENCE_TIMEOUT};
use crate::lease::LEASE;
use crate::load::LoadReport;

/// Requests that may wait for the link; further ones are dropped.
const REQUESTS_MAX: usize = 64;
/// The pause before a follower joins again; a random time of up to the same length is added.
const REJOIN_PAUSE: Duration = Duration::from_millis(20);
/// How often [`Follower::orphaned`] checks whether the follower has a lease.
const LEASE_CHECK_PERIOD: Duration = Duration::from_millis(5);

/// How often the time without a message of the primary is counted.
const SILENCE_CHECK_PERIOD: Duration = Duration::from_millis(10);

/// Finds a follower's primary. It is asked again each time the follower joins.
#[async_trait]
pub trait FindPrimary: Send + Sync + 'static {
    /// A link to the peer's current primary, whichever node that is.
    ///
    /// # Errors
    /// If the primary cannot be reached: `TimedOut` if it may still be alive, any other kind if there is no primary.
    async fn primary(&self) -> std::io::Result<Link>;

    /// The handler of the primary's work items on this node, if there is one.
    fn work_handler(&self) -> Option<Arc<dyn WorkHandler>> {
        None
    }

    /// What this node says about itself; whether it drains is not asked here.
    fn announcement(&self) -> Announcement {
        Announcement::default()
    }
}

/// Why a replica could not be opened, or could not apply what its primary sent.
pub type ReplicaError = Box<dyn std::error::Error + Send + Sync>;

/// Opens the replica of a follower, each time it joins.
#[async_trait]
pub trait ReplicaFactory: Send + Sync + 'static {
    /// What a replica needs before its node asks to join.
    type Prepared: Send;
    /// The replica.
    type Replica: Replica;

    /// Prepares a replica, within [`JOIN_TIMEOUT`] for each node that it asks.
    ///
    /// # Errors
    /// If the memory or the rows of the peer cannot be opened.
    async fn prepare(&self) -> Result<Self::Prepared, ReplicaError>;

    /// The replica at the basis that the primary gave ([`crate::followers::serve::MissedState::basis`]). It answers only while
    /// `joined` is live.
    ///
    /// # Errors
    /// If the basis is malformed.
    fn open(
        &self,
        prepared: Self::Prepared,
        basis: Bytes,
        joined: JoinedState,
    ) -> Result<Arc<Self::Replica>, ReplicaError>;
}

/// A follower's copy of the state, between one joining and the next.
pub trait Replica: Send + Sync + 'static {
    /// The follower's right to answer from this replica.
    fn joined(&self) -> &JoinedState;

    /// Step 5: applies the changes of a message in order, and shows every height that a block leads to in `heights`.
    ///
    /// # Errors
    /// If the changes are malformed, or a block does not follow the height here.
    fn apply(&self, changes: Bytes, heights: &WatchSender<u64>) -> Result<(), ReplicaError>;

    /// The height that is applied here.
    fn height(&self) -> u64;

    /// The lowest height that is still read here.
    fn floor(&self) -> u64;

    /// Rejects reads below this height from now on.
    fn reject_below(&self, oldest: u64);

    /// Notes from now on which records are used, or no longer.
    fn note_uses(&self, notes: bool);

    /// Which of these records are in use here.
    fn in_use(&self, candidates: &[Candidate]) -> Vec<bool>;

    /// Ends the replica: nothing is answered from it any more.
    fn close(&self);
}

/// A follower: a compute node of a peer that only reads. See [the module](super). Dropping it ends it.
pub struct Follower<F: ReplicaFactory> {
    inner: Arc<FollowerCore<F>>,
    _following: AbortOnDrop<()>,
}

/// How long a follower does without a lease before a compute node is to replace its primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailoverTimeouts {
    /// While every address of a primary refuses connections: its process has ended.
    pub gone: Duration,
    /// While the primary is silent: it may be paused, cut off or busy, and still be alive.
    pub silent: Duration,
}

/// How much slower these times run while a primary that is starting lets this follower wait: it has blocks to apply
/// again.
const OPENING_TIMEOUT_FACTOR: u32 = 20;

/// What this follower knows of the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrimaryContact {
    /// Nothing for certain.
    None,
    /// It is not at any of the addresses where it could be.
    Rejected,
    /// It has answered and has not admitted this follower yet.
    Opening,
    /// It lets this follower follow.
    Followed,
}

/// How far a follower is in leaving.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// It stays.
    No,
    /// It finishes what it has.
    Draining,
    /// It answers nothing any more, and does not join again.
    Left,
}

struct FollowerCore<F: ReplicaFactory> {
    leaving: WatchSender<Leaving>,
    contact: Mutex<PrimaryContact>,
    finder: Arc<dyn FindPrimary>,
    factory: F,
    serving: Mutex<Serving<F::Replica>>,
    height: WatchSender<u64>,
    /// Whether the last session has ended.
    ended: WatchSender<bool>,
}

/// What a follower serves from.
struct Serving<R> {
    /// The replica, between one joining and the next.
    replica: Option<Arc<R>>,
    /// It has left: a session that is still joining must not begin to serve.
    has_left: bool,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum SessionEnd {
    #[error("no link to the primary: {0}")]
    Link(std::io::Error),
    #[error("the replica: {0}")]
    Replica(#[from] ReplicaError),
    #[error("malformed message of the primary: {0}")]
    Malformed(#[from] Malformed),
    #[error("primary and follower speak different versions: {0}")]
    Version(#[from] VersionMismatch),
    #[error("the link ended")]
    Closed,
    #[error("the primary sent nothing, or granted no lease, for too long")]
    Silence,
}

impl<F: ReplicaFactory> Follower<F> {
    /// Starts to join, and joins again whenever it has to.
    pub fn start(finder: Arc<dyn FindPrimary>, factory: F) -> Follower<F> {
        let inner = Arc::new(FollowerCore {
            leaving: watch(Leaving::No).0,
            contact: Mutex::new(PrimaryContact::None),
            finder,
            factory,
            serving: Mutex::new(Serving { replica: None, has_left: false }),
            height: watch(0).0,
            ended: watch(false).0,
        });
        let following = Arc::clone(&inner);
        let following = rt::spawn(async move { following.keep_following().await }).abort_on_drop();
        Follower { inner, _following: following }
    }

    /// Whether it could answer now.
    pub fn is_live(&self) -> bool {
        self.replica().is_some_and(|replica| replica.joined().is_live())
    }

    /// Completes when the follower has held no lease for too long: its primary is gone or cannot be reached, and a
    /// compute node may replace it. The new primary first starts an epoch at storage, after which nothing that the old
    /// one still does takes effect: a mistaken suspicion costs only the content of memory.
    pub async fn orphaned(&self, timeouts: FailoverTimeouts) {
        let (mut refused, mut without) = (Duration::ZERO, Duration::ZERO);
        while refused < timeouts.gone && without < timeouts.silent {
            let looked = rt::now();
            rt::sleep(LEASE_CHECK_PERIOD).await;
            // Time in which this node itself was suspended says nothing about the primary.
            let passed = looked.elapsed().min(2 * LEASE_CHECK_PERIOD);
            if self.is_live() {
                (refused, without) = (Duration::ZERO, Duration::ZERO);
                continue;
            }
            let word = *self.inner.contact.lock().unwrap_or_else(PoisonError::into_inner);
            without += if word == PrimaryContact::Opening { passed / OPENING_TIMEOUT_FACTOR } else { passed };
            refused = if word == PrimaryContact::Rejected { refused + passed } else { Duration::ZERO };
        }
    }

    /// Tells the primary that this node is about to leave: it gets no more work, and gateways learn that they are to
    /// send it no more proposals. It goes on following and answering.
    pub fn drain(&self) {
        self.inner.leaving.send_if_modified(|leaving| {
            let stays = *leaving == Leaving::No;
            *leaving = if stays { Leaving::Draining } else { *leaving };
            stays
        });
    }

    /// Ends the session for good, and tells the primary that it need not wait for this node's lease. Nothing is answered
    /// from the moment of the call. Returns when the primary has ended the link, or after a lease.
    pub async fn leave(&self) {
        if !mutant(Mutant::LeaveServing) {
            // Before the primary hears of it, and with it stops waiting for this node.
            self.inner.serving().has_left = true;
            self.inner.end();
        }
        let mut ended = self.inner.ended.subscribe();
        self.inner.leaving.send(Leaving::Left);
        // Otherwise the primary waits for the lease to end.
        let _in_time = rt::timeout(LEASE, ended.wait_for(|ended| *ended)).await;
    }

    /// Watches the height that is known here. It falls when the follower joins a primary that has not caught up yet.
    pub fn heights(&self) -> WatchReceiver<u64> {
        self.inner.height.subscribe()
    }

    /// The replica to answer from; `None` while this node follows no primary.
    pub fn replica(&self) -> Option<Arc<F::Replica>> {
        self.inner.serving().replica.clone()
    }
}

impl<F: ReplicaFactory> Drop for Follower<F> {
    fn drop(&mut self) {
        self.inner.end();
    }
}

impl<F: ReplicaFactory> FollowerCore<F> {
    async fn keep_following(&self) {
        loop {
            let Err(ended) = self.run_session().await;
            if *self.leaving.borrow() == Leaving::Left {
                self.ended.send(true);
                return;
            }
            self.end();
            match &ended {
                SessionEnd::Link(error) if error.kind() != std::io::ErrorKind::TimedOut => {
                    self.set_contact(PrimaryContact::Rejected)
                }
                _ => self.set_contact(PrimaryContact::None),
            }
            tracing::debug!(%ended, "joining the primary again");
            rt::sleep(REJOIN_PAUSE + REJOIN_PAUSE.mul_f64(rt::random_below(1000) as f64 / 1000.0)).await;
        }
    }

    fn set_contact(&self, word: PrimaryContact) {
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner) = word;
    }

    fn serving(&self) -> MutexGuard<'_, Serving<F::Replica>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the current session: nothing of it counts any more.
    fn end(&self) {
        let present = self.serving().replica.take();
        if let Some(present) = present {
            present.joined().end();
            present.close();
        }
    }

    /// One session: from a joining until the follower has to join again.
    async fn run_session(&self) -> Result<Infallible, SessionEnd> {
        let late = |_| SessionEnd::Silence;
        let link = rt::timeout(JOIN_TIMEOUT, self.finder.primary()).await.map_err(late)?.map_err(SessionEnd::Link)?;
        self.set_contact(PrimaryContact::Opening);
        let prepared = self.factory.prepare().await?;
        let (sender, mut receiver) = link.split();
        let join = ToPrimary::Join { versions: PROTOCOL_VERSIONS };
        sender.send(join.encode()).await.map_err(|_| SessionEnd::Closed)?;
        let welcome = rt::timeout(JOIN_TIMEOUT, receiver.receive()).await.map_err(late)?;
        let welcome = ToFollower::decode(welcome.map_err(|_| SessionEnd::Closed)?)?;
        let (version, basis) = match welcome {
            ToFollower::Welcome { hello, basis } => (hello.chosen_by(PROTOCOL_VERSIONS)?, basis),
            ToFollower::OtherVersions(hello) => {
                return Err(VersionMismatch { ours: PROTOCOL_VERSIONS, theirs: hello.versions() }.into());
            }
            _ => return Err(SessionEnd::Closed),
        };
        self.set_contact(PrimaryContact::Followed);
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
        let replica = self.factory.open(prepared, basis, JoinedState::new(requests))?;
        let work_handler = self.finder.work_handler();
        let (leased, is_present, working) = (rt::now(), false, Vec::new());
        let mut following =
            FollowerSession { inner: self, version, replica, sender, leased, is_present, work_handler, working };
        let mut leaving = self.leaving.subscribe();
        let now = *leaving.borrow_and_update();
        following.announce(now).await?;
        let mut silent = Duration::ZERO;
        loop {
            let since = rt::now();
            // Neither loses anything when it is dropped.
            let next = {
                let message = pin!(rt::timeout(SILENCE_CHECK_PERIOD, receiver.receive()));
                match select(message, pin!(leaving.changed())).await {
                    Either::Left((Ok(message), _)) => Heard::Message(message.map_err(|_| SessionEnd::Closed)?),
                    Either::Left((Err(_), _)) => Heard::Nothing,
                    Either::Right(_) => Heard::Leaving,
                }
            };
            match next {
                Heard::Message(message) => {
                    silent = Duration::ZERO;
                    following.handle_message(message).await?;
                }
                Heard::Nothing => {
                    // Time in which this node itself did not run says nothing about the primary.
                    silent += since.elapsed().min(2 * SILENCE_CHECK_PERIOD);
                    if silent >= SILENCE_TIMEOUT {
                        return Err(SessionEnd::Silence);
                    }
                }
                Heard::Leaving => {
                    let now = *leaving.borrow_and_update();
                    following.announce(now).await?;
                }
            }
        }
    }
}

/// What a session waits for.
enum Heard {
    /// A message of the primary.
    Message(Bytes),
    /// Nothing for [`SILENCE_CHECK_PERIOD`].
    Nothing,
    /// This node drains or leaves.
    Leaving,
}

/// Steps 3 and 5.
struct FollowerSession<'a, F: ReplicaFactory> {
    inner: &'a FollowerCore<F>,
    /// The version of the protocol on the link.
    version: u32,
    replica: Arc<F::Replica>,
    sender: Arc<LinkSender>,
    /// When it last got a lease, or started to wait for its first.
    leased: Instant,
    is_present: bool,
    work_handler: Option<Arc<dyn WorkHandler>>,
    /// Work items in progress.
    working: Vec<AbortOnDrop<()>>,
}

impl<F: ReplicaFactory> Drop for FollowerSession<'_, F> {
    fn drop(&mut self) {
        if !self.is_present {
            self.replica.close();
        }
    }
}

impl<F: ReplicaFactory> FollowerSession<'_, F> {
    async fn handle_message(&mut self, message: Bytes) -> Result<(), SessionEnd> {
        match ToFollower::decode(message)? {
            ToFollower::Welcome { .. } | ToFollower::OtherVersions(_) => return Err(SessionEnd::Closed),
            ToFollower::CatchUp { changes } => {
                self.replica.apply(changes, &self.inner.height)?;
                self.leased = rt::now();
            }
            ToFollower::Update { sequence, granted, oldest, notes_uses, changes } => {
                if mutant(Mutant::AckEarly) {
                    self.acknowledge(sequence).await?;
                    rt::sleep(Duration::from_millis(3)).await;
                }
                hold_up("state.followers.follow").await;
                self.replica.apply(changes, &self.inner.height)?;
                let replica = &self.replica;
                replica.reject_below(oldest);
                replica.note_uses(notes_uses);
                if granted > 0 && granted <= rt::now().nanos() {
                    replica.joined().renew(Instant::from_nanos(granted));
                    self.leased = rt::now();
                }
                if !self.is_present {
                    {
                        let mut serving = self.inner.serving();
                        if serving.has_left {
                            return Ok(());
                        }
                        serving.replica = Some(Arc::clone(replica));
                    }
                    self.is_present = true;
                    // There may have been no block since.
                    self.inner.height.send(replica.height());
                }
                if !mutant(Mutant::AckEarly) {
                    hold_up("state.followers.ack").await;
                    self.acknowledge(sequence).await?;
                }
            }
            ToFollower::InUseQuery { number, candidates } => {
                let answer = ToPrimary::InUse { number, in_use: self.replica.in_use(&candidates) };
                self.sender.send(answer.encode()).await.map_err(|_| SessionEnd::Closed)?;
            }
            ToFollower::Work { number, height, item: piece } => self.work(number, height, piece).await?,
        }
        if self.leased.elapsed() > LEASELESS_TIMEOUT { Err(SessionEnd::Silence) } else { Ok(()) }
    }

    async fn acknowledge(&self, sequence: u64) -> Result<(), SessionEnd> {
        let (floor, asked) = (self.replica.floor(), rt::now().nanos());
        let load = LoadReport { percent: NO_WORK, queued: 0 };
        let load = self.work_handler.as_ref().map_or(load, |helper| helper.load());
        let ack = ToPrimary::ack(self.version, sequence, asked, floor, load);
        self.sender.send(ack.encode()).await.map_err(|_| SessionEnd::Closed)
    }

    /// Tells the primary where this node answers, and whether it is leaving. A primary of an earlier version does not ask.
    async fn announce(&self, leaving: Leaving) -> Result<(), SessionEnd> {
        if self.version < ANNOUNCED_SINCE {
            return if leaving == Leaving::Left { Err(SessionEnd::Closed) } else { Ok(()) };
        }
        let message = match leaving {
            Leaving::Left => ToPrimary::Leave,
            Leaving::No | Leaving::Draining => ToPrimary::Announce(Announcement {
                is_draining: leaving == Leaving::Draining,
                ..self.inner.finder.announcement()
            }),
        };
        self.sender.send(message.encode()).await.map_err(|_| SessionEnd::Closed)
    }

    /// Step 4 of [`crate::followers::work`].
    async fn work(&mut self, number: u64, height: u64, item: Bytes) -> Result<(), SessionEnd> {
        self.working.retain(|one| !one.is_finished());
        let began = self.replica.height();
        let is_fit = began >= height && self.working.len() < WORK_ITEMS_MAX && self.replica.joined().is_live();
        let done = move |answer| ToPrimary::Done { number, height: began, answer }.encode();
        let Some(helper) = self.work_handler.clone().filter(|_| is_fit) else {
            return self.sender.send(done(Bytes::new())).await.map_err(|_| SessionEnd::Closed);
        };
        let (replica, sender) = (Arc::clone(&self.replica), Arc::clone(&self.sender));
        let doing = async move {
            let answer = helper.work(item).await.filter(|_| replica.joined().is_live());
            hold_up("state.followers.done").await;
            // The loop that receives notices when the link ends.
            let _ = sender.send(done(answer.unwrap_or_default())).await;
        };
        self.working.push(rt::spawn(doing).abort_on_drop());
        Ok(())
    }
}
