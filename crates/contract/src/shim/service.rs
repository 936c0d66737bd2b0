//! A chaincode outside of this process as a [`Contract`].
//!
//! 1. A call uses the connection that is there. If there is none, one call at a time opens one; after a failure the next
//!    attempt waits, and calls in between fail with the last cause.
//! 2. The call sends TRANSACTION or INIT, answers the chaincode's requests from its stub, and ends with the chaincode's
//!    COMPLETED or ERROR.
//! 3. If the connection ends, the call fails with an error that asks for a retry.
//!
//! Dropping the future of a call abandons it: what the chaincode still sends for it is ignored.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{self, Backoff, Instant};
use base::{Bytes, ErrorKind};
use prost::Message;
use proto::protos::chaincode_message::Type;
use proto::protos::{ChaincodeInput, ChaincodeMessage, Response, SignedProposal};

use super::answer::{CallRequests, RequestError};
use super::calls::{BeginError, CallKey, RunningCall};
use super::registration::{ChaincodeConnection, Registration};
use super::stream::{ChaincodeConnector, ShimError};
use crate::{Contract, ContractError, ContractResponse, ContractStub, StubError};

/// The pause after the first failed attempt to connect; it doubles with each.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// A chaincode that runs outside of this process.
pub struct ChaincodeService {
    name: String,
    /// The package that it must register as; `None` for one that an operator has configured without a package.
    package_id: Option<String>,
    /// `None` if the chaincode connects to the peer.
    connector: Option<Box<dyn ChaincodeConnector>>,
    link: rt::sync::Mutex<ServiceLink>,
}

struct ServiceLink {
    connection: Option<Arc<ChaincodeConnection>>,
    backoff: Backoff,
    /// When the next attempt may be made, and why the last one failed.
    failed: Option<(Instant, ShimError)>,
}

impl ChaincodeService {
    /// A chaincode that the peer connects to when it is called.
    pub fn dialed(name: &str, package_id: Option<&str>, connector: Box<dyn ChaincodeConnector>) -> ChaincodeService {
        ChaincodeService { connector: Some(connector), ..ChaincodeService::awaited(name, package_id) }
    }

    /// A chaincode that connects to the peer, which then calls [`ChaincodeService::attach`].
    pub fn awaited(name: &str, package_id: Option<&str>) -> ChaincodeService {
        let backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        let link = rt::sync::Mutex::new(ServiceLink { connection: None, backoff, failed: None });
        ChaincodeService { name: name.to_owned(), package_id: package_id.map(str::to_owned), connector: None, link }
    }

    /// Takes a chaincode that has connected by itself. An earlier connection ends, and its calls with it: the chaincode has
    /// restarted.
    ///
    /// # Errors
    /// It runs another package, or has gone already.
    pub async fn attach(&self, registration: Registration) -> Result<Arc<ChaincodeConnection>, ShimError> {
        let connection = self.accept(registration).await?;
        let earlier = self.link.lock().await.connection.replace(connection.clone());
        if let Some(earlier) = earlier {
            earlier.end("another chaincode has registered for the package");
        }
        Ok(connection)
    }

    /// Whether a chaincode is connected now.
    pub async fn is_connected(&self) -> bool {
        self.link.lock().await.connection.as_ref().is_some_and(|connection| connection.closed().is_none())
    }

    async fn accept(&self, registration: Registration) -> Result<Arc<ChaincodeConnection>, ShimError> {
        if let Some(expected) = &self.package_id
            && registration.package_id() != expected
        {
            return Err(ShimError::Refused(format!(
                "the chaincode registered as {:?}, not as {expected}; start it with CORE_CHAINCODE_ID_NAME={expected}",
                registration.shown()
            )));
        }
        Ok(Arc::new(registration.accept().await?))
    }

    /// Step 1.
    async fn connection(&self) -> Result<Arc<ChaincodeConnection>, ShimError> {
        let mut link = self.link.lock().await;
        let mut cause = "it has not connected to this peer yet".to_owned();
        if let Some(connection) = &link.connection {
            match connection.closed() {
                None => return Ok(connection.clone()),
                Some(reason) => cause = reason,
            }
        }
        link.connection = None;
        let Some(connector) = &self.connector else {
            return Err(ShimError::Disconnected { chaincode: self.name.clone(), cause });
        };
        if let Some((until, error)) = &link.failed
            && rt::now() < *until
        {
            return Err(error.clone());
        }
        match self.open(connector.as_ref()).await {
            Ok(connection) => {
                tracing::info!(chaincode = self.name, package = connection.package_id(), "connected");
                link.backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
                link.failed = None;
                link.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                tracing::warn!(chaincode = self.name, %error, "cannot be connected");
                link.failed = Some((rt::now() + link.backoff.next_pause(), error.clone()));
                Err(error)
            }
        }
    }

    async fn open(&self, connector: &dyn ChaincodeConnector) -> Result<Arc<ChaincodeConnection>, ShimError> {
        let stream = connector.connect().await.map_err(|cause| {
            crate::events::ChaincodeConnectionsFailed.add(1);
            ShimError::Disconnected { chaincode: self.name.clone(), cause }
        })?;
        self.accept(Registration::read(stream).await?).await
    }

    /// The chaincode cannot serve now; the client may retry.
    fn unserved(&self, cause: &str) -> ContractError {
        let message = format!("chaincode {} cannot serve now: {cause}; retry", self.name);
        ContractError::Stub(StubError::State { kind: ErrorKind::Retry, message })
    }

    /// Step 2, after the first message.
    async fn run(
        &self,
        tx: &mut dyn ContractStub,
        connection: &ChaincodeConnection,
        call: &mut RunningCall,
        requests: &mut CallRequests,
    ) -> Result<ContractResponse, ContractError> {
        loop {
            let (kind, message) = call.next().await.map_err(|cause| self.unserved(&cause))?;
            match kind {
                Type::Completed => return complete(tx, message),
                Type::Error => {
                    let text = String::from_utf8_lossy(&message.payload);
                    return Err(ContractError::application(format!("transaction returned with failure: {text}")));
                }
                _ => {}
            }
            let (txid, channel_id) = (message.txid.clone(), message.channel_id.clone());
            let answer = requests.answer(tx, kind, message).await;
            let reply = |kind: Type, payload| ChaincodeMessage {
                r#type: kind.into(),
                payload,
                txid: txid.clone(),
                channel_id: channel_id.clone(),
                ..ChaincodeMessage::default()
            };
            let framed = |problem: &str| {
                let text = format!("{} failed: transaction ID: {txid}: {problem}", kind.as_str_name());
                reply(Type::Error, Bytes::from(text))
            };
            call.note_answered();
            match answer {
                Ok(payload) => connection.send(&reply(Type::Response, payload)).await,
                Err(RequestError::Refused(problem)) => connection.send(&framed(&problem)).await,
                Err(RequestError::Failed(error)) => {
                    connection.send(&framed(&error.to_string())).await;
                    return Err(error.into());
                }
            }
        }
    }
}

/// The answer and the event of a call that the chaincode has completed.
fn complete(tx: &mut dyn ContractStub, message: ChaincodeMessage) -> Result<ContractResponse, ContractError> {
    let response = Response::decode(message.payload)
        .map_err(|_| ContractError::application("the chaincode's response cannot be decoded"))?;
    if let Some(event) = message.chaincode_event {
        tx.set_event(&event.event_name, event.payload)?;
    }
    Ok(ContractResponse { status: response.status, message: response.message, payload: response.payload })
}

#[async_trait]
impl Contract for ChaincodeService {
    fn name(&self) -> &str {
        &self.name
    }

    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        _function: &str,
        _args: &[Bytes],
    ) -> Result<ContractResponse, ContractError> {
        let connection = self.connection().await.map_err(|error| self.unserved(&error.to_string()))?;
        let (channel, tx_id, is_init) = (tx.channel_id().to_string(), tx.tx_id().to_string(), tx.is_init());
        let mut call = connection.calls.begin(CallKey::new(&channel, &tx_id)).map_err(|error| match error {
            BeginError::Exists => ContractError::application(format!(
                "transaction {tx_id} of channel {channel} already runs in chaincode {}: a chaincode cannot call itself",
                self.name
            )),
            BeginError::StillRuns => self.unserved("it still runs an earlier call of the same transaction"),
            BeginError::TooMany => self.unserved("it runs too many calls"),
            BeginError::Closed(cause) => self.unserved(&cause),
        })?;
        let input = ChaincodeInput { args: tx.args().to_vec(), is_init, ..ChaincodeInput::default() };
        let proposal = match tx.signed_proposal() {
            empty if empty.is_empty() => None,
            proposal => Some(
                SignedProposal::decode(proposal)
                    .map_err(|_| ContractError::application("the signed proposal cannot be decoded"))?,
            ),
        };
        let kind = if is_init { Type::Init } else { Type::Transaction };
        let start = ChaincodeMessage {
            r#type: kind.into(),
            payload: input.encode_to_vec().into(),
            txid: tx_id,
            channel_id: channel,
            proposal,
            ..ChaincodeMessage::default()
        };
        connection.send(&start).await;
        let mut requests = CallRequests::new(is_init);
        let result = self.run(tx, &connection, &mut call, &mut requests).await;
        requests.finish(tx);
        result
    }
}
