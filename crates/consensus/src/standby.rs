//! Standbys: processors that watch a group and stand for election when its coordinator is silent (Sift, section 3.2).
//!
//! 1. Watch: every [`Timing::heartbeat`] the administrative words of all memory nodes are read. While any term or
//!    timestamp changes, somebody is alive. After [`Timing::election_timeout`] and a random part more without a change, the
//!    standby stands for election.
//! 2. It reads the words again. Nodes that hold no copy have no vote. If so many of them answer that the others are no
//!    majority, what was committed may be gone: [`Error::MemoryLost`], and no election.
//! 3. It proposes the greatest term it has seen plus one, and compare-swaps the term of each node from exactly what it has
//!    read there. A node is won when what stood there is what was expected. An ambiguous compare-swap is *not won*,
//!    whatever became of it; its connection is gone, and the node has no part in this attempt any more.
//! 4. With a majority won, within [`Timing::attempt_max`], it is elected; else it waits for a random time and begins anew.
//!
//! A standby that watches many groups reads sparingly: one node's words a heartbeat, of each node in turn, and those of all
//! only once half of the time-out has passed without a change, or to see to its connections ([`Timing::reconnect`]).
//!
//! Why a term has one winner: a node's term only grows, and each step of it is won by one compare-swap. Two winners of one
//! term would need a node that both have won. A node that lost its memory forgets its vote, but has none until a
//! coordinator has admitted it, which that one does only after [`Timing::attempt_max`], and with the greatest term that F+1 of
//! the others have then (step 5 at the head of [`crate::coordinator`]). By then every attempt that counted the forgotten vote
//! has ended, and the term of one that won stands at one of those F+1. Safety does not rest on this argument alone: the fence
//! of [`crate::takeover`] admits one holder a term at each memory node.

use std::sync::Arc;

use base::rt::{self, Instant};

use crate::fault::crash_point;
use crate::layout::Admin;
use crate::link::Link;
use crate::quorum::{gather, gather_until};
use crate::{Coordinator, Elected, Error, Group, Term, Timing, Unopened};

/// A processor that may become the coordinator of a group. It keeps connections and nothing else, so that one processor
/// can watch many groups.
pub struct Standby {
    group: Arc<Group>,
    node: u64,
    links: Vec<Option<Arc<Link>>>,
    /// When a node without a connection was last tried.
    tried: Vec<Option<Instant>>,
    seen: Vec<Option<Admin>>,
    silent_since: Instant,
    /// A part of the election time-out, drawn anew for every wait.
    hesitation: std::time::Duration,
    /// The node whose words are read next by who reads sparingly.
    next: usize,
}

/// A node's words and the connection over which they were read.
type Seen = (Arc<Link>, Admin);

impl Standby {
    /// A standby that bears a number in heartbeats, which is for logs. Connects when it begins to watch.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn new(group: Group, node: u64) -> Result<Standby, Error> {
        group.check()?;
        let slots = group.nodes.len();
        let hesitation = hesitation(&group.timing);
        let (links, tried, seen) = (vec![None; slots], vec![None; slots], vec![None; slots]);
        Ok(Standby { group: Arc::new(group), node, links, tried, seen, silent_since: rt::now(), hesitation, next: 0 })
    }

    /// Watches, stands for election, and takes over; gives a coordinator that serves. Dropping the future leaves at most
    /// a term that nobody uses, or fenced nodes that the next coordinator fences again.
    ///
    /// # Errors
    /// [`Error::MemoryLost`]: too many memory nodes have lost their memory. [`Error::Corrupt`]: so many hold what no release of
    /// this version writes that the others are no majority. All else is tried again.
    pub async fn take_over(&mut self) -> Result<Coordinator, Error> {
        loop {
            match self.take_over_unopened().await?.open().await {
                Ok(coordinator) => return Ok(coordinator),
                Err(error) => {
                    tracing::debug!(node = self.node, %error, "it ended before it served");
                    self.back_off().await;
                }
            }
        }
    }

    /// As [`Standby::take_over`], but for the wait at the end ([`Unopened`]).
    ///
    /// # Errors
    /// As [`Standby::take_over`].
    pub async fn take_over_unopened(&mut self) -> Result<Unopened, Error> {
        loop {
            self.watch().await;
            let outcome = match self.elect().await {
                Ok(elected) => elected.recover_unopened().await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(unopened) => return Ok(unopened),
                Err(error @ (Error::MemoryLost { .. } | Error::Corrupt(_))) => return Err(error),
                Err(error) => {
                    tracing::debug!(node = self.node, %error, "not this time");
                    self.back_off().await;
                }
            }
        }
    }

    /// Step 1: completes when nobody has been heard of for as long as the election time-out. Dropping it is safe.
    pub async fn watch(&mut self) {
        self.silent_since = rt::now();
        loop {
            self.look().await;
            if self.silent_since.elapsed() >= self.group.timing.election_timeout + self.hesitation {
                return;
            }
            rt::sleep(self.group.timing.heartbeat).await;
        }
    }

    /// As [`Standby::watch`], with about one read a heartbeat. Dropping it is safe.
    pub async fn watch_sparingly(&mut self) {
        self.silent_since = rt::now();
        let mut looked_at: Option<Instant> = None;
        loop {
            let timing = &self.group.timing;
            let is_doubtful = self.silent_since.elapsed() >= timing.election_timeout / 2;
            let is_due = looked_at.is_none_or(|at| at.elapsed() >= timing.reconnect);
            if is_doubtful || is_due || !self.glance().await {
                self.look().await;
                looked_at = Some(rt::now());
            }
            if self.silent_since.elapsed() >= self.group.timing.election_timeout + self.hesitation {
                return;
            }
            rt::sleep(self.group.timing.heartbeat).await;
        }
    }

    /// Completes when somebody is heard of, who was not at the beginning. Dropping it is safe.
    pub async fn hear(&mut self) {
        let begun = rt::now();
        while self.silent_since <= begun {
            rt::sleep(self.group.timing.heartbeat).await;
            self.look().await;
        }
    }

    /// Steps 2 to 4: one attempt.
    ///
    /// # Errors
    /// [`Error::NotElected`], [`Error::NoMajority`]: another may be, or try again. [`Error::MemoryLost`].
    pub async fn elect(&mut self) -> Result<Elected, Error> {
        let (group, start) = (Arc::clone(&self.group), rt::now());
        let answers = self.look().await;
        let (nodes, needed) = (group.nodes.len(), group.majority());
        let is_admitted = |admin: &Admin| admin.admitted == group.id.0;
        let lost = answers.iter().filter(|(_, admin)| !is_admitted(admin)).count();
        if nodes - lost < needed {
            return Err(Error::MemoryLost { lost, nodes });
        }
        let newest = answers.iter().map(|(_, admin)| admin.term).max().unwrap_or_default();
        let voters: Vec<&Seen> = answers.iter().filter(|(_, admin)| is_admitted(admin)).collect();
        if voters.len() < needed {
            return Err(Error::NoMajority { answering: voters.len(), needed, nodes });
        }
        let term = Term(newest.0.checked_add(1).ok_or(Error::Corrupt("a term at the end of all terms"))?);
        crash_point("consensus.elect.standing").await;
        let votes = voters.into_iter().map(|(link, admin)| async move {
            match link.swap_term(admin.term, term).await {
                Ok(before) if before == admin.term.0 => Some(Arc::clone(link)),
                Ok(_) => None,
                // Ambiguous or refused: not won.
                Err(_) => None,
            }
        });
        let left = group.timing.attempt_max.saturating_sub(start.elapsed());
        let won = gather(votes, needed, group.timing.grace, left).await;
        if won.len() < needed || start.elapsed() >= group.timing.attempt_max {
            return Err(Error::NotElected);
        }
        crash_point("consensus.elect.won").await;
        // Others see that somebody is at work.
        for link in &won {
            drop(link.beat(self.node, 0));
        }
        let nodes = answers.into_iter().map(|(link, admin)| (link, is_admitted(&admin))).collect();
        Ok(Elected::new(group, self.node, term, nodes))
    }

    /// Waits for a random time before the next attempt.
    pub async fn back_off(&mut self) {
        self.hesitation = hesitation(&self.group.timing);
        rt::sleep(self.hesitation).await;
    }

    /// Reads the words of one node, another each time, and notes whether they have changed; false when it did not answer.
    async fn glance(&mut self) -> bool {
        let slots = self.links.len();
        let turns = (0..slots).map(|turn| (self.next + turn) % slots);
        let Some(slot) = turns.into_iter().find(|slot| self.links[*slot].is_some()) else { return false };
        self.next = (slot + 1) % slots;
        let Some(link) = &self.links[slot] else { return false };
        match rt::timeout(self.group.timing.attempt_max / 2, link.read_admin()).await {
            Ok(Ok(admin)) => {
                let before = self.seen[slot].replace(admin);
                if before.is_none_or(|before| (before.term, before.timestamp) != (admin.term, admin.timestamp)) {
                    self.silent_since = rt::now();
                }
                true
            }
            _ => {
                self.links[slot] = None;
                false
            }
        }
    }

    /// Reads the words of every node that answers soon, and notes whether any has changed.
    async fn look(&mut self) -> Vec<Seen> {
        let group = &*self.group;
        let limit = group.timing.attempt_max / 2;
        let few = self.links.iter().flatten().count() < group.majority();
        let mut connects = false;
        for (link, tried) in self.links.iter().zip(&mut self.tried) {
            let due = tried.is_none_or(|at| few || at.elapsed() >= group.timing.reconnect);
            match link {
                None if due => (*tried, connects) = (Some(rt::now()), true),
                None => {}
                Some(_) => *tried = None,
            }
        }
        // Whoever connects may take long; whoever is connected and slow is not waited for.
        let grace = if connects { limit } else { group.timing.grace };
        let looks = self.links.iter().enumerate().map(|(slot, link)| async move {
            let link = match link {
                Some(link) => Arc::clone(link),
                None if !connects => return None,
                None => Link::connect(group, slot).await.inspect_err(|error| tracing::debug!(slot, %error)).ok()?,
            };
            let admin = link.read_admin().await.ok()?;
            Some((link, admin))
        });
        // Those that hold nothing are not enough.
        let is_enough = |answers: &[Seen]| {
            let votes = answers.iter().filter(|(_, admin)| admin.admitted == group.id.0);
            votes.count() >= group.majority()
        };
        let answers: Vec<Seen> = gather_until(looks, is_enough, grace, limit).await;
        let mut links = vec![None; group.nodes.len()];
        let mut changed = false;
        for (link, admin) in &answers {
            let before = self.seen[link.slot].replace(*admin);
            changed |= before.is_none_or(|before| (before.term, before.timestamp) != (admin.term, admin.timestamp));
            links[link.slot] = Some(Arc::clone(link));
        }
        // Whoever did not answer is connected anew: a verb that is under way on the old connection is given up.
        self.links = links;
        if changed {
            self.silent_since = rt::now();
        }
        answers
    }
}

fn hesitation(timing: &Timing) -> std::time::Duration {
    let nanos = timing.election_timeout.as_nanos() as u64;
    std::time::Duration::from_nanos(rt::random_below(nanos.max(2) / 2))
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Standby({} of {:?})", self.node, self.group)
    }
}
