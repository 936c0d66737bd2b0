//! Connections and the state of their two ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use base::rt::AbortOnDrop;

use super::NodeIncarnation;
use super::verb::{PostedVerb, VerbCompleter, VerbOutcome};
use crate::{Error, IncomingEvent};

/// The key of a connection.
pub(super) type ConnectionKey = u64;

/// One end of a connection: 0 is the client, 1 the accepted end.
pub(super) type EndIndex = usize;

/// A message or immediate data in transit.
pub(super) struct QueuedMessage {
    pub(super) due: u64,
    pub(super) incoming: IncomingEvent,
    /// `Some` when the sender waits for space.
    pub(super) completer: Option<VerbCompleter>,
}

#[derive(PartialEq, Eq)]
pub(super) enum EndPhase {
    /// In use.
    Open,
    /// Closed by its endpoint: posted verbs still arrive.
    Lingering,
    /// Lost: posted verbs may still arrive.
    Ended,
}

pub(super) struct SimEnd {
    pub incarnation: NodeIncarnation,
    pub(super) phase: EndPhase,
    pub(super) queue: VecDeque<PostedVerb>,
    pub(super) last_due: u64,
    /// The event that advances the queue; an older one is ignored.
    pub(super) alarm: u64,
    /// The front waits for space in the mail.
    pub(super) blocked: bool,
    /// Messages and immediates that have left the queue for the other end's inbox. Verbs overtake them.
    pub(super) messages: VecDeque<QueuedMessage>,
    /// The event that delivers mail; an older one is ignored.
    pub(super) message_alarm: u64,
    /// The mail waits for space in the other end's inbox.
    pub(super) messages_blocked: bool,
    pub(super) in_flight: usize,
    pub(super) completing: BTreeMap<(u64, u64), VerbOutcome>,
    pub(super) completions_made: u64,
    /// Verbs to a host that has ended: they get no answer.
    pub(super) lost: Vec<VerbOutcome>,
    pub(super) inbox: VecDeque<IncomingEvent>,
    pub(super) waker: Option<Waker>,
    /// The task that holds the link; it notices when the connection is lost.
    pub(super) monitor: Option<AbortOnDrop<()>>,
    /// An endpoint exists that may still receive.
    pub held: bool,
}

impl SimEnd {
    pub(super) fn new(place: NodeIncarnation) -> SimEnd {
        SimEnd {
            incarnation: place,
            phase: EndPhase::Open,
            queue: VecDeque::new(),
            last_due: 0,
            alarm: 0,
            blocked: false,
            messages: VecDeque::new(),
            message_alarm: 0,
            messages_blocked: false,
            in_flight: 0,
            completing: BTreeMap::new(),
            completions_made: 0,
            lost: Vec::new(),
            inbox: VecDeque::new(),
            waker: None,
            monitor: None,
            held: false,
        }
    }

    /// Drops the queue without effect; the posters learn that when the connection is lost.
    pub(super) fn lose_queue(&mut self) {
        let gone = self.queue.drain(..).filter_map(|posted| posted.completer);
        self.lost.extend(gone.map(|teller| teller.complete(Err(Error::Closed))));
    }

    pub(super) fn is_over(&self) -> bool {
        let sent = self.queue.is_empty() && self.messages.is_empty();
        self.phase == EndPhase::Ended && sent && (self.inbox.is_empty() || !self.held)
    }
}

pub(super) struct ConnectionRecord {
    pub host: u64,
    /// The name that the client has proved.
    pub(super) name: Arc<str>,
    pub ends: [SimEnd; 2],
}

impl ConnectionRecord {
    /// The end of `side`, and the other end.
    pub(super) fn both(&mut self, side: EndIndex) -> [&mut SimEnd; 2] {
        let [zero, one] = &mut self.ends;
        if side == 0 { [zero, one] } else { [one, zero] }
    }
}
