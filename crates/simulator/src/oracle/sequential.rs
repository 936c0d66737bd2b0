//! The oracle: it validates and applies the transactions of blocks one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::Bytes;
use identity::{Hash, Identity, MemberRole, MspManager, SignatureClaim, SignatureVerifier, hex, sha256};
use prost::Message as _;
use proto::common::{ChannelHeader, Envelope, HeaderType, Payload, SignatureHeader};
use proto::kvrwset::KvrwSet;
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeEvent, ChaincodeHeaderExtension,
    ProposalResponsePayload, TxValidationCode as Code,
};
use proto::rwset::TxReadWriteSet;
use proto::{common, protos};

use super::configuration::{self, SetConfig};
use super::state_row::{StateKey, StateRow, StateVersion};

/// Verifies with the library, whatever verifier the peers use.
pub(super) fn verify(signer: &Identity, message: &[u8], signature: &[u8]) -> Result<(), identity::Error> {
    SignatureVerifier::Library.verify(&SignatureClaim::new(signer, message, signature))
}

/// The oracle's result for a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidatedBlock {
    /// Each transaction's claimed id and its code.
    pub transactions: Vec<(String, Code)>,
    /// `None` for block 0.
    pub commit_hash: Option<Hash>,
    /// If the block changes the configuration: the envelope that asked for it.
    pub config_update: Option<Bytes>,
}

impl ValidatedBlock {
    /// The block's transactions filter.
    pub fn filter(&self) -> Vec<u8> {
        self.transactions.iter().map(|(_, code)| *code as u8).collect()
    }
}

/// The rules of a channel, as far as they affect the validity of transactions.
#[derive(Clone)]
pub struct ChannelPolicies {
    /// The channel's name, which every transaction must bear.
    pub channel: String,
    /// The organisations and their certificate authorities.
    pub members: Arc<MspManager>,
    /// How many organisations must endorse, by a peer each.
    pub endorsements_min: usize,
    /// The names of the contracts that exist.
    pub contracts: BTreeSet<String>,
}

/// A ledger to which blocks are added one by one.
pub struct Oracle {
    policies: ChannelPolicies,
    /// The sequence number of the configuration.
    sequence: u64,
    state: BTreeMap<StateKey, StateRow>,
    /// The blocks that wrote a key, and the version after each; `None` where it was deleted.
    history: BTreeMap<StateKey, Vec<(u64, Option<StateVersion>)>>,
    /// Every valid write of a key, in order: the transaction, its id, and the value, empty where the key was deleted.
    writes: BTreeMap<StateKey, Vec<(StateVersion, String, Bytes)>>,
    /// Ids of all transactions of earlier blocks, valid or not.
    known: BTreeSet<String>,
    tip: Option<common::BlockHeader>,
    commit_hash: Option<Hash>,
}

/// A transaction that passed all checks before conflicts: its id and read-write set.
pub(super) struct EndorsedTransaction {
    tx_id: String,
    sets: Vec<(String, KvrwSet)>,
}

impl Oracle {
    /// A ledger without blocks.
    pub fn new(rules: ChannelPolicies) -> Oracle {
        Oracle {
            policies: rules,
            sequence: 0,
            state: BTreeMap::new(),
            history: BTreeMap::new(),
            writes: BTreeMap::new(),
            known: BTreeSet::new(),
            tip: None,
            commit_hash: None,
        }
    }

    /// All live keys.
    pub fn state(&self) -> &BTreeMap<StateKey, StateRow> {
        &self.state
    }

    /// The blocks that wrote a key, in order, and the version after each.
    pub fn history(&self, key: &StateKey) -> &[(u64, Option<StateVersion>)] {
        self.history.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// Every valid write of a key, in order.
    pub fn writes(&self, key: &StateKey) -> &[(StateVersion, String, Bytes)] {
        self.writes.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// Adds the next block.
    ///
    /// # Errors
    /// If it does not follow the previous block, or contains data for which the oracle has no rules.
    pub fn add(&mut self, block: &[u8]) -> Result<ValidatedBlock, String> {
        let block = common::Block::decode(block).map_err(|error| format!("a block that is no block: {error}"))?;
        let header = block.header.ok_or("a block without a header")?;
        let envelopes = block.data.unwrap_or_default().data;
        let number = self.tip.as_ref().map_or(0, |tip| tip.number + 1);
        if header.number != number {
            return Err(format!("block {} where block {number} must be", header.number));
        }
        let previous = self.tip.as_ref().map(header_hash);
        if header.previous_hash[..] != *previous.as_ref().map(|hash| &hash[..]).unwrap_or_default() {
            return Err(format!("block {number} does not continue the chain"));
        }
        if header.data_hash[..] != sha256(envelopes.iter().map(|envelope| &envelope[..]))[..] {
            return Err(format!("block {number} does not hash to its header"));
        }
        self.tip = Some(header);
        if number == 0 {
            // The configuration is in the empty namespace, which neither the commit hash nor contracts see.
            let transactions = vec![(String::new(), Code::Valid)];
            return Ok(ValidatedBlock { transactions, commit_hash: None, config_update: None });
        }
        if let [only] = &envelopes[..]
            && let Some(config) = configuration::read(only)
        {
            return self.set_config(number, only, config?);
        }

        // All checks but conflicts, then duplicates within the block, then conflicts: as in Fabric's two stages.
        let mut transactions = Vec::new();
        let mut endorsed = Vec::new();
        let mut ids_of_block = BTreeSet::new();
        for envelope in &envelopes {
            let tx_id = claimed_id(envelope);
            let mut verdict = self.validate(envelope);
            if let Ok(EndorsedTransaction { tx_id, .. }) = &verdict
                && !ids_of_block.insert(tx_id.clone())
            {
                verdict = Err(Code::DuplicateTxid);
            }
            transactions.push((tx_id, verdict.as_ref().err().copied().unwrap_or(Code::Valid)));
            endorsed.push(verdict.ok());
        }
        let mut written = BTreeMap::new();
        for (place, endorsed) in endorsed.into_iter().enumerate() {
            let Some(endorsed) = endorsed else { continue };
            match self.check_conflicts(&endorsed, &written)? {
                Some(code) => transactions[place].1 = code,
                None => self.apply(endorsed, (number, place as u64), &mut written),
            }
        }
        self.known.extend(transactions.iter().map(|(tx_id, _)| tx_id.clone()).filter(|tx_id| !tx_id.is_empty()));
        let filter: Vec<u8> = transactions.iter().map(|(_, code)| *code as u8).collect();
        self.commit_hash = Some(commit_hash(&filter, &written, self.commit_hash.as_ref()));
        Ok(ValidatedBlock { transactions, commit_hash: self.commit_hash, config_update: None })
    }

    /// Adds a block that holds a configuration and nothing else.
    fn set_config(&mut self, number: u64, envelope: &[u8], config: SetConfig) -> Result<ValidatedBlock, String> {
        let SetConfig { sequence, endorsements_min, update, row, indexed_id } = config;
        // A configuration passes all checks up to its type.
        if let Err(code) = self.validate(envelope)
            && code != Code::InvalidConfigTransaction
        {
            return Err(format!("block {number} has a configuration with code {code:?}"));
        }
        if sequence != self.sequence + 1 {
            return Err(format!("block {number} has configuration {sequence} after configuration {}", self.sequence));
        }
        self.sequence = sequence;
        self.policies.endorsements_min = endorsements_min;
        self.known.insert(indexed_id);
        // The row is not part of the commit hash.
        let key = (String::new(), "CHANNEL_CONFIG_ENV_BYTES".to_owned());
        self.state.insert(key, StateRow { value: row, version: (number, 0) });
        self.commit_hash = Some(commit_hash(&[Code::Valid as u8], &BTreeMap::new(), self.commit_hash.as_ref()));
        Ok(ValidatedBlock {
            transactions: vec![(String::new(), Code::Valid)],
            commit_hash: self.commit_hash,
            config_update: Some(update),
        })
    }

    /// The checks of one transaction that do not depend on its neighbours, in Fabric's order.
    fn validate(&self, envelope: &[u8]) -> Result<EndorsedTransaction, Code> {
        // 1. Form.
        let envelope = Envelope::decode(envelope).map_err(|_| Code::InvalidOtherReason)?;
        let payload = Payload::decode(envelope.payload.clone()).map_err(|_| Code::BadPayload)?;
        let header = payload.header.ok_or(Code::BadCommonHeader)?;
        let channel = ChannelHeader::decode(header.channel_header.clone()).map_err(|_| Code::BadCommonHeader)?;
        let signed = SignatureHeader::decode(header.signature_header.clone()).map_err(|_| Code::BadCommonHeader)?;
        const TYPES: [HeaderType; 3] = [HeaderType::EndorserTransaction, HeaderType::Config, HeaderType::ConfigUpdate];
        let kind = TYPES.into_iter().find(|kind| *kind as i32 == channel.r#type).ok_or(Code::BadCommonHeader)?;
        if channel.epoch != 0 || signed.nonce.is_empty() || signed.creator.is_empty() {
            return Err(Code::BadCommonHeader);
        }
        // 2. The creator and its signature.
        let creator = self.policies.members.identify(&signed.creator).map_err(|_| Code::BadCreatorSignature)?;
        verify(&creator, &envelope.payload, &envelope.signature).map_err(|_| Code::BadCreatorSignature)?;
        // 3. The type. A configuration is valid only alone in its block, which is not checked here.
        match kind {
            HeaderType::EndorserTransaction => {}
            HeaderType::Config => return Err(Code::InvalidConfigTransaction),
            _ => return Err(Code::UnsupportedTxPayload),
        }
        // 4. The id.
        if channel.tx_id != hex::encode(sha256([&signed.nonce[..], &signed.creator[..]])) {
            return Err(Code::BadProposalTxid);
        }
        // 5. One action, and it answers the proposal in the header.
        let form = Code::InvalidEndorserTransaction;
        let transaction = protos::Transaction::decode(payload.data).map_err(|_| form)?;
        let [action] = &transaction.actions[..] else { return Err(form) };
        let signed = SignatureHeader::decode(action.header.clone()).map_err(|_| form)?;
        if signed.creator.is_empty() || signed.nonce.is_empty() {
            return Err(form);
        }
        let asked = ChaincodeActionPayload::decode(action.payload.clone()).map_err(|_| form)?;
        let ChaincodeEndorsedAction { proposal_response_payload, endorsements } = asked.action.ok_or(form)?;
        let answer = ProposalResponsePayload::decode(proposal_response_payload.clone()).map_err(|_| form)?;
        let proposal = [&header.channel_header[..], &action.header[..], &asked.chaincode_proposal_payload[..]];
        if answer.proposal_hash[..] != sha256(proposal)[..] {
            return Err(form);
        }
        // 6. The channel, and that the transaction is new.
        if channel.channel_id != self.policies.channel {
            return Err(Code::TargetChainNotFound);
        }
        if self.known.contains(&channel.tx_id) {
            return Err(Code::DuplicateTxid);
        }
        // 7. The read-write set.
        let extension = ChaincodeHeaderExtension::decode(channel.extension).map_err(|_| Code::BadHeaderExtension)?;
        let result = ChaincodeAction::decode(answer.extension).map_err(|_| Code::BadResponsePayload)?;
        let set = TxReadWriteSet::decode(result.results).map_err(|_| Code::BadRwset)?;
        let mut sets = Vec::new();
        for namespace in set.ns_rwset {
            sets.push((namespace.namespace, KvrwSet::decode(namespace.rwset).map_err(|_| Code::BadRwset)?));
        }
        // 8. The contract.
        let asked = extension.chaincode_id.ok_or(Code::InvalidOtherReason)?;
        let ran = result.chaincode_id.ok_or(Code::InvalidOtherReason)?;
        if asked.name.is_empty() || asked.name != ran.name || ran.version.is_empty() {
            return Err(Code::InvalidChaincode);
        }
        let event = ChaincodeEvent::decode(result.events).map_err(|_| Code::InvalidOtherReason)?;
        if event != ChaincodeEvent::default() && event.chaincode_id != ran.name {
            return Err(Code::InvalidOtherReason);
        }
        // 9. The namespaces that it writes.
        let names: Vec<&str> = sets.iter().map(|(name, _)| name.as_str()).collect();
        for (place, (name, set)) in sets.iter().enumerate() {
            let is_system = ["", "_lifecycle", "cscc", "lscc", "qscc"].contains(&name.as_str());
            if names[..place].contains(&name.as_str()) || (is_system && !set.writes.is_empty()) {
                return Err(Code::IllegalWriteset);
            }
        }
        // 10. Endorsements of the contract and of every contract it writes to; all have the same policy here.
        let written = sets.iter().filter(|(_, set)| !set.writes.is_empty()).map(|(name, _)| name);
        let is_endorsed = self.is_endorsed(&proposal_response_payload, &endorsements);
        for contract in std::iter::once(&ran.name).chain(written) {
            if !self.policies.contracts.contains(contract) {
                return Err(Code::InvalidChaincode);
            }
            if !is_endorsed {
                return Err(Code::EndorsementPolicyFailure);
            }
        }
        Ok(EndorsedTransaction { tx_id: channel.tx_id, sets })
    }

    fn is_endorsed(&self, response: &[u8], endorsements: &[protos::Endorsement]) -> bool {
        let organization = |endorsement: &protos::Endorsement| {
            let peer: Arc<Identity> = self.policies.members.identify(&endorsement.endorser).ok()?;
            verify(&peer, &[response, &endorsement.endorser[..]].concat(), &endorsement.signature).ok()?;
            peer.has_role(MemberRole::Peer).then(|| peer.msp_id().to_string())
        };
        let organizations: BTreeSet<String> = endorsements.iter().filter_map(organization).collect();
        organizations.len() >= self.policies.endorsements_min
    }

    /// Whether a value that the transaction read has changed.
    fn check_conflicts(
        &self,
        transaction: &EndorsedTransaction,
        written: &BTreeMap<StateKey, StateRow>,
    ) -> Result<Option<Code>, String> {
        for (namespace, set) in &transaction.sets {
            for read in &set.reads {
                let key = (namespace.clone(), read.key.clone());
                let now = self.state.get(&key).map(|row| row.version);
                let then = read.version.as_ref().map(|version| (version.block_num, version.tx_num));
                // A key that an earlier transaction of the block wrote counts as changed, even if its value is the same.
                if written.contains_key(&key) || now != then {
                    return Ok(Some(Code::MvccReadConflict));
                }
            }
            for range in &set.range_queries_info {
                if super::ranges::read_range(&self.state, namespace, range)? != super::ranges::recorded_range(range)? {
                    return Ok(Some(Code::PhantomReadConflict));
                }
            }
        }
        Ok(None)
    }

    fn apply(
        &mut self,
        transaction: EndorsedTransaction,
        version: StateVersion,
        written: &mut BTreeMap<StateKey, StateRow>,
    ) {
        for (namespace, set) in transaction.sets {
            for write in set.writes {
                let key = (namespace.clone(), write.key);
                let value = if write.is_delete { Bytes::new() } else { write.value };
                let row = StateRow { value, version };
                let writes = self.writes.entry(key.clone()).or_default();
                // If a transaction writes a key twice, the last value counts.
                writes.retain(|(before, ..)| *before != version);
                writes.push((version, transaction.tx_id.clone(), row.value.clone()));
                let history = self.history.entry(key.clone()).or_default();
                history.retain(|(block, _)| *block != version.0);
                history.push((version.0, (!row.value.is_empty()).then_some(version)));
                match row.value.is_empty() {
                    true => self.state.remove(&key),
                    false => self.state.insert(key.clone(), row.clone()),
                };
                written.insert(key, row);
            }
        }
    }

    /// A hash over all live rows, as in [`state::WorldState::digest`].
    pub fn digest(&self) -> Hash {
        let mut bytes = Vec::new();
        for ((namespace, key), StateRow { value, version: (block, transaction) }) in &self.state {
            for field in [namespace.as_bytes(), key.as_bytes(), value] {
                bytes.extend((field.len() as u64).to_le_bytes());
                bytes.extend(field);
            }
            let transaction = u32::try_from(*transaction).expect("a block has fewer transactions");
            for field in [&block.to_le_bytes()[..], &transaction.to_le_bytes()[..]] {
                bytes.extend((field.len() as u64).to_le_bytes());
                bytes.extend(field);
            }
        }
        sha256([&bytes[..]])
    }
}

/// The id that an envelope claims, even if the rest of it is invalid.
pub(super) fn claimed_id(envelope: &[u8]) -> String {
    let channel_header = |envelope| {
        let payload = Payload::decode(Envelope::decode(envelope).ok()?.payload).ok()?;
        ChannelHeader::decode(payload.header?.channel_header).ok()
    };
    channel_header(envelope).map(|header: ChannelHeader| header.tx_id).unwrap_or_default()
}

/// SHA-256 over the DER encoding of SEQUENCE { INTEGER number, OCTET STRING previous, OCTET STRING data }.
pub(super) fn header_hash(header: &common::BlockHeader) -> Hash {
    let mut number: Vec<u8> = header.number.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    if number.first().is_none_or(|byte| *byte >= 0x80) {
        number.insert(0, 0);
    }
    let element = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).expect("short")], content].concat();
    let fields = [element(2, &number), element(4, &header.previous_hash), element(4, &header.data_hash)].concat();
    sha256([&element(0x30, &fields)[..]])
}

/// Fabric's commit hash: over the filter, the block's writes in the order of keys, and the previous commit hash.
pub(super) fn commit_hash(filter: &[u8], written: &BTreeMap<StateKey, StateRow>, previous: Option<&Hash>) -> Hash {
    let number = |number: u64| {
        let bytes: Vec<u8> = number.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        // Zero is only a length byte of zero.
        [&[bytes.len() as u8], &bytes[..]].concat()
    };
    let mut last_namespace = "";
    let mut updates = proto::commit_hash::Updates::default();
    for ((namespace, key), StateRow { value, version }) in written {
        updates.writes.push(proto::commit_hash::KvWrite {
            namespace: if namespace == last_namespace { String::new() } else { namespace.clone() },
            key: key.clone().into(),
            is_delete: value.is_empty(),
            value: value.clone(),
            version: [number(version.0), number(version.1)].concat().into(),
            ..Default::default()
        });
        last_namespace = namespace;
    }
    let mut length = Vec::new();
    prost::encoding::encode_varint(filter.len() as u64, &mut length);
    sha256([&length[..], filter, &updates.encode_to_vec()[..], previous.map(|hash| &hash[..]).unwrap_or_default()])
}

#[cfg(test)]
mod tests;
