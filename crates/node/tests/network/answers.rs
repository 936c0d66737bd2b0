//! The answers that Fabric 3.1 gave to bad input, and that clients of this network get: one table for each kind of input.
//!
//! A [`Row`] holds the inputs that get the same answer. The answer is text, so that a row reads as it would in prose:
//! `evaluate: UNKNOWN Org1MSP` is a call, its status code, and the organisations that the status's details name. Codes of
//! Deliver and of validation are numbers. All rows are checked before the test fails.

mod envelopes;

use std::time::Duration;

use crate::common::{CHANNEL, Craft, TestNetwork, altered, args, config, endorsed, high_s, signed};
use base::Bytes;
use gateway::client::{BlockView, GatewayClient, GrpcCode, GrpcStatus, StartPosition};
use gateway::grpc::message::{PREFIX_BYTES, frame};
use identity::Signer;
use node::config::{ChaincodeConfig, ContractConfig};
use prost::Message;
use proto::common::{ChannelHeader, Envelope, HeaderType, Payload, SignatureHeader};
use proto::gateway::{
    ChaincodeEventsRequest, CommitStatusRequest, CommitStatusResponse, EndorseRequest, EndorseResponse,
    EvaluateRequest, EvaluateResponse, SignedChaincodeEventsRequest, SignedCommitStatusRequest, SubmitResponse,
};
use proto::kvrwset::{KvWrite, KvrwSet, Version};
use proto::orderer::seek_info::SeekBehavior;
use proto::orderer::{SeekInfo, SeekPosition};
use proto::protos::chaincode_message::Type as MessageType;
use proto::protos::deliver_response::Type;
use proto::protos::filtered_transaction::Data;
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEvent, ChaincodeId, ChaincodeInput, ChaincodeMessage,
    ChaincodeProposalPayload, Endorsement, FilteredTransaction, ProposalResponsePayload, Response, SignedProposal,
    Transaction as WireTransaction,
};
use proto::rwset::{NsReadWriteSet, TxReadWriteSet};

/// The longest envelope, so that a longer one fits into a message.
const ENVELOPE_BYTES_MAX: usize = 100_000;
/// For calls that would otherwise wait for ever. Any time would do: they never get another answer.
const SHORT_DEADLINE: Duration = Duration::from_millis(200);
/// A chaincode outside of the peers, [`odd_chaincode`].
const ODD: &str = "odd";
const GOOD_CALL: [&str; 2] = ["AssetExists", "a"];

/// Inputs that get the same answers.
struct Row<I> {
    answers: &'static str,
    inputs: Vec<(&'static str, I)>,
}

fn row<I>(answers: &'static str, inputs: impl Into<Vec<(&'static str, I)>>) -> Row<I> {
    Row { answers, inputs: inputs.into() }
}

/// The answers that differ from the tables.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn check(&mut self, case: &str, got: &str, expected: &str) {
        if got != expected {
            self.0.push(format!("{case}:\n    expected {expected}\n    got      {got}"));
        }
    }
}

/// A status as the tables have it.
fn code<T>(result: Result<T, GrpcStatus>) -> String {
    let Err(status) = result else { return "OK".to_owned() };
    let mut text = status.code.name().to_owned();
    for detail in &status.details {
        text = format!("{text} {}", detail.msp_id);
        if detail.address.is_empty() || detail.message.is_empty() {
            text += " without an address or a message";
        }
    }
    text
}

/// Starts a chaincode that never answers a call of `wait`, and answers every other call with `answer`. It listens at the
/// returned address until the test's runtime ends.
async fn odd_chaincode(answer: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(socket).await.expect("HTTP/2");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::spawn(serve_odd_chaincode(request.into_body(), respond, answer));
                }
            });
        }
    });
    address
}

/// Registers, and answers calls until the stream ends.
async fn serve_odd_chaincode(
    mut body: h2::RecvStream,
    mut respond: h2::server::SendResponse<Bytes>,
    answer: &'static str,
) -> Option<()> {
    let id = ChaincodeId { name: ODD.into(), ..Default::default() };
    let register = ChaincodeMessage {
        r#type: MessageType::Register.into(),
        payload: id.encode_to_vec().into(),
        ..Default::default()
    };
    let mut answers = respond.send_response(http::Response::new(()), false).ok()?;
    answers.send_data(frame(&register), false).ok()?;
    let mut received = Vec::new();
    loop {
        received.extend_from_slice(&body.data().await?.ok()?);
        while let Some(length) = received.get(1..PREFIX_BYTES) {
            let end = PREFIX_BYTES + u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            let Some(message) = received.get(PREFIX_BYTES..end) else { break };
            let call = ChaincodeMessage::decode(message).expect("a message");
            received.drain(..end);
            if call.r#type() != MessageType::Transaction {
                continue;
            }
            let input = ChaincodeInput::decode(call.payload).expect("an input");
            if input.args[0] == "wait" {
                continue;
            }
            let payload = Bytes::from_static(answer.as_bytes());
            let response = Response { status: 200, payload, ..Default::default() };
            let completed = ChaincodeMessage {
                r#type: MessageType::Completed.into(),
                payload: response.encode_to_vec().into(),
                txid: call.txid,
                channel_id: call.channel_id,
                ..Default::default()
            };
            answers.send_data(frame(&completed), false).ok()?;
        }
    }
}

/// Two organisations. A transaction of `basic` needs both, one of `events` either.
async fn start() -> TestNetwork {
    let mut config = config(2);
    config.batch.absolute_bytes = ENVELOPE_BYTES_MAX as _;
    config.batch.preferred_bytes = ENVELOPE_BYTES_MAX as _;
    config.contracts.0.insert("events".into(), ContractConfig { policy: Some("any".into()) });
    config.contracts.0.insert(ODD.into(), ContractConfig::default());
    for (name, answer) in config.network.organizations.clone().into_iter().zip(["one", "other"]) {
        config.chaincodes.push(ChaincodeConfig {
            name: ODD.into(),
            address: odd_chaincode(answer).await,
            organizations: vec![name],
            package_id: None,
            tls_authority: None,
            tls_certificate: None,
            tls_key: None,
            dial_timeout_ms: 30_000,
        });
    }
    TestNetwork::start(&config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_the_answers_that_fabric_gives() {
    let network = start().await;
    let mut differences = Differences::default();
    proposals(&network, &mut differences).await;
    envelopes::refused_envelopes(&network, &mut differences).await;
    envelopes::ordered_envelopes(&network, &mut differences).await;
    signed_requests(&network, &mut differences).await;
    requests_for_blocks(&network, &mut differences).await;
    long_messages(&network, &mut differences).await;
    no_orderer(&network, &mut differences).await;
    network.stop().await;
    let Differences(differences) = differences;
    assert!(differences.is_empty(), "{} answers differ:\n{}", differences.len(), differences.join("\n"));
}

/// A proposal, and the organisations that the client names.
struct Invocation {
    signed: SignedProposal,
    organizations: &'static [&'static str],
}

impl From<SignedProposal> for Invocation {
    fn from(signed: SignedProposal) -> Invocation {
        Invocation { signed, organizations: &[] }
    }
}

impl Invocation {
    fn naming(self, organizations: &'static [&'static str]) -> Invocation {
        Invocation { organizations, ..self }
    }

    async fn evaluate(&self, client: &GatewayClient, deadline: Option<Duration>) -> Result<(), GrpcStatus> {
        let request = EvaluateRequest {
            channel_id: CHANNEL.into(),
            proposed_transaction: Some(self.signed.clone()),
            target_organizations: self.organizations.iter().map(|&name| name.into()).collect(),
            ..Default::default()
        };
        let answer = client.connection().unary("/gateway.Gateway/Evaluate", &request, deadline).await;
        answer.map(|_: EvaluateResponse| ())
    }

    async fn endorse(&self, client: &GatewayClient, deadline: Option<Duration>) -> Result<(), GrpcStatus> {
        let request = EndorseRequest {
            channel_id: CHANNEL.into(),
            proposed_transaction: Some(self.signed.clone()),
            endorsing_organizations: self.organizations.iter().map(|&name| name.into()).collect(),
            ..Default::default()
        };
        let answer = client.connection().unary("/gateway.Gateway/Endorse", &request, deadline).await;
        answer.map(|_: EndorseResponse| ())
    }
}

/// What the first detail of a status says.
fn detail_of(status: &GrpcStatus) -> &String {
    status.details.first().map_or(&status.message, |detail| &detail.message)
}

async fn proposals(network: &TestNetwork, differences: &mut Differences) {
    let client = network.client(0).await;
    let user = client.signer().clone();
    let call = |contract: &str, call: &[&str]| Invocation::from(Craft::new(&user, contract, call).sign());
    let craft = |change: &dyn Fn(&mut Craft)| {
        Invocation::from(Craft::new(&user, "basic", &GOOD_CALL).with(|craft| change(craft)).sign())
    };
    let with_signature = |signature: &dyn Fn(&SignedProposal) -> Bytes| {
        let signed = Craft::new(&user, "basic", &GOOD_CALL).sign();
        Invocation::from(SignedProposal { signature: signature(&signed), ..signed })
    };
    let raw = |bytes: &'static [u8]| {
        Invocation::from(SignedProposal { proposal_bytes: Bytes::from_static(bytes), signature: user.sign(bytes) })
    };
    let of_another_member =
        proto::msp::SerializedIdentity { mspid: "Org2MSP".into(), id_bytes: user.certificate_pem().clone() };
    let of_another_member = Bytes::from(of_another_member.encode_to_vec());
    let other = network.running.user(1);
    let committed = client.proposal(CHANNEL, "basic", "CreateAsset", &args(&["old", "blue", "5", "Ada", "300"])).sign();
    let transaction = client.endorse(&committed).await.expect("endorsements");
    client.submit(&transaction).await.expect("an orderer");
    assert!(client.commit_status(CHANNEL, committed.tx_id()).await.expect("a commit").is_valid());

    let table = [
        row("evaluate: OK; endorse: OK", [("nothing wrong", call("basic", &GOOD_CALL))]),
        row(
            "evaluate: UNKNOWN Org1MSP; endorse: ABORTED Org1MSP",
            [
                ("an application error", call("basic", &["ReadAsset", "none"])),
                ("an unknown function", call("basic", &["Explode"])),
                ("no function", call("basic", &[])),
                ("too few arguments", call("basic", &["ReadAsset"])),
                ("too many arguments", call("basic", &["ReadAsset", "a", "b"])),
                ("an argument of another type", call("basic", &["CreateAsset", "a", "blue", "many", "Ada", "300"])),
            ],
        ),
        row(
            "evaluate: UNKNOWN Org1MSP; endorse: ABORTED Org1MSP Org2MSP",
            [(
                "an application error at two organisations that the client names",
                call("basic", &["ReadAsset", "none"]).naming(&["Org1MSP", "Org2MSP"]),
            )],
        ),
        row(
            "evaluate: OK; endorse: ABORTED Org1MSP Org2MSP",
            [("organisations whose endorsements differ", call(ODD, &["answer"]))],
        ),
        // In this row and the next, Evaluate's details name no organisation in Fabric: there the gateway itself knows which
        // chaincodes and channels its peers have, and here the peer does.
        row(
            "evaluate: FAILED_PRECONDITION Org1MSP; endorse: FAILED_PRECONDITION",
            [("an unknown chaincode", call("nothing", &GOOD_CALL))],
        ),
        row(
            "evaluate: UNAVAILABLE Org1MSP; endorse: FAILED_PRECONDITION",
            [("an unknown channel", craft(&|craft| craft.channel = "other".into()))],
        ),
        row(
            "evaluate: FAILED_PRECONDITION; endorse: UNAVAILABLE",
            [("an unknown organisation as the endorser", call("basic", &GOOD_CALL).naming(&["Org9MSP"]))],
        ),
        row(
            "evaluate: OK; endorse: UNAVAILABLE",
            [("an unknown organisation beside a known one", call("basic", &GOOD_CALL).naming(&["Org1MSP", "Org9MSP"]))],
        ),
        row(
            "evaluate: FAILED_PRECONDITION Org1MSP; endorse: ABORTED Org1MSP",
            [
                ("a signature over other bytes", with_signature(&|_| user.sign(b"other bytes"))),
                ("a signature with another key", craft(&|craft| craft.signer = other.clone())),
                ("a signature that is random", with_signature(&|_| Bytes::from_static(b"not a signature"))),
                ("no signature", with_signature(&|_| Bytes::new())),
                ("a signature with a high S", with_signature(&|signed| high_s(&signed.signature))),
                ("another transaction id", craft(&|craft| craft.tx_id = Some("00".repeat(32)))),
                ("no transaction id", craft(&|craft| craft.tx_id = Some(String::new()))),
                ("no nonce", craft(&|craft| craft.nonce = Bytes::new())),
                ("another epoch", craft(&|craft| craft.epoch = 1)),
                ("another header type", craft(&|craft| craft.header_type = HeaderType::Config as i32)),
                ("no creator", craft(&|craft| craft.creator = Bytes::new())),
                ("a creator that is random", craft(&|craft| craft.creator = Bytes::from_static(b"\x0a\x03abc"))),
                ("a foreign authority", Craft::new(&network.foreign_user(), "basic", &GOOD_CALL).sign().into()),
                ("another organisation's name", craft(&|craft| craft.creator = of_another_member.clone())),
                ("a proposal that is committed", committed.signed().clone().into()),
            ],
        ),
        row(
            "evaluate: UNAVAILABLE Org1MSP; endorse: ABORTED Org1MSP",
            [
                ("an expired certificate", Craft::new(&network.expired_user(), "basic", &GOOD_CALL).sign().into()),
                ("a timestamp an hour ago", craft(&|craft| craft.seconds -= 3600)),
                ("a timestamp in an hour", craft(&|craft| craft.seconds += 3600)),
            ],
        ),
        row(
            "evaluate: INVALID_ARGUMENT; endorse: INVALID_ARGUMENT",
            [
                ("an empty proposal", SignedProposal::default().into()),
                ("a proposal of random bytes", raw(b"\xff\xfe\xfd random")),
                ("a proposal of random parts", raw(b"\x0a\x03abc\x12\x03def")),
            ],
        ),
    ];
    for Row { answers, inputs } in table {
        for (case, invocation) in inputs {
            let evaluated = invocation.evaluate(&client, None).await;
            let endorsed = invocation.endorse(&client, None).await;
            // The texts that SDKs show when a contract refuses.
            if let (Err(evaluated), Err(endorsed)) = (&evaluated, &endorsed)
                && evaluated.code == GrpcCode::Unknown
            {
                let texts = [
                    (&evaluated.message, "evaluate call to endorser returned error: chaincode response 500, "),
                    (detail_of(evaluated), "chaincode response 500, "),
                    (&endorsed.message, "failed to "),
                    (detail_of(endorsed), "chaincode response 500, "),
                ];
                for (text, start) in texts {
                    differences.check(case, text.get(..start.len()).unwrap_or(text), start);
                }
            }
            let got = format!("evaluate: {}; endorse: {}", code(evaluated), code(endorsed));
            differences.check(case, &got, answers);
        }
    }
    // Two proposals, because the chaincode still runs the first.
    let evaluated = call(ODD, &["wait"]).evaluate(&client, Some(SHORT_DEADLINE)).await;
    let endorsed = call(ODD, &["wait"]).endorse(&client, Some(SHORT_DEADLINE)).await;
    let got = format!("evaluate: {}; endorse: {}", code(evaluated), code(endorsed));
    differences.check(
        "a chaincode that does not answer before the deadline",
        &got,
        "evaluate: DEADLINE_EXCEEDED; endorse: DEADLINE_EXCEEDED",
    );
    let request = EndorseRequest::default();
    let endorsed: Result<EndorseResponse, _> =
        client.connection().unary("/gateway.Gateway/Endorse", &request, None).await;
    differences.check("no proposal", &format!("endorse: {}", code(endorsed)), "endorse: INVALID_ARGUMENT");
}

/// The number of the next block at the first organisation's peer.
fn height(network: &TestNetwork) -> u64 {
    network.running.peer(0).expect("a peer with one compute node").channel(CHANNEL).expect("a channel").height()
}

/// Requests for a commit status and for events.
async fn signed_requests(network: &TestNetwork, differences: &mut Differences) {
    let client = network.client(0).await;
    let committed = client.transact(CHANNEL, "events", "CreateAsset", &args(&["b", "blue", "5", "Ada", "300"])).await;
    let committed = committed.unwrap_or_else(|status| panic!("{status}"));
    let sign = |signer: &Signer, request: &[u8], is_spoiled: bool| {
        signer.sign(if is_spoiled { b"other bytes" } else { request })
    };
    let status = async |signer: &Signer, channel: &str, is_spoiled: bool| {
        let request = CommitStatusRequest {
            transaction_id: committed.tx_id.clone(),
            channel_id: channel.into(),
            identity: signer.serialized().clone(),
        };
        let request = Bytes::from(request.encode_to_vec());
        let signature = sign(signer, &request, is_spoiled);
        let request = SignedCommitStatusRequest { request, signature };
        let answer: Result<CommitStatusResponse, GrpcStatus> =
            client.connection().unary("/gateway.Gateway/CommitStatus", &request, None).await;
        code(answer)
    };
    let events = async |signer: &Signer, channel: &str, start: Option<SeekPosition>, is_spoiled: bool| {
        let request = ChaincodeEventsRequest {
            channel_id: channel.into(),
            chaincode_id: "events".into(),
            identity: signer.serialized().clone(),
            start_position: start,
            ..Default::default()
        };
        let request = Bytes::from(request.encode_to_vec());
        let signature = sign(signer, &request, is_spoiled);
        let (mut requests, mut responses) =
            client.connection().open("/gateway.Gateway/ChaincodeEvents", None).await.expect("a stream");
        requests.send(&SignedChaincodeEventsRequest { request, signature }).await.expect("an open stream");
        code(responses.started().await)
    };
    let user = client.signer().clone();
    let table = [
        row(
            "status: OK; events: OK",
            [
                ("a request as it should be", (user.clone(), CHANNEL, false)),
                ("a request with an expired certificate", (network.expired_user(), CHANNEL, false)),
            ],
        ),
        row(
            "status: PERMISSION_DENIED; events: PERMISSION_DENIED",
            [
                ("a request with a bad signature", (user.clone(), CHANNEL, true)),
                ("a request with a foreign certificate", (network.foreign_user(), CHANNEL, false)),
                ("a request for an unknown channel", (user.clone(), "other", false)),
            ],
        ),
    ];
    for Row { answers, inputs } in table {
        for (case, (signer, channel, is_spoiled)) in inputs {
            let status = status(&signer, channel, is_spoiled).await;
            let events = events(&signer, channel, None, is_spoiled).await;
            differences.check(case, &format!("status: {status}; events: {events}"), answers);
        }
    }
    let newest = events(&user, CHANNEL, Some(StartPosition::Newest.position()), false).await;
    differences.check("events from the newest block", &newest, "INVALID_ARGUMENT");
    let unknown = client.with_deadline(Some(SHORT_DEADLINE)).commit_status(CHANNEL, "unknown").await;
    differences.check("the status of an unknown transaction", &code(unknown), "DEADLINE_EXCEEDED");
}

async fn requests_for_blocks(network: &TestNetwork, differences: &mut Differences) {
    let client = network.client(0).await;
    let next = height(network);
    let seek = |start: StartPosition, stop: StartPosition| SeekInfo {
        start: Some(start.position()),
        stop: Some(stop.position()),
        ..Default::default()
    };
    let good = seek(StartPosition::Newest, StartPosition::Newest);
    let user = client.signer().clone();
    let of = |signer: Signer, channel: &str, seek: &SeekInfo| {
        GatewayClient::new(client.connection().clone(), signer).seek_envelope(channel, seek)
    };
    let mine = |seek: &SeekInfo| of(user.clone(), CHANNEL, seek);
    let envelope = mine(&good);
    let with_header = |change: fn(&mut ChannelHeader)| {
        altered(&envelope.payload, &user, |payload| envelopes::change_header(payload, change))
    };
    let (last, beyond) = (StartPosition::Block(next - 1), StartPosition::Block(next + 9));
    let impatient = SeekInfo { behavior: SeekBehavior::FailIfNotReady as i32, ..seek(last, beyond) };
    let table = [
        row("block 200", [("the newest block", envelope.clone())]),
        row(
            "403",
            [
                ("blocks with a foreign certificate", of(network.foreign_user(), CHANNEL, &good)),
                ("blocks with an expired certificate", of(network.expired_user(), CHANNEL, &good)),
                ("blocks with a wrong signature", Envelope { signature: user.sign(b"other"), ..envelope.clone() }),
                ("blocks without a signature", Envelope { signature: Bytes::new(), ..envelope.clone() }),
            ],
        ),
        row(
            "400",
            [
                ("a request for blocks of random bytes", signed(Bytes::from_static(b"\xff\xff"), &user)),
                ("blocks without a header", signed(Payload::default().encode_to_vec().into(), &user)),
                ("blocks without a timestamp", with_header(|header| header.timestamp = None)),
                (
                    "blocks with a stale timestamp",
                    with_header(|header| header.timestamp.as_mut().expect("a time").seconds -= 3600),
                ),
                ("blocks without a start", mine(&SeekInfo { start: None, ..good })),
                ("blocks without a stop", mine(&SeekInfo { stop: None, ..good })),
                ("a stop before the start", mine(&seek(StartPosition::Block(1), StartPosition::Block(0)))),
            ],
        ),
        row(
            "404",
            [
                ("blocks of an unknown channel", of(user.clone(), "other", &good)),
                ("a start beyond the next block", mine(&seek(StartPosition::Block(next + 1), beyond))),
            ],
        ),
        row("block 404", [("blocks that must be there and are not", mine(&impatient))]),
    ];
    for Row { answers, inputs } in table {
        for (case, envelope) in inputs {
            for form in [BlockView::Full, BlockView::Filtered] {
                let got = delivered(&client, envelope.clone(), form).await;
                differences.check(&format!("{case}, {form:?}"), &got, answers);
            }
        }
    }
    // The only block that is waited for.
    let mut blocks = client
        .deliver_envelope(mine(&seek(StartPosition::Block(next), beyond)), BlockView::Full)
        .await
        .expect("a stream");
    endorsed_and_submitted(&client, "next").await;
    let first = blocks.next().await;
    let got = matches!(&first, Ok(Some(Type::Block(block))) if block.header.as_ref().is_some_and(|header| header.number == next));
    differences.check("the next block", if got { "block" } else { "another answer" }, "block");
}

async fn endorsed_and_submitted(client: &GatewayClient, id: &str) {
    client.submit(&endorsed(client, id).await).await.expect("an orderer");
}

/// The answers on a stream of blocks until it ends.
async fn delivered(client: &GatewayClient, envelope: Envelope, form: BlockView) -> String {
    let mut blocks = client.deliver_envelope(envelope, form).await.expect("a stream");
    let mut answers = Vec::new();
    loop {
        answers.push(match blocks.next().await {
            // The stream stays open for another request.
            Ok(Some(Type::Status(200))) => return format!("{} 200", answers.join(" ")),
            Ok(Some(Type::Status(status))) => status.to_string(),
            Ok(Some(_)) => "block".to_owned(),
            Ok(None) => return answers.join(" "),
            Err(status) => return format!("{} {}", answers.join(" "), code::<()>(Err(status))),
        });
    }
}

/// Messages that announce more bytes than the limit of 100 MiB.
async fn long_messages(network: &TestNetwork, differences: &mut Differences) {
    let client = network.client(0).await;
    let announced: u32 = (100 << 20) + 1;
    for path in ["/gateway.Gateway/Evaluate", "/gateway.Gateway/Endorse", "/gateway.Gateway/Submit"] {
        let (mut requests, mut responses) = client.connection().open(path, None).await.expect("a stream");
        let start = [&[0][..], &announced.to_be_bytes(), b"the first bytes"].concat();
        requests.send_framed(start.into()).await.expect("room in the window");
        let answer = responses.next::<SubmitResponse>().await;
        differences.check(&format!("a message of more than 100 MiB to {path}"), &code(answer), "RESOURCE_EXHAUSTED");
    }
}

/// The last row: the network has no orderer any more.
async fn no_orderer(network: &TestNetwork, differences: &mut Differences) {
    let client = network.client(0).await;
    let transaction = endorsed(&client, "late").await;
    network.running.orderer().stop().await;
    let submitted = client.submit(&transaction).await;
    differences.check("no orderer", &format!("submit: {}", code(submitted)), "submit: UNAVAILABLE OrdererMSP");
}
