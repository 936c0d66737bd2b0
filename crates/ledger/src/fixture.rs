//! A small network and its ledger, for tests: seeded identities, so that every run has the same bytes.

use base::{BlockNumber, Bytes, Version};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{MemberRole, Signer};
use prost::Message;
use proto::common::{
    ChannelHeader, ConfigEnvelope, ConfigGroup, ConfigSignature, ConfigUpdate, ConfigUpdateEnvelope, Envelope, Header,
    HeaderType, Payload, SignatureHeader,
};
use proto::kvrwset::{KvWrite, KvrwSet};
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeHeaderExtension, ChaincodeId,
    ChaincodeProposalPayload, Endorsement, ProposalResponsePayload, Response, Transaction, TransactionAction,
};
use proto::rwset::{NsReadWriteSet, TxReadWriteSet};

use crate::block::{Block, BlockMetadata, CommitHasher, OrdererMetadata};
use crate::config::{
    BatchLimits, Capabilities, ChannelConfig, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec,
};
use crate::hash::{Hash, sha256_of};
use crate::transaction::proposal_hash;

pub(crate) const CHANNEL: &str = "mychannel";
const CONTRACT: &str = "basic";

/// Two endorsing organisations and one that orders.
pub(crate) struct TestNetwork {
    pub client: Signer,
    pub peers: Vec<Signer>,
    pub orderer: Signer,
    organizations: Vec<IssuingOrganization>,
}

impl TestNetwork {
    pub(crate) fn new() -> TestNetwork {
        let terms = CertificateTerms::seeded([7; 32]);
        let found = |msp: &str, domain: &str| IssuingOrganization::create(msp, domain, &terms).expect("issues");
        let organizations = vec![
            found("Org1MSP", "org1.example.com"),
            found("Org2MSP", "org2.example.com"),
            found("OrdererMSP", "example.com"),
        ];
        let issue = |organization: usize, role, name| organizations[organization].issue(role, name).expect("issues");
        TestNetwork {
            client: issue(0, MemberRole::Client, "User1"),
            peers: vec![issue(0, MemberRole::Peer, "peer0"), issue(1, MemberRole::Peer, "peer0")],
            orderer: issue(2, MemberRole::Orderer, "orderer"),
            organizations,
        }
    }

    /// A member of one of the organisations: 0 and 1 endorse, 2 orders.
    pub(crate) fn issue(&self, organization: usize, role: MemberRole, name: &str) -> Signer {
        self.organizations[organization].issue(role, name).expect("issues")
    }

    pub(crate) fn spec(&self) -> GenesisSpec {
        let of = |organization: &IssuingOrganization| OrganizationSpec {
            name: organization.msp_id().to_string(),
            msp_id: organization.msp_id().to_string(),
            msp: organization.definition().encode_to_vec().into(),
            anchor_peers: Vec::new(),
            endpoints: Vec::new(),
        };
        GenesisSpec {
            channel: CHANNEL.into(),
            application: self.organizations[..2].iter().map(of).collect(),
            orderers: self.organizations[2..].iter().map(of).collect(),
            endorsement: EndorsementRule::Any,
            batch: BatchLimits::default(),
            consensus: ConsensusConfig { kind: "solo".into(), metadata: Bytes::new(), maintenance: false },
            capabilities: Capabilities::newest(),
        }
    }

    /// An endorsed and signed transaction that writes these keys; nothing deletes.
    pub(crate) fn transaction(&self, nonce: &[u8], writes: &[(&str, Option<&str>)]) -> Bytes {
        let public = KvrwSet {
            writes: writes
                .iter()
                .map(|(key, value)| KvWrite {
                    key: (*key).into(),
                    is_delete: value.is_none(),
                    value: Bytes::from(value.unwrap_or_default().to_owned()),
                })
                .collect(),
            ..KvrwSet::default()
        };
        let results = TxReadWriteSet {
            data_model: 0,
            ns_rwset: vec![NsReadWriteSet {
                namespace: CONTRACT.into(),
                rwset: encode(&public),
                collection_hashed_rwset: Vec::new(),
            }],
        };
        let id = |version: &str| ChaincodeId { name: CONTRACT.into(), version: version.into(), path: String::new() };
        let creator = self.client.serialized().clone();
        let channel_header = encode(&ChannelHeader {
            r#type: HeaderType::EndorserTransaction as i32,
            channel_id: CHANNEL.into(),
            tx_id: hex::encode(sha256_of(&[nonce, &creator])),
            extension: encode(&ChaincodeHeaderExtension { chaincode_id: Some(id("")), ..Default::default() }),
            ..ChannelHeader::default()
        });
        let signature_header = encode(&SignatureHeader { creator, nonce: Bytes::copy_from_slice(nonce) });
        let proposal = encode(&ChaincodeProposalPayload { input: Bytes::from_static(b"input"), ..Default::default() });
        let response = encode(&ProposalResponsePayload {
            proposal_hash: Bytes::copy_from_slice(&proposal_hash(&channel_header, &signature_header, &proposal)),
            extension: encode(&ChaincodeAction {
                results: encode(&results),
                response: Some(Response { status: 200, ..Response::default() }),
                chaincode_id: Some(id("1.0")),
                ..ChaincodeAction::default()
            }),
        });
        let endorsements = self.peers.iter().map(|peer| Endorsement {
            endorser: peer.serialized().clone(),
            signature: peer.sign_parts(&[&response, peer.serialized()]),
        });
        let action = ChaincodeActionPayload {
            chaincode_proposal_payload: proposal,
            action: Some(ChaincodeEndorsedAction {
                endorsements: endorsements.collect(),
                proposal_response_payload: response,
            }),
        };
        let transaction = Transaction {
            actions: vec![TransactionAction { header: signature_header.clone(), payload: encode(&action) }],
        };
        envelope(&self.client, channel_header, signature_header, encode(&transaction))
    }

    /// An update of a configuration, signed by an administrator of each organisation.
    pub(crate) fn config_update(&self, config: &ChannelConfig, change: impl FnOnce(&mut ConfigGroup)) -> Bytes {
        let mut root = config.decode_root().expect("usable");
        change(&mut root);
        let update = config.update_to(&root).expect("usable").expect("it changes something");
        self.sign_update(&update, &[0, 1, 2])
    }

    /// An update in its envelope, signed by administrators of these organisations.
    pub(crate) fn sign_update(&self, update: &ConfigUpdate, organizations: &[usize]) -> Bytes {
        let config_update = encode(update);
        let signatures = organizations.iter().map(|organization| {
            let admin = self.issue(*organization, MemberRole::Admin, "Admin");
            let signature_header =
                encode(&SignatureHeader { creator: admin.serialized().clone(), nonce: Bytes::from_static(b"n") });
            let signature = admin.sign_parts(&[&signature_header, &config_update]);
            ConfigSignature { signature_header, signature }
        });
        let data = encode(&ConfigUpdateEnvelope { signatures: signatures.collect(), config_update });
        self.orderer_envelope(HeaderType::ConfigUpdate, data)
    }

    /// The configuration that an update leads to, as the orderer submits it.
    pub(crate) fn config_transaction(&self, content: &ConfigEnvelope) -> Bytes {
        self.orderer_envelope(HeaderType::Config, encode(content))
    }

    /// An envelope of this type from the orderer.
    pub(crate) fn orderer_envelope(&self, kind: HeaderType, data: Bytes) -> Bytes {
        let header = ChannelHeader { r#type: kind as i32, channel_id: CHANNEL.to_owned(), ..ChannelHeader::default() };
        let signature_header =
            encode(&SignatureHeader { creator: self.orderer.serialized().clone(), nonce: Bytes::from_static(b"n") });
        envelope(&self.orderer, encode(&header), signature_header, data)
    }
}

/// A ledger in the making, as a peer keeps it.
#[derive(Clone)]
pub(crate) struct TestChain {
    pub blocks: Vec<Block>,
    pub last_config: u64,
    commit_hash: Option<Hash>,
}

impl TestChain {
    pub(crate) fn new(genesis: &Block) -> TestChain {
        let mut metadata = genesis.metadata().clone();
        metadata.set_filter(Bytes::from_static(&[0]));
        TestChain { blocks: vec![genesis.with_metadata(metadata)], last_config: 0, commit_hash: None }
    }

    /// Appends a block of transactions with their codes and the state changes that the valid ones make, sorted.
    pub(crate) fn append(
        &mut self,
        orderer: &Signer,
        envelopes: &[(Bytes, u8)],
        updates: &[(&str, Option<&str>, u32)],
    ) {
        let previous = self.blocks.last().expect("there is a genesis block");
        let number = previous.number().next();
        let (envelopes, filter): (Vec<Bytes>, Vec<u8>) = envelopes.iter().cloned().unzip();
        let mut hasher = CommitHasher::new(&filter);
        for (key, value, tx) in updates {
            hasher.update(CONTRACT, key, value.map(str::as_bytes), Version::new(number.get(), *tx));
        }
        let commit_hash = hasher.finish(self.commit_hash.as_ref());
        let block = Block::build(number, Some(previous.hash()), &envelopes);
        let block = block.sign(orderer, &OrdererMetadata { last_config: self.last_config, consenter: Bytes::new() });
        let mut metadata: BlockMetadata = block.metadata().clone();
        metadata.set_filter(filter.into());
        metadata.set_commit_hash(&commit_hash);
        self.commit_hash = Some(commit_hash);
        self.blocks.push(block.with_metadata(metadata));
    }

    /// Three blocks behind genesis, with valid and invalid transactions.
    pub(crate) fn sample(network: &TestNetwork) -> TestChain {
        let mut chain = TestChain::new(&network.spec().build().expect("usable"));
        let tx = |nonce: &str, writes: &[(&str, Option<&str>)]| network.transaction(nonce.as_bytes(), writes);
        chain.append(
            &network.orderer,
            &[
                (tx("1a", &[("a", Some("1")), ("b", Some("1"))]), 0),
                (tx("1b", &[("a", Some("2"))]), 11),
                (tx("1c", &[("b", Some("3")), ("c", Some(""))]), 0),
            ],
            &[("a", Some("1"), 0), ("b", Some("3"), 2), ("c", None, 2)],
        );
        chain.append(&network.orderer, &[(tx("2a", &[("a", None)]), 0)], &[("a", None, 0)]);
        chain.append(
            &network.orderer,
            &[(Bytes::from_static(b"\x0a\x05\xffjunk\x12\x01s"), 255), (tx("3a", &[("z", Some("9"))]), 10)],
            &[],
        );
        chain
    }

    pub(crate) fn config(&self) -> ChannelConfig {
        ChannelConfig::from_block(&self.blocks[0]).expect("usable")
    }

    pub(crate) fn number(&self) -> BlockNumber {
        self.blocks.last().expect("there is a genesis block").number()
    }
}

fn envelope(signer: &Signer, channel_header: Bytes, signature_header: Bytes, data: Bytes) -> Bytes {
    let payload = encode(&Payload { header: Some(Header { channel_header, signature_header }), data });
    let signature = signer.sign(&payload);
    encode(&Envelope { payload, signature })
}

fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}
