//! Standbys: CPU nodes that watch a group and stand for election when its coordinator is silent (Sift, section 3.2).
//!
//! 1. Watch: every [`SiftTimeouts::heartbeat`] the standby reads the administrative words of all memory nodes. While
//!    any term or timestamp changes, some coordinator or candidate is alive. When none has changed for
//!    [`SiftTimeouts::election_timeout`] plus a random time, the standby stands for election.
//! 2. It reads the words again. Nodes that hold no copy have no vote. If so many nodes without a copy answer that the
//!    remaining nodes cannot be a majority, committed data may be lost: the attempt fails with [`Error::MemoryLost`],
//!    and there is no election.
//! 3. It proposes the greatest term that it has read, plus one. At each node with a vote it sets this term by a
//!    compare-and-swap that expects exactly the term that it read there. The standby has won a node if the
//!    compare-and-swap found the expected term. If a compare-and-swap is ambiguous, the node counts as *not won*,
//!    whether or not the term was set: the connection is gone, and the node has no further part in this attempt.
//! 4. If the standby wins a majority within [`SiftTimeouts::attempt_max`], it is elected; otherwise it waits for a
//!    random time and starts again.
//!
//! A standby that watches many groups reads sparingly: at each heartbeat it reads the words of one node, each node in
//! turn. It reads the words of all nodes only when half of the time-out has passed without a change, when a read fails,
//! and to check its connections ([`SiftTimeouts::reconnect`]).
//!
//! Why a term has one winner. A node's term only grows, and each increase is won by one compare-and-swap. If a term had
//! two winners, there would be a node that both have won. A node that lost its memory forgets whom it voted for, but it
//! has no vote until a coordinator has admitted it. That coordinator admits the node only after
//! [`SiftTimeouts::attempt_max`], and with the greatest term that F+1 of the other nodes have then (step 5 at the head
//! of [`crate::coordinator`]). By then every attempt that counted the forgotten vote has ended. If such an attempt won,
//! one of these F+1 nodes has its term, so the admitted node does not vote in that term again. Safety does not depend
//! on this argument alone: in the fence of [`crate::takeover`], each memory node accepts one nonce per term.

use std::sync::Arc;

use base::rt::{self, Instant};

use crate::fault::crash_point;
use crate::layout::AdminWords;
use crate::link::MemoryNodeLink;
use crate::quorum::{gather, gather_until};
use crate::{Coordinator, ElectedStandby, Error, RecoveredCoordinator, SiftGroup, SiftTimeouts, Term};

/// A CPU node that may become the coordinator of a group. It keeps only connections, so that one CPU node can watch
/// many groups.
pub struct Standby {
    group: Arc<SiftGroup>,
    node: u64,
    links: Vec<Option<Arc<MemoryNodeLink>>>,
    /// When a node without a connection was last tried.
    tried: Vec<Option<Instant>>,
    seen: Vec<Option<AdminWords>>,
    silent_since: Instant,
    /// A random part of the election time-out, drawn for every wait.
    election_jitter: std::time::Duration,
    /// The node whose words [`Standby::watch_sparingly`] reads next.
    next: usize,
}

/// A node's words and the connection over which they were read.
type ReachableNode = (Arc<MemoryNodeLink>, AdminWords);

impl Standby {
    /// Creates a standby. `node` is its number in heartbeats, for logs only. It connects when it starts to watch.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn new(group: SiftGroup, node: u64) -> Result<Standby, Error> {
        group.check()?;
        let slots = group.nodes.len();
        let hesitation = election_jitter(&group.timing);
        let (links, tried, seen) = (vec![None; slots], vec![None; slots], vec![None; slots]);
        Ok(Standby {
            group: Arc::new(group),
            node,
            links,
            tried,
            seen,
            silent_since: rt::now(),
            election_jitter: hesitation,
            next: 0,
        })
    }

    /// Watches, stands for election, and takes over; returns a coordinator that serves. Dropping the future leaves at
    /// most an unused term, or fenced nodes that the next coordinator fences again.
    ///
    /// # Errors
    /// [`Error::MemoryLost`]: too many memory nodes have lost their memory. [`Error::Corrupt`]: a majority of memory
    /// nodes cannot be formed, because too many hold bytes that no release of this format version writes. After all
    /// other errors the standby tries again.
    pub async fn take_over(&mut self) -> Result<Coordinator, Error> {
        loop {
            match self.take_over_without_waiting().await?.open().await {
                Ok(coordinator) => return Ok(coordinator),
                Err(error) => {
                    tracing::debug!(node = self.node, %error, "it ended before it served");
                    self.back_off().await;
                }
            }
        }
    }

    /// As [`Standby::take_over`], without the wait at the end ([`RecoveredCoordinator`]).
    ///
    /// # Errors
    /// As [`Standby::take_over`].
    pub async fn take_over_without_waiting(&mut self) -> Result<RecoveredCoordinator, Error> {
        loop {
            self.watch().await;
            let outcome = match self.elect().await {
                Ok(elected) => elected.recover_without_waiting().await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(recovered) => return Ok(recovered),
                Err(error @ (Error::MemoryLost { .. } | Error::Corrupt(_))) => return Err(error),
                Err(error) => {
                    tracing::debug!(node = self.node, %error, "not this time");
                    self.back_off().await;
                }
            }
        }
    }

    /// Step 1: completes when the group has been silent for the election time-out. Dropping it is safe.
    pub async fn watch(&mut self) {
        self.silent_since = rt::now();
        loop {
            self.check_all().await;
            if self.silent_since.elapsed() >= self.group.timing.election_timeout + self.election_jitter {
                return;
            }
            rt::sleep(self.group.timing.heartbeat).await;
        }
    }

    /// As [`Standby::watch`], with about one read per heartbeat. Dropping it is safe.
    pub async fn watch_sparingly(&mut self) {
        self.silent_since = rt::now();
        let mut looked_at: Option<Instant> = None;
        loop {
            let timing = &self.group.timing;
            let is_doubtful = self.silent_since.elapsed() >= timing.election_timeout / 2;
            let is_due = looked_at.is_none_or(|at| at.elapsed() >= timing.reconnect);
            if is_doubtful || is_due || !self.check_one().await {
                self.check_all().await;
                looked_at = Some(rt::now());
            }
            if self.silent_since.elapsed() >= self.group.timing.election_timeout + self.election_jitter {
                return;
            }
            rt::sleep(self.group.timing.heartbeat).await;
        }
    }

    /// Completes at the next sign that a coordinator or candidate is alive. Dropping it is safe.
    pub async fn observe(&mut self) {
        let begun = rt::now();
        while self.silent_since <= begun {
            rt::sleep(self.group.timing.heartbeat).await;
            self.check_all().await;
        }
    }

    /// Steps 2 to 4: one attempt.
    ///
    /// # Errors
    /// [`Error::NotElected`], [`Error::NoMajority`]: another CPU node may be elected, or try again.
    /// [`Error::MemoryLost`].
    pub async fn elect(&mut self) -> Result<ElectedStandby, Error> {
        let (group, start) = (Arc::clone(&self.group), rt::now());
        let answers = self.check_all().await;
        let (nodes, needed) = (group.nodes.len(), group.majority());
        let is_admitted = |admin: &AdminWords| admin.admitted == group.id.0;
        let lost = answers.iter().filter(|(_, admin)| !is_admitted(admin)).count();
        if nodes - lost < needed {
            return Err(Error::MemoryLost { lost, nodes });
        }
        let newest = answers.iter().map(|(_, admin)| admin.term).max().unwrap_or_default();
        let voters: Vec<&ReachableNode> = answers.iter().filter(|(_, admin)| is_admitted(admin)).collect();
        if voters.len() < needed {
            return Err(Error::NoMajority { answering: voters.len(), needed, nodes });
        }
        let term = Term(newest.0.checked_add(1).ok_or(Error::Corrupt("a term at the end of all terms"))?);
        crash_point("consensus.elect.standing").await;
        let votes = voters.into_iter().map(|(link, admin)| async move {
            match link.swap_term(admin.term, term).await {
                Ok(before) if before == admin.term.0 => Some(Arc::clone(link)),
                Ok(_) => None,
                // Ambiguous or rejected: not won.
                Err(_) => None,
            }
        });
        let left = group.timing.attempt_max.saturating_sub(start.elapsed());
        let won = gather(votes, needed, group.timing.grace, left).await;
        if won.len() < needed || start.elapsed() >= group.timing.attempt_max {
            return Err(Error::NotElected);
        }
        crash_point("consensus.elect.won").await;
        // Show other standbys that a takeover has begun.
        for link in &won {
            drop(link.heartbeat(self.node, 0));
        }
        let nodes = answers.into_iter().map(|(link, admin)| (link, is_admitted(&admin))).collect();
        Ok(ElectedStandby::new(group, self.node, term, nodes))
    }

    /// Waits for a random time before the next attempt.
    pub async fn back_off(&mut self) {
        self.election_jitter = election_jitter(&self.group.timing);
        rt::sleep(self.election_jitter).await;
    }

    /// Reads the words of one node, the next one each time, and notes whether they have changed; false when the node
    /// did not answer.
    async fn check_one(&mut self) -> bool {
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
    async fn check_all(&mut self) -> Vec<ReachableNode> {
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
        // Connecting may take long; a connected node that is slow is not waited for.
        let grace = if connects { limit } else { group.timing.grace };
        let looks = self.links.iter().enumerate().map(|(slot, link)| async move {
            let link = match link {
                Some(link) => Arc::clone(link),
                None if !connects => return None,
                None => MemoryNodeLink::connect(group, slot)
                    .await
                    .inspect_err(|error| tracing::debug!(slot, %error))
                    .ok()?,
            };
            let admin = link.read_admin().await.ok()?;
            Some((link, admin))
        });
        // Nodes that hold no copy do not count towards the majority.
        let is_enough = |answers: &[ReachableNode]| {
            let votes = answers.iter().filter(|(_, admin)| admin.admitted == group.id.0);
            votes.count() >= group.majority()
        };
        let answers: Vec<ReachableNode> = gather_until(looks, is_enough, grace, limit).await;
        let mut links = vec![None; group.nodes.len()];
        let mut changed = false;
        for (link, admin) in &answers {
            let before = self.seen[link.slot].replace(*admin);
            changed |= before.is_none_or(|before| (before.term, before.timestamp) != (admin.term, admin.timestamp));
            links[link.slot] = Some(Arc::clone(link));
        }
        // Reconnect to nodes that did not answer: the verb that is in flight on the old connection is given up.
        self.links = links;
        if changed {
            self.silent_since = rt::now();
        }
        answers
    }
}

fn election_jitter(timing: &SiftTimeouts) -> std::time::Duration {
    let nanos = timing.election_timeout.as_nanos() as u64;
    std::time::Duration::from_nanos(rt::random_below(nanos.max(2) / 2))
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Standby({} of {:?})", self.node, self.group)
    }
}
