//! A client of Fabric's gateway. It does what an SDK does, for our tests, tools and measurements.
//!
//! 1. [`GatewayClient::proposal`] creates and signs a proposal; this fixes the transaction id.
//! 2. [`GatewayClient::evaluate`] returns the proposal's result without a transaction. [`GatewayClient::endorse`]
//!    collects endorsements instead and returns a transaction.
//! 3. [`GatewayClient::submit`] signs the transaction and sends it to the orderer.
//! 4. [`GatewayClient::commit_status`] waits until the transaction is in a committed block. [`GatewayClient::transact`]
//!    does steps 1 to 4.
//! 5. [`GatewayClient::chaincode_events`] and [`GatewayClient::deliver`] follow a channel.
//!
//! Each call has a deadline ([`GatewayClient::with_deadline`]); streams have none. Dropping a future cancels its call
//! at the server. It does not take back an envelope that the orderer has already accepted.

use std::collections::BTreeMap;
use std::time::Duration;

use base::rt;
use bytes::Bytes;
use identity::{Signer, hex, sha256};
use prost::Message as _;
use proto::common::{ChannelHeader, Envelope, Header, HeaderType, Payload, SignatureHeader};
use proto::gateway as wire;
use proto::orderer::{SeekInfo, SeekNewest, SeekNextCommit, SeekOldest, SeekPosition, SeekSpecified, seek_position};
use proto::protos::{self, ChaincodeId, ChaincodeInput, ChaincodeSpec};

pub use crate::grpc::client::{ClientTls, ConnectError, ConnectTarget, GrpcConnection, ResponseStream};
pub use crate::grpc::status::{GrpcCode, GrpcStatus};

/// How long a call may take unless [`GatewayClient::with_deadline`] says otherwise.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
/// As in the SDKs.
const NONCE_BYTES: usize = 24;
/// The last block that the SDKs ask for when they want blocks without an end.
pub const NO_LAST_BLOCK: u64 = (1 << 53) - 1;

/// A user of a gateway: one connection, one identity. Clones are cheap.
#[derive(Clone, Debug)]
pub struct GatewayClient {
    connection: GrpcConnection,
    signer: Signer,
    deadline: Option<Duration>,
}

/// A signed proposal.
#[derive(Clone, Debug)]
pub struct Proposal {
    tx_id: String,
    channel: String,
    signed: protos::SignedProposal,
    endorsing: Vec<String>,
}

/// A proposal that is not signed yet.
#[derive(Debug)]
pub struct ProposalBuilder<'a> {
    client: &'a GatewayClient,
    channel: &'a str,
    contract: &'a str,
    args: Vec<Bytes>,
    transient: BTreeMap<String, Bytes>,
    endorsing: Vec<String>,
}

/// An endorsed transaction that is not signed yet.
#[derive(Clone, Debug)]
pub struct EndorsedTransaction {
    tx_id: String,
    channel: String,
    payload: Bytes,
    result: Bytes,
}

/// The outcome of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitOutcome {
    /// A number of `protos.TxValidationCode`; 0 is valid.
    pub code: i32,
    /// The block that holds it.
    pub block: u64,
}

/// A transaction from proposal to commit.
#[derive(Clone, Debug)]
pub struct CommittedTransaction {
    /// What the contract answered.
    pub result: Bytes,
    /// The transaction's id.
    pub tx_id: String,
    /// The outcome.
    pub commit: CommitOutcome,
}

/// The start of events or blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartPosition {
    /// The next block to be committed.
    NextCommit,
    /// The newest block.
    Newest,
    /// Block 0.
    Oldest,
    /// That block.
    Block(u64),
}

/// The form in which [`GatewayClient::deliver`] returns blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockView {
    /// Whole.
    Full,
    /// Transaction ids, codes and event names.
    Filtered,
}

/// Chaincode events, one block at a time.
pub struct ChaincodeEventStream {
    responses: ResponseStream,
}

/// Blocks.
pub struct BlockStream {
    // Dropping it would signal that no more requests follow, which servers may take as the end of the session.
    _requests: crate::grpc::client::RequestStream,
    responses: ResponseStream,
}

impl GatewayClient {
    /// A client that signs with `signer`.
    pub fn new(connection: GrpcConnection, signer: Signer) -> GatewayClient {
        GatewayClient { connection, signer, deadline: Some(DEADLINE_DEFAULT) }
    }

    /// The same client with another deadline for each call.
    pub fn with_deadline(&self, deadline: Option<Duration>) -> GatewayClient {
        GatewayClient { deadline, ..self.clone() }
    }

    /// The signer.
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// The connection.
    pub fn connection(&self) -> &GrpcConnection {
        &self.connection
    }

    /// Begins a proposal.
    pub fn proposal<'a>(
        &'a self,
        channel: &'a str,
        contract: &'a str,
        function: &str,
        args: &[Bytes],
    ) -> ProposalBuilder<'a> {
        let function = Bytes::copy_from_slice(function.as_bytes());
        ProposalBuilder {
            client: self,
            channel,
            contract,
            args: std::iter::once(function).chain(args.iter().cloned()).collect(),
            transient: BTreeMap::new(),
            endorsing: Vec::new(),
        }
    }

    /// The contract's answer; nothing is ordered.
    ///
    /// # Errors
    /// `UNKNOWN` if the contract refuses; other errors of the gateway.
    pub async fn evaluate(&self, proposal: &Proposal) -> Result<Bytes, GrpcStatus> {
        let request = wire::EvaluateRequest {
            transaction_id: proposal.tx_id.clone(),
            channel_id: proposal.channel.clone(),
            proposed_transaction: Some(proposal.signed.clone()),
            target_organizations: proposal.endorsing.clone(),
        };
        let answer: wire::EvaluateResponse =
            self.connection.unary("/gateway.Gateway/Evaluate", &request, self.deadline).await?;
        Ok(answer.result.map(|response| response.payload).unwrap_or_default())
    }

    /// Collects endorsements.
    ///
    /// # Errors
    /// `ABORTED` if the contract or an endorser refuses; other errors of the gateway.
    pub async fn endorse(&self, proposal: &Proposal) -> Result<EndorsedTransaction, GrpcStatus> {
        let request = wire::EndorseRequest {
            transaction_id: proposal.tx_id.clone(),
            channel_id: proposal.channel.clone(),
            proposed_transaction: Some(proposal.signed.clone()),
            endorsing_organizations: proposal.endorsing.clone(),
        };
        let answer: wire::EndorseResponse =
            self.connection.unary("/gateway.Gateway/Endorse", &request, self.deadline).await?;
        let payload = answer.prepared_transaction.map(|envelope| envelope.payload).unwrap_or_default();
        let result = result_of(&payload)
            .ok_or_else(|| GrpcStatus::new(GrpcCode::Internal, "the gateway's answer holds no endorsed transaction"))?;
        Ok(EndorsedTransaction { tx_id: proposal.tx_id.clone(), channel: proposal.channel.clone(), payload, result })
    }

    /// Signs a transaction and sends it to the orderer. Success means that it was ordered, not that it is valid.
    ///
    /// # Errors
    /// `ABORTED` if the orderer refuses, `UNAVAILABLE` if there is none; other errors of the gateway.
    pub async fn submit(&self, transaction: &EndorsedTransaction) -> Result<(), GrpcStatus> {
        let envelope =
            Envelope { payload: transaction.payload.clone(), signature: self.signer.sign(&transaction.payload) };
        self.submit_envelope(&transaction.channel, &transaction.tx_id, envelope).await
    }

    /// Sends an envelope to the orderer, whatever it contains.
    ///
    /// # Errors
    /// As [`GatewayClient::submit`].
    pub async fn submit_envelope(&self, channel: &str, tx_id: &str, envelope: Envelope) -> Result<(), GrpcStatus> {
        let request = wire::SubmitRequest {
            transaction_id: tx_id.to_owned(),
            channel_id: channel.to_owned(),
            prepared_transaction: Some(envelope),
        };
        let _: wire::SubmitResponse = self.connection.unary("/gateway.Gateway/Submit", &request, self.deadline).await?;
        Ok(())
    }

    /// Waits until a transaction is in a block at the gateway's peer.
    ///
    /// # Errors
    /// `DEADLINE_EXCEEDED` if it has not come; other errors of the gateway.
    pub async fn commit_status(&self, channel: &str, tx_id: &str) -> Result<CommitOutcome, GrpcStatus> {
        let request = wire::CommitStatusRequest {
            transaction_id: tx_id.to_owned(),
            channel_id: channel.to_owned(),
            identity: self.signer.serialized().clone(),
        };
        let request = Bytes::from(request.encode_to_vec());
        let signature = self.signer.sign(&request);
        let request = wire::SignedCommitStatusRequest { request, signature };
        let answer: wire::CommitStatusResponse =
            self.connection.unary("/gateway.Gateway/CommitStatus", &request, self.deadline).await?;
        Ok(CommitOutcome { code: answer.result, block: answer.block_number })
    }

    /// Runs a transaction from proposal to commit.
    ///
    /// # Errors
    /// Those of the step that failed. A transaction that is in a block but not valid is not an error here.
    pub async fn transact(
        &self,
        channel: &str,
        contract: &str,
        function: &str,
        args: &[Bytes],
    ) -> Result<CommittedTransaction, GrpcStatus> {
        let proposal = self.proposal(channel, contract, function, args).sign();
        let transaction = self.endorse(&proposal).await?;
        self.submit(&transaction).await?;
        let commit = self.commit_status(channel, &transaction.tx_id).await?;
        Ok(CommittedTransaction { result: transaction.result, tx_id: transaction.tx_id, commit })
    }

    /// Follows the events of a contract. Returns once the gateway has accepted the call.
    ///
    /// # Errors
    /// Errors of the gateway.
    pub async fn chaincode_events(
        &self,
        channel: &str,
        contract: &str,
        start: StartPosition,
        after_tx_id: Option<&str>,
    ) -> Result<ChaincodeEventStream, GrpcStatus> {
        let request = wire::ChaincodeEventsRequest {
            channel_id: channel.to_owned(),
            chaincode_id: contract.to_owned(),
            identity: self.signer.serialized().clone(),
            start_position: Some(start.position()),
            after_transaction_id: after_tx_id.unwrap_or_default().to_owned(),
        };
        let request = Bytes::from(request.encode_to_vec());
        let signature = self.signer.sign(&request);
        let (mut requests, mut responses) = self.connection.open("/gateway.Gateway/ChaincodeEvents", None).await?;
        // A gateway may refuse before it has read the request; its answer gives the reason.
        if requests.send(&wire::SignedChaincodeEventsRequest { request, signature }).await.is_ok() {
            requests.close();
        }
        responses.started().await?;
        Ok(ChaincodeEventStream { responses })
    }

    /// Follows blocks from `start` to `stop`, or without end.
    ///
    /// # Errors
    /// If the connection has gone. The peer's verdict on the request arrives as a status among the blocks.
    pub async fn deliver(
        &self,
        channel: &str,
        start: StartPosition,
        stop: Option<u64>,
        form: BlockView,
    ) -> Result<BlockStream, GrpcStatus> {
        let seek = SeekInfo {
            start: Some(start.position()),
            stop: Some(StartPosition::Block(stop.unwrap_or(NO_LAST_BLOCK)).position()),
            ..SeekInfo::default()
        };
        self.deliver_envelope(self.seek_envelope(channel, &seek), form).await
    }

    /// Follows blocks as `envelope` asks, whatever it contains.
    ///
    /// # Errors
    /// As [`GatewayClient::deliver`].
    pub async fn deliver_envelope(&self, envelope: Envelope, form: BlockView) -> Result<BlockStream, GrpcStatus> {
        let path = match form {
            BlockView::Full => "/protos.Deliver/Deliver",
            BlockView::Filtered => "/protos.Deliver/DeliverFiltered",
        };
        let (mut requests, responses) = self.connection.open(path, None).await?;
        // A peer may refuse before it has read the request; the stream of blocks gives the reason.
        let _ = requests.send(&envelope).await;
        Ok(BlockStream { _requests: requests, responses })
    }

    /// A signed request for blocks.
    pub fn seek_envelope(&self, channel: &str, seek: &SeekInfo) -> Envelope {
        let channel_header = ChannelHeader {
            r#type: HeaderType::DeliverSeekInfo as i32,
            timestamp: Some(now()),
            channel_id: channel.to_owned(),
            ..ChannelHeader::default()
        };
        let payload = Payload {
            header: Some(Header {
                channel_header: channel_header.encode_to_vec().into(),
                signature_header: self.signature_header().encode_to_vec().into(),
            }),
            data: seek.encode_to_vec().into(),
        };
        let payload = Bytes::from(payload.encode_to_vec());
        let signature = self.signer.sign(&payload);
        Envelope { payload, signature }
    }

    fn signature_header(&self) -> SignatureHeader {
        let mut nonce = [0; NONCE_BYTES];
        rt::fill_random(&mut nonce);
        SignatureHeader { creator: self.signer.serialized().clone(), nonce: Bytes::copy_from_slice(&nonce) }
    }
}

impl ProposalBuilder<'_> {
    /// Adds data that only endorsers see.
    pub fn transient(mut self, key: &str, value: Bytes) -> Self {
        self.transient.insert(key.to_owned(), value);
        self
    }

    /// Names the organisations that must endorse, instead of the gateway's choice.
    pub fn endorsing(mut self, msp_ids: &[&str]) -> Self {
        self.endorsing = msp_ids.iter().map(|&msp_id| msp_id.to_owned()).collect();
        self
    }

    /// Signs the proposal.
    pub fn sign(self) -> Proposal {
        let signature_header = self.client.signature_header();
        let tx_id = hex::encode(sha256([&signature_header.nonce[..], &signature_header.creator[..]]));
        let chaincode_id = ChaincodeId { name: self.contract.to_owned(), ..ChaincodeId::default() };
        let extension = protos::ChaincodeHeaderExtension {
            chaincode_id: Some(chaincode_id.clone()),
            ..protos::ChaincodeHeaderExtension::default()
        };
        let channel_header = ChannelHeader {
            r#type: HeaderType::EndorserTransaction as i32,
            timestamp: Some(now()),
            channel_id: self.channel.to_owned(),
            tx_id: tx_id.clone(),
            extension: extension.encode_to_vec().into(),
            ..ChannelHeader::default()
        };
        let header = Header {
            channel_header: channel_header.encode_to_vec().into(),
            signature_header: signature_header.encode_to_vec().into(),
        };
        let input = protos::ChaincodeInvocationSpec {
            chaincode_spec: Some(ChaincodeSpec {
                r#type: protos::chaincode_spec::Type::Node as i32,
                chaincode_id: Some(chaincode_id),
                input: Some(ChaincodeInput { args: self.args, ..ChaincodeInput::default() }),
                ..ChaincodeSpec::default()
            }),
        };
        let payload =
            protos::ChaincodeProposalPayload { input: input.encode_to_vec().into(), transient_map: self.transient };
        let proposal = protos::Proposal {
            header: header.encode_to_vec().into(),
            payload: payload.encode_to_vec().into(),
            ..protos::Proposal::default()
        };
        let proposal_bytes = Bytes::from(proposal.encode_to_vec());
        let signature = self.client.signer.sign(&proposal_bytes);
        Proposal {
            tx_id,
            channel: self.channel.to_owned(),
            signed: protos::SignedProposal { proposal_bytes, signature },
            endorsing: self.endorsing,
        }
    }
}

impl Proposal {
    /// The transaction's id.
    pub fn tx_id(&self) -> &str {
        &self.tx_id
    }

    /// The channel.
    pub fn channel(&self) -> &str {
        &self.channel
    }

    /// The signed message.
    pub fn signed(&self) -> &protos::SignedProposal {
        &self.signed
    }
}

impl EndorsedTransaction {
    /// The transaction's id.
    pub fn tx_id(&self) -> &str {
        &self.tx_id
    }

    /// What the contract answered.
    pub fn result(&self) -> &Bytes {
        &self.result
    }

    /// The bytes that [`GatewayClient::submit`] signs.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }
}

impl CommitOutcome {
    /// Whether the transaction's writes were applied.
    pub fn is_valid(&self) -> bool {
        self.code == protos::TxValidationCode::Valid as i32
    }
}

impl StartPosition {
    /// The same as a protobuf message.
    pub fn position(self) -> SeekPosition {
        let position = match self {
            StartPosition::NextCommit => seek_position::Type::NextCommit(SeekNextCommit {}),
            StartPosition::Newest => seek_position::Type::Newest(SeekNewest {}),
            StartPosition::Oldest => seek_position::Type::Oldest(SeekOldest {}),
            StartPosition::Block(number) => seek_position::Type::Specified(SeekSpecified { number }),
        };
        SeekPosition { r#type: Some(position) }
    }
}

impl ChaincodeEventStream {
    /// The events of the next block that has any.
    ///
    /// # Errors
    /// The status that ended the stream.
    pub async fn next(&mut self) -> Result<Option<wire::ChaincodeEventsResponse>, GrpcStatus> {
        self.responses.next().await
    }
}

impl BlockStream {
    /// The next block, or the status that ends a request.
    ///
    /// # Errors
    /// The status that ended the stream.
    pub async fn next(&mut self) -> Result<Option<protos::deliver_response::Type>, GrpcStatus> {
        Ok(self.responses.next::<protos::DeliverResponse>().await?.and_then(|response| response.r#type))
    }
}

/// The contract's answer in an endorsed transaction's payload.
fn result_of(payload: &Bytes) -> Option<Bytes> {
    let payload = Payload::decode(payload.clone()).ok()?;
    let transaction = protos::Transaction::decode(payload.data).ok()?;
    let action = protos::ChaincodeActionPayload::decode(transaction.actions.first()?.payload.clone()).ok()?;
    let response = protos::ProposalResponsePayload::decode(action.action?.proposal_response_payload).ok()?;
    let action = protos::ChaincodeAction::decode(response.extension).ok()?;
    Some(action.response?.payload)
}

fn now() -> prost_types::Timestamp {
    let now = rt::wall_now();
    prost_types::Timestamp { seconds: now.seconds() as i64, nanos: now.subsecond_nanos() as i32 }
}
