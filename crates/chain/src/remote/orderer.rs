//! Orderers elsewhere, as far as they take envelopes. Blocks come over links of their own ([`crate::order::protocol`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::call::{self, CallError, Caller, Handler};
use base::rt::net::{Parties, Parts};
use base::rt::sync::Mutex;
use base::rt::{self, Stop, net};
use base::{Bytes, ErrorKind};
use prost::Message as _;
use proto::common::Status;

use super::channel::call as ask_over;
use super::messages::{Answer, Ask, Envelope, Failure, Hello, Request, Welcome, decode};
use super::serve::{rejected, serve};
use super::{HELLO_MAX, REQUESTS_MAX, VERSION};
use crate::Error;
use crate::order::{Broadcast, BroadcastError};

/// Takes envelopes of `parties` at `address` until `stop`.
///
/// # Errors
/// If the address is taken.
pub async fn serve_orderer(
    orderer: Arc<dyn Broadcast>,
    address: &str,
    parties: &Parties,
    stop: Stop,
) -> Result<rt::Task<()>, Error> {
    let handler = Arc::new(Server { orderer });
    serve(address, parties, stop, move || handler.clone()).await
}

struct Server {
    orderer: Arc<dyn Broadcast>,
}

impl Handler for Server {
    fn request(&self, request: Parts) -> call::Answer {
        let orderer = self.orderer.clone();
        Box::pin(async move {
            let request =
                decode::<Request>(request.concat()).map_err(|error| rejected(format!("not a request: {error}")))?;
            match request.ask {
                Some(Ask::Hello(_)) => Ok(Welcome { version: VERSION, channels: Vec::new() }.encode_to_vec().into()),
                Some(Ask::Broadcast(Envelope { channel, envelope })) => {
                    let failure = orderer.broadcast(&channel, envelope).await.err();
                    let failure = failure.as_ref().map(Failure::of_broadcast);
                    Ok(Answer { result: Bytes::new(), failure }.encode_to_vec().into())
                }
                _ => Err(rejected("this is an orderer; it takes envelopes and nothing else".to_owned())),
            }
        })
    }
}

/// An orderer elsewhere. It is connected to when an envelope is there to be sent.
pub struct RemoteOrderer {
    address: String,
    parties: Parties,
    caller: Mutex<Option<Caller>>,
}

impl RemoteOrderer {
    /// An orderer at this address, of one of these parties: envelopes are given to nobody else.
    pub fn new(address: String, parties: Parties) -> RemoteOrderer {
        RemoteOrderer { address, parties, caller: Mutex::new(None) }
    }

    /// The link that is open, or a new one.
    async fn caller(&self) -> Result<Caller, BroadcastError> {
        // Those who come meanwhile wait here for the one attempt.
        let mut kept = self.caller.lock().await;
        if let Some(caller) = kept.as_ref().filter(|caller| !caller.has_ended()) {
            return Ok(caller.clone());
        }
        let connect = async {
            let link = net::connect_to(&self.address, &self.parties).await.map_err(|error| error.to_string())?;
            let caller = Caller::new(link, REQUESTS_MAX, drop);
            let welcome = ask_over(&caller, Ask::Hello(Hello { version: VERSION })).await;
            let welcome: Welcome = decode(welcome.map_err(|error| error.to_string())?).map_err(|e| e.to_string())?;
            if welcome.version == VERSION {
                Ok(caller)
            } else {
                let theirs = welcome.version;
                Err(format!("it speaks version {theirs}, this process {VERSION}; run the same release on both"))
            }
        };
        let connected = rt::timeout(HELLO_MAX, connect).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        let caller = connected.map_err(|reason| {
            tracing::warn!(orderer = self.address, reason, "an orderer cannot be reached");
            BroadcastError::Stopped
        })?;
        *kept = Some(caller.clone());
        Ok(caller)
    }
}

#[async_trait]
impl Broadcast for RemoteOrderer {
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError> {
        let caller = self.caller().await?;
        let ask = Ask::Broadcast(Envelope { channel: channel.to_owned(), envelope });
        let answer = ask_over(&caller, ask).await.map_err(|error| match error {
            // Never sent.
            CallError::Closed => BroadcastError::Stopped,
            CallError::Refused(refusal) if refusal.kind == ErrorKind::Rejected => {
                BroadcastError::Rejected { status: Status::BadRequest, reason: refusal.text }
            }
            _ => BroadcastError::Ambiguous,
        })?;
        match Answer::read(answer) {
            Ok(Answer { failure: None, .. }) => Ok(()),
            Ok(Answer { failure: Some(failure), .. }) => Err(failure.into_broadcast()),
            Err(_) => Err(BroadcastError::Ambiguous),
        }
    }
}

/// How long an envelope is tried at the orderers of a group: longer than it takes them to elect another leader.
pub const SUBMIT_MAX: Duration = Duration::from_secs(15);
/// How long one of several may take to answer before another is asked too: one that stands still answers nothing.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// Before all of them are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The orderers of a group, of which one leads.
///
/// 1. An envelope goes to the one that took the last, or that another one has named; from one that does not lead, has stopped,
///    cannot be reached, does not answer within [`ATTEMPT_MAX`] or cannot take any envelope now it goes on to the next.
/// 2. When all were asked in vain, they are asked again, for [`SUBMIT_MAX`]: they may be electing another leader.
/// 3. An orderer that ended while it had the envelope, or lost the lead, may have ordered it. It is sent again all the same: peers
///    mark the second of two transactions with one id, and the first decides what becomes of it. Whatever is said of it later,
///    nobody knows then.
///
/// So what was taken is ordered once at least, and counts once.
pub struct RemoteOrderers {
    /// Number `n` of the group, counted from 1, is the one at `n - 1` as long as none was removed.
    orderers: std::sync::Mutex<Arc<[Arc<RemoteOrderer>]>>,
    parties: Parties,
    leader: AtomicUsize,
}

impl RemoteOrderers {
    /// A group whose orderers are of these parties and answer at these addresses, in the order of their numbers; at least
    /// one.
    pub fn new(addresses: Vec<String>, parties: Parties) -> RemoteOrderers {
        assert!(!addresses.is_empty(), "a group has an orderer");
        let orderer = |address| Arc::new(RemoteOrderer::new(address, parties.clone()));
        let orderers = addresses.into_iter().map(orderer).collect();
        RemoteOrderers { orderers: std::sync::Mutex::new(orderers), parties, leader: AtomicUsize::new(0) }
    }

    fn now(&self) -> Arc<[Arc<RemoteOrderer>]> {
        self.orderers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on the group's orderers answer at these addresses, at least one. Those that stay keep their links; what is on its way to
    /// others goes on.
    pub fn set_addresses(&self, addresses: &[String]) {
        assert!(!addresses.is_empty(), "a group has an orderer");
        let before = self.now();
        let kept = |address: &String| before.iter().find(|orderer| orderer.address == *address).cloned();
        let new = |address: &String| Arc::new(RemoteOrderer::new(address.clone(), self.parties.clone()));
        let orderer = |address: &String| kept(address).unwrap_or_else(|| new(address));
        *self.orderers.lock().unwrap_or_else(PoisonError::into_inner) = addresses.iter().map(orderer).collect();
    }
}

#[async_trait]
impl Broadcast for RemoteOrderers {
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError> {
        let start = rt::now();
        let orderers = self.now();
        let count = orderers.len();
        let mut at = self.leader.load(Ordering::Relaxed) % count;
        let (mut asked, mut closed, mut is_ambiguous) = (0, 0, false);
        loop {
            let left = SUBMIT_MAX.saturating_sub(start.elapsed());
            let left = if count > 1 { left.min(ATTEMPT_MAX) } else { left };
            let broadcast = orderers[at].broadcast(channel, envelope.clone());
            let error = match rt::timeout(left, broadcast).await {
                Ok(Ok(())) => {
                    self.leader.store(at, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(Err(error)) => error,
                Err(rt::Elapsed) => {
                    // Nor is it asked first by those that come next.
                    self.leader.store((at + 1) % count, Ordering::Relaxed);
                    BroadcastError::Ambiguous
                }
            };
            is_ambiguous |= matches!(error, BroadcastError::Ambiguous);
            let is_final = match &error {
                // Of this orderer, and not of the envelope: unless all of them say so.
                BroadcastError::Rejected { status: Status::ServiceUnavailable | Status::NotFound, .. } => {
                    closed += 1;
                    closed >= count
                }
                BroadcastError::Rejected { .. } | BroadcastError::Overloaded => true,
                _ => {
                    closed = 0;
                    false
                }
            };
            if is_final {
                return Err(if is_ambiguous { BroadcastError::Ambiguous } else { error });
            }
            tracing::debug!(orderer = at + 1, %error, "an envelope goes on to another orderer");
            asked += 1;
            let named = match error {
                BroadcastError::NotLeading { leader: Some(leader) } => usize::try_from(leader.0).ok(),
                _ => None,
            };
            // One that was named is asked next, once a round: who names it may be wrong.
            at = match named.and_then(|named| named.checked_sub(1)) {
                Some(named) if named < count && named != at && asked % count != 0 => named,
                _ => (at + 1) % count,
            };
            if start.elapsed() >= SUBMIT_MAX {
                return Err(if is_ambiguous { BroadcastError::Ambiguous } else { error });
            }
            if asked % count == 0 {
                rt::sleep(ASK_AGAIN).await;
            }
        }
    }
}
