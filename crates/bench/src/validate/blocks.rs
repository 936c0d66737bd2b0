//! Blocks of signed transactions, made without a network.

use std::sync::Arc;

use base::{BlockNumber, Bytes, Version};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{Identity, KeyKind, MemberRole, SignatureClaim, Signer};
use ledger::config::{BatchLimits, Capabilities, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec};
use ledger::hash::sha256_of;
use ledger::rwset::{RangeRecorder, ReadWriteSetRecorder};
use ledger::transaction::Transaction;
use ledger::{Block, ChannelConfig};
use prost::Message;
use proto::common::{ChannelHeader, Envelope, Header, HeaderType, Payload, SignatureHeader};
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeHeaderExtension, ChaincodeId,
    ChaincodeProposalPayload, Endorsement, ProposalResponsePayload, Response, TransactionAction,
};
use rules::access::ChannelPolicies;
use rules::definitions::{ContractDefinitions, by_channel_policy};
use state::UpdateBatch;
use validation::block::BlockVerdict;

use crate::state::setup::{failed, value};
use measurement::error::Error;
use measurement::random::Random;

const CHANNEL: &str = "bench";
const CONTRACT: &str = "smallbank";
/// The row that every call of a contract reads.
const SEQUENCE: &str = "namespaces/fields/smallbank/Sequence";
const VALUE_BYTES: usize = 100;
/// Rows of a block that loads the accounts.
const LOAD_ROWS: usize = 10_000;

const ACCOUNTS: usize = 100_000;
/// Accounts that are scanned and never written, ...
const SCANNED: usize = 10_000;
/// ... and how many of them one transaction scans.
const SCAN: usize = 20;

/// The transactions of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockShape {
    pub transactions: usize,
    /// Percent of them that take the accounts of an earlier one.
    pub conflict_percent: u64,
    /// Percent of them that scan.
    pub scan_percent: u64,
}

/// A channel of one organisation, and the versions of its accounts.
pub struct BenchChannel {
    policies: ChannelPolicies,
    client: Signer,
    peer: Signer,
    client_identity: Arc<Identity>,
    peer_identity: Arc<Identity>,
    versions: Vec<Version>,
    definition: Version,
    random: Random,
    nonce: u64,
    /// The accounts of each transaction of the newest block.
    newest: Vec<[usize; 2]>,
}

/// A block, its envelopes, and how many of its transactions are in conflict.
pub struct BenchBlock {
    pub block: Block,
    pub envelopes: Vec<Bytes>,
    pub conflicts: usize,
}

fn account(number: usize) -> String {
    format!("checking{number:09}")
}

fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

impl BenchChannel {
    pub fn new(seed: u64) -> Result<BenchChannel, Error> {
        let found = |msp: &str, domain: &str| {
            let terms = CertificateTerms::starting_now(KeyKind::P256);
            IssuingOrganization::create(msp, domain, &terms).map_err(|error| failed("an organisation", error))
        };
        let (organization, orderers) = (found("Org1MSP", "org1.example.com")?, found("OrdererMSP", "example.com")?);
        let spec = |organization: &IssuingOrganization| OrganizationSpec {
            name: organization.msp_id().to_string(),
            msp_id: organization.msp_id().to_string(),
            msp: encoded(&organization.definition()),
            anchor_peers: vec![],
            endpoints: vec!["orderer.example.com:7050".to_owned()],
        };
        let genesis = GenesisSpec {
            channel: CHANNEL.to_owned(),
            application: vec![spec(&organization)],
            orderers: vec![spec(&orderers)],
            endorsement: EndorsementRule::Any,
            batch: BatchLimits::default(),
            consensus: ConsensusConfig { kind: "solo".to_owned(), metadata: Bytes::new(), maintenance: false },
            capabilities: Capabilities::newest(),
        };
        let genesis = genesis.build().map_err(|error| failed("a genesis block", error))?;
        let config = ChannelConfig::from_block(&genesis).map_err(|error| failed("a configuration", error))?;
        let definitions = ContractDefinitions::from([(CONTRACT.to_owned(), by_channel_policy("1"))]);
        let policies =
            ChannelPolicies::new(Arc::new(config), definitions).map_err(|error| failed("the policies", error))?;
        let issue = |role, name| organization.issue(role, name).map_err(|error| failed("a member", error));
        let (client, peer) = (issue(MemberRole::Client, "User1")?, issue(MemberRole::Peer, "peer0")?);
        let identify =
            |signer: &Signer| policies.identify(signer.serialized()).map_err(|error| failed("a member", error));
        let versions =
            (0..ACCOUNTS).map(|number| Version::new((number / LOAD_ROWS) as u64, (number % LOAD_ROWS) as u32));
        Ok(BenchChannel {
            client_identity: identify(&client)?,
            peer_identity: identify(&peer)?,
            versions: versions.collect(),
            definition: Version::new(ACCOUNTS.div_ceil(LOAD_ROWS) as u64, 0),
            random: Random::new(seed),
            nonce: seed << 32,
            newest: Vec::new(),
            policies,
            client,
            peer,
        })
    }

    pub fn policies(&self) -> &ChannelPolicies {
        &self.policies
    }

    /// The blocks that make the accounts and the definition.
    pub fn first_batches(&mut self) -> Vec<UpdateBatch> {
        let namespace: Arc<str> = CONTRACT.into();
        let mut batches: Vec<UpdateBatch> = Vec::new();
        for (number, version) in self.versions.iter().enumerate() {
            if version.tx == 0 {
                batches.push(UpdateBatch::default());
            }
            let batch = batches.last_mut().expect("the first version of a block is 0");
            batch.put(&namespace, account(number).into(), Some(value(&mut self.random, VALUE_BYTES)), *version);
        }
        let mut definition = UpdateBatch::default();
        let sequence = Some(Bytes::from_static(&[8, 1]));
        definition.put(&ledger::lifecycle::LIFECYCLE.into(), SEQUENCE.into(), sequence, self.definition);
        batches.push(definition);
        batches
    }

    /// A block of transactions on distinct accounts, except that this share of them takes those of an earlier one.
    pub fn next_block(&mut self, number: u64, shape: BlockShape) -> BenchBlock {
        let BlockShape { transactions, conflict_percent, scan_percent } = shape;
        let (mut used, mut conflicts) = (vec![false; self.versions.len()], 0);
        self.newest.clear();
        for _ in 0..transactions {
            let first = self.newest.len().min(transactions);
            if first > 0 && self.random.percent(conflict_percent) {
                let other = self.newest[self.random.below(first as u64) as usize];
                self.newest.push(other);
                conflicts += 1;
                continue;
            }
            let mut draw = || loop {
                let account = SCANNED + self.random.below((used.len() - SCANNED) as u64) as usize;
                if !std::mem::replace(&mut used[account], true) {
                    break account;
                }
            };
            let accounts = [draw(), draw()];
            self.newest.push(accounts);
        }
        let chosen = self.newest.clone();
        let mut envelopes = Vec::with_capacity(transactions);
        for accounts in chosen {
            let scans = self.random.percent(scan_percent);
            envelopes.push(self.envelope(accounts, scans));
        }
        let block = Block::build(BlockNumber(number), Some([0; 32]), &envelopes);
        let envelopes = (0..block.len()).map(|index| block.envelope(index)).collect();
        BenchBlock { block, envelopes, conflicts }
    }

    /// Notes what a block has changed.
    pub fn note(&mut self, verdict: &BlockVerdict) {
        for (accounts, code) in self.newest.iter().zip(&verdict.codes) {
            if code.is_valid() {
                for number in accounts {
                    let update = verdict.batch.get(CONTRACT, &account(*number));
                    self.versions[*number] = update.expect("a valid transaction writes its accounts").version;
                }
            }
        }
    }

    /// The signatures of a block: whether it is the client's, what is signed, the signature.
    pub fn signatures(&self, block: &BenchBlock) -> Vec<(bool, Bytes, Bytes)> {
        let mut all = Vec::with_capacity(2 * block.envelopes.len());
        for envelope in &block.envelopes {
            let transaction = Transaction::parse(envelope).expect("just made");
            let action = transaction.action().expect("just made");
            let payload = Bytes::copy_from_slice(transaction.payload());
            all.push((true, payload, Bytes::copy_from_slice(transaction.signature())));
            for index in 0..action.endorsements().len() {
                let signed = action.signed_parts(index).concat();
                all.push((false, signed.into(), action.signature(index)));
            }
        }
        all
    }

    /// Verifies signatures in one batch.
    pub fn verify(&self, signatures: &[(bool, Bytes, Bytes)]) -> bool {
        let mut claims = Vec::with_capacity(signatures.len());
        for (is_client, message, signature) in signatures {
            let holder = if *is_client { &self.client_identity } else { &self.peer_identity };
            claims.push(SignatureClaim::new(holder, message, signature));
        }
        self.policies.verifier().verify_batch(&claims).iter().all(|valid| *valid)
    }

    fn envelope(&mut self, accounts: [usize; 2], scans: bool) -> Bytes {
        let namespace: Arc<str> = CONTRACT.into();
        let mut recorder = ReadWriteSetRecorder::new();
        recorder.read(&ledger::lifecycle::LIFECYCLE.into(), SEQUENCE, Some(self.definition));
        for number in accounts {
            recorder.read(&namespace, &account(number), Some(self.versions[number]));
            recorder.write(&namespace, &account(number), value(&mut self.random, VALUE_BYTES));
        }
        if scans {
            let first = self.random.below((SCANNED - SCAN) as u64) as usize;
            let mut range = RangeRecorder::new(&account(first), &account(first + SCAN));
            for number in first..first + SCAN {
                range.add(&account(number), self.versions[number]);
            }
            range.exhaust();
            recorder.range(&namespace, range);
        }
        self.nonce += 1;
        let nonce = self.nonce.to_be_bytes().repeat(3);
        let creator = self.client.serialized().clone();
        let id = ChaincodeId { name: CONTRACT.to_owned(), ..ChaincodeId::default() };
        let channel_header = ChannelHeader {
            r#type: HeaderType::EndorserTransaction as i32,
            channel_id: CHANNEL.to_owned(),
            tx_id: identity::hex::encode(sha256_of(&[&nonce, &creator])),
            extension: encoded(&ChaincodeHeaderExtension { chaincode_id: Some(id.clone()), ..Default::default() }),
            ..ChannelHeader::default()
        };
        let header = Header {
            channel_header: encoded(&channel_header),
            signature_header: encoded(&SignatureHeader { creator, nonce: nonce.into() }),
        };
        let input = encoded(&ChaincodeProposalPayload { input: Bytes::from_static(&[10, 0]), ..Default::default() });
        let action = ChaincodeAction {
            results: recorder.encode(),
            response: Some(Response { status: 200, ..Response::default() }),
            chaincode_id: Some(ChaincodeId { version: "1".to_owned(), ..id }),
            ..ChaincodeAction::default()
        };
        let hash = sha256_of(&[&header.channel_header, &header.signature_header, &input]);
        let response =
            encoded(&ProposalResponsePayload { proposal_hash: hash.to_vec().into(), extension: encoded(&action) });
        let endorser = self.peer.serialized().clone();
        let signature = self.peer.sign(&[&response[..], &endorser].concat());
        let action = ChaincodeActionPayload {
            chaincode_proposal_payload: input,
            action: Some(ChaincodeEndorsedAction {
                proposal_response_payload: response,
                endorsements: vec![Endorsement { endorser, signature }],
            }),
        };
        let actions = vec![TransactionAction { header: header.signature_header.clone(), payload: encoded(&action) }];
        let payload =
            encoded(&Payload { header: Some(header), data: encoded(&proto::protos::Transaction { actions }) });
        let signature = self.client.sign(&payload);
        encoded(&Envelope { payload, signature })
    }
}
