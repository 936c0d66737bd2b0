//! Messages between nodes, over links of [`base::rt::net`].
//!
//! 1. Each node listens, and opens one link to every other member, over which it only sends. The first message on a
//!    link is a hello, which the receiver answers with the version of the link ([`wire::hello`]); each further message
//!    is a frame of Raft messages. The sender does not wait for the answer. When a link ends, the node opens it again
//!    after a pause. The hello carries the sender's address and incarnation. The address lets a newly added node open a
//!    link back to the sender before it knows the members. If the incarnation shows that the sender has lost its log,
//!    the receiver sends a rejection after the answer, and the link ends ([`super::incarnations`]).
//! 2. The engine sends without waiting: if a link has no space for a message, the message is dropped, and the `raft`
//!    crate is informed that the receiver is unreachable. Raft tolerates lost messages.
//! 3. A snapshot is sent in parts over a separate link; its sender waits for space.
//! 4. A link of kind 3 (see below) requests entries of an ordered log, which a member keeps in its log store, outside
//!    the engine. The request names a position; the reply is every deliverable entry from there on, and then the link
//!    ends.
//!
//! ```text
//! hello  16 bytes (wire::hello) | group u64 | from u64 | to u64 | kind u32 (1 messages, 2 a snapshot, 3 entries) |
//!        address u32 | incarnation u64 | address of the sender
//! answer 12 bytes (wire::hello): the version of the link, or that both ends share no version; then the link ends
//! rejection  magic u64
//! frame  messages u32 | messages
//! part   bytes of one message that has a snapshot; the sender drops the link after the last part
//! ```
//!
//! Bounds: messages on a link ([`base::rt::net::LINK_MESSAGES_MAX`]), accepted links ([`LINKS_MAX`]), the wait for a
//! link's hello ([`HELLO_TIMEOUT`]) and for the next part of a snapshot ([`CHUNK_TIMEOUT`]), messages of a frame
//! ([`FRAME_MESSAGES_MAX`]), bytes of a snapshot ([`super::RaftConfig::snapshot_bytes_max`]).
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Duration;

use base::bytes::BufMut as _;
use base::rt::channel::Sender;
use base::rt::net::{self, Link, LinkAcceptor, LinkReceiver, LinkSender, Listener, Parties};
use base::rt::{self, CancellationToken};
use base::untrusted::AllocationBudget;
use base::{Bytes, BytesMut};
use raft_rs::eraftpb::Message;
use wire::hello::{Hello, HelloAnswer};
use wire::{Reader, VersionRange, Writer};

use super::codec;
use super::engine::{EngineEvent, check_snapshot};
use super::incarnations::Incarnations;
use crate::Error;

/// The versions of the messages that this program speaks.
pub(super) const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(2);
const PURPOSE: [u8; 8] = *b"HDLRRAFT";
const REJECTION: u64 = u64::from_le_bytes(*b"HdlRaftN");
/// Bytes of an address.
const ADDRESS_BYTES_MAX: usize = 4096;
pub(super) const KIND_MESSAGES: u32 = 1;
const KIND_SNAPSHOT: u32 = 2;
const KIND_ENTRIES: u32 = 3;
/// Messages of one frame.
pub(super) const FRAME_MESSAGES_MAX: usize = 1 << 14;
/// Links that are accepted at a time. A member beyond its share of them loses its oldest link.
const LINKS_MAX: usize = 256;
/// Bytes of one part of a snapshot.
const CHUNK_BYTES: usize = 1 << 20;
/// How long a node may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one part of a longer transfer may be in flight, or wait for space.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the entry at a position, for members that lack it.
pub type ServeEntry = Arc<dyn Fn(u64) -> Option<Bytes> + Send + Sync>;

/// The two ends of a link.
#[derive(Clone)]
pub(super) struct LinkEndpoints {
    pub group: u64,
    pub from: u64,
    /// The incarnation of the sender's log.
    pub incarnation: u64,
    /// The address at which the sender listens.
    pub address: String,
    pub to: u64,
}

/// The content of a hello.
struct MemberHello {
    from: u64,
    incarnation: u64,
    address: String,
    kind: u32,
}

pub(super) fn hello(ends: &LinkEndpoints, kind: u32) -> Bytes {
    let mut writer = Writer::with_capacity(64);
    writer.put(&Hello { purpose: PURPOSE, versions: PROTOCOL_VERSIONS }.encode());
    writer.u64s([ends.group, ends.from, ends.to]).u32(kind).u32(ends.address.len() as u32);
    writer.u64(ends.incarnation).put(ends.address.as_bytes()).done()
}

/// The answer to a hello, if these are its bytes. A node of another version refuses, and ends the link.
fn check_answer(bytes: &[u8], ends: &LinkEndpoints) -> Result<(), Error> {
    let mut reader = Reader::new(bytes);
    let answer = HelloAnswer::read(&mut reader)?;
    reader.end()?;
    if let Err(mismatch) = answer.chosen_by(PROTOCOL_VERSIONS) {
        tracing::warn!(node = ends.from, member = ends.to, %mismatch, "a member of the Raft group speaks other versions");
        return Err(Error::Invalid(mismatch.to_string()));
    }
    Ok(())
}

/// Decodes a hello behind its range of versions; an error when it is not for this node.
fn decode_hello(reader: &mut Reader<Bytes>, group: u64, node: u64) -> Result<MemberHello, Error> {
    let (its_group, from, to) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let kind = reader.u32()?;
    if (its_group, to) != (group, node) || !(KIND_MESSAGES..=KIND_ENTRIES).contains(&kind) {
        return Err(Error::Corrupt("a link is for another group or node"));
    }
    if from == 0 || from == node {
        return Err(Error::Corrupt("a link names no sender, or this node as its sender"));
    }
    let length = reader.u32()? as usize;
    if length > ADDRESS_BYTES_MAX {
        return Err(Error::Corrupt("the address of a member of a Raft group is too long"));
    }
    let incarnation = reader.u64()?;
    let address = String::from_utf8(reader.bytes(length)?.to_vec());
    let address = address.map_err(|_| Error::Corrupt("the address of a member of a Raft group is not UTF-8"))?;
    Ok(MemberHello { from, incarnation, address, kind })
}

/// Opens a link to another member, again and again, and hands its sending half to the engine.
pub(super) async fn connect<O: Send + 'static>(
    address: String,
    ends: LinkEndpoints,
    events: Sender<EngineEvent<O>>,
    pause: Duration,
    stop: CancellationToken,
) {
    let attempts = async {
        loop {
            if let Ok(link) = net::connect(&address).await {
                let (sender, mut receiver) = link.split();
                if sender.send(hello(&ends, KIND_MESSAGES)).await.is_ok() {
                    if events.send(EngineEvent::Linked(ends.to, sender)).await.is_err() {
                        return;
                    }
                    // Nothing ever arrives but the answer to the hello, a rejection and the end of the link.
                    while let Ok(said) = receiver.receive().await {
                        let _ = check_answer(&said, &ends);
                        if said.as_ref() == REJECTION.to_le_bytes()
                            && events.send(EngineEvent::Disowned(ends.to)).await.is_err()
                        {
                            return;
                        }
                    }
                    if events.send(EngineEvent::Unlinked(ends.to)).await.is_err() {
                        return;
                    }
                }
            }
            rt::sleep(pause).await;
        }
    };
    stop.run_until_cancelled(attempts).await;
}

/// Sends without waiting; returns false if the message could not be sent.
pub(super) fn try_send(link: &LinkSender, frame: Bytes) -> bool {
    use futures_util::FutureExt as _;
    // A future that is dropped before it completes has sent nothing.
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

/// Sends the hello of a member that opens a link for messages.
#[cfg(test)]
pub(super) async fn greet(sender: &LinkSender, ends: &LinkEndpoints) -> bool {
    sender.send(hello(ends, KIND_MESSAGES)).await.is_ok()
}

#[cfg(test)]
pub(super) fn decode(frame: Bytes) -> Result<Vec<Message>, Error> {
    messages(frame)
}

pub(super) fn messages(frame: Bytes) -> Result<Vec<Message>, Error> {
    let mut allowance = AllocationBudget::authenticated(frame.len());
    let mut reader = Reader::new(frame);
    let count = reader.count(1, FRAME_MESSAGES_MAX)?;
    let mut messages = Vec::with_capacity(allowance.take(count, size_of::<Message>()).ok_or(codec::TOO_SMALL)?);
    for _ in 0..count {
        messages.push(codec::message(&mut reader, &mut allowance)?);
    }
    reader.end()?;
    Ok(messages)
}

/// Sends a message that has a snapshot; returns whether all of it was received.
pub(super) async fn send_snapshot(address: &str, ends: LinkEndpoints, message: Message) -> bool {
    let mut bytes = BytesMut::with_capacity(codec::message_bytes(&message));
    codec::put_message(&mut bytes, &message);
    let mut bytes = bytes.freeze();
    let Ok(Ok(link)) = rt::timeout(CHUNK_TIMEOUT, net::connect(address)).await else { return false };
    let (sender, mut receiver) = link.split();
    if sender.send(hello(&ends, KIND_SNAPSHOT)).await.is_err() {
        return false;
    }
    while !bytes.is_empty() {
        let part = bytes.split_to(bytes.len().min(CHUNK_BYTES));
        if !matches!(rt::timeout(CHUNK_TIMEOUT, sender.send(part)).await, Ok(Ok(()))) {
            return false;
        }
    }
    drop(sender);
    // The other node drops its end only when it has received everything.
    let received = async {
        while let Ok(said) = receiver.receive().await {
            if matches!(check_answer(&said, &ends), Err(Error::Invalid(_))) {
                return false;
            }
        }
        true
    };
    rt::timeout(CHUNK_TIMEOUT, received).await.unwrap_or(false)
}

/// The context of the links that a node accepts.
pub(super) struct AcceptContext<O> {
    pub group: u64,
    pub node: u64,
    pub snapshot_bytes_max: usize,
    pub serve: Option<ServeEntry>,
    pub incarnations: Arc<Incarnations>,
    pub events: Sender<EngineEvent<O>>,
}

/// Accepts links, and hands what arrives to the engine.
pub(super) async fn accept<O: Send + 'static>(listener: Listener, hall: AcceptContext<O>, stop: CancellationToken) {
    // The transport admits only holders of the group's token, which are members.
    let mut door = LinkAcceptor::new(listener, &Parties::anyone(), LINKS_MAX);
    let hall = Arc::new(hall);
    while let Some(Ok((link, place))) = stop.run_until_cancelled(door.accept()).await {
        let (hall, stop) = (Arc::clone(&hall), stop.clone());
        rt::spawn(async move {
            let receiving = receive(link, &hall);
            if let Some(Some(Err(error))) =
                stop.run_until_cancelled(place.displaced().run_until_cancelled(receiving)).await
            {
                tracing::warn!(%error, node = hall.node, "a link of a Raft group ends");
            }
        });
    }
}

async fn receive<O: Send + 'static>(link: Link, hall: &AcceptContext<O>) -> Result<(), Error> {
    let AcceptContext { group, node, snapshot_bytes_max, serve, incarnations, events } = hall;
    let (sender, mut receiver) = link.split();
    // A silent link takes capacity from others.
    let Ok(Ok(first)) = rt::timeout(HELLO_TIMEOUT, receiver.receive()).await else { return Ok(()) };
    let mut first = Reader::new(first);
    let Hello { versions, .. } = Hello::read(&mut first, PURPOSE)?;
    let answer = HelloAnswer::to(PROTOCOL_VERSIONS, versions);
    let _ = rt::timeout(CHUNK_TIMEOUT, sender.send(Bytes::copy_from_slice(&answer.encode()))).await;
    PROTOCOL_VERSIONS.choose(versions).map_err(|mismatch| Error::Invalid(mismatch.to_string()))?;
    let MemberHello { from, incarnation, address, kind } = decode_hello(&mut first, *group, *node)?;
    let wrong = Error::Corrupt("a Raft message names another sender or receiver than its link");
    if kind == KIND_ENTRIES {
        let Ok(Ok(asked)) = rt::timeout(HELLO_TIMEOUT, receiver.receive()).await else { return Ok(()) };
        let first = Reader::new(asked).u64()?;
        let entries = serve.iter().flat_map(|serve| (first..u64::MAX).map_while(|position| serve(position)));
        for entry in entries {
            if !matches!(rt::timeout(CHUNK_TIMEOUT, sender.send(entry)).await, Ok(Ok(()))) {
                break;
            }
        }
        return Ok(());
    }
    // A request for entries promises nothing.
    if !incarnations.is_known(from, incarnation).await? {
        let _ = rt::timeout(CHUNK_TIMEOUT, sender.send(Bytes::copy_from_slice(&REJECTION.to_le_bytes()))).await;
        tracing::error!(from, node, "a member of the Raft group has lost its log, and its messages are ignored");
        return Ok(());
    }
    if kind == KIND_SNAPSHOT {
        let message = receive_snapshot(&mut receiver, *snapshot_bytes_max).await?;
        if (message.from, message.to) != (from, *node) {
            return Err(wrong);
        }
        check_snapshot(message.get_snapshot())?;
        // The engine has the message before the sender learns of it.
        let _ = events.send(EngineEvent::Received(vec![message])).await;
        drop(sender);
        return Ok(());
    }
    if events.send(EngineEvent::AddressLearned(from, address)).await.is_err() {
        return Ok(());
    }
    while let Ok(frame) = receiver.receive().await {
        let messages = messages(frame)?;
        if messages.iter().any(|message| (message.from, message.to) != (from, *node)) {
            return Err(wrong);
        }
        if events.send(EngineEvent::Received(messages)).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn receive_snapshot(receiver: &mut LinkReceiver, bytes_max: usize) -> Result<Message, Error> {
    let mut bytes = BytesMut::new();
    loop {
        let part = match rt::timeout(CHUNK_TIMEOUT, receiver.receive()).await {
            Ok(Ok(part)) => part,
            Ok(Err(_)) => break,
            Err(_) => return Err(Error::Corrupt("a snapshot has stopped arriving")),
        };
        if bytes.len().saturating_add(part.len()) > bytes_max {
            return Err(Error::Corrupt("a snapshot is longer than this node's limit"));
        }
        bytes.extend_from_slice(&part);
    }
    let mut allowance = AllocationBudget::authenticated(bytes.len());
    let mut reader = Reader::new(bytes.freeze());
    let message = codec::message(&mut reader, &mut allowance)?;
    reader.end()?;
    Ok(message)
}

/// Entries of another member, as they arrive.
pub struct EntryStream {
    receiver: LinkReceiver,
    _sender: LinkSender,
}

impl EntryStream {
    /// The next entry; `None` when there are no more, or it takes too long.
    pub async fn next(&mut self) -> Option<Bytes> {
        rt::timeout(CHUNK_TIMEOUT, self.receiver.receive()).await.ok()?.ok()
    }
}

/// Asks a member `to`, at an address, for entries of the group from a position on, on behalf of the member `from`; `None` when
/// it does not answer. Dropping the future is safe.
pub async fn fetch(address: &str, (group, from): (u64, u64), to: u64, position: u64) -> Option<EntryStream> {
    let link = rt::timeout(CHUNK_TIMEOUT, net::connect(address)).await.ok()?.ok()?;
    let (sender, mut receiver) = link.split();
    let ends = LinkEndpoints { group, from, incarnation: 0, address: String::new(), to };
    sender.send(hello(&ends, KIND_ENTRIES)).await.ok()?;
    sender.send(Bytes::copy_from_slice(&position.to_le_bytes())).await.ok()?;
    let answer = rt::timeout(HELLO_TIMEOUT, receiver.receive()).await.ok()?.ok()?;
    check_answer(&answer, &ends).ok()?;
    Some(EntryStream { receiver, _sender: sender })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> LinkEndpoints {
        LinkEndpoints { group: 7, from: 1, incarnation: 9, address: "a:1".to_owned(), to: 2 }
    }

    #[test]
    fn a_hello_has_the_documented_layout() {
        let hello = hello(&ends(), KIND_MESSAGES);
        let mut golden = b"HDLRRAFT\x02\0\0\0\x02\0\0\0".to_vec();
        [7_u64, 1, 2].iter().for_each(|word| golden.extend(word.to_le_bytes()));
        golden.extend(b"\x01\0\0\0\x03\0\0\0\x09\0\0\0\0\0\0\0a:1");
        assert_eq!(hello[..], golden);
        let mut reader = Reader::new(hello);
        assert_eq!(Hello::read(&mut reader, PURPOSE).map(|hello| hello.versions), Ok(PROTOCOL_VERSIONS));
        let read = decode_hello(&mut reader, 7, 2).expect("it is for this node");
        assert_eq!((read.from, read.incarnation, read.address.as_str(), read.kind), (1, 9, "a:1", KIND_MESSAGES));
    }

    #[test]
    fn an_answer_of_another_version_is_told_from_a_rejection() {
        let answer = HelloAnswer::to(PROTOCOL_VERSIONS, PROTOCOL_VERSIONS).encode();
        assert_eq!(check_answer(&answer, &ends()), Ok(()));
        let newer = HelloAnswer::refuse(VersionRange::new(3, 4)).encode();
        assert!(
            matches!(check_answer(&newer, &ends()), Err(Error::Invalid(what)) if what.contains("upgrade this side"))
        );
        assert!(matches!(check_answer(&REJECTION.to_le_bytes(), &ends()), Err(Error::Corrupt(_))));
    }
}
