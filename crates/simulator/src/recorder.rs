//! Records what clients and other nodes have seen of a node, and compares later observations with it.
//!
//! The recorder is outside the simulated world: it belongs to no node and survives every crash. It checks four rules at every
//! moment of a run:
//! 1. Each block number has one block, one validity filter and one commit hash, the same at every peer and at all times.
//! 2. After a crash a node still has every block that it has shown. A peer shows a block when its height moves, when it reports
//!    a commit to a client, or when it endorses on the block's writes. A solo orderer shows a block when a peer has it.
//!    [`crate::network::ordering`] checks which blocks the orderers of a group may show.
//! 3. Once a peer has opened an epoch at a height, no block of an earlier epoch is appended at that height or above.
//! 4. A client that asks twice about a transaction gets the same answer.
//!
//! The first violation ends the run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Epoch;
use base::rt::{self, CancellationToken, Instant, simulation::Sim};
use identity::{Hash, hex};
use ledger::Block;

use crate::network::service::TransactionCommit;
use crate::reads::{AssetHistory, EndorsedReads, PrivateAnswer};

/// Lines of the story that are kept.
const LINES_MAX: usize = 2_000;

/// The notes of a witness, which outlive its world.
#[derive(Clone, Default)]
pub struct Observations(Arc<Mutex<ObservationsInner>>);

impl Observations {
    fn lock(&self) -> MutexGuard<'_, ObservationsInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The story of the run, line by line, with the seconds of virtual time.
    pub fn story(&self) -> Vec<String> {
        self.lock().story.clone()
    }

    /// The first violation.
    pub fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }
}

/// The node that shows a block, for a peer that may have several.
#[derive(Clone, Debug)]
pub struct ObservedNode {
    /// Its name for clients.
    pub peer: String,
    /// The node.
    pub node: String,
    /// The epoch of a compute node that is primary.
    pub epoch: Option<Epoch>,
}

impl ObservedNode {
    /// A node that is the whole peer or orderer.
    pub fn node(name: &str) -> ObservedNode {
        ObservedNode { peer: name.to_owned(), node: name.to_owned(), epoch: None }
    }
}

/// Observes everything. Clones share their observations.
#[derive(Clone)]
pub struct Recorder {
    sim: Sim,
    observations: Observations,
    violated: CancellationToken,
}

/// A new primary is noticed within this time, in which clients may already see blocks of it.
pub const OBSERVATION_DELAY_MAX: Duration = Duration::from_millis(1);

#[derive(Default)]
struct ObservationsInner {
    /// By number: the blocks that peers showed.
    blocks: Vec<ShownBlock>,
    /// By node: the number of its blocks that others have seen.
    visible: BTreeMap<String, u64>,
    /// By peer: when clients last learned of a newer block, and how many blocks it had shown before the last
    /// [`OBSERVATION_DELAY_MAX`].
    recently_visible: BTreeMap<String, (Instant, u64)>,
    /// By peer and epoch: the height at which it was opened.
    epochs: BTreeMap<(String, Epoch), u64>,
    /// By node: the number of blocks whose commits it has reported to clients.
    acknowledged: BTreeMap<String, u64>,
    endorsed: Vec<EndorsedReads>,
    histories: Vec<AssetHistory>,
    private_answers: Vec<PrivateAnswer>,
    /// By transaction: the commit that was reported to clients.
    commits: BTreeMap<String, TransactionCommit>,
    violation: Option<String>,
    story: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
struct ShownBlock {
    hash: Hash,
    filter: Vec<u8>,
    commit_hash: Option<Hash>,
}

impl fmt::Display for ShownBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |hash: &Hash| hex::encode(&hash[..4]);
        let commit_hash = self.commit_hash.as_ref().map_or("none".to_owned(), short);
        write!(f, "block hash {}, filter {:?}, commit hash {commit_hash}", short(&self.hash), self.filter)
    }
}

impl Recorder {
    /// A recorder of the world `sim`, whose notes outlive it in `notes`.
    pub fn new(sim: Sim, notes: Observations) -> Recorder {
        Recorder { sim, observations: notes, violated: CancellationToken::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ObservationsInner> {
        self.observations.lock()
    }

    /// Adds a line to the story of the run, and to its trace.
    pub fn log(&self, line: impl fmt::Display) {
        let line = line.to_string();
        let mut seen = self.lock();
        if seen.story.len() < LINES_MAX {
            let seconds = (rt::now() - Instant::from_nanos(0)).as_secs_f64();
            seen.story.push(format!("{seconds:>10.6}  {line}"));
        }
        drop(seen);
        self.sim.note(line);
    }

    /// Reports a violation. Only the first accusation counts.
    pub fn report_violation(&self, text: impl fmt::Display) {
        let text = text.to_string();
        self.log(format_args!("WRONG: {text}"));
        self.lock().violation.get_or_insert(text);
        self.violated.cancel();
    }

    /// Runs a future; panics with the accusation as soon as there is one.
    pub async fn watch<F: Future>(&self, future: F) -> F::Output {
        let output = self.violated.run_until_cancelled(future).await;
        match (output, self.observations.violation()) {
            (Some(output), None) => output,
            (_, accusation) => panic!("{}", accusation.unwrap_or_default()),
        }
    }

    /// The number of blocks whose commits a node has reported: its later reads must be at that height or above.
    pub fn acknowledged_height(&self, node: &str) -> u64 {
        self.lock().acknowledged.get(node).copied().unwrap_or_default()
    }

    /// A node has endorsed.
    pub fn record_endorsement(&self, endorsed: EndorsedReads) {
        self.lock().endorsed.push(endorsed);
    }

    /// All endorsements.
    pub fn endorsements(&self) -> Vec<EndorsedReads> {
        self.lock().endorsed.clone()
    }

    /// A node has answered with the history of an asset.
    pub fn record_history(&self, history: AssetHistory) {
        self.lock().histories.push(history);
    }

    /// All histories.
    pub fn histories(&self) -> Vec<AssetHistory> {
        self.lock().histories.clone()
    }

    /// A node has answered with a private value.
    pub fn record_private(&self, answer: PrivateAnswer) {
        self.lock().private_answers.push(answer);
    }

    /// All private values that nodes have answered with.
    pub fn private_answers(&self) -> Vec<PrivateAnswer> {
        self.lock().private_answers.clone()
    }

    /// The commits that were reported to clients, by transaction.
    pub fn commits(&self) -> BTreeMap<String, TransactionCommit> {
        self.lock().commits.clone()
    }

    /// The filter of a block that a peer has shown.
    pub fn filter(&self, number: u64) -> Option<Vec<u8>> {
        let seen = self.lock();
        seen.blocks.get(usize::try_from(number).ok()?).map(|block| block.filter.clone())
    }

    /// A peer has a block as committed.
    pub fn record_block(&self, shower: &ObservedNode, block: &Block) {
        let peer = &shower.node;
        let number = block.number().get();
        let commit_hash = match block.metadata().commit_hash() {
            Ok(commit_hash) => commit_hash,
            Err(error) => {
                return self
                    .report_violation(format_args!("{peer} has block {number} with metadata of its own: {error}"));
            }
        };
        let shown = ShownBlock { hash: block.hash(), filter: block.metadata().filter().to_vec(), commit_hash };
        let mut seen = self.lock();
        let height = seen.blocks.len() as u64;
        let known = usize::try_from(number).ok().and_then(|number| seen.blocks.get(number)).cloned();
        match known {
            None if number == height => seen.blocks.push(shown),
            Some(known) if known == shown => {}
            None => {
                drop(seen);
                return self
                    .report_violation(format_args!("{peer} has block {number} while nobody had more than {height}"));
            }
            Some(known) => {
                drop(seen);
                return self.report_violation(format_args!(
                    "two blocks with the number {number}: {peer} has {shown}, and there was {known}"
                ));
            }
        }
        // The orderer's as well: where there is only one, this peer has the block from it.
        for node in [&shower.peer, crate::scenario::ORDERER] {
            let most = seen.visible.entry(node.to_owned()).or_default();
            *most = (*most).max(number + 1);
        }
    }

    /// A peer has let a client see writes of this block.
    pub fn record_visible(&self, peer: &str, block: u64) {
        let mut seen = self.lock();
        let before = seen.visible.get(peer).copied().unwrap_or_default();
        if block + 1 > before {
            seen.visible.insert(peer.to_owned(), block + 1);
            let is_recent = |at: &Instant| rt::now().since(*at) <= OBSERVATION_DELAY_MAX;
            let before =
                seen.recently_visible.get(peer).filter(|(at, _)| is_recent(at)).map_or(before, |(_, before)| *before);
            seen.recently_visible.insert(peer.to_owned(), (rt::now(), before));
        }
    }

    /// A node has started, with this many blocks.
    pub fn record_start(&self, shower: &ObservedNode, height: u64) {
        let ObservedNode { peer, node, epoch } = shower;
        let shown = {
            let seen = self.lock();
            // It may have shown the blocks since then in this very epoch.
            let recently =
                seen.recently_visible.get(peer).filter(|(at, _)| rt::now().since(*at) <= OBSERVATION_DELAY_MAX);
            recently.map_or_else(|| seen.visible.get(peer).copied().unwrap_or_default(), |(_, before)| *before)
        };
        match epoch {
            Some(epoch) => self.log(format_args!("{node} starts with {height} blocks under epoch {epoch}")),
            None => self.log(format_args!("{node} starts with {height} blocks")),
        }
        if let Some(epoch) = epoch {
            let mut seen = self.lock();
            let is_replaced = seen.epochs.keys().any(|(of, later)| of == peer && later > epoch);
            seen.epochs.entry((peer.clone(), *epoch)).or_insert(height);
            if is_replaced {
                // It opened with these blocks long ago, and cannot append to them.
                return;
            }
        }
        if height < shown {
            self.report_violation(format_args!(
                "{peer} has shown {shown} blocks, and {node} starts with {height}: a block was visible before it was durable"
            ));
        }
    }

    /// Rule 3, for a stored block.
    ///
    /// # Errors
    /// If a later epoch had been opened at or below it.
    pub fn check_epoch(&self, peer: &str, number: u64, epoch: Epoch) -> Result<(), String> {
        let seen = self.lock();
        let later =
            seen.epochs.iter().find(|((of, opened), height)| of == peer && *opened > epoch && number >= **height);
        later.map_or(Ok(()), |((_, opened), height)| {
            Err(format!(
                "block {number} of {peer} is of epoch {epoch}, and epoch {opened} had been opened at {height}: a primary \
                 that was replaced has written"
            ))
        })
    }

    /// A client received the outcome of its transaction.
    pub fn record_commit(&self, peer: &str, node: &str, tx_id: &str, commit: TransactionCommit) {
        self.record_visible(peer, commit.block);
        {
            let mut seen = self.lock();
            let most = seen.acknowledged.entry(node.to_owned()).or_default();
            *most = (*most).max(commit.block + 1);
        }
        let before = self.lock().commits.insert(tx_id.to_owned(), commit);
        if before.is_some_and(|before| before != commit) {
            self.report_violation(format_args!("{peer} says {commit:?} of transaction {tx_id}, and it was {before:?}"));
        }
    }
}
