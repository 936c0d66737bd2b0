//! A network in one process, for tests and examples: organisations, a channel, clients, peers and an orderer.

#![allow(dead_code)]

use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::{Bytes, TxId};
use chain::endorse::Endorse;
use chain::order::{Broadcast, Orderer, OrdererSetup, SoloEngines};
use chain::peer::{Peer, PeerConfig, PeerSetup};
use chain::stores::LocalStores;
use contract::ContractRegistry;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{MemberRole, Signer};
use ledger::config::{
    BatchLimits, Capabilities, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec, sign_update,
};
use ledger::hash::sha256_of;
use ledger::{Block, ChannelConfig};
use prost::Message;
use proto::common::{ChannelHeader, ConfigGroup, ConfigValue, Envelope, Header, HeaderType, Payload, SignatureHeader};
use proto::orderer::BatchSize;
use proto::protos::{
    ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeHeaderExtension, ChaincodeId, ChaincodeInput,
    ChaincodeInvocationSpec, ChaincodeProposalPayload, ChaincodeSpec, Proposal, ProposalResponse, SignedProposal,
    Transaction, TransactionAction,
};
use rules::definitions::ContractDefinitions;
use storage::GroupSync;
use storage::tables::{ModelEngine, TablesEngine};

/// The channel of every network here.
pub const CHANNEL: &str = "ch";
/// The address at which the orderer of the network below `root` serves blocks: networks of one process must not meet.
pub fn orderer_address(root: &Directory) -> String {
    format!("orderer of {}", root.path().display())
}

/// The organisations of a network and the genesis block of its channel.
pub struct Consortium {
    pub organizations: Vec<IssuingOrganization>,
    pub orderer_organization: IssuingOrganization,
    pub orderer: Signer,
    pub peers: Vec<Signer>,
    pub clients: Vec<Signer>,
    pub genesis: Block,
}

/// How a consortium is set up.
pub struct ConsortiumConfig {
    pub terms: CertificateTerms,
    pub organizations: usize,
    pub rule: EndorsementRule,
    pub batch: BatchLimits,
}

impl ConsortiumConfig {
    /// Ed25519 keys from a seed, for tests.
    pub fn seeded(organizations: usize, rule: EndorsementRule) -> ConsortiumConfig {
        ConsortiumConfig { terms: CertificateTerms::seeded([7; 32]), organizations, rule, batch: batch(10) }
    }
}

/// Small blocks with a short timeout.
pub fn batch(messages_max: u32) -> BatchLimits {
    BatchLimits {
        messages_max,
        absolute_bytes_max: 1 << 20,
        preferred_bytes_max: 512 << 10,
        timeout: Duration::from_millis(50),
    }
}

impl Consortium {
    pub fn create(setup: ConsortiumConfig) -> Consortium {
        let found =
            |msp: &str, domain: &str| IssuingOrganization::create(msp, domain, &setup.terms).expect("names are fine");
        let organizations: Vec<IssuingOrganization> = (1..=setup.organizations)
            .map(|number| found(&format!("Org{number}MSP"), &format!("org{number}.example.com")))
            .collect();
        let orderer_organization = found("OrdererMSP", "example.com");
        let spec = |organization: &IssuingOrganization| OrganizationSpec {
            name: organization.msp_id().trim_end_matches("MSP").to_owned(),
            msp_id: organization.msp_id().to_string(),
            msp: organization.definition().encode_to_vec().into(),
            anchor_peers: vec![],
            endpoints: vec![],
        };
        let genesis = GenesisSpec {
            channel: CHANNEL.to_owned(),
            application: organizations.iter().map(spec).collect(),
            orderers: vec![OrganizationSpec {
                endpoints: vec!["orderer.example.com:7050".to_owned()],
                ..spec(&orderer_organization)
            }],
            endorsement: setup.rule,
            batch: setup.batch,
            consensus: ConsensusConfig { kind: "solo".to_owned(), metadata: Bytes::new(), maintenance: false },
            capabilities: Capabilities::newest(),
        };
        let issue =
            |organization: &IssuingOrganization, role, name: &str| organization.issue(role, name).expect("fine names");
        Consortium {
            orderer: issue(&orderer_organization, MemberRole::Orderer, "orderer0"),
            peers: organizations.iter().map(|organization| issue(organization, MemberRole::Peer, "peer0")).collect(),
            clients: organizations
                .iter()
                .map(|organization| issue(organization, MemberRole::Client, "User1"))
                .collect(),
            genesis: genesis.build().expect("the specification is usable"),
            organizations,
            orderer_organization,
        }
    }

    /// An administrator of an organisation.
    pub fn admin(&self, organization: &IssuingOrganization) -> Signer {
        organization.issue(MemberRole::Admin, "Admin").expect("fine names")
    }

    /// An update that changes a configuration, signed by an administrator of each organisation, the orderers' first.
    pub fn config_update(&self, config: &ChannelConfig, change: impl FnOnce(&mut ConfigGroup)) -> Bytes {
        let organizations = std::iter::once(&self.orderer_organization).chain(&self.organizations);
        let admins: Vec<Signer> = organizations.map(|organization| self.admin(organization)).collect();
        self.signed_update(config, change, &admins.iter().collect::<Vec<_>>())
    }

    /// An update that changes a configuration, signed by these members.
    pub fn signed_update(
        &self,
        config: &ChannelConfig,
        change: impl FnOnce(&mut ConfigGroup),
        signers: &[&Signer],
    ) -> Bytes {
        let mut root = config.decode_root().expect("it was decoded before");
        change(&mut root);
        let update = config.update_to(&root).expect("it was decoded before").expect("it changes something");
        sign_update(&update, signers)
    }

    /// A client of the first organisation.
    pub fn client(&self) -> Client {
        Client { signer: self.clients[0].clone() }
    }
}

/// Builds proposals and transactions as Fabric's SDKs do.
#[derive(Clone)]
pub struct Client {
    pub signer: Signer,
}

/// A signed proposal and its parts.
#[derive(Clone)]
pub struct SignedTestProposal {
    pub tx_id: TxId,
    pub header: Header,
    pub payload: ChaincodeProposalPayload,
    pub bytes: Bytes,
}

/// The parts of a proposal that tests change.
#[derive(Clone)]
pub struct ProposalOverrides {
    pub channel: String,
    pub kind: i32,
    pub epoch: u64,
    pub nonce: Vec<u8>,
    pub tx_id: Option<String>,
    pub seconds_off: i64,
    pub creator: Option<Bytes>,
}

impl Default for ProposalOverrides {
    fn default() -> Self {
        let mut nonce = vec![0; 24];
        base::rt::fill_random(&mut nonce);
        ProposalOverrides {
            channel: CHANNEL.to_owned(),
            kind: HeaderType::EndorserTransaction as i32,
            epoch: 0,
            nonce,
            tx_id: None,
            seconds_off: 0,
            creator: None,
        }
    }
}

pub fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

impl Client {
    pub fn proposal(&self, contract: &str, function: &str, args: &[&str]) -> SignedTestProposal {
        self.shaped(ProposalOverrides::default(), contract, function, args)
    }

    /// A call of the system contract that changes definitions.
    pub fn lifecycle(&self, function: &str, args: &impl Message) -> SignedTestProposal {
        let args = vec![Bytes::copy_from_slice(function.as_bytes()), encode(args)];
        self.shaped_bytes(ProposalOverrides::default(), "_lifecycle", args)
    }

    /// A call that means to initialise a contract.
    pub fn initialization(&self, contract: &str, function: &str) -> SignedTestProposal {
        let input = ChaincodeInput {
            args: vec![Bytes::copy_from_slice(function.as_bytes())],
            is_init: true,
            ..ChaincodeInput::default()
        };
        self.with_input(ProposalOverrides::default(), contract, input)
    }

    pub fn shaped(
        &self,
        shape: ProposalOverrides,
        contract: &str,
        function: &str,
        args: &[&str],
    ) -> SignedTestProposal {
        let args = std::iter::once(function).chain(args.iter().copied());
        self.shaped_bytes(shape, contract, args.map(|arg| Bytes::copy_from_slice(arg.as_bytes())).collect())
    }

    fn shaped_bytes(&self, shape: ProposalOverrides, contract: &str, args: Vec<Bytes>) -> SignedTestProposal {
        self.with_input(shape, contract, ChaincodeInput { args, ..ChaincodeInput::default() })
    }

    fn with_input(&self, shape: ProposalOverrides, contract: &str, input: ChaincodeInput) -> SignedTestProposal {
        let creator = shape.creator.unwrap_or_else(|| self.signer.serialized().clone());
        let tx_id = shape.tx_id.unwrap_or_else(|| hex::encode(sha256_of(&[&shape.nonce, &creator])));
        let now = base::rt::wall_now();
        let id = ChaincodeId { name: contract.to_owned(), ..ChaincodeId::default() };
        let channel_header = ChannelHeader {
            r#type: shape.kind,
            timestamp: Some(prost_types::Timestamp {
                seconds: now.seconds() as i64 + shape.seconds_off,
                nanos: now.subsecond_nanos() as i32,
            }),
            channel_id: shape.channel,
            tx_id: tx_id.clone(),
            epoch: shape.epoch,
            extension: encode(&ChaincodeHeaderExtension { chaincode_id: Some(id.clone()), ..Default::default() }),
            ..ChannelHeader::default()
        };
        let header = Header {
            channel_header: encode(&channel_header),
            signature_header: encode(&SignatureHeader { creator, nonce: shape.nonce.into() }),
        };
        let spec = ChaincodeSpec { chaincode_id: Some(id), input: Some(input), ..ChaincodeSpec::default() };
        let payload = ChaincodeProposalPayload {
            input: encode(&ChaincodeInvocationSpec { chaincode_spec: Some(spec) }),
            ..ChaincodeProposalPayload::default()
        };
        let proposal = encode(&Proposal { header: encode(&header), payload: encode(&payload), ..Proposal::default() });
        let signature = self.signer.sign(&proposal);
        let bytes = encode(&SignedProposal { proposal_bytes: proposal, signature });
        SignedTestProposal { tx_id: tx_id.as_str().into(), header, payload, bytes }
    }

    /// The unsigned payload of a transaction.
    pub fn payload(&self, proposal: &SignedTestProposal, responses: &[ProposalResponse]) -> Bytes {
        let endorsements = responses.iter().filter_map(|response| response.endorsement.clone()).collect();
        let action = ChaincodeActionPayload {
            chaincode_proposal_payload: encode(&proposal.payload),
            action: Some(ChaincodeEndorsedAction {
                proposal_response_payload: responses[0].payload.clone(),
                endorsements,
            }),
        };
        let transaction = Transaction {
            actions: vec![TransactionAction {
                header: proposal.header.signature_header.clone(),
                payload: encode(&action),
            }],
        };
        encode(&Payload { header: Some(proposal.header.clone()), data: encode(&transaction) })
    }

    pub fn envelope(&self, proposal: &SignedTestProposal, responses: &[ProposalResponse]) -> Bytes {
        self.seal(self.payload(proposal, responses))
    }

    /// Signs a payload into an envelope.
    pub fn seal(&self, payload: Bytes) -> Bytes {
        let signature = self.signer.sign(&payload);
        encode(&Envelope { payload, signature })
    }
}

/// A value of the orderers' group, to be changed.
pub fn orderer_value<'a>(root: &'a mut ConfigGroup, name: &str) -> &'a mut ConfigValue {
    let orderer = root.groups.get_mut("Orderer").expect("every channel has it");
    orderer.values.get_mut(name).expect("every channel has it")
}

/// Sets the most messages of a block.
pub fn set_messages_max(root: &mut ConfigGroup, messages_max: u32) {
    let value = orderer_value(root, "BatchSize");
    let size = BatchSize::decode(value.value.clone()).expect("it was read before");
    value.value = encode(&BatchSize { max_message_count: messages_max, ..size });
}

/// The directory of a node.
pub async fn directory(root: &Directory, name: &str) -> Directory {
    root.subdirectory(name).await.expect("the directory can be made")
}

pub async fn orderer_options(consortium: &Consortium, root: &Directory) -> OrdererSetup {
    OrdererSetup {
        watermarks: None,
        signer: consortium.orderer.clone(),
        directory: directory(root, "orderer").await,
        sync: GroupSync::new(),
        engines: Arc::new(SoloEngines),
        settings: Default::default(),
    }
}

pub async fn orderer(consortium: &Consortium, root: &Directory) -> Arc<Orderer> {
    let options = orderer_options(consortium, root).await;
    let orderer = Orderer::open(options).await.expect("the orderer opens");
    orderer.join(&consortium.genesis).await.expect("the orderer joins");
    orderer.serve(&orderer_address(root)).await.expect("the address is free");
    orderer
}

pub async fn peer_options(
    consortium: &Consortium,
    root: &Directory,
    index: usize,
    tables: Arc<dyn TablesEngine>,
) -> PeerSetup {
    PeerSetup {
        name: format!("peer{index}"),
        signer: consortium.peers[index].clone(),
        stores: Arc::new(LocalStores::new(
            format!("peer{index}"),
            directory(root, &format!("peer{index}")).await,
            GroupSync::new(),
            tables,
        )),
        registry: ContractRegistry::native(),
        definitions: ContractDefinitions::new(),
        orderers: vec![orderer_address(root)].into(),
        members: Arc::default(),
        settings: PeerConfig::default(),
    }
}

/// A peer on model tables.
pub async fn peer(consortium: &Consortium, root: &Directory, index: usize) -> Arc<Peer> {
    let tables = directory(root, &format!("tables{index}")).await;
    let engine = ModelEngine::open(tables).await.expect("the engine opens");
    let options = peer_options(consortium, root, index, engine).await;
    let peer = Peer::open(options).await.expect("the peer opens");
    peer.join(&consortium.genesis).await.expect("the peer joins");
    peer
}

/// Endorses at these peers and submits the transaction for ordering; returns the transaction's id.
pub async fn submit(
    client: &Client,
    peers: &[&Arc<Peer>],
    orderer: &Orderer,
    contract: &str,
    function: &str,
    args: &[&str],
) -> TxId {
    submit_proposal(client, peers, orderer, client.proposal(contract, function, args)).await
}

/// As [`submit`], of a proposal that was made before.
pub async fn submit_proposal(
    client: &Client,
    peers: &[&Arc<Peer>],
    orderer: &Orderer,
    proposal: SignedTestProposal,
) -> TxId {
    let mut responses = Vec::new();
    for peer in peers {
        let response = peer.process(proposal.bytes.clone()).await.expect("the proposal is in order");
        let answer = response.response.clone().unwrap_or_default();
        assert_eq!(answer.status, 200, "{}", answer.message);
        responses.push(response);
    }
    orderer.broadcast(CHANNEL, client.envelope(&proposal, &responses)).await.expect("the orderer takes it");
    proposal.tx_id
}
