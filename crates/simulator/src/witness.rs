//! What outsiders saw, held against what is seen later.
//!
//! The witness stands outside of the simulated world: it is on no node, and survives every crash. It holds four rules
//! at every moment of a run:
//! 1. At every number there is one block, with one filter and one commit hash, at whatever peer and whenever it is seen.
//! 2. What a node has shown it still has after a crash. A peer shows a block when its height moves, when it tells a client
//!    of a commit, or when it endorses on what the block wrote; an orderer that orders alone when a peer has the block. What orderers of
//!    a group may show is [`crate::network::ordering`]'s matter.
//! 3. No block of an epoch is appended from the height on that a later epoch was opened at, at one peer.
//! 4. A client that asks twice about a transaction is told the same.
//!
//! The first breach is an accusation, and the run ends with it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Epoch;
use base::rt::{self, Instant, Stop, simulation::Sim};
use identity::{Hash, hex};
use ledger::Block;

use crate::network::service::Commit;
use crate::reads::{Endorsed, History};

/// Lines of the story that are kept.
const LINES_MAX: usize = 2_000;

/// What a witness wrote down, for when its world is gone.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Seen>>);

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happened, line by line, with the seconds of virtual time.
    pub fn story(&self) -> Vec<String> {
        self.lock().story.clone()
    }

    /// The first thing that was wrong.
    pub fn accusation(&self) -> Option<String> {
        self.lock().accusation.clone()
    }
}

/// Who shows a block: a node, for a peer that may have several.
#[derive(Clone, Debug)]
pub struct Shower {
    /// What clients know it as.
    pub peer: String,
    pub node: String,
    /// Of a compute node's time as primary.
    pub epoch: Option<Epoch>,
}

impl Shower {
    /// One that is all of its kind.
    pub fn node(name: &str) -> Shower {
        Shower { peer: name.to_owned(), node: name.to_owned(), epoch: None }
    }
}

/// Sees everything. Clones share what they saw.
#[derive(Clone)]
pub struct Witness {
    sim: Sim,
    notes: Notes,
    accused: Stop,
}

/// A node that begins as the primary is noticed within this time, in which clients may see blocks of it.
pub const NOTICED_WITHIN: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Seen {
    /// By number: what peers showed.
    blocks: Vec<ShownBlock>,
    /// By node: blocks that somebody else has seen of it.
    shown: BTreeMap<String, u64>,
    /// When clients last learned of a newer block of a peer, and how many it had shown before the last [`NOTICED_WITHIN`].
    learned: BTreeMap<String, (Instant, u64)>,
    /// By peer and epoch: the height that was found.
    reigns: BTreeMap<(String, Epoch), u64>,
    /// By node: blocks up to which it has told clients of commits.
    told: BTreeMap<String, u64>,
    endorsed: Vec<Endorsed>,
    histories: Vec<History>,
    /// By transaction: what clients were told.
    commits: BTreeMap<String, Commit>,
    accusation: Option<String>,
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

impl Witness {
    pub fn new(sim: Sim, notes: Notes) -> Witness {
        Witness { sim, notes, accused: Stop::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.notes.lock()
    }

    /// Adds a line to the story of the run, and to its trace.
    pub fn tell(&self, line: impl fmt::Display) {
        let line = line.to_string();
        let mut seen = self.lock();
        if seen.story.len() < LINES_MAX {
            let seconds = (rt::now() - Instant::from_nanos(0)).as_secs_f64();
            seen.story.push(format!("{seconds:>10.6}  {line}"));
        }
        drop(seen);
        self.sim.note(line);
    }

    /// Says that something is wrong. Only the first accusation counts.
    pub fn accuse(&self, text: impl fmt::Display) {
        let text = text.to_string();
        self.tell(format_args!("WRONG: {text}"));
        self.lock().accusation.get_or_insert(text);
        self.accused.stop();
    }

    /// Runs a future; panics with the accusation as soon as there is one.
    pub async fn watch<F: Future>(&self, future: F) -> F::Output {
        let output = self.accused.or_stopped(future).await;
        match (output, self.notes.accusation()) {
            (Some(output), None) => output,
            (_, accusation) => panic!("{}", accusation.unwrap_or_default()),
        }
    }

    /// Blocks up to which a node has told of commits: whatever it reads from now on, it reads at that height or above.
    pub fn told_by(&self, node: &str) -> u64 {
        self.lock().told.get(node).copied().unwrap_or_default()
    }

    /// A node has endorsed.
    pub fn endorsed(&self, endorsed: Endorsed) {
        self.lock().endorsed.push(endorsed);
    }

    /// All endorsements.
    pub fn endorsements(&self) -> Vec<Endorsed> {
        self.lock().endorsed.clone()
    }

    /// A node has said what an asset was.
    pub fn told_history(&self, history: History) {
        self.lock().histories.push(history);
    }

    /// All histories.
    pub fn histories(&self) -> Vec<History> {
        self.lock().histories.clone()
    }

    /// What clients were told, by transaction.
    pub fn commits(&self) -> BTreeMap<String, Commit> {
        self.lock().commits.clone()
    }

    /// The filter of a block that a peer has shown.
    pub fn filter(&self, number: u64) -> Option<Vec<u8>> {
        let seen = self.lock();
        seen.blocks.get(usize::try_from(number).ok()?).map(|block| block.filter.clone())
    }

    /// A peer has a block as committed.
    pub fn committed(&self, shower: &Shower, block: &Block) {
        let peer = &shower.node;
        let number = block.number().get();
        let commit_hash = match block.metadata().commit_hash() {
            Ok(commit_hash) => commit_hash,
            Err(error) => {
                return self.accuse(format_args!("{peer} has block {number} with metadata of its own: {error}"));
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
                return self.accuse(format_args!("{peer} has block {number} while nobody had more than {height}"));
            }
            Some(known) => {
                drop(seen);
                return self.accuse(format_args!(
                    "two blocks with the number {number}: {peer} has {shown}, and there was {known}"
                ));
            }
        }
        // The orderer's as well: where there is only one, this peer has the block from it.
        for node in [&shower.peer, crate::scenario::ORDERER] {
            let most = seen.shown.entry(node.to_owned()).or_default();
            *most = (*most).max(number + 1);
        }
    }

    /// A peer has let somebody see what this block wrote.
    pub fn shown(&self, peer: &str, block: u64) {
        let mut seen = self.lock();
        let before = seen.shown.get(peer).copied().unwrap_or_default();
        if block + 1 > before {
            seen.shown.insert(peer.to_owned(), block + 1);
            let is_recent = |at: &Instant| rt::now().since(*at) <= NOTICED_WITHIN;
            let before = seen.learned.get(peer).filter(|(at, _)| is_recent(at)).map_or(before, |(_, before)| *before);
            seen.learned.insert(peer.to_owned(), (rt::now(), before));
        }
    }

    /// A node has started, with this many blocks.
    pub fn opened(&self, shower: &Shower, height: u64) {
        let Shower { peer, node, epoch } = shower;
        let shown = {
            let seen = self.lock();
            // What it has shown since then it may have shown in this very reign.
            let recently = seen.learned.get(peer).filter(|(at, _)| rt::now().since(*at) <= NOTICED_WITHIN);
            recently.map_or_else(|| seen.shown.get(peer).copied().unwrap_or_default(), |(_, before)| *before)
        };
        match epoch {
            Some(epoch) => self.tell(format_args!("{node} starts with {height} blocks under epoch {epoch}")),
            None => self.tell(format_args!("{node} starts with {height} blocks")),
        }
        if let Some(epoch) = epoch {
            let mut seen = self.lock();
            let is_replaced = seen.reigns.keys().any(|(of, later)| of == peer && later > epoch);
            seen.reigns.entry((peer.clone(), *epoch)).or_insert(height);
            if is_replaced {
                // It found these blocks long ago, and cannot add to them.
                return;
            }
        }
        if height < shown {
            self.accuse(format_args!(
                "{peer} has shown {shown} blocks, and {node} starts with {height}: a block was visible before it was durable"
            ));
        }
    }

    /// Rule 3, of a stored block.
    ///
    /// # Errors
    /// If a later epoch had been opened at or below it.
    pub fn check_epoch(&self, peer: &str, number: u64, epoch: Epoch) -> Result<(), String> {
        let seen = self.lock();
        let later =
            seen.reigns.iter().find(|((of, opened), height)| of == peer && *opened > epoch && number >= **height);
        later.map_or(Ok(()), |((_, opened), height)| {
            Err(format!(
                "block {number} of {peer} is of epoch {epoch}, and epoch {opened} had been opened at {height}: a primary \
                 that was replaced has written"
            ))
        })
    }

    /// A client was told what became of its transaction.
    pub fn told(&self, peer: &str, node: &str, tx_id: &str, commit: Commit) {
        self.shown(peer, commit.block);
        {
            let mut seen = self.lock();
            let most = seen.told.entry(node.to_owned()).or_default();
            *most = (*most).max(commit.block + 1);
        }
        let before = self.lock().commits.insert(tx_id.to_owned(), commit);
        if before.is_some_and(|before| before != commit) {
            self.accuse(format_args!("{peer} says {commit:?} of transaction {tx_id}, and it was {before:?}"));
        }
    }
}
