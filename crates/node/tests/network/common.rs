//! Helpers for tests of a whole network: a small network, and proposals and envelopes with one defect each.

use base::{Bytes, rt};
use gateway::client::{EndorsedTransaction, GatewayClient, GrpcConnection};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole, Signer, hex, sha256};
use node::config::{HeddleConfig, organization_names};
use node::{Network, RunningNetwork};
use prost::Message as _;
use proto::common::{ChannelHeader, Envelope, Header, HeaderType, Payload, SignatureHeader};
use proto::protos::{
    ChaincodeHeaderExtension, ChaincodeId, ChaincodeInput, ChaincodeInvocationSpec, ChaincodeProposalPayload,
    ChaincodeSpec, Proposal, SignedProposal,
};

pub const CHANNEL: &str = "mychannel";
const MINUTE: i64 = 60;

/// A network in a directory that ends with it.
pub struct TestNetwork {
    pub running: RunningNetwork,
    pub folder: tempfile::TempDir,
}

/// Any free ports, and a short batch time-out.
pub fn config(organizations: usize) -> HeddleConfig {
    let mut config = HeddleConfig::default();
    config.network.organizations = organization_names(organizations);
    config.network.policy = "majority".into();
    config.ports.gateway = 0;
    config.ports.orderer = 0;
    config.ports.metrics = 0;
    config.batch.timeout_ms = 20;
    config
}

impl TestNetwork {
    pub async fn start(config: &HeddleConfig) -> TestNetwork {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let network = Network::create(folder.path(), config).await.expect("a network");
        TestNetwork { running: network.run().await.expect("a network that runs"), folder }
    }

    pub async fn client(&self, organization: usize) -> GatewayClient {
        let connection = GrpcConnection::connect(&self.running.gateway(organization)).await.expect("a gateway");
        GatewayClient::new(connection, self.running.user(organization))
    }

    pub async fn client_of(&self, signer: Signer) -> GatewayClient {
        let connection = GrpcConnection::connect(&self.running.gateway(0)).await.expect("a gateway");
        GatewayClient::new(connection, signer)
    }

    /// An issuer of certificates of the first organisation.
    pub fn issuer(&self, terms: &CertificateTerms) -> IssuingOrganization {
        self.issuer_of(1, terms)
    }

    /// An issuer of certificates of the organisation `Org<number>`.
    fn issuer_of(&self, number: usize, terms: &CertificateTerms) -> IssuingOrganization {
        let domain = format!("org{number}.example.com");
        let folder = self.folder.path().join("organizations/peerOrganizations").join(&domain);
        IssuingOrganization::read(format!("Org{number}MSP"), &domain, &folder, terms).expect("what the network wrote")
    }

    /// A peer of the organisation `Org<number>`, which endorses whatever a test has it sign.
    pub fn endorser(&self, number: usize) -> Signer {
        let issuer = self.issuer_of(number, &CertificateTerms::starting_now(KeyKind::P256));
        issuer.issue(MemberRole::Peer, "forger").expect("a certificate")
    }

    /// A user whose certificate has expired.
    pub fn expired_user(&self) -> Signer {
        let now = rt::wall_now().seconds() as i64;
        // It begins within its authority's validity, which started five minutes ago.
        let issuer = self.issuer(&CertificateTerms::valid(KeyKind::P256, now - 4 * MINUTE, now - MINUTE));
        issuer.issue(MemberRole::Client, "Late").expect("a certificate")
    }

    /// A user of the same names whose certificate another authority issued.
    pub fn foreign_user(&self) -> Signer {
        let terms = CertificateTerms::starting_now(KeyKind::P256);
        let foreign = IssuingOrganization::create("Org1MSP", "org1.example.com", &terms).expect("an organisation");
        foreign.issue(MemberRole::Client, "User1").expect("a certificate")
    }

    pub async fn stop(self) {
        self.running.stop().await.expect("a stop without errors");
    }
}

/// An endorsed transaction that creates an asset.
pub async fn endorsed(client: &GatewayClient, id: &str) -> EndorsedTransaction {
    let proposal = client.proposal(CHANNEL, "basic", "CreateAsset", &args(&[id, "blue", "5", "Ada", "300"])).sign();
    client.endorse(&proposal).await.expect("endorsements")
}

pub fn args(args: &[&str]) -> Vec<Bytes> {
    args.iter().map(|arg| Bytes::copy_from_slice(arg.as_bytes())).collect()
}

/// A proposal whose every part can be set before it is signed.
#[derive(Clone)]
pub struct Craft {
    pub channel: String,
    pub contract: String,
    pub args: Vec<Bytes>,
    pub header_type: i32,
    pub epoch: u64,
    pub nonce: Bytes,
    pub creator: Bytes,
    pub tx_id: Option<String>,
    pub seconds: i64,
    pub signer: Signer,
}

impl Craft {
    pub fn new(signer: &Signer, contract: &str, function_and_args: &[&str]) -> Craft {
        let mut nonce = vec![0; 24];
        rt::fill_random(&mut nonce);
        Craft {
            channel: CHANNEL.into(),
            contract: contract.into(),
            args: args(function_and_args),
            header_type: HeaderType::EndorserTransaction as i32,
            epoch: 0,
            nonce: nonce.into(),
            creator: signer.serialized().clone(),
            tx_id: None,
            seconds: rt::wall_now().seconds() as i64,
            signer: signer.clone(),
        }
    }

    pub fn with(mut self, change: impl FnOnce(&mut Craft)) -> Craft {
        change(&mut self);
        self
    }

    pub fn tx_id(&self) -> String {
        self.tx_id.clone().unwrap_or_else(|| hex::encode(sha256([&self.nonce[..], &self.creator[..]])))
    }

    pub fn header(&self) -> Header {
        let id = ChaincodeId { name: self.contract.clone(), ..Default::default() };
        let channel_header = ChannelHeader {
            r#type: self.header_type,
            timestamp: Some(prost_types::Timestamp { seconds: self.seconds, nanos: 0 }),
            channel_id: self.channel.clone(),
            tx_id: self.tx_id(),
            epoch: self.epoch,
            extension: ChaincodeHeaderExtension { chaincode_id: Some(id), ..Default::default() }.encode_to_vec().into(),
            ..Default::default()
        };
        let signature_header = SignatureHeader { creator: self.creator.clone(), nonce: self.nonce.clone() };
        Header {
            channel_header: channel_header.encode_to_vec().into(),
            signature_header: signature_header.encode_to_vec().into(),
        }
    }

    pub fn sign(&self) -> SignedProposal {
        let spec = ChaincodeSpec {
            chaincode_id: Some(ChaincodeId { name: self.contract.clone(), ..Default::default() }),
            input: Some(ChaincodeInput { args: self.args.clone(), ..Default::default() }),
            ..Default::default()
        };
        let input = ChaincodeInvocationSpec { chaincode_spec: Some(spec) };
        let payload = ChaincodeProposalPayload { input: input.encode_to_vec().into(), ..Default::default() };
        let proposal = Proposal {
            header: self.header().encode_to_vec().into(),
            payload: payload.encode_to_vec().into(),
            ..Default::default()
        };
        let proposal_bytes = Bytes::from(proposal.encode_to_vec());
        let signature = self.signer.sign(&proposal_bytes);
        SignedProposal { proposal_bytes, signature }
    }
}

/// An envelope over a payload that `change` altered, signed by `signer`.
pub fn altered(payload: &Bytes, signer: &Signer, change: impl FnOnce(&mut Payload)) -> Envelope {
    let mut payload = Payload::decode(payload.clone()).expect("a payload");
    change(&mut payload);
    signed(payload.encode_to_vec().into(), signer)
}

pub fn signed(payload: Bytes, signer: &Signer) -> Envelope {
    let signature = signer.sign(&payload);
    Envelope { payload, signature }
}

/// The same ECDSA signature with the other S, which verifies unless the verifier rejects high S.
pub fn high_s(signature: &[u8]) -> Bytes {
    const ORDER: [u8; 32] = [
        0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6,
        0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
    ];
    // SEQUENCE { INTEGER r, INTEGER s }, all lengths below 128.
    let r_end = 4 + usize::from(signature[3]);
    let s = &signature[r_end + 2..];
    let mut padded = [0; 32];
    let s = s.strip_prefix(&[0]).unwrap_or(s);
    padded[32 - s.len()..].copy_from_slice(s);
    let (mut other, mut borrow) = ([0u8; 32], 0i16);
    for index in (0..32).rev() {
        let difference = i16::from(ORDER[index]) - i16::from(padded[index]) - borrow;
        borrow = i16::from(difference < 0);
        other[index] = difference.rem_euclid(256) as u8;
    }
    let mut integer: Vec<u8> = other.iter().copied().skip_while(|byte| *byte == 0).collect();
    if integer[0] >= 0x80 {
        integer.insert(0, 0);
    }
    let mut out = vec![0x30, 0];
    out.extend_from_slice(&signature[2..r_end]);
    out.extend_from_slice(&[2, integer.len() as u8]);
    out.extend_from_slice(&integer);
    out[1] = (out.len() - 2) as u8;
    out.into()
}
