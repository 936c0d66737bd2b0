//! One connection: it posts verbs, and its waiters write and read.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Bytes;
use base::rt::sync::Notify;

use crate::tcp::client::posted::{PendingVerb, PostedVerbs, VerbOutcome};
use crate::tcp::client::reply_input::ReplyInput;
use crate::tcp::outgoing::PumpProgress;
use crate::tcp::peer::ConnectionQueues;
use crate::tcp::spin::AdaptiveSpin;
use crate::tcp::wire::{FrameHeader, HEADER_BYTES, VERB_BYTES, VerbFrame};
use crate::tcp::{TcpConfig, clock};
use crate::{CompletionDriver, Error, IN_FLIGHT_MAX, NodeId};

/// How long a waiter reads for itself and others before it gives its thread back without its own reply.
const DRIVE_TIME_MAX: Duration = Duration::from_millis(2);

/// One connection.
pub(super) struct TcpClient {
    pub(super) peer: ConnectionQueues,
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) options: TcpConfig,
    pub(super) posted: Mutex<PostedVerbs>,
    pub(super) input: Mutex<ReplyInput>,
    /// Wakes the task: there is something to wait for.
    pub(super) wanted: Notify,
    pub(super) spin: AdaptiveSpin,
    pub(super) closing: AtomicBool,
    /// The receiver of messages has asked the task to wait for one.
    pub(super) receiver_asked: AtomicBool,
    /// One more than the number of the verb whose reply has arrived in part; 0 when there is none. Written under the lock of
    /// the input.
    pub(super) partial: AtomicU64,
}

impl TcpClient {
    pub(super) fn posted(&self) -> MutexGuard<'_, PostedVerbs> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn input(&self) -> MutexGuard<'_, ReplyInput> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the task to wait for the verbs in flight.
    fn request_wait(&self) {
        {
            let mut posted = self.posted();
            posted.asked = posted.next;
        }
        self.wanted.notify_one();
    }

    /// Writes the queue.
    pub(super) fn write_out(&self) -> io::Result<PumpProgress> {
        let mut outgoing = self.peer.outgoing();
        if outgoing.is_empty() && self.peer.pipe.is_plain() {
            return Ok(PumpProgress { left: false, moved: false });
        }
        let pumped = outgoing.pump(&self.peer.pipe, usize::MAX);
        drop(outgoing);
        pumped.inspect_err(|_| self.fail())
    }

    pub(super) fn write_out_or_ask(&self) {
        if let Ok(PumpProgress { left: true, .. }) = self.write_out() {
            self.wanted.notify_one();
        }
    }

    /// The connection is lost: verbs in flight complete as ambiguous.
    pub(super) fn fail(&self) {
        let in_flight = {
            let mut posted = self.posted();
            (posted.closed, posted.lost) = (true, true);
            std::mem::take(&mut posted.in_flight)
        };
        self.peer.close();
        self.peer.pipe.abort();
        for pending in in_flight {
            pending.outcome.fail(&Error::Ambiguous("the connection was lost while the verb was in flight"));
        }
        self.wanted.notify_one();
    }

    /// Completes the verbs in flight as ambiguous; their replies are still read as they come.
    pub(super) fn abandon(&self) {
        let mut posted = self.posted();
        posted.closed = true;
        let abandoned: Vec<VerbOutcome> = posted
            .in_flight
            .iter_mut()
            .map(|pending| {
                let nobodys = pending.outcome.nobodys();
                std::mem::replace(&mut pending.outcome, nobodys)
            })
            .collect();
        drop(posted);
        for outcome in abandoned {
            outcome.fail(&Error::Ambiguous("the endpoint was closed while the verb was in flight"));
        }
    }

    /// As [`TcpClient::fail`], and also for a partly received read.
    pub(super) fn end(&self) {
        self.fail();
        self.input().abandon();
    }

    /// Queues a verb. `outcome` receives the result, unless posting fails here.
    pub(super) fn post(
        &self,
        verb: &VerbFrame,
        header: FrameHeader,
        parts: &[Bytes],
        counts: Option<usize>,
        outcome: impl FnOnce() -> VerbOutcome,
    ) -> Result<(), Error> {
        let mut posted = self.posted();
        if posted.closed {
            return Err(Error::Closed);
        }
        if posted.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(Error::Busy);
        }
        let sequence = posted.next;
        let mut head = [0; HEADER_BYTES + VERB_BYTES];
        head[..HEADER_BYTES].copy_from_slice(&FrameHeader { sequence: sequence as u32, ..header }.encode());
        head[HEADER_BYTES..].copy_from_slice(&verb.encode());
        self.peer.outgoing().post(&head, parts, counts)?;
        posted.next = sequence + 1;
        posted.in_flight.push_back(PendingVerb { sequence, outcome: outcome() });
        Ok(())
    }
}

impl TcpClient {
    /// Writes and reads for a short time, until `done`. Returns false when it gave up before.
    pub(super) fn work(&self, done: &dyn Fn() -> bool) -> bool {
        // The loss of the connection completes every verb.
        let Ok(PumpProgress { mut left, mut moved }) = self.write_out() else { return true };
        // When spinning started, and until when it lasts; extended as long as something moves.
        let mut spun = None;
        let mut helped = false;
        let is_done = loop {
            // The waiter that holds the input reads for all.
            if let Ok(mut input) = self.input.try_lock() {
                match self.take_in(&mut input, done) {
                    Ok(any) => moved |= any,
                    Err(_) => return true,
                }
            }
            if done() {
                if spun.is_some() {
                    self.spin.succeeded();
                }
                break true;
            }
            match spun {
                None if self.options.spin.is_zero() || !self.spin.is_worth_it() => break false,
                None => {
                    let now = clock();
                    spun = Some((now, now + self.options.spin));
                }
                Some((began, until)) => {
                    let now = clock();
                    if moved && now - began < DRIVE_TIME_MAX {
                        helped = true;
                        spun = Some((began, now + self.options.spin));
                    } else if now >= until && !self.peer.is_being_taken(now) {
                        if !helped {
                            self.spin.failed();
                        }
                        break false;
                    } else {
                        std::hint::spin_loop();
                    }
                }
            }
            moved = false;
            if left {
                match self.write_out() {
                    Ok(pumped) => PumpProgress { left, moved } = pumped,
                    Err(_) => return true,
                }
            }
        };
        if left {
            self.wanted.notify_one();
        }
        is_done
    }
}

impl CompletionDriver for TcpClient {
    fn drive(&self, done: &dyn Fn() -> bool) {
        if !self.work(done) {
            self.request_wait();
        }
    }
}
