//! The whole channel that was recorded from Fabric's peers: every code, every commit hash and the final state are Fabric's.

use std::collections::BTreeMap;

use base::MspId;
use identity::hex;
use ledger::namespace::{self, NamespaceContent};
use prost::Message as _;
use proto::common::{Envelope, Payload};
use proto::msp::SerializedIdentity;
use proto::protos::{
    ChaincodeActionPayload, ChaincodeInvocationSpec, ChaincodeProposalPayload, Transaction as WireTransaction,
};
use serde_json::Value;
use state::Snapshot;

use super::configuration::{RECORDED, follow_recorded, recorded};
use super::*;
use crate::endorse::EndorsingChannel;
use crate::endorse::lifecycle::{LifecycleCall, LifecycleState};

fn data(name: &str) -> Value {
    let path = format!("{}/../ledger/tests/fabric-channel/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("the recorded channel is in the tree");
    serde_json::from_slice(&bytes).expect("it is in JSON")
}

/// SHA-256 of the value, metadata and version of each key, by Fabric's name of its namespace and by the key, both in hexadecimal but
/// for the namespace.
type Rows = BTreeMap<(String, String), (String, String, [u64; 2])>;

fn text(entry: &Value, field: &str) -> String {
    entry[field].as_str().unwrap_or_default().to_owned()
}

fn expected_rows() -> Rows {
    let state = data("state.json");
    let namespaces = ["public", "private_hashes"].map(|part| state[part].as_array().expect("namespaces").clone());
    let entries = namespaces.iter().flatten().flat_map(|namespace| {
        let name = text(namespace, "namespace_raw");
        let entries = namespace["entries"].as_array().expect("entries").iter();
        entries.map(move |entry| {
            let version = [0, 1].map(|index| entry["version"][index].as_u64().expect("a number"));
            let place = (name.clone(), text(entry, "key_hex"));
            (place, (text(entry, "value_sha256"), text(entry, "metadata_hex"), version))
        })
    });
    entries.collect()
}

async fn rows_of(snapshot: &dyn Snapshot, names: impl Iterator<Item = String>) -> Rows {
    let mut rows = Rows::new();
    for name in names {
        let page = snapshot.range(&name, "", "", 10_000).await.expect("the state answers");
        assert!(!page.more, "it is small");
        let (contract, collection) = match namespace::content(&name) {
            NamespaceContent::Hashes(contract, collection) => (contract, collection),
            _ => (name.as_str(), ""),
        };
        for entry in page.entries {
            let metadata = snapshot.get(&namespace::metadata_of(contract, collection), &entry.key).await;
            let metadata = metadata.expect("the state answers").map(|metadata| hex::encode(metadata.value));
            let key = if collection.is_empty() { hex::encode(&*entry.key) } else { entry.key.to_string() };
            let version = [entry.versioned.version.block, u64::from(entry.versioned.version.tx)];
            let value = hex::encode(ledger::sha256(&entry.versioned.value));
            rows.insert((name.clone(), key), (value, metadata.unwrap_or_default(), version));
        }
    }
    rows
}

/// Compares the state after the last block with Fabric's. No namespace is known that Fabric's state does not name.
async fn check_state(channel: &Channel) {
    let expected = expected_rows();
    let mut names: Vec<String> = expected.keys().map(|(name, _)| name.clone()).collect();
    // Collections whose hashes have expired, and contracts that wrote nothing that lasted.
    names.extend(["pvt$$hcollAB", "pvt$$hcollNew", "lscc", "qscc", "unknown"].map(str::to_owned));
    names.dedup();
    let rows = rows_of(channel.state().snapshot().as_ref(), names.into_iter()).await;
    let differs = |place: &&(String, String)| rows.get(*place) != expected.get(*place);
    let different: Vec<_> = expected.keys().chain(rows.keys()).filter(differs).collect();
    assert_eq!(different, Vec::<&(String, String)>::new());
    assert!(rows.len() > 500, "{} rows", rows.len());
}

/// The arguments of a transaction that was endorsed, and the organisation of its first endorser.
fn invocation(envelope: Bytes) -> (Vec<Bytes>, MspId) {
    let payload = Payload::decode(Envelope::decode(envelope.clone()).expect("Fabric wrote it").payload);
    let transaction = WireTransaction::decode(payload.expect("Fabric wrote it").data).expect("Fabric wrote it");
    let action = ChaincodeActionPayload::decode(transaction.actions[0].payload.clone()).expect("Fabric wrote it");
    let proposal = ChaincodeProposalPayload::decode(action.chaincode_proposal_payload).expect("Fabric wrote it");
    let spec = ChaincodeInvocationSpec::decode(proposal.input).expect("Fabric wrote it").chaincode_spec;
    let endorsement = &action.action.expect("it is endorsed").endorsements[0];
    let endorser = SerializedIdentity::decode(endorsement.endorser.clone()).expect("Fabric wrote it");
    (spec.expect("it has one").input.expect("it has one").args, MspId::from(endorser.mspid))
}

/// Our endorser reads and writes what Fabric's read and wrote, byte for byte.
#[test]
fn the_lifecycle_is_endorsed_as_fabrics_peers_endorsed_it() {
    let run = Simulation::new(1).run(|_| async {
        let expected = data("expected.json");
        let blocks = expected["blocks"].as_array().expect("blocks");
        let root = Directory::open("root").await.expect("it is made");
        let mut listener = net::listen("fabric").await.expect("the address is free");
        let (peer, link) = follow_recorded(&root, &mut listener, 1).await;
        let channel = peer.channel(RECORDED).expect("joined");
        let mut compared = 0;
        for block in &blocks[1..] {
            let number = block["number"].as_u64().expect("a number");
            let recorded = recorded(number);
            for (index, transaction) in block["transactions"].as_array().expect("transactions").iter().enumerate() {
                if !text(transaction, "label").starts_with("lifecycle: ") {
                    continue;
                }
                let (args, own) = invocation(recorded.envelope(index));
                let parsed = ledger::Transaction::parse(&recorded.envelope(index)).expect("Fabric wrote it");
                let outcome = parsed.action().and_then(|action| action.outcome(parsed.header()));
                let results = outcome.expect("Fabric wrote it").results();
                let policies = channel.policies();
                let creator = policies.identify(&parsed.header().creator()).expect("a member");
                let private = EndorsingChannel::private(&*channel).values();
                let state = LifecycleState::new(channel.state().snapshot(), private);
                let mut call = LifecycleCall { policies: &policies, own: &own, creator: &creator, state };
                let function = std::str::from_utf8(&args[0]).expect("it is text");
                call.run(function, &args[1]).await.unwrap_or_else(|error| panic!("block {number}: {error:?}"));
                assert_eq!(call.state.finish().0, results, "{number} {}", transaction["label"]);
                compared += 1;
            }
            link.send(recorded.to_bytes()).await.expect("the link holds");
            at_height(&channel, number + 1).await;
        }
        assert_eq!(compared, 34);
        peer.stop().await.expect("the peer stops");
    });
    run.expect("the run succeeds");
}

#[test]
fn a_peer_reaches_the_verdicts_and_the_state_of_fabrics_peers() {
    let run = Simulation::new(1).run(|_| async {
        let expected = data("expected.json");
        let blocks = expected["blocks"].as_array().expect("blocks");
        let root = Directory::open("root").await.expect("it is made");
        let mut listener = net::listen("fabric").await.expect("the address is free");
        let (peer, link) = follow_recorded(&root, &mut listener, 1).await;
        let channel = peer.channel(RECORDED).expect("joined");
        let mut differences = Vec::new();
        // All at once: blocks are verified ahead, under rules that the blocks before them change.
        for number in 1..blocks.len() as u64 {
            link.send(recorded(number).to_bytes()).await.expect("the link holds");
        }
        at_height(&channel, blocks.len() as u64).await;
        for block in &blocks[1..] {
            let number = block["number"].as_u64().expect("a number");
            let shown = channel.read_block(number).await.expect("reads").expect("committed");
            let stored = Block::parse(&shown).expect("stored here");
            let transactions = block["transactions"].as_array().expect("transactions").iter();
            for (transaction, code) in transactions.zip(stored.metadata().filter()) {
                if transaction["code"] != *code {
                    differences.push(format!("{number} {}: {}, not {code}", transaction["label"], transaction["code"]));
                }
            }
            let hash = stored.metadata().commit_hash().expect("well formed").map(hex::encode);
            if block["commit_hash"] != hash.as_deref().unwrap_or_default() {
                differences.push(format!("block {number} has another commit hash"));
            }
            assert_eq!(shown, recorded(number).to_bytes(), "what others see is what Fabric's peers show");
        }
        assert_eq!(differences, Vec::<String>::new());
        check_state(&channel).await;
        let digest = channel.state().digest().await.expect("the state answers");
        peer.stop().await.expect("the peer stops");
        drop((peer, link, channel));

        // The state is lost: the stored blocks lead to it again, changes that no transaction writes included.
        let consortium = one_organization();
        let mut options = peer_options(&consortium, &root, 0, engine(&root, "others").await).await;
        options.orderers = vec!["fabric".to_owned()].into();
        let peer = Peer::open(options).await.expect("the peer opens");
        let channel = peer.channel(RECORDED).expect("joined");
        check_state(&channel).await;
        assert_eq!(channel.state().digest().await.expect("the state answers"), digest);
        assert!(channel.policies().on_ledger().contains("polcc"));
        peer.stop().await.expect("the peer stops");
    });
    run.expect("the run succeeds");
}
