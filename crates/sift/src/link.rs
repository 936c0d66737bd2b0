//! A CPU node's connection to a memory node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::rt;
use base::rt::sync::Mutex;
use base::{Bytes, BytesMut, FenceToken};
use rma::{Capability, Completion, Credential, Endpoint, IncomingEvent};
use wire::hello::VersionMismatch;

use crate::layout::{ADMIN_BYTES, ADMIN_WORDS_BYTES, AdminWords, NODE_AT, TERM_AT};
use crate::message::{PROTOCOL_VERSIONS, Rejection, Request, Response};
use crate::{Error, SiftGroup, Term};

/// Bytes of one chunk of a large read.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks in flight from one node.
const CHUNKS_MAX: usize = 16;

/// A connection, from its hello to its end.
pub(crate) struct MemoryNodeLink {
    pub endpoint: Endpoint,
    /// The node's index in the group.
    pub slot: usize,
    address: String,
    /// The incarnation of the node that sent the welcome.
    pub incarnation: u64,
    /// The node acknowledges a write only when its disk has it.
    pub is_persistent: bool,
    admin: Capability,
    number: AtomicU32,
    turn: Mutex<()>,
}

/// Why a fence failed.
#[derive(Debug)]
pub(crate) enum FenceError {
    /// A newer term owns the region.
    Newer(Term),
    /// No answer, or an answer that leaves the outcome open.
    Unknown(Error),
}

impl MemoryNodeLink {
    /// Connects and says hello.
    pub(crate) async fn connect(group: &SiftGroup, slot: usize) -> Result<Arc<MemoryNodeLink>, Error> {
        let place = &group.nodes[slot];
        let credential = Credential { name: place.name.clone(), token: place.token.clone() };
        let connected = async {
            let endpoint =
                group.provider.connect(&place.address, &credential).await.map_err(Error::rma("connecting"))?;
            let mut link = MemoryNodeLink {
                endpoint,
                slot,
                address: place.address.clone(),
                incarnation: 0,
                is_persistent: false,
                admin: Capability::decode(&[0; rma::CAPABILITY_BYTES]).expect("zeros are well-formed"),
                number: AtomicU32::new(1),
                turn: Mutex::default(),
            };
            let hello = Request::Hello { versions: PROTOCOL_VERSIONS, group: group.id, layout: group.layout };
            match link.request(&hello).await? {
                Response::OtherVersions(hello) => {
                    let mismatch = VersionMismatch { ours: PROTOCOL_VERSIONS, theirs: hello.versions() };
                    Err(Error::Rejected { address: link.address, reason: mismatch.to_string() })
                }
                Response::Welcome { is_persistent, incarnation: life, admin, .. } => {
                    (link.incarnation, link.is_persistent, link.admin) = (life, is_persistent, admin);
                    Ok(Arc::new(link))
                }
                Response::Rejected { text, .. } => Err(Error::Rejected { address: link.address, reason: text }),
                _ => Err(Error::Corrupt("an answer that does not match the request")),
            }
        };
        rt::timeout(group.timing.answer_max, connected).await.unwrap_or_else(|rt::Elapsed| {
            Err(Error::NoAnswer { address: place.address.clone(), reason: "timeout".into() })
        })
    }

    async fn request(&self, request: &Request) -> Result<Response, Error> {
        let _turn = self.turn.lock().await;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let lost = |error: rma::Error| Error::NoAnswer { address: self.address.clone(), reason: error.to_string() };
        let sent = self.endpoint.send(&[request.encode(number)]);
        self.endpoint.flush();
        sent.await.map_err(lost)?;
        loop {
            // Skip answers to earlier requests, whose callers have gone.
            if let IncomingEvent::Message(message) = self.endpoint.receive().await.map_err(lost)?
                && let (answers, reply) = Response::decode(&message)?
                && (answers == number || answers == 0)
            {
                return Ok(reply);
            }
        }
    }

    /// Makes the node revoke every capability for its replicated region, and gets a new one. After a lost answer it is
    /// open whether the node did that; asking again is safe.
    pub(crate) async fn fence(&self, group: &SiftGroup, term: Term, nonce: u64) -> Result<Capability, FenceError> {
        let asked = rt::timeout(group.timing.answer_max, self.request(&Request::Fence { term, nonce })).await;
        let no_answer = |reason: String| Error::NoAnswer { address: self.address.clone(), reason };
        match asked {
            Ok(Ok(Response::Fenced { region })) => Ok(region),
            Ok(Ok(Response::Rejected { rejection: Rejection::Fenced, detail, .. })) => {
                Err(FenceError::Newer(Term(detail)))
            }
            Ok(Ok(Response::Rejected { rejection: Rejection::Disputed, detail, text })) => {
                tracing::error!(term = detail, node = %self.address, "two coordinators of one term: {text}");
                Err(FenceError::Newer(Term(detail)))
            }
            Ok(Ok(Response::Rejected { text, .. })) => Err(FenceError::Unknown(no_answer(text))),
            Ok(Ok(_)) => Err(FenceError::Unknown(Error::Corrupt("an answer that does not match the request"))),
            Ok(Err(error)) => Err(FenceError::Unknown(error)),
            Err(rt::Elapsed) => Err(FenceError::Unknown(no_answer("timeout".to_owned()))),
        }
    }

    /// Makes writes durable at a persistent node; the caller also posts them as verbs. On return the node's disk has
    /// them and all earlier ones.
    pub(crate) async fn persist(
        &self,
        group: &SiftGroup,
        token: FenceToken,
        admitted: bool,
        writes: Vec<(u64, Bytes)>,
    ) -> Result<(), rma::Error> {
        let keep = Request::Persist { term: token.term, nonce: token.nonce, admitted, writes };
        match rt::timeout(group.timing.answer_max, self.request(&keep)).await {
            Ok(Ok(Response::Persisted)) => Ok(()),
            Ok(Ok(Response::Rejected { rejection: refusal, text, .. })) => {
                tracing::debug!(node = %self.address, ?refusal, "a persistent node rejects writes: {text}");
                Err(if refusal == Rejection::Fenced { rma::Error::Revoked } else { rma::Error::Rejected(text) })
            }
            Ok(Ok(_)) => Err(rma::Error::Malformed("an answer that does not match the request")),
            Ok(Err(error)) => {
                tracing::debug!(node = %self.address, %error, "a persistent node may not have stored writes");
                Err(rma::Error::Ambiguous("a persistent node did not confirm its writes"))
            }
            Err(rt::Elapsed) => Err(rma::Error::Ambiguous("a persistent node's disk takes too long")),
        }
    }

    /// Reads the administrative words.
    pub(crate) async fn read_admin(&self) -> Result<AdminWords, Error> {
        let into = BytesMut::with_capacity(ADMIN_WORDS_BYTES);
        let read = self.endpoint.read(&self.admin, 0, ADMIN_WORDS_BYTES, into);
        self.endpoint.flush();
        AdminWords::decode(&read.await.map_err(Error::rma("reading a node's words"))?)
    }

    /// Compare-and-swaps the node's term; returns the old value.
    pub(crate) fn swap_term(&self, expected: Term, new: Term) -> Completion<u64> {
        let swap = self.endpoint.compare_swap(&self.admin, TERM_AT, expected.0, new.0);
        self.endpoint.flush();
        swap
    }

    /// Writes node and timestamp: a heartbeat.
    pub(crate) fn heartbeat(&self, node: u64, timestamp: u64) -> Completion<()> {
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

/// A node that this CPU node has fenced, with the capability for its replicated region.
#[derive(Clone)]
pub(crate) struct FencedNode {
    pub link: Arc<MemoryNodeLink>,
    pub region: Capability,
    pub token: FenceToken,
}

impl FencedNode {
    pub(crate) fn read(&self, at: u64, length: usize) -> Completion<BytesMut> {
        self.link.endpoint.read(&self.region, at, length, BytesMut::with_capacity(length))
    }

    pub(crate) fn write(&self, at: u64, parts: &[Bytes]) -> Completion<()> {
        self.link.endpoint.write(&self.region, at, parts)
    }

    /// Makes writes durable at a persistent node; does nothing at any other.
    pub(crate) async fn keep(
        &self,
        group: &SiftGroup,
        admitted: bool,
        writes: Vec<(u64, Bytes)>,
    ) -> Result<(), rma::Error> {
        match self.link.is_persistent {
            true => self.link.persist(group, self.token, admitted, writes).await,
            false => Ok(()),
        }
    }

    /// Reads many bytes in verbs of bounded size, with a bounded number in flight. Fails when no chunk arrives for
    /// `timeout`.
    pub(crate) async fn read_all(&self, at: u64, length: u64, timeout: Duration) -> Result<Bytes, rma::Error> {
        let mut reads = VecDeque::new();
        // The chunks share one buffer: touching memory for the first time costs more than reading into it.
        let mut rest = BytesMut::with_capacity(length as usize);
        let mut all = BytesMut::new();
        for from in (0..length).step_by(CHUNK_BYTES as usize) {
            if reads.len() >= CHUNKS_MAX
                && let Some(first) = reads.pop_front()
            {
                self.link.endpoint.flush();
                all.unsplit(with_timeout(first, timeout).await?);
            }
            let bytes = CHUNK_BYTES.min(length - from) as usize;
            let next = rest.split_off(bytes);
            let into = std::mem::replace(&mut rest, next);
            reads.push_back(self.link.endpoint.read(&self.region, at + from, bytes, into));
        }
        self.link.endpoint.flush();
        for read in reads {
            all.unsplit(with_timeout(read, timeout).await?);
        }
        Ok(all.freeze())
    }
}

/// The outcome of a verb; an error if the node is silent for too long.
pub(crate) async fn with_timeout<T: Unpin>(verb: Completion<T>, timeout: Duration) -> Result<T, rma::Error> {
    match verb.now() {
        Ok(outcome) => outcome,
        Err(verb) => rt::timeout(timeout, verb).await.unwrap_or(Err(rma::Error::Ambiguous("the node did not answer"))),
    }
}
