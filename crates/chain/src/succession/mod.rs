//! Several compute nodes of one peer in a channel: one of them is the primary, the others follow it, and when it has gone one
//! of them takes its place.
//!
//! Nobody else has to decide anything. A compute node knows where its storage node is and where the others would answer if
//! they were the primary; storage's epoch says who is.
//!
//! Following:
//! 1. The node asks storage for the newest epoch and connects to the others. Only the primary listens there, and says under
//!    which epoch ([`around`]). Who has the newest is followed, as [`state::Reader`] says.
//! 2. Meanwhile the node runs proposals for their answers and for endorsements, on the state that it follows and the blocks
//!    that storage keeps ([`FollowedChannel`]).
//!
//! Succeeding:
//! 3. Without a lease for [`PATIENCE`] (soon, where every way to a primary is refused; later, where one is silent), while
//!    storage answers and its newest epoch has stayed what it was for that long, the node has storage begin the epoch
//!    after that one, unless storage has less than this node has [noted](storage::watermark). Of several that do so, storage lets one: the others go on at step 1, and find it.
//! 4. From now on storage refuses what the old primary writes. The node listens, so that the others see that somebody has begun,
//!    opens blocks, rows and memory under its epoch, applies the blocks behind the savepoint again, and follows the orderers.
//! 5. When every lease has ended that the old primary can have granted or held, it raises heights (the state sees to that),
//!    lets the others follow it, and shows its channel. It waits for that also where there is nothing to apply again: until
//!    then a node that followed the old primary may answer below the height that storage has.
//!
//! Reigning:
//! 6. The primary commits, and answers proposals only while it [holds its office](Office): storage has confirmed, upon a
//!    question asked no longer ago than a lease, that no other epoch has begun. So one that was paused shows nothing old when it
//!    wakes, though nobody has told it anything.
//! 7. When it finds itself fenced, or fails in a way that another start may mend, it ends its channel and goes on at step 1.
//!
//! Invariants:
//! * Of the compute nodes of a peer, only the one whose epoch is the newest appends blocks, and none is lost by a change:
//!   what was told to a client was durable in storage, and every primary begins with all that is.
//! * Whoever was told of a commit finds it in every answer to a proposal that it makes afterwards, at whichever node.
//!
//! What a client sees of a change: proposals may fail with `Retry` until there are leases again; its wait for a commit goes on at
//! the new primary ([`crate::remote`]).

mod around;
mod followed;
mod office;
mod reign;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::Parties;
use base::rt::{self, AbortOnDrop, Stop, Task};
use base::{Bytes, Epoch, ErrorKind};
use contract::Registry;
use identity::{Signer, Verifier};
use ledger::{Block, ChannelConfig};
use proto::protos::{ProposalResponse, Response};
use state::disaggregated::memory::{LentMemory, Memory, MemoryError};
use state::disaggregated::readers::Patience;
use state::{Disaggregated, DisaggregatedSettings, Reader};
use storage::WatermarkFile;
use storage::node::RemoteOptions;

use crate::access::{Definitions, Rules};
use crate::commit::deliver::BlockSources;
use crate::endorse::{Channels, Endorse, EndorseError, Endorser, EndorsingChannel};
use crate::peer::{Settings, define};
use crate::stores::begin_epoch;
use crate::validate::borrow::Counts;
use crate::view::{ChannelView, PeerView};
use crate::{Channel, Error, Peer, events};
use around::Around;
pub use followed::FollowedChannel;
pub use office::Office;
use reign::Reign;

/// How long a node does without a lease before it takes the primary's place.
pub const PATIENCE: Patience = Patience { gone: Duration::from_millis(50), silent: Duration::from_secs(1) };
/// Compute nodes of one peer.
pub const NODES_MAX: usize = state::disaggregated::readers::READERS_MAX + 1;
/// How much longer a node waits that has followed nobody yet: one that has is a better primary than one that was just started,
/// such as the one that was killed.
const STRANGER_FACTOR: u32 = 4;
/// The pause after a primary has ended, or could not begin.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the gauges follow.
const COUNT_PERIOD: Duration = Duration::from_millis(100);

/// The remote memory of a peer, as one of its compute nodes reaches it.
#[async_trait]
pub trait PeerMemory: Send + Sync + 'static {
    /// Memory to change. Opening it takes everything back that was given under earlier epochs.
    ///
    /// # Errors
    /// If it cannot be opened.
    async fn open(&self, epoch: Epoch) -> Result<Arc<dyn Memory>, Error>;

    /// Memory to read, with no section yet.
    ///
    /// # Errors
    /// If it cannot be had.
    async fn lend(&self) -> Result<Arc<dyn LentMemory>, MemoryError>;

    /// What was opened last is used no more.
    async fn close(&self);
}

/// What a compute node among several is made of.
#[derive(Clone)]
pub struct ComputeNodeOptions {
    /// For logs.
    pub name: String,
    /// Signs endorsements: the same identity at all compute nodes of the peer.
    pub signer: Signer,
    pub registry: Registry,
    pub definitions: Definitions,
    /// Of the one channel that it takes part in.
    pub genesis: Block,
    /// Where orderers serve blocks.
    pub orderers: BlockSources,
    pub settings: Settings,
    /// The peer's storage node.
    pub storage: String,
    /// What that asks for.
    pub token: Bytes,
    /// Where this node answers the others while it is the primary.
    pub address: String,
    /// Where they do.
    pub others: Vec<String>,
    /// Where it is noted how far the channel has come: this node succeeds nobody on data that has less.
    pub watermark: Option<Arc<WatermarkFile>>,
    /// The others, by the names that their links prove. Nobody else may follow the state, or judge transactions for it.
    pub parties: Parties,
    pub memory: Arc<dyn PeerMemory>,
    pub state: DisaggregatedSettings,
    pub patience: Patience,
}

/// What a compute node is to its peer for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It looks for a primary, or begins to be it.
    Waiting,
    /// It follows the primary, and may answer.
    Reader,
    /// It is the primary under this epoch.
    Primary(Epoch),
}

/// A compute node as the primary.
#[derive(Clone)]
pub struct Primary {
    pub epoch: Epoch,
    /// Blocks that were there when it began.
    pub found: u64,
    pub peer: Arc<Peer>,
    pub channel: Arc<Channel>,
    pub state: Arc<Disaggregated>,
}

/// The part of a primary's time that a failover is measured by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstBlock {
    pub epoch: Epoch,
    pub number: u64,
    /// When it was applied.
    pub at: rt::WallTime,
}

/// A compute node that runs.
pub struct ComputeNode {
    shared: Arc<Shared>,
    task: Mutex<Option<Task<()>>>,
    _counting: AbortOnDrop<()>,
}

struct Shared {
    options: ComputeNodeOptions,
    rules: Arc<Rules>,
    channel_name: String,
    present: Arc<Present>,
    endorser: Endorser,
    first_block: Mutex<Option<FirstBlock>>,
    failure: Mutex<Option<Arc<Error>>>,
    failed: Stop,
    stop: Stop,
}

/// What there is to answer from.
#[derive(Default)]
struct Present(RwLock<Role>);

#[derive(Clone, Default)]
enum Role {
    #[default]
    None,
    Following(Arc<FollowedChannel>),
    Reigning(Arc<Reign>),
}

impl Present {
    fn get(&self) -> Role {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, role: Role) {
        let before = std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), role);
        // Not under the lock.
        drop(before);
    }
}

impl Channels for Present {
    fn channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        self.all().pop().filter(|channel| channel.rules().channel().as_str() == name)
    }

    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>> {
        match self.get() {
            Role::None => Vec::new(),
            Role::Following(channel) => vec![channel],
            Role::Reigning(reign) => vec![reign.channel().clone()],
        }
    }
}

impl ComputeNode {
    /// Begins to look for a primary.
    ///
    /// # Errors
    /// If the channel's rules cannot be read from its first block.
    pub fn start(mut options: ComputeNodeOptions) -> Result<ComputeNode, Error> {
        define(&options.registry, &mut options.definitions);
        // Settings may be those of several nodes.
        options.settings.commit.borrowing.counts = Arc::default();
        let config = Arc::new(ChannelConfig::from_block(&options.genesis)?);
        let rules = Rules::new(config, options.definitions.clone())?;
        let rules = Arc::new(rules.verified_by(options.settings.verifier.unwrap_or_else(Verifier::of_process)));
        let present = Arc::new(Present::default());
        let endorser = Endorser::new(
            options.signer.clone(),
            options.registry.clone(),
            options.settings.endorse.clone(),
            present.clone(),
        );
        let shared = Arc::new(Shared {
            channel_name: rules.channel().to_string(),
            options,
            rules,
            present,
            endorser,
            first_block: Mutex::default(),
            failure: Mutex::default(),
            failed: Stop::new(),
            stop: Stop::new(),
        });
        let task = Mutex::new(Some(rt::spawn(Arc::clone(&shared).live())));
        let counting = rt::spawn(count(Arc::clone(&shared))).abort_on_drop();
        Ok(ComputeNode { shared, task, _counting: counting })
    }

    /// What it is for now.
    pub fn standing(&self) -> Standing {
        self.shared.standing()
    }

    /// The height that it shows: 0 while it waits.
    pub fn height(&self) -> u64 {
        self.shared.height()
    }

    /// The first block that it applied as it became the primary last, the blocks that were there before not counted.
    pub fn first_block(&self) -> Option<FirstBlock> {
        *self.shared.first_block.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it commits with, while it is the primary.
    pub fn primary(&self) -> Option<Primary> {
        match self.shared.present.get() {
            Role::Reigning(reign) => Some(Primary {
                epoch: reign.epoch(),
                found: reign.first(),
                peer: reign.peer().clone(),
                channel: reign.channel().clone(),
                state: reign.state()?,
            }),
            Role::None | Role::Following(_) => None,
        }
    }

    /// How many transactions others have verified for it, and it for others.
    pub fn borrowing(&self) -> &Arc<Counts> {
        &self.shared.options.settings.commit.borrowing.counts
    }

    /// Why it has ended by itself, if it has.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves when it has ended by itself.
    pub async fn failed(&self) {
        self.shared.failed.stopped().await;
    }

    /// What it waits for, while it can neither answer nor commit.
    pub fn stalled(&self) -> Option<String> {
        match self.shared.present.get() {
            Role::Reigning(reign) => reign.channel().stalled(),
            Role::Following(channel) if channel.is_live() => None,
            Role::None | Role::Following(_) => Some("it has no word of a primary of its peer for now".to_owned()),
        }
    }

    /// Ends it. As the primary it finishes what was judged, and makes it durable.
    ///
    /// # Errors
    /// The primary's; it has ended all the same.
    pub async fn stop(&self) -> Result<(), Error> {
        self.shared.stop.stop();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // One that panicked has said so.
            let _ = task.await;
        }
        Ok(())
    }
}

impl Drop for ComputeNode {
    fn drop(&mut self) {
        self.shared.stop.stop();
    }
}

impl PeerView for ComputeNode {
    /// The channel where it commits, and nothing at a node that follows: who wants to see commits asks the primary.
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelView>> {
        self.channels().pop().filter(|channel| channel.rules().channel().as_str() == name)
    }

    fn channels(&self) -> Vec<Arc<dyn ChannelView>> {
        match self.shared.present.get() {
            Role::Reigning(reign) if reign.is_seen() => vec![reign.channel().clone()],
            _ => Vec::new(),
        }
    }

    fn knows_channels(&self) -> bool {
        !self.channels().is_empty()
    }
}

#[async_trait]
impl Endorse for ComputeNode {
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        self.shared.endorser.process(signed_proposal).await.map_err(|error| self.shared.away(error))
    }

    async fn evaluate(&self, signed_proposal: Bytes) -> Result<Response, EndorseError> {
        self.shared.endorser.evaluate(signed_proposal).await.map_err(|error| self.shared.away(error))
    }
}

impl Shared {
    fn standing(&self) -> Standing {
        match self.present.get() {
            Role::Following(channel) if channel.is_live() => Standing::Reader,
            Role::None | Role::Following(_) => Standing::Waiting,
            Role::Reigning(reign) => Standing::Primary(reign.epoch()),
        }
    }

    fn height(&self) -> u64 {
        match self.present.get() {
            Role::None => 0,
            Role::Following(channel) => ChannelView::height(&*channel),
            Role::Reigning(reign) => reign.channel().height(),
        }
    }

    fn remote(&self, epoch: Epoch) -> RemoteOptions {
        RemoteOptions {
            address: self.options.storage.clone(),
            token: self.options.token.clone(),
            channel: self.channel_name.clone(),
            epoch,
        }
    }

    /// A channel that cannot be shown for now is no channel that does not exist.
    fn away(&self, error: EndorseError) -> EndorseError {
        match error {
            EndorseError::UnknownChannel(name) if name == self.channel_name => EndorseError::State {
                kind: ErrorKind::Retry,
                message: "this compute node is between two primaries of its peer; ask again, or another one".to_owned(),
            },
            error => error,
        }
    }

    async fn live(self: Arc<Self>) {
        while !self.stop.is_stopped() {
            let name = &self.options.name;
            let epoch = match self.stop.or_stopped(self.follow()).await {
                Some(Ok(epoch)) => epoch,
                Some(Err(error)) => {
                    self.present.set(Role::None);
                    self.fail(error);
                    break;
                }
                None => break,
            };
            tracing::info!(node = name, epoch = epoch.get(), "takes the primary's place");
            events::Promotions.add(1);
            let Err(error) = self.reign(epoch).await else { break };
            events::Demotions.add(1);
            match error.kind() {
                ErrorKind::Corrupt | ErrorKind::Rejected => {
                    self.fail(error);
                    break;
                }
                ErrorKind::Fenced => tracing::info!(node = name, "another compute node is the primary now"),
                _ => tracing::warn!(node = name, %error, "is the primary no longer, or not yet"),
            }
            let _stopped = self.stop.or_stopped(rt::sleep(PAUSE)).await;
        }
        self.present.set(Role::None);
    }

    /// This node ends for good: whoever runs it reads why.
    fn fail(&self, error: Error) {
        tracing::error!(node = self.options.name, %error, "the compute node cannot go on");
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(error));
        self.failed.stop();
    }

    /// Steps 1 to 3: until this node has an epoch of its own.
    ///
    /// # Errors
    /// The storage node holds what no primary could go on with: damage, or blocks and tables that do not belong together.
    async fn follow(self: &Arc<Self>) -> Result<Epoch, Error> {
        let options = &self.options;
        let around = Arc::new(Around::new(self));
        let reader = Reader::start(around.clone(), options.state.clone());
        let channel = Arc::new(FollowedChannel::new(self.rules.clone(), reader, self.remote(Epoch(0))));
        self.present.set(Role::Following(channel.clone()));
        let since = rt::now();
        loop {
            channel.reader().orphaned(options.patience).await;
            let has_followed = ChannelView::height(&*channel) > 0;
            if !has_followed && since.elapsed() < options.patience.gone * STRANGER_FACTOR {
                continue;
            }
            let Some(newest) = around.settled(options.patience.gone) else { continue };
            match begin_epoch(self.remote(Epoch(0)), Some(newest), options.watermark.as_deref()).await {
                Ok(epoch) => {
                    self.present.set(Role::None);
                    return Ok(epoch);
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => return Err(error),
                Err(error) => {
                    around.unsettle();
                    tracing::debug!(node = options.name, %error, "does not take the primary's place");
                }
            }
        }
    }

    /// Steps 4 to 7. `Ok` when it was to stop.
    async fn reign(self: &Arc<Self>, epoch: Epoch) -> Result<(), Error> {
        let reign = match self.stop.or_stopped(Reign::begin(self, epoch)).await {
            None => {
                self.options.memory.close().await;
                return Ok(());
            }
            Some(Err(error)) => {
                self.options.memory.close().await;
                return Err(error);
            }
            Some(Ok(reign)) => Arc::new(reign),
        };
        self.present.set(Role::Reigning(reign.clone()));
        let noting = rt::spawn(note_first_block(Arc::clone(self), reign.clone())).abort_on_drop();
        let ended = self.stop.or_stopped(reign.ended()).await;
        drop(noting);
        self.present.set(Role::None);
        let stopped = reign.stop().await;
        drop(reign);
        self.options.memory.close().await;
        match ended {
            None => {
                stopped.inspect_err(|error| tracing::warn!(node = self.options.name, %error, "it stops")).or(Ok(()))
            }
            Some(error) => Err(error),
        }
    }
}

/// What the gauges were last told of one node.
#[derive(Default)]
struct Counted {
    primaries: i64,
    readers: i64,
}

impl Counted {
    fn count(&mut self, standing: Option<Standing>) {
        let primaries = i64::from(matches!(standing, Some(Standing::Primary(_))));
        let readers = i64::from(matches!(standing, Some(Standing::Reader)));
        events::PrimaryNodes.add(primaries - self.primaries);
        events::ReaderNodes.add(readers - self.readers);
        (self.primaries, self.readers) = (primaries, readers);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count(None);
    }
}

/// Keeps the gauges.
async fn count(shared: Arc<Shared>) {
    let (mut counted, mut height) = (Counted::default(), 0);
    loop {
        counted.count(Some(shared.standing()));
        let before = std::mem::replace(&mut height, shared.height());
        if before != height {
            events::ComputeHeight.set(height as i64);
        }
        rt::sleep(COUNT_PERIOD).await;
    }
}

/// Notes when the first block of a reign was applied.
async fn note_first_block(shared: Arc<Shared>, reign: Arc<Reign>) {
    let number = reign.first();
    if reign.channel().committed().wait_for(|height| *height > number).await.is_ok() {
        let first = FirstBlock { epoch: reign.epoch(), number, at: rt::wall_now() };
        *shared.first_block.lock().unwrap_or_else(PoisonError::into_inner) = Some(first);
    }
}
