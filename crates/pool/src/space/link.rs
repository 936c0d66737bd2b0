//! One connection of an address space to a donor: requests and their answers, one at a time.
//!
//! 1. Whoever holds the link's turn sends a request and waits for its answer, for a while.
//! 2. An answer that comes later than that finds nobody: its number is an old one. What it granted is found by the list of
//!    the next sweep, which the link is then in need of, and given back.
//! 3. The link ends when the connection does, when the donor says that this holder is fenced, or when a verb shows that its
//!    capabilities are void. Its sections end with it.
//!
//! Invariant: whoever gives up on a request that might have changed something leaves the link unswept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base::Epoch;
use base::rt::channel::{OneshotSender, oneshot};
use base::rt::sync::{self, Notify};
use base::rt::{self, Instant, Stop};
use rma::{Endpoint, Incoming};

use super::SectionId;
use crate::Error;
use crate::message::{DonorSection, NOTICE, Refusal, Reply, Request};

/// Where a donor is, from the space's view.
pub(crate) struct Link {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: String,
    /// The number of the last request. Locked by whose turn it is.
    turn: sync::Mutex<u32>,
    /// Who waits for which answer.
    waiting: Mutex<Option<(u32, OneshotSender<Reply>)>>,
    /// Set when nothing can be asked any more.
    pub(crate) ended: Stop,
    unswept: AtomicBool,
    pub(crate) sweep: Notify,
    sections: Mutex<Sections>,
    free_bytes: AtomicU64,
    budget_bytes: AtomicU64,
    free_at_nanos: AtomicU64,
    answering: AtomicBool,
    /// The epoch that fenced us here.
    fenced: OnceLock<Epoch>,
}

/// The live sections of a link.
#[derive(Default)]
struct Sections {
    over: bool,
    live: BTreeMap<DonorSection, SectionId>,
}

/// The right to ask.
pub(crate) struct Turn<'a> {
    link: &'a Link,
    number: sync::MutexGuard<'a, u32>,
    /// A request that may change something has been sent, and its answer has not come.
    open: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What we guard so is whole between any two statements: a poisoned lock is as good as another.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint, address: String) -> Link {
        Link {
            endpoint,
            address,
            turn: sync::Mutex::new(NOTICE),
            waiting: Mutex::new(None),
            ended: Stop::new(),
            unswept: AtomicBool::new(false),
            sweep: Notify::new(),
            sections: Mutex::default(),
            free_bytes: AtomicU64::new(0),
            budget_bytes: AtomicU64::new(0),
            free_at_nanos: AtomicU64::new(0),
            answering: AtomicBool::new(true),
            fenced: OnceLock::new(),
        }
    }

    /// Hands answers to who waits for them, until the connection ends or we are told that we are fenced; ends the link.
    pub(crate) async fn receive(&self) {
        self.receive_all().await;
        self.ended.stop();
        // After that: whoever enters later sees that the link has ended. An answer that was there is not lost.
        *lock(&self.waiting) = None;
    }

    /// The epoch that the donor said is newer than ours.
    pub(crate) fn fenced(&self) -> Option<Epoch> {
        self.fenced.get().copied()
    }

    async fn receive_all(&self) {
        loop {
            let message = match self.ended.or_stopped(self.endpoint.receive()).await {
                Some(Ok(Incoming::Message(message))) => message,
                Some(Ok(Incoming::Immediate { .. })) => continue,
                Some(Err(_)) | None => return,
            };
            let (number, reply) = match Reply::decode(&message) {
                Ok(decoded) => decoded,
                Err(error) => {
                    tracing::warn!(%error, donor = %self.address, "a memory node says what it must not");
                    return;
                }
            };
            if let Reply::Refused { refusal: Refusal::Fenced, detail, .. } = reply {
                // Told once is enough.
                let _ = self.fenced.set(Epoch(detail));
                return;
            }
            if let Reply::Refused { refusal: Refusal::Superseded, .. } = reply {
                return;
            }
            self.answering.store(true, Ordering::Relaxed);
            self.note_room(&reply);
            let waiting = {
                let mut waiting = lock(&self.waiting);
                waiting.take_if(|(due, _)| *due == number)
            };
            match waiting {
                // Whoever has just gone has left the link unswept.
                Some((_, waiting)) => drop(waiting.send(reply)),
                None => tracing::debug!(donor = %self.address, number, "an answer that nobody waits for"),
            }
        }
    }

    fn note_room(&self, reply: &Reply) {
        if let Reply::Welcome { budget_bytes, .. } | Reply::Room { budget_bytes, .. } = reply {
            self.budget_bytes.store(*budget_bytes, Ordering::Relaxed);
        }
        let free_bytes = match reply {
            Reply::Welcome { free_bytes, .. }
            | Reply::Fenced { free_bytes, .. }
            | Reply::Granted { free_bytes, .. }
            | Reply::Released { free_bytes }
            | Reply::Listed { free_bytes, .. }
            | Reply::Room { free_bytes, .. }
            | Reply::Shared { free_bytes, .. }
            | Reply::Unshared { free_bytes, .. }
            | Reply::Refused { refusal: Refusal::Exhausted, detail: free_bytes, .. } => *free_bytes,
            Reply::Refused { .. } => return,
        };
        self.free_bytes.store(free_bytes, Ordering::Relaxed);
        self.free_at_nanos.store(rt::now().nanos(), Ordering::Relaxed);
    }

    /// What the donor could give when it was last heard of.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// How long ago that was.
    pub(crate) fn free_age(&self) -> Duration {
        Instant::from_nanos(self.free_at_nanos.load(Ordering::Relaxed)).elapsed()
    }

    /// What the donor may give, to all its owners together.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Whether the last request was answered in time.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    /// Waits for the turn to ask.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] when the link ends, or somebody else's request takes too long.
    pub(crate) async fn turn(&self, patience: Duration) -> Result<Turn<'_>, Error> {
        match rt::timeout(patience, self.ended.or_stopped(self.turn.lock())).await {
            Ok(Some(number)) => Ok(Turn { link: self, number, open: false }),
            Ok(None) => Err(self.no_answer("the connection was lost")),
            Err(rt::Elapsed) => Err(self.no_answer("it is busy with earlier requests")),
        }
    }

    fn no_answer(&self, reason: &str) -> Error {
        Error::NoAnswer { address: self.address.clone(), reason: reason.to_owned() }
    }

    /// Asks for a sweep.
    pub(crate) fn leave_unswept(&self) {
        self.unswept.store(true, Ordering::SeqCst);
        self.sweep.notify_one();
    }

    /// Whether a sweep is due; the caller makes it.
    pub(crate) fn take_unswept(&self) -> bool {
        self.unswept.swap(false, Ordering::SeqCst)
    }

    /// Counts a section among the live ones, which `insert` makes known; false when the link is over. Only on the
    /// holder's turn, when the donor has not given it before.
    pub(crate) fn add(&self, section: DonorSection, id: SectionId, insert: impl FnOnce()) -> bool {
        let mut sections = lock(&self.sections);
        if sections.over {
            return false;
        }
        let before = sections.live.insert(section, id);
        assert!(before.is_none(), "the caller has looked");
        insert();
        true
    }

    /// Whether the section is one of the live ones.
    pub(crate) fn knows(&self, section: DonorSection) -> bool {
        lock(&self.sections).live.contains_key(&section)
    }

    /// Takes a section from the live ones.
    pub(crate) fn remove(&self, section: DonorSection) {
        lock(&self.sections).live.remove(&section);
    }

    /// Ends the link; gives the sections that were live, once.
    pub(crate) fn end(&self) -> Vec<SectionId> {
        self.ended.stop();
        let live = {
            let mut sections = lock(&self.sections);
            sections.over = true;
            std::mem::take(&mut sections.live)
        };
        *lock(&self.waiting) = None;
        self.endpoint.close();
        live.into_values().collect()
    }
}

impl Turn<'_> {
    /// Asks and waits for the answer.
    ///
    /// When dropped, or without an answer in time, the request may have been performed: the link is then unswept.
    ///
    /// # Errors
    /// [`Error::NoAnswer`].
    pub(crate) async fn ask(&mut self, request: Request, patience: Duration) -> Result<Reply, Error> {
        let link = self.link;
        if self.open {
            link.leave_unswept();
        }
        *self.number = match self.number.checked_add(1) {
            Some(number) => number,
            None => {
                // Four billion requests later: a new connection counts anew.
                link.ended.stop();
                return Err(link.no_answer("the connection is worn out"));
            }
        };
        let number = *self.number;
        let (answer, answered) = oneshot();
        *lock(&link.waiting) = Some((number, answer));
        if link.ended.is_stopped() {
            return Err(link.no_answer("the connection was lost"));
        }
        self.open = matches!(request, Request::Grant { .. } | Request::Release { .. });
        let exchange = async {
            let sent = link.endpoint.send(&[request.encode(number)]);
            link.endpoint.flush();
            sent.await.ok()?;
            answered.await.ok()
        };
        // Not until the link ends: an answer may have come before that.
        match rt::timeout(patience, exchange).await {
            Ok(Some(reply)) => {
                self.open = false;
                Ok(reply)
            }
            Ok(None) => Err(link.no_answer("the connection was lost")),
            Err(rt::Elapsed) => {
                link.answering.store(false, Ordering::Relaxed);
                Err(link.no_answer(&format!("nothing came within {} s", patience.as_secs())))
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.open {
            self.link.leave_unswept();
        }
    }
}
