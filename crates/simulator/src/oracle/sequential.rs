//! The oracle: it validates and applies the transactions of blocks one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::Bytes;
use identity::{Hash, Identity, MemberRole, MspManager, SignatureClaim, SignatureVerifier, hex, sha256};
use prost::Message as _;
use proto::common::{ChannelHeader, Envelope, HeaderType, Payload, SignatureHeader};
use proto::kvrwset::{HashedRwSet, KvMetadataEntry, KvMetadataWrite, KvrwSet, Version};
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeEvent, ChaincodeHeaderExtension,
    ProposalResponsePayload, TxValidationCode as Code,
};
use proto::rwset::TxReadWriteSet;
use proto::{common, protos};

use super::configuration::{self, SetConfig};
use super::endorsement::{self, LIFECYCLE, Need};
use super::hashes::{commit_hash, header_hash};
use super::private::PrivateHistory;
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
    /// How many organisations there are.
    pub organizations: usize,
    /// The names of the contracts that exist.
    pub contracts: BTreeSet<String>,
    /// The private collections that contracts define, by contract and name: the number of blocks after which a write expires,
    /// 0 for never.
    pub collections: BTreeMap<(String, String), u64>,
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
    /// The private writes of valid transactions, as hashes.
    private: PrivateHistory,
    /// By block: the hashes that it removes if they still have the version.
    scheduled: BTreeMap<u64, Vec<(StateKey, StateVersion)>>,
    /// Ids of all transactions of earlier blocks, valid or not.
    known: BTreeSet<String>,
    tip: Option<common::BlockHeader>,
    commit_hash: Option<Hash>,
}

/// A transaction that passed all checks before conflicts: its id and read-write set.
pub(super) struct EndorsedTransaction {
    tx_id: String,
    sets: Vec<NamespaceSet>,
}

/// What a transaction reads and writes in one namespace.
struct NamespaceSet {
    name: String,
    public: KvrwSet,
    /// By the collection's name.
    collections: Vec<(String, HashedRwSet)>,
    /// By the collection's name: the hash of the private set.
    private: Vec<(String, Bytes)>,
}

/// What a transaction does to one key: Fabric's sum of numbers, the last value, the last metadata.
#[derive(Default)]
struct KeyChange {
    sum: u8,
    value: Bytes,
    metadata: Option<Bytes>,
}

impl NamespaceSet {
    /// The keys that it writes, values first and then metadata, each with its collection, which is empty for public keys.
    fn written(&self) -> Vec<(&str, String)> {
        let mut keys: Vec<(&str, String)> = self.public.writes.iter().map(|write| ("", write.key.clone())).collect();
        keys.extend(self.public.metadata_writes.iter().map(|write| ("", write.key.clone())));
        for (name, set) in &self.collections {
            keys.extend(set.hashed_writes.iter().map(|write| (name.as_str(), hex::encode(&write.key_hash))));
            keys.extend(set.metadata_writes.iter().map(|write| (name.as_str(), hex::encode(&write.key_hash))));
        }
        keys
    }

    /// What it does to each key, by collection and key.
    fn changes(&self) -> BTreeMap<(String, String), KeyChange> {
        let mut changes: BTreeMap<(String, String), KeyChange> = BTreeMap::new();
        let mut value = |collection: &str, key: String, deletes: bool, value: Bytes| {
            let change = changes.entry((collection.to_owned(), key)).or_default();
            change.sum = change.sum.wrapping_add(if deletes { 8 } else { 1 });
            if !deletes {
                change.value = value;
            }
        };
        for write in &self.public.writes {
            value("", write.key.clone(), write.is_delete || write.value.is_empty(), write.value.clone());
        }
        for (name, set) in &self.collections {
            for write in &set.hashed_writes {
                let deletes =
                    write.is_delete || write.value_hash.is_empty() || write.value_hash[..] == sha256([&b""[..]]);
                value(name, hex::encode(&write.key_hash), deletes, write.value_hash.clone());
            }
        }
        let mut metadata = |collection: &str, key: String, entries: &[KvMetadataEntry]| {
            let change = changes.entry((collection.to_owned(), key)).or_default();
            change.sum = change.sum.wrapping_add(if entries.is_empty() { 4 } else { 2 });
            if !entries.is_empty() {
                let encoded = KvMetadataWrite { key: String::new(), entries: entries.to_vec() }.encode_to_vec();
                change.metadata = Some(encoded.into());
            }
        };
        for write in &self.public.metadata_writes {
            metadata("", write.key.clone(), &write.entries);
        }
        for (name, set) in &self.collections {
            for write in &set.metadata_writes {
                metadata(name, hex::encode(&write.key_hash), &write.entries);
            }
        }
        changes
    }
}

/// The namespaces of the state that hold values and metadata.
fn places(contract: &str, collection: &str) -> (String, String) {
    match collection {
        "" => (contract.to_owned(), format!("{contract}$$m")),
        _ => (format!("{contract}$$h{collection}"), format!("{contract}$$n{collection}")),
    }
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
            private: PrivateHistory::default(),
            scheduled: BTreeMap::new(),
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

    /// The number of blocks.
    pub fn height(&self) -> u64 {
        self.tip.as_ref().map_or(0, |tip| tip.number + 1)
    }

    /// Whether the ledger has a transaction with this id, valid or not.
    pub fn knows(&self, tx_id: &str) -> bool {
        self.known.contains(tx_id)
    }

    /// The private writes of valid transactions, as hashes.
    pub fn private(&self) -> &PrivateHistory {
        &self.private
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
        // The keys whose metadata an endorsed transaction of the block writes.
        let mut changed = BTreeSet::new();
        for envelope in &envelopes {
            let tx_id = claimed_id(envelope);
            let mut verdict = self.validate(envelope, &changed);
            if let Ok(EndorsedTransaction { sets, .. }) = &verdict {
                for set in sets {
                    let public = set.public.metadata_writes.iter().map(|write| ("", write.key.clone()));
                    let hashed = set.collections.iter().flat_map(|(name, hashed)| {
                        hashed.metadata_writes.iter().map(|write| (name.as_str(), hex::encode(&write.key_hash)))
                    });
                    for (collection, key) in public.chain(hashed) {
                        changed.insert((places(&set.name, collection).1, key));
                    }
                }
            }
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
        if written.keys().any(|(namespace, _)| namespace == LIFECYCLE) {
            // A note that definitions may have changed, by the block itself.
            let row = StateRow { value: Bytes::from_static(&[1]), version: (number, envelopes.len() as u64) };
            self.state.insert(("$$rules".to_owned(), "definitions".to_owned()), row);
        }
        self.expire(number, &written);
        self.known.extend(transactions.iter().map(|(tx_id, _)| tx_id.clone()).filter(|tx_id| !tx_id.is_empty()));
        let filter: Vec<u8> = transactions.iter().map(|(_, code)| *code as u8).collect();
        self.commit_hash = Some(commit_hash(&filter, &written, self.commit_hash.as_ref()));
        Ok(ValidatedBlock { transactions, commit_hash: self.commit_hash, config_update: None })
    }

    /// Adds a block that holds a configuration and nothing else.
    fn set_config(&mut self, number: u64, envelope: &[u8], config: SetConfig) -> Result<ValidatedBlock, String> {
        let SetConfig { sequence, endorsements_min, update, row, indexed_id } = config;
        // A configuration passes all checks up to its type.
        if let Err(code) = self.validate(envelope, &BTreeSet::new())
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
        self.expire(number, &BTreeMap::new());
        self.commit_hash = Some(commit_hash(&[Code::Valid as u8], &BTreeMap::new(), self.commit_hash.as_ref()));
        Ok(ValidatedBlock {
            transactions: vec![(String::new(), Code::Valid)],
            commit_hash: self.commit_hash,
            config_update: Some(update),
        })
    }

    /// The checks of one transaction that do not depend on its neighbours, in Fabric's order.
    fn validate(&self, envelope: &[u8], changed: &BTreeSet<StateKey>) -> Result<EndorsedTransaction, Code> {
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
            let public = KvrwSet::decode(namespace.rwset).map_err(|_| Code::BadRwset)?;
            let (mut collections, mut private) = (Vec::new(), Vec::new());
            for collection in namespace.collection_hashed_rwset {
                let set = HashedRwSet::decode(collection.hashed_rwset).map_err(|_| Code::BadRwset)?;
                private.push((collection.collection_name.clone(), collection.pvt_rwset_hash));
                collections.push((collection.collection_name, set));
            }
            sets.push(NamespaceSet { name: namespace.namespace, public, collections, private });
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
        // 9. No namespace twice.
        let names: BTreeSet<&str> = sets.iter().map(|set| set.name.as_str()).collect();
        if names.len() < sets.len() {
            return Err(Code::IllegalWriteset);
        }
        // 10. Endorsements of the contract, and of everything that is written.
        let endorsers = self.endorsers(&proposal_response_payload, &endorsements);
        let invoked = sets.iter().find(|set| set.name == ran.name);
        let others = sets.iter().filter(|set| set.name != ran.name && !set.written().is_empty());
        for (name, set) in [(&ran.name, invoked)].into_iter().chain(others.map(|set| (&set.name, Some(set)))) {
            let need = self.need(name).ok_or(Code::InvalidChaincode)?;
            let written = set.map(NamespaceSet::written).unwrap_or_default();
            let mut needs: Vec<Need> = Vec::new();
            for (collection, key) in written {
                needs.push(self.need_of_key(name, &need, collection, key, changed));
            }
            if needs.is_empty() {
                needs.push(need);
            }
            if !needs.iter().all(|need| need.is_met(&endorsers)) {
                return Err(Code::EndorsementPolicyFailure);
            }
        }
        Ok(EndorsedTransaction { tx_id: channel.tx_id, sets })
    }

    /// The organisations that a contract needs; `None` if there is no such contract.
    fn need(&self, contract: &str) -> Option<Need> {
        let channel = Need::any(self.policies.endorsements_min);
        if contract == LIFECYCLE {
            // A majority.
            return Some(Need::any(self.policies.organizations / 2 + 1));
        }
        match endorsement::of_definition(contract, &self.state, &channel) {
            Some(need) => need,
            None => self.policies.contracts.contains(contract).then_some(channel),
        }
    }

    /// The organisations that a write to a key needs, given those that its contract needs.
    fn need_of_key(
        &self,
        contract: &str,
        need: &Need,
        collection: &str,
        key: String,
        changed: &BTreeSet<StateKey>,
    ) -> Need {
        let metadata = (places(contract, collection).1, key);
        if changed.contains(&metadata) {
            return Need::never();
        }
        let own = self.state.get(&metadata).and_then(|row| endorsement::of_metadata(row.value.clone()));
        own.unwrap_or_else(|| match collection.strip_prefix("_implicit_org_") {
            _ if collection.is_empty() => need.clone(),
            Some(organization) if self.policies.members.msps().any(|msp| **msp.id() == *organization) => {
                Need::only(organization)
            }
            _ if self.policies.collections.contains_key(&(contract.to_owned(), collection.to_owned())) => need.clone(),
            // There is no such collection.
            _ => Need::never(),
        })
    }

    /// The organisations whose peers have endorsed.
    fn endorsers(&self, response: &[u8], endorsements: &[protos::Endorsement]) -> BTreeSet<String> {
        let organization = |endorsement: &protos::Endorsement| {
            let peer: Arc<Identity> = self.policies.members.identify(&endorsement.endorser).ok()?;
            verify(&peer, &[response, &endorsement.endorser[..]].concat(), &endorsement.signature).ok()?;
            peer.has_role(MemberRole::Peer).then(|| peer.msp_id().to_string())
        };
        endorsements.iter().filter_map(organization).collect()
    }

    /// Whether a value that the transaction read has changed.
    fn check_conflicts(
        &self,
        transaction: &EndorsedTransaction,
        written: &BTreeMap<StateKey, StateRow>,
    ) -> Result<Option<Code>, String> {
        let is_stale = |key: StateKey, version: Option<&Version>| {
            let now = self.state.get(&key).map(|row| row.version);
            let then = version.map(|version| (version.block_num, version.tx_num));
            // A key that an earlier transaction of the block wrote counts as changed, even if its value is the same.
            written.contains_key(&key) || now != then
        };
        for NamespaceSet { name, public, collections, .. } in &transaction.sets {
            if public.reads.iter().any(|read| is_stale((name.clone(), read.key.clone()), read.version.as_ref())) {
                return Ok(Some(Code::MvccReadConflict));
            }
            for range in &public.range_queries_info {
                if super::ranges::read_range(&self.state, name, range)? != super::ranges::recorded_range(range)? {
                    return Ok(Some(Code::PhantomReadConflict));
                }
            }
            for (collection, set) in collections {
                let (values, _) = places(name, collection);
                let mut reads = set.hashed_reads.iter();
                if reads.any(|read| is_stale((values.clone(), hex::encode(&read.key_hash)), read.version.as_ref())) {
                    return Ok(Some(Code::MvccReadConflict));
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
        for set in transaction.sets {
            for write in &set.public.writes {
                let writes = self.writes.entry((set.name.clone(), write.key.clone())).or_default();
                // If a transaction writes a key twice, its history has the first value.
                if writes.last().is_none_or(|(before, ..)| *before != version) {
                    let value = if write.is_delete { Bytes::new() } else { write.value.clone() };
                    writes.push((version, transaction.tx_id.clone(), value));
                }
            }
            self.private.add(version, &transaction.tx_id, &set.name, &set.private, &set.collections);
            for ((collection, key), KeyChange { sum, value, metadata }) in set.changes() {
                let (values, notes) = places(&set.name, &collection);
                let (values, notes) = ((values, key.clone()), (notes, key));
                let latest = self.state.get(&values).map(|row| row.value.clone());
                let (value, metadata) = match sum {
                    _ if sum & 8 != 0 => (Bytes::new(), Some(None)),
                    _ if sum & 1 != 0 && sum & 6 != 0 => (value, Some(metadata)),
                    0 | 1 => (value, None),
                    _ => match latest {
                        Some(latest) => (latest, Some(metadata)),
                        None => continue,
                    },
                };
                self.set(values, StateRow { value, version }, written);
                match metadata {
                    Some(Some(metadata)) => self.set(notes, StateRow { value: metadata, version }, written),
                    Some(None) if self.state.contains_key(&notes) => {
                        self.set(notes, StateRow { value: Bytes::new(), version }, written);
                    }
                    _ => {}
                }
            }
        }
    }

    fn set(&mut self, key: StateKey, row: StateRow, written: &mut BTreeMap<StateKey, StateRow>) {
        let (block, version) = (row.version.0, row.version);
        let history = self.history.entry(key.clone()).or_default();
        history.retain(|(before, _)| *before != block);
        history.push((block, (!row.value.is_empty()).then_some(version)));
        self.private.note_row(&key, &row);
        match row.value.is_empty() {
            true => self.state.remove(&key),
            false => self.state.insert(key.clone(), row.clone()),
        };
        written.insert(key, row);
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

mod expiry;
#[cfg(test)]
mod tests;
