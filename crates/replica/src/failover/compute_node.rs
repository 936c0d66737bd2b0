//! A running compute node: it follows a primary, becomes the primary, and follows again.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use base::rt::{self, AbortOnDrop, Backoff, CancellationToken, Task};
use base::{Epoch, ErrorKind};

use super::{
    ComputeNodeConfig, FollowedPeer, PeerAddresses, PeerError, PeerRoles, PrimaryLocator, PrimaryPeer, PrimarySession,
    begin_epoch,
};
use crate::events;

/// The factor by which a node that has followed no primary yet waits longer. A node that has followed one is a better
/// primary than a node that has just started, such as the restarted old primary.
const NEVER_FOLLOWED_FACTOR: u32 = 4;
/// The pause after a primary has ended or has failed to start.
const RESTART_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause of the only candidate between two attempts to become the primary.
const ALONE_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often the gauges are updated.
const GAUGE_PERIOD: Duration = Duration::from_millis(100);

/// The role of a compute node in its peer at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComputeRole {
    /// It looks for a primary, or is starting as the primary.
    Waiting,
    /// It follows the primary, and may answer.
    Follower,
    /// It is the primary under this epoch.
    Primary(Epoch),
}

/// The first block that a new primary applied: the end of a failover, as measurements count it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailoverSample {
    /// The epoch of the new primary.
    pub epoch: Epoch,
    /// The number of the block.
    pub number: u64,
    /// When the block was applied.
    pub at: rt::WallTime,
}

/// A running compute node.
pub struct ComputeNode<P: PeerRoles> {
    shared: Arc<ComputeNodeCore<P>>,
    task: Mutex<Option<Task<()>>>,
    _counting: AbortOnDrop<()>,
}

struct ComputeNodeCore<P: PeerRoles> {
    config: ComputeNodeConfig,
    roles: P,
    active_role: Arc<ActiveRole<P>>,
    failover_sample: Mutex<Option<FailoverSample>>,
    failure: Mutex<Option<Arc<P::Error>>>,
    failed: CancellationToken,
    stop: CancellationToken,
}

/// The role from which the node answers now.
pub struct ActiveRole<P: PeerRoles>(RwLock<ServingRole<P>>);

/// What the node answers from.
pub enum ServingRole<P: PeerRoles> {
    /// Nothing: it has no role for now.
    None,
    /// It follows a primary, or looks for one.
    Following(Arc<P::Followed>),
    /// It is the primary.
    Primary(Arc<PrimarySession<P>>),
}

impl<P: PeerRoles> Clone for ServingRole<P> {
    fn clone(&self) -> ServingRole<P> {
        match self {
            ServingRole::None => ServingRole::None,
            ServingRole::Following(followed) => ServingRole::Following(followed.clone()),
            ServingRole::Primary(session) => ServingRole::Primary(session.clone()),
        }
    }
}

impl<P: PeerRoles> Default for ActiveRole<P> {
    fn default() -> ActiveRole<P> {
        ActiveRole(RwLock::new(ServingRole::None))
    }
}

impl<P: PeerRoles> ActiveRole<P> {
    /// The role now.
    pub fn get(&self) -> ServingRole<P> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, role: ServingRole<P>) {
        let before = std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), role);
        // Dropped after the lock is released.
        drop(before);
    }
}

impl<P: PeerRoles> ComputeNode<P> {
    /// Starts the node, which begins by looking for a primary. `active_role` shows its role.
    pub fn start(config: ComputeNodeConfig, roles: P, active_role: Arc<ActiveRole<P>>) -> ComputeNode<P> {
        let shared = Arc::new(ComputeNodeCore {
            config,
            roles,
            active_role,
            failover_sample: Mutex::default(),
            failure: Mutex::default(),
            failed: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        let task = Mutex::new(Some(rt::spawn(Arc::clone(&shared).run())));
        let counting = rt::spawn(update_gauges(Arc::clone(&shared))).abort_on_drop();
        ComputeNode { shared, task, _counting: counting }
    }

    /// What the node does in each role.
    pub fn roles(&self) -> &P {
        &self.shared.roles
    }

    /// The node's current role.
    pub fn role(&self) -> ComputeRole {
        self.shared.role()
    }

    /// The height that the node shows: 0 while it waits.
    pub fn height(&self) -> u64 {
        self.shared.height()
    }

    /// The first new block that the node applied after it last became the primary. Blocks that existed before do not
    /// count.
    pub fn failover_sample(&self) -> Option<FailoverSample> {
        *self.shared.failover_sample.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the node answers from now.
    pub fn serving(&self) -> ServingRole<P> {
        self.shared.active_role.get()
    }

    /// Why the node has ended by itself, if it has.
    pub fn failure(&self) -> Option<Arc<P::Error>> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Completes when the node has ended by itself.
    pub async fn failed(&self) {
        self.shared.failed.cancelled().await;
    }

    /// Stops the node. A primary finishes the blocks that it has validated, and makes them durable.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A task that panicked has reported it already.
            let _ = task.await;
        }
    }
}

impl<P: PeerRoles> Drop for ComputeNode<P> {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl<P: PeerRoles> ComputeNodeCore<P> {
    fn role(&self) -> ComputeRole {
        match self.active_role.get() {
            ServingRole::Following(followed) if followed.is_live() => ComputeRole::Follower,
            ServingRole::None | ServingRole::Following(_) => ComputeRole::Waiting,
            ServingRole::Primary(session) => ComputeRole::Primary(session.epoch()),
        }
    }

    fn height(&self) -> u64 {
        match self.active_role.get() {
            ServingRole::None => 0,
            ServingRole::Following(followed) => followed.height(),
            ServingRole::Primary(session) => session.peer().height(),
        }
    }

    async fn run(self: Arc<Self>) {
        while !self.stop.is_cancelled() {
            let name = &self.config.name;
            let epoch = match self.stop.run_until_cancelled(self.follow_primary()).await {
                Some(Ok(epoch)) => epoch,
                Some(Err(error)) => {
                    self.active_role.set(ServingRole::None);
                    self.fail(error);
                    break;
                }
                None => break,
            };
            tracing::info!(node = name, epoch = epoch.get(), "takes the primary's place");
            events::Promotions.add(1);
            let Err(error) = self.run_primary(epoch).await else { break };
            events::Demotions.add(1);
            match error.kind() {
                ErrorKind::Corrupt | ErrorKind::Rejected => {
                    self.fail(error);
                    break;
                }
                // Another process uses this node's files. Two of them would fence each other for ever.
                ErrorKind::Fenced if self.config.addresses.is_only_candidate() => {
                    self.fail(error);
                    break;
                }
                ErrorKind::Fenced => tracing::info!(node = name, "another compute node is the primary now"),
                _ => tracing::warn!(node = name, %error, "is the primary no longer, or not yet"),
            }
            let _stopped = self.stop.run_until_cancelled(rt::sleep(RESTART_PAUSE)).await;
        }
        self.active_role.set(ServingRole::None);
    }

    /// Ends the node for good; its operator reads the reason in [`ComputeNode::failure`].
    fn fail(&self, error: P::Error) {
        tracing::error!(node = self.config.name, %error, "the compute node cannot go on");
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(error));
        self.failed.cancel();
    }

    /// Step 3 for the only candidate of its peer: there is nobody to follow or to wait for.
    ///
    /// # Errors
    /// Those that another attempt would meet again.
    async fn begin_alone(&self) -> Result<Epoch, P::Error> {
        let mut backoff = Backoff::new(RESTART_PAUSE, ALONE_PAUSE_MAX);
        loop {
            let PeerAddresses { storage, channel, .. } = &self.config.addresses;
            match begin_epoch(storage, channel, None, self.config.watermark.as_deref()).await {
                Ok(epoch) => return Ok(epoch),
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) => {
                    return Err(error.into());
                }
                Err(error) => tracing::warn!(node = self.config.name, %error, "cannot become the primary yet"),
            }
            backoff.wait().await;
        }
    }

    /// Steps 1 to 3: returns when this node has an epoch of its own.
    ///
    /// # Errors
    /// If the storage node holds data on which no primary can start: damaged data, or blocks and tables that do not
    /// belong together.
    async fn follow_primary(self: &Arc<Self>) -> Result<Epoch, P::Error> {
        if self.config.addresses.is_only_candidate() {
            return self.begin_alone().await;
        }
        let timeouts = self.config.failover_timeouts;
        let locator = Arc::new(PrimaryLocator::new(self.config.addresses.clone()));
        let followed = self.roles.follow(locator.clone());
        self.active_role.set(ServingRole::Following(followed.clone()));
        if self.config.addresses.address.is_none() {
            // It never takes over. Its follower joins whichever primary there is.
            std::future::pending::<()>().await;
        }
        let since = rt::now();
        loop {
            followed.orphaned(timeouts).await;
            let has_followed = followed.height() > 0;
            if !has_followed && since.elapsed() < timeouts.gone * NEVER_FOLLOWED_FACTOR {
                continue;
            }
            let Some(newest) = locator.stable_epoch(timeouts.gone) else { continue };
            let PeerAddresses { storage, channel, .. } = &self.config.addresses;
            match begin_epoch(storage, channel, Some(newest), self.config.watermark.as_deref()).await {
                Ok(epoch) => {
                    self.active_role.set(ServingRole::None);
                    return Ok(epoch);
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => return Err(error.into()),
                Err(error) => {
                    locator.forget_epoch();
                    tracing::debug!(node = self.config.name, %error, "does not take the primary's place");
                }
            }
        }
    }

    /// Steps 4 to 7. `Ok` if the node was asked to stop.
    async fn run_primary(self: &Arc<Self>, epoch: Epoch) -> Result<(), P::Error> {
        let session = match self
            .stop
            .run_until_cancelled(PrimarySession::start(&self.roles, &self.config.addresses, epoch))
            .await
        {
            None => {
                self.roles.close_memory().await;
                return Ok(());
            }
            Some(Err(error)) => {
                self.roles.close_memory().await;
                return Err(error);
            }
            Some(Ok(session)) => Arc::new(session),
        };
        self.active_role.set(ServingRole::Primary(session.clone()));
        let noting = rt::spawn(record_failover(Arc::clone(self), session.clone())).abort_on_drop();
        let ended = self.stop.run_until_cancelled(session.ended()).await;
        drop(noting);
        self.active_role.set(ServingRole::None);
        let stopped = session.stop().await;
        drop(session);
        self.roles.close_memory().await;
        match ended {
            None => stopped.inspect_err(|error| tracing::warn!(node = self.config.name, %error, "it stops")).or(Ok(())),
            Some(error) => Err(error),
        }
    }
}

/// The last values that one node has added to the gauges.
#[derive(Default)]
struct RoleGauges {
    primaries: i64,
    followers: i64,
}

impl RoleGauges {
    fn update(&mut self, role: Option<ComputeRole>) {
        let primaries = i64::from(matches!(role, Some(ComputeRole::Primary(_))));
        let readers = i64::from(matches!(role, Some(ComputeRole::Follower)));
        events::PrimaryNodes.add(primaries - self.primaries);
        events::FollowerNodes.add(readers - self.followers);
        (self.primaries, self.followers) = (primaries, readers);
    }
}

impl Drop for RoleGauges {
    fn drop(&mut self) {
        self.update(None);
    }
}

/// Updates the gauges.
async fn update_gauges<P: PeerRoles>(shared: Arc<ComputeNodeCore<P>>) {
    let (mut counted, mut height) = (RoleGauges::default(), 0);
    loop {
        counted.update(Some(shared.role()));
        let before = std::mem::replace(&mut height, shared.height());
        if before != height {
            events::ComputeHeight.set(height as i64);
        }
        rt::sleep(GAUGE_PERIOD).await;
    }
}

/// Notes when the first block of an epoch was applied.
async fn record_failover<P: PeerRoles>(shared: Arc<ComputeNodeCore<P>>, session: Arc<PrimarySession<P>>) {
    let number = session.start_height();
    if session.peer().committed().wait_for(|height| *height > number).await.is_ok() {
        let first = FailoverSample { epoch: session.epoch(), number, at: rt::wall_now() };
        *shared.failover_sample.lock().unwrap_or_else(PoisonError::into_inner) = Some(first);
    }
}
