//! Messages between nodes, over links of [`base::rt::net`].
//!
//! 1. Each node listens, and keeps one link to every other member over which it only sends. The first message is a hello; each
//!    further one is a frame of Raft messages. A link that ends is made again after a while.
//!    The hello says where the sender listens, so that a node which is added can answer before it knows the members, and
//!    its incarnation. One whose log was lost is refused with one message, and the link's end ([`super::incarnations`]).
//! 2. The engine sends without waiting: what a link has no room for is dropped, and the crate is told that the other side
//!    cannot be reached. Raft is made for lost messages.
//! 3. A snapshot travels over a link of its own, in parts, and waits for room.
//!
//! 4. A link of kind 3 asks for what the machine keeps elsewhere: one message with a position, which is answered by the entries
//!    from there on, as many as there are, and the link's end.
//!
//! ```text
//! hello  magic u64 | group u64 | from u64 | to u64 | kind u32 (1 messages, 2 a snapshot, 3 entries) | address u32 |
//!        incarnation u64 | address of the sender
//! refusal  magic u64
//! frame  messages u32 | messages
//! part   bytes of one message that has a snapshot; the sender drops the link behind the last
//! ```
//!
//! Bounds: messages on a link ([`base::rt::net::LINK_MESSAGES_MAX`]), links that are accepted ([`LINKS_MAX`]), how long one may say
//! nothing before its hello ([`HELLO_MAX`]) or within a snapshot ([`PART_MAX`]), frames ([`FRAME_MESSAGES_MAX`]), a snapshot
//! ([`super::Options::snapshot_bytes_max`]).
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Duration;

use base::bytes::BufMut as _;
use base::rt::channel::Sender;
use base::rt::net::{self, Door, Link, LinkReceiver, LinkSender, Listener, Parties};
use base::rt::{self, Stop};
use base::untrusted::Allowance;
use base::{Bytes, BytesMut};
use raft::eraftpb::Message;

use super::codec::{self, Reader};
use super::engine::{Event, check_snapshot};
use super::incarnations::Incarnations;
use crate::Error;

const MAGIC: u64 = u64::from_le_bytes(*b"HdlRaft2");
const REFUSAL: u64 = u64::from_le_bytes(*b"HdlRaftN");
const HELLO_BYTES: usize = 48;
/// Bytes of an address.
const ADDRESS_BYTES_MAX: usize = 4096;
pub(super) const KIND_MESSAGES: u32 = 1;
const KIND_SNAPSHOT: u32 = 2;
const KIND_ENTRIES: u32 = 3;
/// Messages of one frame.
pub(super) const FRAME_MESSAGES_MAX: usize = 1 << 14;
/// Links that are accepted at a time. A member beyond its share of them loses its oldest.
const LINKS_MAX: usize = 256;
/// Bytes of one part of a snapshot.
const PART_BYTES: usize = 1 << 20;
/// How long a node may take to say who it is.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// How long a part of what has many may be on its way, or wait for room.
const PART_MAX: Duration = Duration::from_secs(10);

/// Gives the entry at a position, for whoever lacks it.
pub(super) type Serve = Arc<dyn Fn(u64) -> Option<Bytes> + Send + Sync>;

/// Who is at both ends.
#[derive(Clone)]
pub(super) struct Ends {
    pub group: u64,
    pub from: u64,
    /// Which log the sender has.
    pub incarnation: u64,
    /// Where the sender listens.
    pub address: String,
    pub to: u64,
}

/// Who greets.
struct Greeting {
    from: u64,
    incarnation: u64,
    address: String,
    kind: u32,
}

pub(super) fn hello(ends: &Ends, kind: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HELLO_BYTES);
    for word in [MAGIC, ends.group, ends.from, ends.to] {
        bytes.put_u64_le(word);
    }
    bytes.put_u32_le(kind);
    bytes.put_u32_le(ends.address.len() as u32);
    bytes.put_u64_le(ends.incarnation);
    bytes.put_slice(ends.address.as_bytes());
    bytes.freeze()
}

/// Who sends, from where, and what comes; an error when it is not for this node.
fn understand(bytes: Bytes, group: u64, node: u64) -> Result<Greeting, Error> {
    let mut reader = Reader(bytes);
    if reader.u64()? != MAGIC {
        return Err(Error::Corrupt("the other side of a link does not speak Raft"));
    }
    let (its_group, from, to) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let kind = reader.u32()?;
    if (its_group, to) != (group, node) || !(KIND_MESSAGES..=KIND_ENTRIES).contains(&kind) {
        return Err(Error::Corrupt("a link is for another group or node"));
    }
    if from == 0 || from == node {
        return Err(Error::Corrupt("a link is from nobody, or from this node itself"));
    }
    let length = reader.u32()? as usize;
    if length > ADDRESS_BYTES_MAX {
        return Err(Error::Corrupt("the address of a member of a Raft group is too long"));
    }
    let incarnation = reader.u64()?;
    let address = String::from_utf8(reader.bytes(length)?.to_vec());
    let address = address.map_err(|_| Error::Corrupt("the address of a member of a Raft group is no text"))?;
    Ok(Greeting { from, incarnation, address, kind })
}

/// Makes a link to another member, again and again, and hands its sending half to the engine.
pub(super) async fn connect<O: Send + 'static>(
    address: String,
    ends: Ends,
    events: Sender<Event<O>>,
    pause: Duration,
    stop: Stop,
) {
    let attempts = async {
        loop {
            if let Ok(link) = net::connect(&address).await {
                let (sender, mut receiver) = link.split();
                if sender.send(hello(&ends, KIND_MESSAGES)).await.is_ok() {
                    if events.send(Event::Linked(ends.to, sender)).await.is_err() {
                        return;
                    }
                    // Nothing ever comes but a refusal and the end.
                    while let Ok(said) = receiver.receive().await {
                        if said.as_ref() == REFUSAL.to_le_bytes()
                            && events.send(Event::Disowned(ends.to)).await.is_err()
                        {
                            return;
                        }
                    }
                    if events.send(Event::Unlinked(ends.to)).await.is_err() {
                        return;
                    }
                }
            }
            rt::sleep(pause).await;
        }
    };
    stop.or_stopped(attempts).await;
}

/// Sends without waiting; false when it could not be sent.
pub(super) fn try_send(link: &LinkSender, frame: Bytes) -> bool {
    use futures_util::FutureExt as _;
    // Dropped before it completes, it has sent nothing.
    matches!(link.send(frame).now_or_never(), Some(Ok(())))
}

/// A frame with some messages.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub(super) fn frame(messages: &[Message]) -> Bytes {
    debug_assert!(messages.len() <= FRAME_MESSAGES_MAX);
    let bytes: usize = messages.iter().map(codec::message_bytes).sum();
    let mut frame = BytesMut::with_capacity(4 + bytes);
    frame.put_u32_le(messages.len() as u32);
    messages.iter().for_each(|message| codec::put_message(&mut frame, message));
    frame.freeze()
}

/// As a member that makes a link for messages.
#[cfg(test)]
pub(super) async fn greet(sender: &LinkSender, ends: &Ends) -> bool {
    sender.send(hello(ends, KIND_MESSAGES)).await.is_ok()
}

#[cfg(test)]
pub(super) fn decode(frame: Bytes) -> Result<Vec<Message>, Error> {
    messages(frame)
}

pub(super) fn messages(frame: Bytes) -> Result<Vec<Message>, Error> {
    let mut allowance = Allowance::authenticated(frame.len());
    let mut reader = Reader(frame);
    let count = reader.count(FRAME_MESSAGES_MAX)?;
    let mut messages = Vec::with_capacity(allowance.take(count, size_of::<Message>()).ok_or(codec::TOO_SMALL)?);
    for _ in 0..count {
        messages.push(codec::message(&mut reader, &mut allowance)?);
    }
    reader.end()?;
    Ok(messages)
}

/// Sends a message that has a snapshot; gives whether all of it was taken.
pub(super) async fn send_snapshot(address: &str, ends: Ends, message: Message) -> bool {
    let mut bytes = BytesMut::with_capacity(codec::message_bytes(&message));
    codec::put_message(&mut bytes, &message);
    let mut bytes = bytes.freeze();
    let Ok(Ok(link)) = rt::timeout(PART_MAX, net::connect(address)).await else { return false };
    let (sender, mut receiver) = link.split();
    if sender.send(hello(&ends, KIND_SNAPSHOT)).await.is_err() {
        return false;
    }
    while !bytes.is_empty() {
        let part = bytes.split_to(bytes.len().min(PART_BYTES));
        if !matches!(rt::timeout(PART_MAX, sender.send(part)).await, Ok(Ok(()))) {
            return false;
        }
    }
    drop(sender);
    // The other side drops its end when it has everything, and not before.
    rt::timeout(PART_MAX, async { while receiver.receive().await.is_ok() {} }).await.is_ok()
}

/// What whoever makes a link to a node meets there.
pub(super) struct Hall<O> {
    pub group: u64,
    pub node: u64,
    pub snapshot_bytes_max: usize,
    pub serve: Option<Serve>,
    pub incarnations: Arc<Incarnations>,
    pub events: Sender<Event<O>>,
}

/// Accepts links, and hands what arrives to the engine.
pub(super) async fn accept<O: Send + 'static>(listener: Listener, hall: Hall<O>, stop: Stop) {
    // Whoever bears the group's token is a member: the transport lets in nobody else.
    let mut door = Door::new(listener, &Parties::anyone(), LINKS_MAX);
    let hall = Arc::new(hall);
    while let Some(Ok((link, place))) = stop.or_stopped(door.accept()).await {
        let (hall, stop) = (Arc::clone(&hall), stop.clone());
        rt::spawn(async move {
            let receiving = receive(link, &hall);
            if let Some(Some(Err(error))) = stop.or_stopped(place.displaced().or_stopped(receiving)).await {
                tracing::warn!(%error, node = hall.node, "a link of a Raft group ends");
            }
        });
    }
}

async fn receive<O: Send + 'static>(link: Link, hall: &Hall<O>) -> Result<(), Error> {
    let Hall { group, node, snapshot_bytes_max, serve, incarnations, events } = hall;
    let (sender, mut receiver) = link.split();
    // Whoever says nothing takes a link from others.
    let Ok(Ok(first)) = rt::timeout(HELLO_MAX, receiver.receive()).await else { return Ok(()) };
    let Greeting { from, incarnation, address, kind } = understand(first, *group, *node)?;
    let wrong = Error::Corrupt("a Raft message tells of another sender or receiver");
    if kind == KIND_ENTRIES {
        let Ok(Ok(asked)) = rt::timeout(HELLO_MAX, receiver.receive()).await else { return Ok(()) };
        let first = Reader(asked).u64()?;
        let entries = serve.iter().flat_map(|serve| (first..u64::MAX).map_while(|position| serve(position)));
        for entry in entries {
            if !matches!(rt::timeout(PART_MAX, sender.send(entry)).await, Ok(Ok(()))) {
                break;
            }
        }
        return Ok(());
    }
    // Asking for entries promises nothing.
    if !incarnations.is_known(from, incarnation).await? {
        let _ = rt::timeout(PART_MAX, sender.send(Bytes::copy_from_slice(&REFUSAL.to_le_bytes()))).await;
        tracing::error!(from, node, "a member of the Raft group has lost its log, and nothing that it says is taken");
        return Ok(());
    }
    if kind == KIND_SNAPSHOT {
        let message = receive_snapshot(&mut receiver, *snapshot_bytes_max).await?;
        if (message.from, message.to) != (from, *node) {
            return Err(wrong);
        }
        check_snapshot(message.get_snapshot())?;
        // The engine has it before the sender learns so.
        let _ = events.send(Event::Received(vec![message])).await;
        drop(sender);
        return Ok(());
    }
    if events.send(Event::Met(from, address)).await.is_err() {
        return Ok(());
    }
    while let Ok(frame) = receiver.receive().await {
        let messages = messages(frame)?;
        if messages.iter().any(|message| (message.from, message.to) != (from, *node)) {
            return Err(wrong);
        }
        if events.send(Event::Received(messages)).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn receive_snapshot(receiver: &mut LinkReceiver, bytes_max: usize) -> Result<Message, Error> {
    let mut bytes = BytesMut::new();
    loop {
        let part = match rt::timeout(PART_MAX, receiver.receive()).await {
            Ok(Ok(part)) => part,
            Ok(Err(_)) => break,
            Err(_) => return Err(Error::Corrupt("a snapshot that does not go on")),
        };
        if bytes.len().saturating_add(part.len()) > bytes_max {
            return Err(Error::Corrupt("a snapshot is longer than this node takes"));
        }
        bytes.extend_from_slice(&part);
    }
    let mut allowance = Allowance::authenticated(bytes.len());
    let mut reader = Reader(bytes.freeze());
    let message = codec::message(&mut reader, &mut allowance)?;
    reader.end()?;
    Ok(message)
}

/// Entries that another member has, as they come.
pub(super) struct Fetching {
    receiver: LinkReceiver,
    _sender: LinkSender,
}

impl Fetching {
    /// The next one; nothing when there is no more, or it takes too long.
    pub async fn next(&mut self) -> Option<Bytes> {
        rt::timeout(PART_MAX, self.receiver.receive()).await.ok()?.ok()
    }
}

/// Asks another member for entries from a position on.
pub(super) async fn fetch(address: &str, (group, from): (u64, u64), to: u64, position: u64) -> Option<Fetching> {
    let link = rt::timeout(PART_MAX, net::connect(address)).await.ok()?.ok()?;
    let (sender, receiver) = link.split();
    let ends = Ends { group, from, incarnation: 0, address: String::new(), to };
    sender.send(hello(&ends, KIND_ENTRIES)).await.ok()?;
    sender.send(Bytes::copy_from_slice(&position.to_le_bytes())).await.ok()?;
    Some(Fetching { receiver, _sender: sender })
}
