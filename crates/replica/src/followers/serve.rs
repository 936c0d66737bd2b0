//! The primary's end of a follower's link, and the primary's heartbeat.

use std::sync::Arc;

use async_trait::async_trait;
use base::rt::channel::{Sender, bounded};
use base::rt::net::{GatherList, Link, LinkReceiver};
use base::rt::{self, CancellationToken, Instant};
use base::{Bytes, BytesMut};
use storage::StateStore;
use wire::Malformed;
use wire::hello::HelloAnswer;

use crate::fault::{Mutant, hold_up, mutant};
use crate::followers::follower_table::{FollowerTable, UPDATES_MAX};
use crate::followers::message::{PROTOCOL_VERSIONS, ToFollower, ToPrimary};
use crate::followers::{HEARTBEAT, JOIN_TIMEOUT};
use crate::lease::{FollowerId, LEASE, REUSE_AFTER};
use crate::load::LoadReport;
use crate::{Error, events};

/// Bytes of one message of the state that a joining follower has missed.
const CHANGE_BATCH_BYTES: usize = 1 << 20;

/// The state of a peer at its primary, which logs its changes in its [`FollowerTable`].
#[async_trait]
pub trait PrimaryState: Send + Sync + 'static {
    /// The followers of this primary.
    fn followers(&self) -> &Arc<FollowerTable>;

    /// The storage node's rows, which confirm that no newer primary has started.
    fn store(&self) -> &dyn StateStore;

    /// Whether a newer primary has started, as far as this one knows.
    fn is_fenced(&self) -> bool;

    /// Notes that a newer primary has started.
    fn note_fenced(&self);

    /// Whether followers are to note which records they use.
    fn notes_uses(&self) -> bool;

    /// Steps 1 and 2: gives the follower read access, and returns everything that it has missed. The state calls
    /// [`Admission::enter`] at the moment from which on it logs changes for the follower: it makes no change between
    /// what it returns and that moment.
    ///
    /// Dropping the future may leave read access with the follower, which is revoked when its link ends.
    ///
    /// # Errors
    /// [`Error::Fenced`]; [`Error::Busy`] when there are too many followers.
    async fn admit(&self, admission: Admission<'_>) -> Result<MissedState, Error>;

    /// Step 9: starts to serve a request of a follower, or drops it. False once this state is shutting down.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not a request.
    fn handle_request(self: &Arc<Self>, request: Bytes) -> Result<bool, Malformed>;

    /// Starts to revoke the follower's read access to remote memory.
    fn revoke_reads(&self, follower: FollowerId);
}

/// A follower that is about to join.
pub struct Admission<'a> {
    followers: &'a FollowerTable,
    follower: FollowerId,
    name: Arc<str>,
    version: u32,
    updates: Sender<GatherList>,
    stop: CancellationToken,
}

impl Admission<'_> {
    /// The follower.
    pub fn follower(&self) -> FollowerId {
        self.follower
    }

    /// Makes the node a follower, which gets every change logged from now on and reads at `floor` or above.
    ///
    /// # Errors
    /// [`Error::Busy`] when there are too many followers.
    pub fn enter(self, floor: u64) -> Result<(), Error> {
        match self.followers.add(self.follower, self.name, self.version, self.updates, floor, self.stop) {
            true => Ok(()),
            false => Err(Error::Busy),
        }
    }
}

/// Everything that a joining follower has missed.
pub struct MissedState {
    /// What the follower's state starts from.
    pub basis: Bytes,
    /// What it catches up on.
    pub changes: ChangeBatches,
}

impl MissedState {
    fn into_messages(self, hello: HelloAnswer) -> impl Iterator<Item = Bytes> {
        let welcome = ToFollower::Welcome { hello, basis: self.basis };
        std::iter::once(welcome.encode()).chain(self.changes.into_messages())
    }
}

/// Step 11: when every lease has ended that an earlier primary can have granted, and when followers may join.
pub struct EarlierLeases {
    /// By this time every lease that an earlier primary granted has ended.
    end: Instant,
    admits: CancellationToken,
}

impl EarlierLeases {
    /// Those of the primaries before the one that starts now: it has fenced them at storage and memory.
    #[allow(clippy::new_without_default, reason = "it is counted from the moment of the call")]
    pub fn new() -> EarlierLeases {
        let end = if mutant(Mutant::ServeEarly) { rt::now() } else { rt::now() + REUSE_AFTER };
        EarlierLeases { end, admits: CancellationToken::new() }
    }

    /// Waits until every lease that an earlier primary can have granted has ended.
    pub async fn wait(&self) {
        if rt::now() < self.end {
            rt::sleep_until(self.end).await;
        }
    }

    /// Lets followers join, once those leases have ended.
    pub async fn admit_followers(&self) {
        self.wait().await;
        self.admits.cancel();
    }

    /// Completes once followers may join.
    pub async fn admitted(&self) {
        self.admits.cancelled().await;
    }
}

/// Steps 1 to 9 with one follower, until its link ends.
///
/// Dropping the future ends the session: the follower's lease still has to end, and the follower joins again.
///
/// # Errors
/// [`Error::Fenced`]; [`Error::Busy`] when there are too many followers, or joining took too long.
pub async fn serve_follower<S: PrimaryState>(state: &Arc<S>, link: Link) -> Result<(), Error> {
    let proven: Option<Arc<str>> = link.peer().map(Arc::from);
    let (sender, mut receiver) = link.split();
    let Ok(Ok(join)) = rt::timeout(JOIN_TIMEOUT, receiver.receive()).await else { return Ok(()) };
    let join = ToPrimary::decode(join);
    let chosen = match &join {
        Ok(ToPrimary::Join { versions }) => {
            PROTOCOL_VERSIONS.choose(*versions).map(|version| (*versions, version)).ok()
        }
        _ => None,
    };
    let (versions, version) = match chosen {
        Some(chosen) => chosen,
        None => {
            tracing::warn!(other = ?join, ours = %PROTOCOL_VERSIONS, "not a follower of these versions; upgrade the older compute node");
            let refusal = ToFollower::OtherVersions(HelloAnswer::refuse(PROTOCOL_VERSIONS));
            let _ = sender.send(refusal.encode()).await;
            return Ok(());
        }
    };
    let hello = HelloAnswer::to(PROTOCOL_VERSIONS, versions);
    let holder = state.followers().number();
    let name = proven.unwrap_or_else(|| format!("reader {}", holder.0).into());
    let (updates, mut waiting) = bounded::<GatherList>(UPDATES_MAX);
    let gone = CancellationToken::new();
    // From here on the follower may hold read grants.
    let _leaving = LeaveGuard { state, holder };
    let stop = gone.clone();
    let admission = Admission { followers: state.followers(), follower: holder, name, version, updates, stop };
    let missed = match rt::timeout(JOIN_TIMEOUT, state.admit(admission)).await {
        Ok(missed) => missed.inspect(|_| events::FollowersJoined.add(1))?,
        Err(rt::Elapsed) => return Err(Error::Busy),
    };
    let ended = gone.clone();
    let sending = rt::spawn(async move {
        for message in missed.into_messages(hello) {
            if sender.send(message).await.is_err() {
                return ended.cancel();
            }
        }
        while let Some(message) = waiting.recv().await {
            if sender.send(message).await.is_err() {
                break;
            }
        }
        ended.cancel();
    })
    .abort_on_drop();
    gone.run_until_cancelled(listen_to(state, holder, &mut receiver)).await;
    drop(sending);
    Ok(())
}

async fn listen_to<S: PrimaryState>(state: &Arc<S>, follower: FollowerId, receiver: &mut LinkReceiver) {
    while let Ok(message) = receiver.receive().await {
        match ToPrimary::decode(message) {
            Ok(ToPrimary::Ack { sequence, asked, floor, load, queued }) => {
                let load = LoadReport { percent: load, queued: queued.unwrap_or(0) };
                state.followers().acknowledge(follower, sequence, asked, floor, load);
            }
            Ok(ToPrimary::Announce(announced)) => state.followers().announce(follower, announced),
            Ok(ToPrimary::Leave) => return state.followers().leave(follower),
            Ok(ToPrimary::Done { number, height, answer }) => {
                state.followers().work_done(follower, number, height, answer);
            }
            Ok(ToPrimary::InUse { number, in_use }) => state.followers().in_use_answered(follower, number, in_use),
            Ok(ToPrimary::Request(request)) => match state.handle_request(request) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(?follower, %error, "a follower sent an invalid request; its link is closed");
                    return;
                }
            },
            Ok(ToPrimary::Join { .. }) | Err(_) => {
                tracing::warn!(?follower, "a follower sent an invalid message; its link is closed");
                return;
            }
        }
    }
}

/// The heartbeat of a primary: grants leases and sends changes until a newer primary has started.
pub async fn send_heartbeats<S: PrimaryState>(state: &S) {
    let followers = state.followers();
    loop {
        if !followers.any() {
            followers.joined.notified().await;
        }
        rt::sleep(HEARTBEAT).await;
        if state.is_fenced() {
            return followers.remove_all();
        }
        let mut asked = followers.lease_requests();
        if !asked.is_empty() && !mutant(Mutant::GrantUnproven) {
            // A follower that asks from here on is served next time: storage's confirmation must be later than the
            // request.
            match rt::timeout(LEASE, state.store().confirm()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) if error.kind() == base::ErrorKind::Fenced => {
                    state.note_fenced();
                    return followers.remove_all();
                }
                outcome => {
                    tracing::debug!(?outcome, "followers get no leases for now");
                    asked.clear();
                }
            }
        }
        hold_up("state.followers.grant").await;
        followers.count_heartbeat();
        followers.flush(&asked, state.notes_uses());
    }
}

/// Removes the follower when its link ends or it leaves, and has its capabilities revoked.
struct LeaveGuard<'a, S: PrimaryState> {
    state: &'a Arc<S>,
    holder: FollowerId,
}

impl<S: PrimaryState> Drop for LeaveGuard<'_, S> {
    fn drop(&mut self) {
        self.state.followers().remove(self.holder);
        if rt::is_running() {
            self.state.revoke_reads(self.holder);
        }
    }
}

/// Changes, split into messages of about [`CHANGE_BATCH_BYTES`].
#[derive(Default)]
pub struct ChangeBatches {
    full: Vec<Bytes>,
    last: BytesMut,
}

impl ChangeBatches {
    /// Adds the changes that `log` appends in the state's encoding.
    pub fn add(&mut self, log: impl FnOnce(&mut BytesMut)) {
        log(&mut self.last);
        if self.last.len() >= CHANGE_BATCH_BYTES {
            self.full.push(self.last.split().freeze());
        }
    }

    fn into_messages(self) -> impl Iterator<Item = Bytes> {
        self.full.into_iter().chain([self.last.freeze()]).map(|changes| ToFollower::CatchUp { changes }.encode())
    }
}
