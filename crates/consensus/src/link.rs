//! A processor's connection to a memory node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::rt;
use base::rt::sync::Mutex;
use base::{Bytes, BytesMut};
use rma::{Capability, Completion, Credential, Endpoint, Incoming};

use crate::layout::{ADMIN_BYTES, ADMIN_WORDS_BYTES, Admin, NODE_AT, TERM_AT};
use crate::message::{PROTOCOL_VERSION, Refusal, Reply, Request};
use crate::{Error, Group, Term};

/// Bytes of one read of many.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
/// Such reads of one node in flight.
const PIECES_MAX: usize = 16;

/// A connection, from its hello to its end.
pub(crate) struct Link {
    pub endpoint: Endpoint,
    /// Which of the group's nodes.
    pub slot: usize,
    address: String,
    /// The life of the node that said welcome.
    pub life: u64,
    /// It acknowledges only what its disk has.
    pub is_persistent: bool,
    admin: Capability,
    number: AtomicU32,
    turn: Mutex<()>,
}

/// Why a fence was not had.
#[derive(Debug)]
pub(crate) enum NotFenced {
    /// A newer term has the region.
    Newer(Term),
    /// No answer, or one that leaves it open.
    Unknown(Error),
}

impl Link {
    /// Connects and says hello.
    pub(crate) async fn connect(group: &Group, slot: usize) -> Result<Arc<Link>, Error> {
        let place = &group.nodes[slot];
        let credential = Credential { name: place.name.clone(), token: place.token.clone() };
        let connected = async {
            let endpoint = group.fabric.connect(&place.address, &credential).await.map_err(Error::rma("connecting"))?;
            let mut link = Link {
                endpoint,
                slot,
                address: place.address.clone(),
                life: 0,
                is_persistent: false,
                admin: Capability::decode(&[0; rma::CAPABILITY_BYTES]).expect("zeros are well-formed"),
                number: AtomicU32::new(1),
                turn: Mutex::default(),
            };
            let hello = Request::Hello { version: PROTOCOL_VERSION, group: group.id, layout: group.layout };
            match link.ask(&hello).await? {
                Reply::Welcome { version: PROTOCOL_VERSION, is_persistent, life, admin } => {
                    (link.life, link.is_persistent, link.admin) = (life, is_persistent, admin);
                    Ok(Arc::new(link))
                }
                Reply::Refused { text, .. } => Err(Error::Refused { address: link.address, reason: text }),
                _ => Err(Error::Corrupt("an answer to another question")),
            }
        };
        rt::timeout(group.timing.answer_max, connected).await.unwrap_or_else(|rt::Elapsed| {
            Err(Error::NoAnswer { address: place.address.clone(), reason: "timeout".into() })
        })
    }

    async fn ask(&self, request: &Request) -> Result<Reply, Error> {
        let _turn = self.turn.lock().await;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let lost = |error: rma::Error| Error::NoAnswer { address: self.address.clone(), reason: error.to_string() };
        let sent = self.endpoint.send(&[request.encode(number)]);
        self.endpoint.flush();
        sent.await.map_err(lost)?;
        loop {
            // An answer to an earlier question, whose asker has gone, is passed over.
            if let Incoming::Message(message) = self.endpoint.receive().await.map_err(lost)?
                && let (answers, reply) = Reply::decode(&message)?
                && (answers == number || answers == 0)
            {
                return Ok(reply);
            }
        }
    }

    /// Has every capability for the replicated region revoked, and gets a new one. A lost answer leaves it open whether
    /// that was done; asking again is safe.
    pub(crate) async fn fence(&self, group: &Group, term: Term, holder: u64) -> Result<Capability, NotFenced> {
        let asked = rt::timeout(group.timing.answer_max, self.ask(&Request::Fence { term, holder })).await;
        let no_answer = |reason: String| Error::NoAnswer { address: self.address.clone(), reason };
        match asked {
            Ok(Ok(Reply::Fenced { region })) => Ok(region),
            Ok(Ok(Reply::Refused { refusal: Refusal::Fenced, detail, .. })) => Err(NotFenced::Newer(Term(detail))),
            Ok(Ok(Reply::Refused { refusal: Refusal::Disputed, detail, text })) => {
                tracing::error!(term = detail, node = %self.address, "two coordinators of one term: {text}");
                Err(NotFenced::Newer(Term(detail)))
            }
            Ok(Ok(Reply::Refused { text, .. })) => Err(NotFenced::Unknown(no_answer(text))),
            Ok(Ok(_)) => Err(NotFenced::Unknown(Error::Corrupt("an answer to another question"))),
            Ok(Err(error)) => Err(NotFenced::Unknown(error)),
            Err(rt::Elapsed) => Err(NotFenced::Unknown(no_answer("timeout".to_owned()))),
        }
    }

    /// Has a persistent node make writes durable, which are posted too; on return its disk has them, and all before.
    pub(crate) async fn keep(
        &self,
        group: &Group,
        reign: Reign,
        admitted: bool,
        writes: Vec<(u64, Bytes)>,
    ) -> Result<(), rma::Error> {
        let keep = Request::Keep { term: reign.term, holder: reign.holder, admitted, writes };
        match rt::timeout(group.timing.answer_max, self.ask(&keep)).await {
            Ok(Ok(Reply::Kept)) => Ok(()),
            Ok(Ok(Reply::Refused { refusal, text, .. })) => {
                tracing::debug!(node = %self.address, ?refusal, "writes are not kept: {text}");
                Err(if refusal == Refusal::Fenced { rma::Error::Revoked } else { rma::Error::Refused(text) })
            }
            Ok(Ok(_)) => Err(rma::Error::Malformed("an answer to another question")),
            Ok(Err(error)) => {
                tracing::debug!(node = %self.address, %error, "writes are perhaps not kept");
                Err(rma::Error::Ambiguous("a node does not say whether it keeps what it was told"))
            }
            Err(rt::Elapsed) => Err(rma::Error::Ambiguous("a node's disk takes too long")),
        }
    }

    /// Reads the administrative words.
    pub(crate) async fn read_admin(&self) -> Result<Admin, Error> {
        let into = BytesMut::with_capacity(ADMIN_WORDS_BYTES);
        let read = self.endpoint.read(&self.admin, 0, ADMIN_WORDS_BYTES, into);
        self.endpoint.flush();
        Admin::decode(&read.await.map_err(Error::rma("reading a node's words"))?)
    }

    /// Puts a term where another stands; gives what stood there.
    pub(crate) fn swap_term(&self, expected: Term, new: Term) -> Completion<u64> {
        let swap = self.endpoint.compare_swap(&self.admin, TERM_AT, expected.0, new.0);
        self.endpoint.flush();
        swap
    }

    /// Writes node and timestamp: a heartbeat.
    pub(crate) fn beat(&self, node: u64, timestamp: u64) -> Completion<()> {
        let mut words = BytesMut::with_capacity(16);
        words.extend_from_slice(&node.to_le_bytes());
        words.extend_from_slice(&timestamp.to_le_bytes());
        self.write_admin(NODE_AT, words.freeze())
    }

    /// Writes a word or more of the administrative region.
    pub(crate) fn write_admin(&self, at: u64, bytes: Bytes) -> Completion<()> {
        assert!(at + bytes.len() as u64 <= ADMIN_BYTES, "words that are there");
        let written = self.endpoint.write(&self.admin, at, &[bytes]);
        self.endpoint.flush();
        written
    }
}

/// As whom a region was fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reign {
    pub term: Term,
    pub holder: u64,
}

/// A node whose replicated region this processor holds.
#[derive(Clone)]
pub(crate) struct Held {
    pub link: Arc<Link>,
    pub region: Capability,
    pub reign: Reign,
}

impl Held {
    pub(crate) fn read(&self, at: u64, length: usize) -> Completion<BytesMut> {
        self.link.endpoint.read(&self.region, at, length, BytesMut::with_capacity(length))
    }

    pub(crate) fn write(&self, at: u64, parts: &[Bytes]) -> Completion<()> {
        self.link.endpoint.write(&self.region, at, parts)
    }

    /// Has a persistent node make writes durable; nothing at any other.
    pub(crate) async fn keep(
        &self,
        group: &Group,
        admitted: bool,
        writes: Vec<(u64, Bytes)>,
    ) -> Result<(), rma::Error> {
        match self.link.is_persistent {
            true => self.link.keep(group, self.reign, admitted, writes).await,
            false => Ok(()),
        }
    }

    /// Reads many bytes in verbs of bounded size, a bounded number of them in flight. Fails when no piece arrives for as long as the
    /// patience.
    pub(crate) async fn read_all(&self, at: u64, length: u64, patience: Duration) -> Result<Bytes, rma::Error> {
        let mut reads = VecDeque::new();
        // Pieces of one buffer: memory that is touched for the first time costs more than what is read into it.
        let mut rest = BytesMut::with_capacity(length as usize);
        let mut all = BytesMut::new();
        for from in (0..length).step_by(PIECE_BYTES as usize) {
            if reads.len() >= PIECES_MAX
                && let Some(first) = reads.pop_front()
            {
                self.link.endpoint.flush();
                all.unsplit(within(first, patience).await?);
            }
            let bytes = PIECE_BYTES.min(length - from) as usize;
            let next = rest.split_off(bytes);
            let into = std::mem::replace(&mut rest, next);
            reads.push_back(self.link.endpoint.read(&self.region, at + from, bytes, into));
        }
        self.link.endpoint.flush();
        for read in reads {
            all.unsplit(within(read, patience).await?);
        }
        Ok(all.freeze())
    }
}

/// The outcome of a verb, or that the node says nothing for too long.
pub(crate) async fn within<T: Unpin>(verb: Completion<T>, patience: Duration) -> Result<T, rma::Error> {
    match verb.now() {
        Ok(outcome) => outcome,
        Err(verb) => rt::timeout(patience, verb).await.unwrap_or(Err(rma::Error::Ambiguous("a node says nothing"))),
    }
}
