//! One connection of an address space to a donor. It carries one request and its answer at a time.
//!
//! 1. A task takes the link's turn, sends a request, and waits for the answer, up to a time-out.
//! 2. An answer that comes after the time-out is recognised by its old number and dropped. If the request might have
//!    changed something, the link is due for a *sweep*: the donor's background task asks the donor for its list of
//!    sections, and returns those that the space does not know, such as one that the late answer granted.
//! 3. The link ends when the connection does, when the donor reports that this process is fenced, or when a verb shows
//!    that the link's capabilities are void. Its sections end with it.
//!
//! Invariant: when a task stops waiting for a request that might have changed something, it marks the link as due for a
//! sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use base::Epoch;
use base::rt::channel::{OneshotSender, oneshot};
use base::rt::sync::{self, Notify};
use base::rt::{self, CancellationToken, Instant};
use rma::{Endpoint, IncomingEvent};

use super::SectionId;
use crate::Error;
use crate::lock::lock;
use crate::message::{DonorSection, NOTIFICATION, Rejection, Request, Response};

/// A donor's connection and state, as the space sees them.
pub(crate) struct DonorLink {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: String,
    /// The number of the last request. Locked by the task whose turn it is.
    turn: sync::Mutex<u32>,
    /// The number of the awaited answer, and the task that awaits it.
    waiting: Mutex<Option<(u32, OneshotSender<Response>)>>,
    /// Stopped when no request is possible any more.
    pub(crate) ended: CancellationToken,
    unswept: AtomicBool,
    pub(crate) sweep: Notify,
    sections: Mutex<LiveSections>,
    /// Sections whose return the donor has not confirmed.
    returning: Mutex<BTreeSet<DonorSection>>,
    free_bytes: AtomicU64,
    budget_bytes: AtomicU64,
    free_at_nanos: AtomicU64,
    answering: AtomicBool,
    /// The newer epoch that fenced this process at the donor.
    fenced: OnceLock<Epoch>,
}

/// The live sections of a link.
#[derive(Default)]
struct LiveSections {
    over: bool,
    /// Each with its number in the space; `None` for a copy to which no entry of the table leads.
    live: BTreeMap<DonorSection, Option<SectionId>>,
}

/// The right to send a request.
pub(crate) struct RequestTurn<'a> {
    link: &'a DonorLink,
    number: sync::MutexGuard<'a, u32>,
    /// A request that may change something was sent, and its answer has not come.
    open: bool,
}

impl DonorLink {
    /// A section of the link to which an entry of the table leads, if there is one.
    pub(crate) fn a_section(&self) -> Option<SectionId> {
        lock(&self.sections).live.values().find_map(|id| *id)
    }

    pub(crate) fn new(endpoint: Endpoint, address: String) -> DonorLink {
        DonorLink {
            endpoint,
            address,
            turn: sync::Mutex::new(NOTIFICATION),
            waiting: Mutex::new(None),
            ended: CancellationToken::new(),
            unswept: AtomicBool::new(false),
            sweep: Notify::new(),
            sections: Mutex::default(),
            returning: Mutex::default(),
            free_bytes: AtomicU64::new(0),
            budget_bytes: AtomicU64::new(0),
            free_at_nanos: AtomicU64::new(0),
            answering: AtomicBool::new(true),
            fenced: OnceLock::new(),
        }
    }

    /// Hands answers to the waiting task, until the connection ends or the donor reports a fence; then ends the link.
    pub(crate) async fn receive(&self) {
        self.receive_all().await;
        self.ended.cancel();
        // Only now: a task that registers later sees that the link has ended. An answer that had arrived is not lost.
        *lock(&self.waiting) = None;
    }

    /// The newer epoch by which the donor has fenced us, if it has.
    pub(crate) fn fenced(&self) -> Option<Epoch> {
        self.fenced.get().copied()
    }

    async fn receive_all(&self) {
        loop {
            let message = match self.ended.run_until_cancelled(self.endpoint.receive()).await {
                Some(Ok(IncomingEvent::Message(message))) => message,
                Some(Ok(IncomingEvent::Immediate { .. })) => continue,
                Some(Err(_)) | None => return,
            };
            let (number, reply) = match Response::decode(&message) {
                Ok(decoded) => decoded,
                Err(error) => {
                    tracing::warn!(%error, donor = %self.address, "a memory node sent an invalid message");
                    return;
                }
            };
            if let Response::Rejected { rejection: Rejection::Fenced, detail, .. } = reply {
                // It may have been set before, which is enough.
                let _ = self.fenced.set(Epoch(detail));
                return;
            }
            if let Response::Rejected { rejection: Rejection::Superseded, .. } = reply {
                return;
            }
            self.answering.store(true, Ordering::Relaxed);
            self.record_capacity(&reply);
            let waiting = {
                let mut waiting = lock(&self.waiting);
                waiting.take_if(|(due, _)| *due == number)
            };
            match waiting {
                // A task that has just gone has left the link unswept.
                Some((_, waiting)) => drop(waiting.send(reply)),
                None => tracing::debug!(donor = %self.address, number, "an answer came too late"),
            }
        }
    }

    fn record_capacity(&self, reply: &Response) {
        if let Response::Welcome { budget_bytes, .. } | Response::Capacity { budget_bytes, .. } = reply {
            self.budget_bytes.store(*budget_bytes, Ordering::Relaxed);
        }
        let free_bytes = match reply {
            Response::Welcome { free_bytes, .. }
            | Response::Fenced { free_bytes, .. }
            | Response::Granted { free_bytes, .. }
            | Response::Released { free_bytes }
            | Response::Listed { free_bytes, .. }
            | Response::Capacity { free_bytes, .. }
            | Response::ReadGranted { free_bytes, .. }
            | Response::ReadsRevoked { free_bytes, .. }
            | Response::Adopted { free_bytes, .. }
            | Response::Rejected { rejection: Rejection::Exhausted, detail: free_bytes, .. } => *free_bytes,
            Response::OtherVersions(_) | Response::Rejected { .. } => return,
        };
        self.free_bytes.store(free_bytes, Ordering::Relaxed);
        self.free_at_nanos.store(rt::now().nanos(), Ordering::Relaxed);
    }

    /// Bytes that the donor could grant, by its last report.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// The age of that report.
    pub(crate) fn free_age(&self) -> Duration {
        Instant::from_nanos(self.free_at_nanos.load(Ordering::Relaxed)).elapsed()
    }

    /// Bytes that the donor may grant, to all its owners together.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Whether the last request was answered in time.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    /// Waits for the turn to send a request.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] when the link ends, or another task's request takes too long.
    pub(crate) async fn turn(&self, timeout: Duration) -> Result<RequestTurn<'_>, Error> {
        match rt::timeout(timeout, self.ended.run_until_cancelled(self.turn.lock())).await {
            Ok(Some(number)) => Ok(RequestTurn { link: self, number, open: false }),
            Ok(None) => Err(self.no_answer("the connection was lost")),
            Err(rt::Elapsed) => Err(self.no_answer("it is busy with earlier requests")),
        }
    }

    fn no_answer(&self, reason: &str) -> Error {
        Error::NoAnswer { address: self.address.clone(), reason: reason.to_owned() }
    }

    /// Requests a sweep.
    pub(crate) fn leave_unswept(&self) {
        self.unswept.store(true, Ordering::SeqCst);
        self.sweep.notify_one();
    }

    /// Whether a sweep is due; if so, the caller makes it.
    pub(crate) fn take_unswept(&self) -> bool {
        self.unswept.swap(false, Ordering::SeqCst)
    }

    /// Adds a section to the live ones and calls `insert` to enter it; false when the link has ended. The caller must
    /// hold the turn, and the donor must not have granted the section before.
    pub(crate) fn add(&self, section: DonorSection, id: SectionId, insert: impl FnOnce()) -> bool {
        let mut sections = lock(&self.sections);
        if sections.over {
            return false;
        }
        let before = sections.live.insert(section, Some(id));
        assert!(before.is_none(), "the caller has looked");
        insert();
        true
    }

    /// Adds a copy of a section that is live elsewhere; as [`DonorLink::add`].
    pub(crate) fn add_copy(&self, section: DonorSection) -> bool {
        let mut sections = lock(&self.sections);
        if !sections.over {
            sections.live.insert(section, None);
        }
        !sections.over
    }

    /// Changes whether an entry of the table leads to a section. False if the link has ended, or no longer has it.
    pub(crate) fn set_entry(&self, section: DonorSection, before: Option<SectionId>, after: Option<SectionId>) -> bool {
        let mut sections = lock(&self.sections);
        match sections.live.get_mut(&section) {
            Some(entry) if *entry == before => {
                *entry = after;
                true
            }
            _ => false,
        }
    }

    /// Notes that a section is being returned.
    pub(crate) fn note_returning(&self, section: DonorSection) {
        lock(&self.returning).insert(section);
    }

    /// Notes that the donor has confirmed a return.
    pub(crate) fn note_returned(&self, section: DonorSection) {
        lock(&self.returning).remove(&section);
    }

    /// Notes which sections the donor has.
    pub(crate) fn note_listed(&self, listed: &BTreeSet<DonorSection>) {
        lock(&self.returning).retain(|section| listed.contains(section));
    }

    /// Whether the donor has confirmed every return.
    pub(crate) fn is_settled(&self) -> bool {
        lock(&self.returning).is_empty()
    }

    /// Whether the section is one of the live ones.
    pub(crate) fn knows(&self, section: DonorSection) -> bool {
        lock(&self.sections).live.contains_key(&section)
    }

    /// Removes a section from the live ones.
    pub(crate) fn remove(&self, section: DonorSection) {
        lock(&self.sections).live.remove(&section);
    }

    /// Ends the link; returns the sections that were live, once.
    pub(crate) fn end(&self) -> Vec<SectionId> {
        self.ended.cancel();
        let live = {
            let mut sections = lock(&self.sections);
            sections.over = true;
            std::mem::take(&mut sections.live)
        };
        *lock(&self.waiting) = None;
        self.endpoint.close();
        live.into_values().flatten().collect()
    }
}

impl RequestTurn<'_> {
    /// Sends a request and waits for the answer.
    ///
    /// If the future is dropped, or no answer comes in time, the request may have been executed: the link is then
    /// unswept.
    ///
    /// # Errors
    /// [`Error::NoAnswer`].
    pub(crate) async fn ask(&mut self, request: Request, timeout: Duration) -> Result<Response, Error> {
        let link = self.link;
        if self.open {
            link.leave_unswept();
        }
        *self.number = match self.number.checked_add(1) {
            Some(number) => number,
            None => {
                // After four billion requests, a new connection starts its numbers again.
                link.ended.cancel();
                return Err(link.no_answer("the connection has used up its request numbers"));
            }
        };
        let number = *self.number;
        let (answer, answered) = oneshot();
        *lock(&link.waiting) = Some((number, answer));
        if link.ended.is_cancelled() {
            return Err(link.no_answer("the connection was lost"));
        }
        self.open = matches!(request, Request::Grant { .. } | Request::Release { .. } | Request::Adopt { .. });
        let exchange = async {
            let sent = link.endpoint.send(&[request.encode(number)]);
            link.endpoint.flush();
            sent.await.ok()?;
            answered.await.ok()
        };
        // Not until the link ends: an answer may have come before that.
        match rt::timeout(timeout, exchange).await {
            Ok(Some(reply)) => {
                self.open = false;
                Ok(reply)
            }
            Ok(None) => Err(link.no_answer("the connection was lost")),
            Err(rt::Elapsed) => {
                link.answering.store(false, Ordering::Relaxed);
                Err(link.no_answer(&format!("no answer within {} s", timeout.as_secs())))
            }
        }
    }
}

impl Drop for RequestTurn<'_> {
    fn drop(&mut self) {
        if self.open {
            self.link.leave_unswept();
        }
    }
}
