//! The simulated network: links between nodes with seeded delays, which can break, stall and lose messages.
//!
//! 1. Each direction of a link has a queue of messages in flight. A sent message enters the queue with the time at
//!    which it will arrive, never earlier than that of the message before.
//! 2. At that time the message moves to the receiver's inbox. While the direction is cut, the whole queue stalls; when
//!    the cut heals, the messages get new arrival times.
//! 3. A link that is cut for a long time, or whose other end crashed, breaks by itself; each end learns of the break at
//!    its own time. Messages in flight are lost, and so are those that are sent until an end learns of the break: no message
//!    arrives behind a lost one.
//! 4. Queue and inbox together hold at most [`LINK_MESSAGES_MAX`]; a sender waits for space.

mod handle;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;

use super::ids::{Incarnation, LinkId, NodeId};
use super::timer::{TimerAction, nanos_of};
use super::trace::{TraceEvent, content_of};
use super::world::WorldCore;
use crate::rt::net::{BACKLOG_LINKS_MAX, LINK_MESSAGES_MAX};

pub(in crate::rt) use handle::{LinkReceiver, LinkSender, Listener, connect, listen};

/// How long until an end of a link notices by itself that no message comes through.
const BREAK_DETECTION_DELAY: Range<Duration> = Duration::from_millis(300)..Duration::from_secs(3);
/// How long until an unanswered connection attempt fails.
const CONNECT_TIMEOUT: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(3);
/// One message in this many is slow.
const SLOW_ONE_IN: u64 = 100;
/// The factor by which a slow message takes longer.
const SLOW_FACTOR: u32 = 20;

#[derive(Default)]
pub(super) struct NetworkState {
    listeners: BTreeMap<String, ListenerState>,
    links: BTreeMap<LinkId, LinkState>,
    links_made: u64,
    /// Directions that are cut, each with the number of the cut.
    cuts: BTreeMap<(NodeId, NodeId), u64>,
    cuts_made: u64,
}

struct ListenerState {
    incarnation: Incarnation,
    backlog: VecDeque<LinkId>,
    waker: Option<Waker>,
}

struct LinkState {
    ends: [LinkEnd; 2],
}

/// One end of a link, and the messages in transit to it.
struct LinkEnd {
    life: Incarnation,
    /// Messages in transit to this end, with due times; `None` is the end of the other end's stream.
    flight: VecDeque<(u64, Option<Bytes>)>,
    inbox: VecDeque<Bytes>,
    /// A message to this end was lost, so no later one arrives.
    has_lost: bool,
    /// The end of the other end's stream has arrived.
    finished: bool,
    /// This end has noticed that the link is broken.
    broken: bool,
    /// This end has noticed that the other end receives no more.
    refused: bool,
    sender_gone: bool,
    receiver_gone: bool,
    receive_waker: Option<Waker>,
    /// Wakers of this end's senders, which wait for space at the other end.
    room_wakers: Vec<Waker>,
}

/// A future event of the network.
pub(super) enum NetEvent {
    /// The messages that are due in the flight towards a side arrive.
    Deliver { link: LinkId, side: usize },
    /// A side notices that the link is broken.
    Break { link: LinkId, side: usize },
    /// A side notices that the other end receives no more.
    Refuse { link: LinkId, side: usize },
    /// A link that is still cut by the same cut breaks.
    GiveUp { link: LinkId, direction: (NodeId, NodeId), cut: u64 },
}

impl LinkEnd {
    fn new(life: Incarnation) -> LinkEnd {
        LinkEnd {
            life,
            flight: VecDeque::new(),
            inbox: VecDeque::new(),
            has_lost: false,
            finished: false,
            broken: false,
            refused: false,
            sender_gone: false,
            receiver_gone: false,
            receive_waker: None,
            room_wakers: Vec::new(),
        }
    }

    fn wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.receive_waker.take().into_iter().chain(std::mem::take(&mut self.room_wakers))
    }
}

impl WorldCore {
    /// The time that a message takes.
    pub(super) fn message_delay(&mut self) -> Duration {
        let range = self.settings.link_delay.clone();
        let delay = self.rng.duration(&range);
        if self.rng.one_in(SLOW_ONE_IN) { delay * SLOW_FACTOR } else { delay }
    }

    /// Whether messages from one node to another are stopped.
    pub(super) fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.net.cuts.contains_key(&(from, to))
    }

    pub(super) fn net_event(&mut self, event: NetEvent) {
        match event {
            NetEvent::Deliver { link, side } => self.deliver(link, side),
            NetEvent::Break { link, side } => self.break_end(link, side),
            NetEvent::Refuse { link, side } => self.refuse(link, side),
            NetEvent::GiveUp { link, direction, cut } => {
                if self.net.cuts.get(&direction) == Some(&cut) {
                    self.break_link(link);
                }
            }
        }
    }

    fn deliver(&mut self, link: LinkId, side: usize) {
        let Some(state) = self.net.links.get_mut(&link) else { return };
        let (from, to) = (state.ends[1 - side].life.node, state.ends[side].life.node);
        if self.net.cuts.contains_key(&(from, to)) {
            return; // The heal sets new due times.
        }
        let end = &mut state.ends[side];
        let mut arrived = false;
        while end.flight.front().is_some_and(|(due, _)| *due <= self.clock) {
            let (_, message) = end.flight.pop_front().expect("the front was just seen");
            arrived = true;
            match message {
                _ if end.receiver_gone || end.broken => {}
                Some(message) => end.inbox.push_back(message),
                None => end.finished = true,
            }
        }
        if arrived {
            self.deferred.extend(end.receive_waker.take());
            if end.receiver_gone {
                // Bytes that will not be received free space.
                self.deferred.extend(std::mem::take(&mut state.ends[1 - side].room_wakers));
            }
            self.record(TraceEvent::Delivered { link, side });
        }
    }

    fn refuse(&mut self, link: LinkId, side: usize) {
        let Some(state) = self.net.links.get(&link) else { return };
        let (from, to) = (state.ends[1 - side].life.node, state.ends[side].life.node);
        if self.is_cut(from, to) {
            self.after(Duration::from_millis(100), TimerAction::Net(NetEvent::Refuse { link, side }));
            return;
        }
        let state = self.net.links.get_mut(&link).expect("the link was just seen");
        state.ends[side].refused = true;
        self.deferred.extend(state.ends[side].wakers());
    }

    fn break_end(&mut self, link: LinkId, side: usize) {
        let Some(state) = self.net.links.get_mut(&link) else { return };
        let end = &mut state.ends[side];
        if !end.broken {
            end.broken = true;
            end.flight.clear();
            self.deferred.extend(end.wakers());
            self.record(TraceEvent::LinkEnded { link, side });
        }
    }

    /// Breaks a link: messages in flight are lost, and each end notices after its own delay.
    pub(super) fn break_link(&mut self, link: LinkId) {
        let Some(state) = self.net.links.get_mut(&link) else { return };
        for end in &mut state.ends {
            end.flight.clear();
            end.has_lost = true;
        }
        for side in 0..2 {
            let delay = self.message_delay();
            self.after(delay, TimerAction::Net(NetEvent::Break { link, side }));
        }
    }

    /// Breaks all links between two nodes.
    pub(super) fn break_links(&mut self, one: NodeId, other: NodeId) {
        for link in self.links_between(one, other) {
            self.break_link(link);
        }
    }

    fn links_between(&self, one: NodeId, other: NodeId) -> Vec<LinkId> {
        let joins = |state: &LinkState| {
            let nodes = [state.ends[0].life.node, state.ends[1].life.node];
            nodes == [one, other] || nodes == [other, one]
        };
        self.net.links.iter().filter(|(_, state)| joins(state)).map(|(link, _)| *link).collect()
    }

    /// Stops messages from one node to another until [`WorldCore::heal`].
    pub(super) fn cut(&mut self, from: NodeId, to: NodeId) {
        if from == to || self.is_cut(from, to) {
            return;
        }
        self.net.cuts_made += 1;
        let cut = self.net.cuts_made;
        self.net.cuts.insert((from, to), cut);
        for link in self.links_between(from, to) {
            // Some break at once, as when a switch resets them; most break only when they notice.
            let notice =
                if self.rng.one_in(4) { Duration::ZERO..Duration::from_millis(50) } else { BREAK_DETECTION_DELAY };
            let delay = self.rng.duration(&notice);
            self.after(delay, TimerAction::Net(NetEvent::GiveUp { link, direction: (from, to), cut }));
        }
    }

    /// Lets messages from one node to another through again; stalled messages continue.
    pub(super) fn heal(&mut self, from: NodeId, to: NodeId) {
        if self.net.cuts.remove(&(from, to)).is_none() {
            return;
        }
        for link in self.links_between(from, to) {
            for side in 0..2 {
                let stalled = self.net.links[&link].ends[side].flight.len();
                let mut due = self.clock;
                for place in 0..stalled {
                    due += nanos_of(self.message_delay()).max(1);
                    let state = self.net.links.get_mut(&link).expect("links between nodes exist");
                    state.ends[side].flight[place].0 = due;
                    self.at(due, TimerAction::Net(NetEvent::Deliver { link, side }));
                }
            }
        }
    }

    /// Heals every cut.
    pub(super) fn heal_all(&mut self) {
        let cuts: Vec<_> = self.net.cuts.keys().copied().collect();
        cuts.into_iter().for_each(|(from, to)| self.heal(from, to));
    }

    /// Ends the listeners and links of a node that has crashed.
    pub(super) fn crash_links(&mut self, node: NodeId) {
        let listeners = std::mem::take(&mut self.net.listeners);
        let (gone, kept) = listeners.into_iter().partition(|(_, listener)| listener.incarnation.node == node);
        self.net.listeners = kept;
        let gone: BTreeMap<String, ListenerState> = gone;
        self.deferred.extend(gone.into_values().filter_map(|listener| listener.waker));
        let links: Vec<LinkId> = self.net.links.keys().copied().collect();
        for link in links {
            for side in 0..2 {
                if self.net.links[&link].ends[side].life.node == node {
                    self.crash_end(link, side);
                }
            }
            self.forget_if_unused(link);
        }
    }

    fn crash_end(&mut self, link: LinkId, side: usize) {
        let state = self.net.links.get_mut(&link).expect("the caller has just seen the link");
        let end = &mut state.ends[side];
        if end.broken && end.sender_gone && end.receiver_gone {
            return;
        }
        (end.broken, end.sender_gone, end.receiver_gone) = (true, true, true);
        end.flight.clear();
        end.inbox.clear();
        self.deferred.extend(end.wakers());
        // A prefix of the messages that the crashed node had sent arrives.
        let on_the_way = state.ends[1 - side].flight.len();
        if on_the_way > 0 {
            let arriving = self.rng.index(on_the_way + 1);
            let state = self.net.links.get_mut(&link).expect("the link was just seen");
            state.ends[1 - side].flight.truncate(arriving);
        }
        let notice = if self.rng.one_in(2) { Duration::ZERO..Duration::from_millis(5) } else { BREAK_DETECTION_DELAY };
        let delay = self.rng.duration(&notice);
        self.after(delay, TimerAction::Net(NetEvent::Break { link, side: 1 - side }));
    }

    /// Removes a link when both halves of both ends are dropped.
    fn forget_if_unused(&mut self, link: LinkId) {
        let unused = |state: &LinkState| state.ends.iter().all(|end| end.sender_gone && end.receiver_gone);
        if self.net.links.get(&link).is_some_and(unused) {
            let state = self.net.links.remove(&link).expect("the link was just seen");
            self.deferred.extend(state.ends.into_iter().flat_map(|mut end| end.wakers().collect::<Vec<_>>()));
        }
    }

    fn listen(&mut self, address: &str, life: Incarnation) -> io::Result<()> {
        if !self.is_alive(life) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the node has crashed"));
        }
        if self.net.listeners.contains_key(address) {
            let text = format!("another listener has the address {address}");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        let listener = ListenerState { incarnation: life, backlog: VecDeque::new(), waker: None };
        self.net.listeners.insert(address.to_owned(), listener);
        Ok(())
    }

    /// A new link from a node to a listener; the caller holds end 0.
    fn connect(&mut self, from: Incarnation, address: &str) -> Result<LinkId, io::ErrorKind> {
        let Some(listener) = self.net.listeners.get(address) else {
            return Err(io::ErrorKind::ConnectionRefused);
        };
        let to = listener.incarnation;
        let full = listener.backlog.len() >= BACKLOG_LINKS_MAX;
        if full || self.is_cut(from.node, to.node) || self.is_cut(to.node, from.node) || !self.is_alive(from) {
            return Err(io::ErrorKind::TimedOut);
        }
        let link = LinkId(self.net.links_made);
        self.net.links_made += 1;
        self.net.links.insert(link, LinkState { ends: [LinkEnd::new(from), LinkEnd::new(to)] });
        let listener = self.net.listeners.get_mut(address).expect("the listener was just seen");
        listener.backlog.push_back(link);
        self.deferred.extend(listener.waker.take());
        self.record(TraceEvent::Connected { link, from: from.node, to: to.node });
        Ok(link)
    }

    /// Sends a message, or the end of the stream, from a side to the other.
    fn launch(&mut self, link: LinkId, side: usize, message: Option<Bytes>) {
        let delay = nanos_of(self.message_delay());
        let state = self.net.links.get_mut(&link).expect("the caller has just seen the link");
        let end = &mut state.ends[1 - side];
        let earliest = end.flight.back().map_or(0, |(due, _)| *due);
        let due = (self.clock + delay).max(earliest + 1);
        let (length, content) = message.as_ref().map_or((0, 0), |bytes| (bytes.len() as u64, content_of(bytes)));
        if !end.has_lost {
            end.flight.push_back((due, message));
            self.at(due, TimerAction::Net(NetEvent::Deliver { link, side: 1 - side }));
        }
        self.record(TraceEvent::Sent { link, side, length, content });
    }

    fn has_capacity(&self, link: LinkId, side: usize) -> bool {
        let far = &self.net.links[&link].ends[1 - side];
        far.flight.len() + far.inbox.len() < LINK_MESSAGES_MAX
    }
}
