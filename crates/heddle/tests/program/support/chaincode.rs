//! A chaincode that speaks Fabric's shim protocol, and the lifecycle that brings it to a network.
//!
//! Each function of the chaincode makes one request of its peer, and answers with what the peer answers. `Hang` puts a key
//! and never answers; the test learns that it has begun.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::{Bytes, BytesMut};
use gateway::client::{ConnectTarget, GatewayClient, GrpcConnection};
use gateway::grpc::client::ClientIdentity;
use gateway::grpc::message::{PREFIX_BYTES, frame};
use gateway::grpc::{GrpcCode, GrpcStatus};
use h2::server::SendResponse;
use identity::policy;
use node::Endpoints;
use prost::Message;
use proto::lifecycle::chaincode_source::{Local, Type as SourceType, Unavailable};
use proto::lifecycle::{
    ApproveChaincodeDefinitionForMyOrgArgs, ChaincodeSource, CommitChaincodeDefinitionArgs, InstallChaincodeArgs,
    InstallChaincodeResult,
};
use proto::protos::chaincode_message::Type;
use proto::protos::collection_config::Payload as CollectionPayload;
use proto::protos::collection_policy_config::Payload as PolicyPayload;
use proto::protos::{
    ChaincodeId, ChaincodeInput, ChaincodeMessage, ChaincodeProposalPayload, CollectionConfig, CollectionConfigPackage,
    CollectionPolicyConfig, GetState, Proposal, ProposalResponse, PutState, Response, StaticCollectionConfig,
};
use tokio::sync::mpsc;

use super::load::connect;
use super::patiently;

const LIFECYCLE: &str = "_lifecycle";
/// Time limit for anything that follows by itself, on a busy machine.
pub const FOLLOW_TIMEOUT: Duration = Duration::from_secs(60);
const CALL_DEADLINE: Duration = Duration::from_secs(40);
const ENDORSE_TIMEOUT: Duration = Duration::from_secs(60);

/// What the chaincode does; each stream of it shares this.
#[derive(Clone)]
pub struct TestChaincode {
    package_id: Arc<str>,
    /// Tells the test the keys of calls that hang.
    hanging: mpsc::UnboundedSender<String>,
    streams: Arc<Mutex<usize>>,
    hung: Arc<Mutex<BTreeSet<String>>>,
}

impl TestChaincode {
    /// A chaincode that registers as a package, and the keys of its calls that hang.
    pub fn new(package_id: &str) -> (TestChaincode, mpsc::UnboundedReceiver<String>) {
        let (hanging, hangs) = mpsc::unbounded_channel();
        let chaincode =
            TestChaincode { package_id: package_id.into(), hanging, streams: Arc::default(), hung: Arc::default() };
        (chaincode, hangs)
    }

    /// How many streams have registered.
    pub fn streams(&self) -> usize {
        *self.streams.lock().expect("no holder panics")
    }

    fn registration(&self) -> ChaincodeMessage {
        *self.streams.lock().expect("no holder panics") += 1;
        let id = ChaincodeId { name: self.package_id.to_string(), ..ChaincodeId::default() };
        ChaincodeMessage {
            r#type: Type::Register.into(),
            payload: id.encode_to_vec().into(),
            ..ChaincodeMessage::default()
        }
    }

    /// The answer to one message of the peer.
    fn answer(&self, message: ChaincodeMessage) -> Option<ChaincodeMessage> {
        let reply = |kind: Type, payload: Vec<u8>| ChaincodeMessage {
            r#type: kind.into(),
            payload: payload.into(),
            txid: message.txid.clone(),
            channel_id: message.channel_id.clone(),
            ..ChaincodeMessage::default()
        };
        let completed = |status: i32, payload: Bytes| {
            let text = if status == 200 { String::new() } else { String::from_utf8_lossy(&payload).into_owned() };
            Some(reply(Type::Completed, Response { status, message: text, payload }.encode_to_vec()))
        };
        match message.r#type() {
            Type::Transaction | Type::Init => {}
            Type::Response if self.hung.lock().expect("no holder panics").contains(&message.txid) => return None,
            Type::Response => return completed(200, message.payload.clone()),
            Type::Error => return completed(500, message.payload.clone()),
            _ => return None,
        }
        let args = ChaincodeInput::decode(message.payload.clone()).expect("an input").args;
        let args: Vec<&str> = args.iter().map(|arg| std::str::from_utf8(arg).expect("text")).collect();
        let put = |collection: &str, key: &str, value: Bytes| {
            let request = PutState { key: key.to_owned(), value, collection: collection.to_owned() };
            Some(reply(Type::PutState, request.encode_to_vec()))
        };
        let get = |kind: Type, collection: &str, key: &str| {
            let request = GetState { key: key.to_owned(), collection: collection.to_owned() };
            Some(reply(kind, request.encode_to_vec()))
        };
        match args[..] {
            ["Put", key, value] => put("", key, Bytes::copy_from_slice(value.as_bytes())),
            ["Hang", key, value] => {
                if self.hung.lock().expect("no holder panics").insert(message.txid.clone()) {
                    self.hanging.send(key.to_owned()).expect("the test listens");
                }
                put("", key, Bytes::copy_from_slice(value.as_bytes()))
            }
            ["Get", key] => get(Type::GetState, "", key),
            ["PutPrivate", collection, key] => put(collection, key, transient(&message)),
            ["GetPrivate", collection, key] => get(Type::GetState, collection, key),
            ["GetPrivateHash", collection, key] => get(Type::GetPrivateDataHash, collection, key),
            _ => completed(500, Bytes::from(format!("no such function: {args:?}"))),
        }
    }

    /// Runs one stream that the chaincode has opened at a peer's port for chaincodes, until the peer ends it.
    pub async fn dial(&self, target: &ConnectTarget, identity: &ClientIdentity) -> Result<(), String> {
        let connected = GrpcConnection::connect_as(target, Some(identity), Duration::from_secs(5)).await;
        let connection = connected.map_err(|error| error.to_string())?;
        let opened = connection.open("/protos.ChaincodeSupport/Register", None).await;
        let (mut requests, mut responses) = opened.map_err(|status| status.to_string())?;
        requests.send(&self.registration()).await.map_err(|status| status.to_string())?;
        while let Some(message) = responses.next().await.map_err(|status| status.to_string())? {
            if let Some(answer) = self.answer(message) {
                requests.send(&answer).await.map_err(|status| status.to_string())?;
            }
        }
        Ok(())
    }
}

/// The value that the client sent beside the arguments.
fn transient(message: &ChaincodeMessage) -> Bytes {
    let signed = message.proposal.as_ref().expect("a call has its proposal");
    let proposal = Proposal::decode(signed.proposal_bytes.clone()).expect("a proposal");
    let payload = ChaincodeProposalPayload::decode(proposal.payload).expect("its payload");
    payload.transient_map.get("value").cloned().unwrap_or_default()
}

impl TestChaincode {
    /// Accepts peers until the runtime ends. A server of `gateway` would wait for the peer's first message, but the
    /// chaincode speaks first.
    async fn listen(self, listener: tokio::net::TcpListener) {
        loop {
            let (socket, _) = listener.accept().await.expect("descriptors are left");
            let chaincode = self.clone();
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(socket).await else { return };
                while let Some(Ok((request, respond))) = connection.accept().await {
                    let chaincode = chaincode.clone();
                    tokio::spawn(async move { chaincode.serve(request.into_body(), respond).await });
                }
            });
        }
    }

    /// Runs one stream that a peer has opened. Ends when the peer goes.
    async fn serve(&self, mut body: h2::RecvStream, mut respond: SendResponse<Bytes>) -> Option<()> {
        let mut response = http::Response::new(());
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        let mut answers = respond.send_response(response, false).ok()?;
        answers.send_data(frame(&self.registration()), false).ok()?;
        let mut received = BytesMut::new();
        loop {
            let chunk = body.data().await?.ok()?;
            body.flow_control().release_capacity(chunk.len()).ok()?;
            received.extend_from_slice(&chunk);
            while let Some(length) = received.get(1..PREFIX_BYTES) {
                let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
                if received.len() < PREFIX_BYTES + length {
                    break;
                }
                let message = received.split_to(PREFIX_BYTES + length).split_off(PREFIX_BYTES).freeze();
                let message = ChaincodeMessage::decode(message).expect("a message of the shim");
                if let Some(answer) = self.answer(message) {
                    answers.send_data(frame(&answer), false).ok()?;
                }
            }
        }
    }
}

/// A chaincode that listens. [`ListeningChaincode::kill`] closes its connections as the end of its process would.
pub struct ListeningChaincode {
    runtime: Option<tokio::runtime::Runtime>,
}

impl ListeningChaincode {
    /// Listens at an address that is free.
    pub fn start(chaincode: TestChaincode, listener: std::net::TcpListener) -> ListeningChaincode {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("threads can be started");
        listener.set_nonblocking(true).expect("a socket");
        let inside = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
        drop(inside);
        runtime.spawn(chaincode.listen(listener));
        ListeningChaincode { runtime: Some(runtime) }
    }

    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for ListeningChaincode {
    fn drop(&mut self) {
        self.end();
    }
}

/// A free port of this machine.
pub fn listener() -> (std::net::TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// The administrators of a network's organisations, each at its gateway.
pub async fn administrators(dir: &Path) -> Vec<GatewayClient> {
    let endpoints = Endpoints::load(dir).expect("the network has said where it is");
    let mut admins = Vec::new();
    for number in 1..=endpoints.gateways.len() {
        let target = endpoints.target(dir, number).expect("the organisation is there");
        let admin = endpoints.admin(dir, number).expect("it has an administrator");
        let connection = GrpcConnection::connect(&target).await.expect("its gateway listens");
        admins.push(GatewayClient::new(connection, admin).with_deadline(Some(ENDORSE_TIMEOUT)));
    }
    admins
}

/// Installs a package at one organisation's peer.
pub async fn install(admin: &GatewayClient, package: Vec<u8>) -> Result<InstallChaincodeResult, String> {
    let args = InstallChaincodeArgs { chaincode_install_package: package.into() };
    let proposal = admin.proposal("", LIFECYCLE, "InstallChaincode", &[args.encode_to_vec().into()]).sign();
    let path = "/protos.Endorser/ProcessProposal";
    let answer = patiently(async || admin.connection().unary(path, proposal.signed(), Some(ENDORSE_TIMEOUT)).await);
    let answer: ProposalResponse = answer.await.map_err(|status| status.to_string())?;
    let response = answer.response.unwrap_or_default();
    match response.status {
        200 => Ok(InstallChaincodeResult::decode(response.payload).expect("its result")),
        status => Err(format!("{status}: {}", response.message)),
    }
}

/// A first definition.
pub struct Definition<'a> {
    pub channel: &'a str,
    pub name: &'a str,
    /// The package that each organisation approves; empty for none.
    pub package: &'a str,
    /// The endorsement policy.
    pub policy: &'a str,
    /// A collection and the policy that names its members.
    pub collection: Option<(&'a str, &'a str)>,
}

impl Definition<'_> {
    fn collections(&self) -> Option<CollectionConfigPackage> {
        let (name, members) = self.collection?;
        let members = policy::parse(members).expect("a policy");
        let collection = StaticCollectionConfig {
            name: name.to_owned(),
            member_orgs_policy: Some(CollectionPolicyConfig { payload: Some(PolicyPayload::SignaturePolicy(members)) }),
            maximum_peer_count: 2,
            ..StaticCollectionConfig::default()
        };
        let payload = Some(CollectionPayload::StaticCollectionConfig(collection));
        Some(CollectionConfigPackage { config: vec![CollectionConfig { payload }] })
    }

    fn validation(&self) -> Bytes {
        policy::of_signature(policy::parse(self.policy).expect("a policy")).encode_to_vec().into()
    }

    /// Every organisation approves the definition, and the first one commits it.
    pub async fn bring(&self, admins: &[GatewayClient]) {
        let source = match self.package {
            "" => SourceType::Unavailable(Unavailable {}),
            id => SourceType::LocalPackage(Local { package_id: id.to_owned() }),
        };
        let approval = ApproveChaincodeDefinitionForMyOrgArgs {
            sequence: 1,
            name: self.name.to_owned(),
            version: "1.0".to_owned(),
            endorsement_plugin: "escc".to_owned(),
            validation_plugin: "vscc".to_owned(),
            validation_parameter: self.validation(),
            collections: self.collections(),
            source: Some(ChaincodeSource { r#type: Some(source) }),
            ..ApproveChaincodeDefinitionForMyOrgArgs::default()
        };
        for admin in admins {
            let own = admin.signer().msp_id().to_string();
            transact(admin, self.channel, "ApproveChaincodeDefinitionForMyOrg", &approval, &[&own]).await;
        }
        let commit = CommitChaincodeDefinitionArgs {
            sequence: 1,
            name: self.name.to_owned(),
            version: "1.0".to_owned(),
            endorsement_plugin: "escc".to_owned(),
            validation_plugin: "vscc".to_owned(),
            validation_parameter: self.validation(),
            collections: self.collections(),
            ..CommitChaincodeDefinitionArgs::default()
        };
        transact(&admins[0], self.channel, "CommitChaincodeDefinition", &commit, &[]).await;
    }
}

/// Repeats a transaction of the lifecycle until it is valid: another peer may not have the newest approval yet.
async fn transact(admin: &GatewayClient, channel: &str, function: &str, args: &impl Message, endorsing: &[&str]) {
    let (start, args) = (Instant::now(), [Bytes::from(args.encode_to_vec())]);
    loop {
        let proposal = admin.proposal(channel, LIFECYCLE, function, &args).endorsing(endorsing).sign();
        let error = match admin.endorse(&proposal).await {
            Ok(transaction) => {
                admin.submit(&transaction).await.expect("the orderer takes it");
                let commit = admin.commit_status(channel, transaction.tx_id()).await.expect("it is committed");
                if commit.is_valid() {
                    return;
                }
                format!("{commit:?}")
            }
            Err(status) => status.to_string(),
        };
        assert!(start.elapsed() < ENDORSE_TIMEOUT, "{function}: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A call that is ready to be endorsed or evaluated.
pub struct Call<'a> {
    pub channel: &'a str,
    pub contract: &'a str,
    pub args: &'a [&'a str],
    /// The private value, if there is one.
    pub value: Option<&'a str>,
    /// The organisations that endorse; empty to let the gateway choose.
    pub endorsing: &'a [&'a str],
}

impl Call<'_> {
    fn proposal(&self, client: &GatewayClient) -> gateway::client::Proposal {
        let (function, args) = self.args.split_first().expect("a function");
        let args: Vec<Bytes> = args.iter().map(|arg| Bytes::copy_from_slice(arg.as_bytes())).collect();
        let mut proposal = client.proposal(self.channel, self.contract, function, &args).endorsing(self.endorsing);
        if let Some(value) = self.value {
            proposal = proposal.transient("value", Bytes::copy_from_slice(value.as_bytes()));
        }
        proposal.sign()
    }

    pub async fn evaluate(&self, client: &GatewayClient) -> Result<Bytes, GrpcStatus> {
        client.evaluate(&self.proposal(client)).await
    }

    /// Runs the transaction until it is committed as valid.
    pub async fn submit(&self, client: &GatewayClient) -> Result<Bytes, GrpcStatus> {
        let transaction = client.endorse(&self.proposal(client)).await?;
        client.submit(&transaction).await?;
        let commit = client.commit_status(self.channel, transaction.tx_id()).await?;
        match commit.is_valid() {
            true => Ok(transaction.result().clone()),
            false => Err(GrpcStatus::new(GrpcCode::Aborted, format!("{commit:?}"))),
        }
    }
}

/// A call whose endorsers the gateway chooses.
pub fn call<'a>(contract: &'a str, args: &'a [&'a str]) -> Call<'a> {
    Call { channel: "mychannel", contract, args, value: None, endorsing: &[] }
}

/// A user of an organisation.
pub async fn client(dir: &Path, number: usize) -> GatewayClient {
    let (client, _) = connect(dir, number).await.expect("its gateway is ready");
    client.with_deadline(Some(CALL_DEADLINE))
}

/// A port of this test program; ports of outgoing connections begin above these.
pub fn port(offset: u32) -> String {
    (16_384 + (std::process::id() % 14_000) + offset).to_string()
}

/// Repeats a transaction until it is valid: a process may be on its way back, or not know a new definition yet.
pub async fn follows(client: &GatewayClient, call: &Call<'_>) {
    let start = Instant::now();
    while let Err(status) = call.submit(client).await {
        assert!(start.elapsed() < FOLLOW_TIMEOUT, "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
