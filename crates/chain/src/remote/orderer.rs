//! Submits envelopes to remote orderers. Blocks come over separate links ([`block_transport`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::rpc::{self, RpcClient, RpcError, RpcHandler};
use base::rt::net::{GatherList, Parties};
use base::rt::sync::Mutex;
use base::rt::{self, CancellationToken, net};
use base::{Bytes, ErrorKind};
use prost::Message as _;
use proto::common::Status;

use super::channel::send_request as ask_over;
use super::messages::{Ask, BroadcastEnvelope, Hello, PeerRequest, RemoteFailure, ResultResponse, Welcome, decode};
use super::serve::{rejected, serve};
use super::{HELLO_MAX, PROTOCOL_VERSIONS, REQUESTS_MAX};
use crate::Error;
use crate::order::{Broadcast, BroadcastError};

/// Accepts envelopes from `parties` at `address` until `stop`.
///
/// # Errors
/// If the address is in use.
pub async fn serve_orderer(
    orderer: Arc<dyn Broadcast>,
    address: &str,
    parties: &Parties,
    stop: CancellationToken,
) -> Result<rt::Task<()>, Error> {
    let handler = Arc::new(OrdererServer { orderer });
    serve(address, parties, stop, move |_| handler.clone()).await
}

struct OrdererServer {
    orderer: Arc<dyn Broadcast>,
}

impl RpcHandler for OrdererServer {
    fn request(&self, request: GatherList) -> rpc::ResponseFuture {
        let orderer = self.orderer.clone();
        Box::pin(async move {
            let request =
                PeerRequest::read(request.concat()).map_err(|error| rejected(format!("not a request: {error}")))?;
            match request.ask {
                Some(Ask::Hello(hello)) => match hello.answer(Vec::new) {
                    Ok(welcome) => Ok(welcome.encode_to_vec().into()),
                    Err(error) => Err(rejected(format!("not a hello: {error}"))),
                },
                Some(Ask::Broadcast(BroadcastEnvelope { channel, envelope })) => {
                    let failure = orderer.broadcast(&channel, envelope).await.err();
                    let failure = failure.as_ref().map(RemoteFailure::of_broadcast);
                    Ok(ResultResponse { result: Bytes::new(), failure }.encode_to_vec().into())
                }
                _ => Err(rejected("this is an orderer; it accepts envelopes only".to_owned())),
            }
        })
    }
}

/// A remote orderer. The first envelope to send opens the connection.
pub struct RemoteOrderer {
    address: String,
    parties: Parties,
    client: Mutex<Option<RpcClient>>,
}

impl RemoteOrderer {
    /// An orderer at this address, which must prove to be one of these parties before it gets an envelope.
    pub fn new(address: String, parties: Parties) -> RemoteOrderer {
        RemoteOrderer { address, parties, client: Mutex::new(None) }
    }

    /// The link that is open, or a new one.
    async fn client(&self) -> Result<RpcClient, BroadcastError> {
        // Callers that come meanwhile wait here for the same attempt.
        let mut kept = self.client.lock().await;
        if let Some(caller) = kept.as_ref().filter(|caller| !caller.has_ended()) {
            return Ok(caller.clone());
        }
        let connect = async {
            let link = net::connect_to(&self.address, &self.parties).await.map_err(|error| error.to_string())?;
            let caller = RpcClient::new(link, REQUESTS_MAX, drop);
            let welcome = ask_over(&caller, Ask::Hello(Hello::new(PROTOCOL_VERSIONS))).await;
            let welcome: Welcome = decode(welcome.map_err(|error| error.to_string())?).map_err(|e| e.to_string())?;
            welcome.version().map(|_| caller)
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
        let caller = self.client().await?;
        let ask = Ask::Broadcast(BroadcastEnvelope { channel: channel.to_owned(), envelope });
        let answer = ask_over(&caller, ask).await.map_err(|error| match error {
            // Never sent.
            RpcError::Closed => BroadcastError::Stopped,
            RpcError::Rejected(refusal) if refusal.kind == ErrorKind::Rejected => {
                BroadcastError::Rejected { status: Status::BadRequest, reason: refusal.text }
            }
            _ => BroadcastError::Ambiguous,
        })?;
        match ResultResponse::read(answer) {
            Ok(ResultResponse { failure: None, .. }) => Ok(()),
            Ok(ResultResponse { failure: Some(failure), .. }) => Err(failure.into_broadcast()),
            Err(_) => Err(BroadcastError::Ambiguous),
        }
    }
}

/// How long an envelope is tried at the orderers of a group: longer than the election of a new leader takes.
pub const SUBMIT_MAX: Duration = Duration::from_secs(15);
/// How long one of several orderers may take to answer before another one is tried too: an orderer that hangs never
/// answers.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// The pause before all orderers are tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The orderers of a group, one of which is the leader.
///
/// 1. An envelope goes to the orderer that accepted the last one, or to the one that another orderer named as the
///    leader. It goes on to the next orderer if this one is not the leader, has stopped, cannot be reached, does not
///    answer within [`ATTEMPT_MAX`], or reports that it cannot accept any envelope now.
/// 2. If all orderers were tried in vain, they are tried again, for [`SUBMIT_MAX`] in total: they may be electing a new
///    leader.
/// 3. An orderer that ended or lost leadership while it had the envelope may have ordered it. The envelope is sent
///    again nevertheless: peers mark the second of two transactions with one id, and the first decides the outcome.
///    Whatever error a later orderer returns, the outcome is then unknown.
///
/// So an accepted envelope is ordered at least once, and takes effect once.
pub struct RemoteOrderers {
    /// As long as no orderer was removed, number `n` of the group, counted from 1, is the one at index `n - 1`.
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

    /// Replaces the addresses at which the group's orderers answer; at least one. Orderers that stay keep their links.
    /// Envelopes that are being sent to other orderers are not interrupted.
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
                    // Later envelopes do not try it first either.
                    self.leader.store((at + 1) % count, Ordering::Relaxed);
                    BroadcastError::Ambiguous
                }
            };
            is_ambiguous |= matches!(error, BroadcastError::Ambiguous);
            let is_final = match &error {
                // The reason lies with this orderer and not with the envelope, unless all orderers give it.
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
            // A named leader is tried next, once a round: the orderer that names it may be wrong.
            at = match named.and_then(|named| named.checked_sub(1)) {
                Some(named) if named < count && named != at && asked % count != 0 => named,
                _ => (at + 1) % count,
            };
            if start.elapsed() >= SUBMIT_MAX {
                return Err(if is_ambiguous { BroadcastError::Ambiguous } else { error });
            }
            if asked % count == 0 {
                rt::sleep(RETRY_PAUSE).await;
            }
        }
    }
}
