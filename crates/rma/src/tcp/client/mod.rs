//! The end that connects: verbs are posted into a queue, and whoever waits for one writes the queue and reads the replies.
//!
//! 1. Posting puts a verb into the queue and among those in flight. Nothing is written yet.
//! 2. Whoever polls a completion writes the queue, many verbs with one call, and reads replies for a short while
//!    ([`TcpOptions::spin`]), for itself and for all others. Replies come in the order of posting.
//! 3. What is not there by then the waiter [asks](Client::ask) a task of the connection to wait for, through the runtime's
//!    own reactor. It rests as soon as that has come, whatever else is in flight by then: it would be woken by each reply
//!    that a spinning waiter reads for itself, and waking costs as much as half a round trip.
//!
//! Invariants: the order of verbs in flight is the order of their frames; a lost connection completes each as ambiguous.

mod attend;
mod connect;
mod endpoint;
mod replies;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::sync::Notify;
use base::{Bytes, BytesMut};

use super::peer::{Peer, Pumped};
use super::spin::Spin;
use super::wire::{HEADER_BYTES, Header, VERB_BYTES, Verb};
use super::{TcpOptions, clock};
use crate::{Completer, Completion, Drive, Error, IN_FLIGHT_MAX, NodeId};
use replies::Input;

pub use connect::connect;
pub use endpoint::total;

/// A waiter that reads for itself and others gives its thread back after so long, if its own reply has not come by then.
const DRIVE_TIME_MAX: Duration = Duration::from_millis(2);

/// One connection.
struct Client {
    peer: Peer,
    node: NodeId,
    name: String,
    options: TcpOptions,
    posted: Mutex<Posted>,
    input: Mutex<Input>,
    /// Something is to be waited for by the task.
    wanted: Notify,
    spin: Spin,
    closing: AtomicBool,
    /// Whoever receives messages has asked the task to wait for one.
    receiver_asked: AtomicBool,
    /// Behind the number of the verb of whose reply a part has come; 0 when there is none. Written under the lock of the
    /// input.
    partial: AtomicU64,
}

/// Verbs in flight. Locked before the outgoing queue, so that both have the same order.
struct Posted {
    in_flight: VecDeque<Pending>,
    /// Of the next verb to be posted. Frames have the lower half of it.
    next: u64,
    /// The task waits for the replies of verbs before this one.
    asked: u64,
    /// Nothing more is posted.
    closed: bool,
    /// The connection is lost.
    lost: bool,
}

struct Pending {
    sequence: u64,
    outcome: Outcome,
}

enum Outcome {
    Read { into: BytesMut, offset: u64, length: usize, completer: Completer<BytesMut> },
    Write { offset: u64, length: u64, completer: Completer<()> },
    Word { offset: u64, completer: Completer<u64> },
}

impl Client {
    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the task wait for what is in flight.
    fn ask(&self) {
        {
            let mut posted = self.posted();
            posted.asked = posted.next;
        }
        self.wanted.notify_one();
    }

    /// Writes the queue.
    fn write_out(&self) -> io::Result<Pumped> {
        let mut outgoing = self.peer.outgoing();
        if outgoing.is_empty() && self.peer.pipe.is_plain() {
            return Ok(Pumped { left: false, moved: false });
        }
        let pumped = outgoing.pump(&self.peer.pipe, usize::MAX);
        drop(outgoing);
        pumped.inspect_err(|_| self.fail())
    }

    fn write_out_or_ask(&self) {
        if let Ok(Pumped { left: true, .. }) = self.write_out() {
            self.wanted.notify_one();
        }
    }

    /// The connection is lost: what is in flight is ambiguous.
    fn fail(&self) {
        let in_flight = {
            let mut posted = self.posted();
            (posted.closed, posted.lost) = (true, true);
            std::mem::take(&mut posted.in_flight)
        };
        self.peer.close();
        self.peer.pipe.cut();
        for pending in in_flight {
            pending.outcome.fail(&Error::Ambiguous("the connection was lost while the verb was in flight"));
        }
        self.wanted.notify_one();
    }

    /// Nobody waits for what is in flight any more; its replies are still taken in as they come.
    fn abandon(&self) {
        let mut posted = self.posted();
        posted.closed = true;
        let abandoned: Vec<Outcome> = posted
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

    /// As [`Client::fail`], for whatever has arrived of a read as well.
    fn end(&self) {
        self.fail();
        self.input().abandon();
    }

    /// Queues a verb. Its outcome is that of `outcome`'s completion, unless it is refused here.
    fn post(
        &self,
        verb: &Verb,
        header: Header,
        parts: &[Bytes],
        counts: Option<usize>,
        outcome: impl FnOnce() -> Outcome,
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
        head[..HEADER_BYTES].copy_from_slice(&Header { sequence: sequence as u32, ..header }.encode());
        head[HEADER_BYTES..].copy_from_slice(&verb.encode());
        self.peer.outgoing().post(&head, parts, counts)?;
        posted.next = sequence + 1;
        posted.in_flight.push_back(Pending { sequence, outcome: outcome() });
        Ok(())
    }
}

impl Outcome {
    /// The same for nobody.
    fn nobodys(&self) -> Outcome {
        match *self {
            Outcome::Read { offset, length, .. } => {
                Outcome::Read { into: BytesMut::new(), offset, length, completer: Completion::pending().0 }
            }
            Outcome::Write { offset, length, .. } => {
                Outcome::Write { offset, length, completer: Completion::pending().0 }
            }
            Outcome::Word { offset, .. } => Outcome::Word { offset, completer: Completion::pending().0 },
        }
    }

    fn fail(self, error: &Error) {
        match self {
            Outcome::Read { completer, .. } => completer.complete(Err(error.clone())),
            Outcome::Write { completer, .. } => completer.complete(Err(error.clone())),
            Outcome::Word { completer, .. } => completer.complete(Err(error.clone())),
        }
    }
}

impl Client {
    /// Writes and reads for a short while, until `done`. False when it has given up before.
    fn work(&self, done: &dyn Fn() -> bool) -> bool {
        // The loss of the connection completes everything.
        let Ok(Pumped { mut left, mut moved }) = self.write_out() else { return true };
        // When spinning began, and until when it goes on; longer as long as something moves.
        let mut spun = None;
        let mut helped = false;
        let is_done = loop {
            // Whoever has the input reads for all.
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
                    Ok(pumped) => Pumped { left, moved } = pumped,
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

impl Drive for Client {
    fn drive(&self, done: &dyn Fn() -> bool) {
        if !self.work(done) {
            self.ask();
        }
    }
}
