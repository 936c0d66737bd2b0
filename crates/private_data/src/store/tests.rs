//! Regression tests of what simulated networks found.

use base::MspId;
use base::rt::disk::Directory;
use base::rt::simulation::Simulation;
use ledger::rwset::{ReadWriteSet, ReadWriteSetRecorder};
use storage::tables::ModelEngine;
use storage::{LocalPrivateRows, PrivateTable};

use super::*;
use crate::PrivateChannel;
use crate::collect::HashedSet;

fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(PrivateStore) -> F + Send + 'static) {
    let run = Simulation::new(3).run(|_| async move {
        let directory = Directory::open("tables").await.expect("the simulated disk works");
        let engine = ModelEngine::open(directory).await.expect("the directory is empty");
        let open =
            async |table| Arc::new(LocalPrivateRows::open(engine.as_ref(), "trade", table, 0).await.expect("it opens"));
        test(PrivateStore::new(open(PrivateTable::Committed).await, open(PrivateTable::Transient).await)).await;
    });
    run.expect("the run succeeds");
}

/// A transaction that writes these keys of a collection: its public part, and the private set.
fn transaction(keys: &[&str]) -> (ReadWriteSet, PrivateSet) {
    let mut recorder = ReadWriteSetRecorder::default();
    for key in keys {
        recorder.private_write(&"vault".into(), "pair", key, Bytes::copy_from_slice(key.as_bytes()));
    }
    let set = recorder.private_sets().pop().expect("it writes");
    (ReadWriteSet::decode(recorder.encode()).expect("it was just encoded"), set)
}

fn at(block: u64) -> SetLocation {
    SetLocation { contract: "vault".to_owned(), collection: "pair".to_owned(), version: Version::new(block, 0) }
}

fn purge(key: &str, block: u64) -> Vec<PrivateRow> {
    let key = rows::purge_key("vault", "pair", &sha256(key.as_bytes()));
    let marker = |namespace| rows::marker(namespace, key.clone(), Version::new(block, 0));
    vec![marker(PURGES), marker(SWEEPS)]
}

/// Removes purged keys from the committed sets.
async fn sweep(store: &PrivateStore) {
    let purges = store.sweeps().await.expect("the tables work");
    assert!(!purges.is_empty());
    store.sweep(&purges).await.expect("the tables work");
    store.note_swept(purges).await.expect("the tables work");
}

/// The keys in a set as it lies in the table, which may be more than the store shows.
async fn stored_keys(store: &PrivateStore, at: &SetLocation) -> Vec<String> {
    let stored = store.committed.get_many(&[(SETS, &at.key())], NEWEST).await.expect("the tables answer");
    let writes = private_writes(&value(stored).expect("the set is there")).expect("it is a set");
    writes.into_iter().map(|write| write.key).collect()
}

/// Two keys of a set were purged. The purge that was completed second was the earlier one, so that its row of the set lay below the
/// row of the later purge, which still held the key.
#[test]
fn purges_may_be_completed_in_any_order() {
    for blocks in [[5, 9], [9, 5]] {
        run(async move |store| {
            let (_, set) = transaction(&["a", "b", "c"]);
            store
                .write(vec![rows::row(SETS, at(1).key(), at(1).version, Some(set.writes))])
                .await
                .expect("it is written");
            store.write([purge("a", blocks[0]), purge("b", blocks[1])].concat()).await.expect("it is written");
            sweep(&store).await;
            assert_eq!(stored_keys(&store, &at(1)).await, ["c"], "{blocks:?}");
            assert!(store.sweeps().await.expect("the tables work").is_empty());
        });
    }
}

/// A purge whose block was about to be committed rewrote a set under its own version. The set expired at a lower height, and its
/// removal, under that height, lay below the rewritten row.
#[test]
fn a_set_that_a_purge_has_rewritten_expires() {
    run(async |store| {
        let (_, set) = transaction(&["a", "b"]);
        store.write(vec![rows::row(SETS, at(1).key(), at(1).version, Some(set.writes))]).await.expect("it is written");
        store.write(purge("a", 9)).await.expect("it is written");
        sweep(&store).await;
        store.remove_blocks("vault", "pair", 0..2, Version::new(5, 0)).await.expect("the tables work");
        assert_eq!(store.set(&at(1)).await.expect("the tables work"), None);
    });
}

/// A set was missing when its block was committed. It arrived after the purge of one of its keys was completed, from a peer that had
/// not committed the purge, and was kept with the purged key.
#[test]
fn a_late_set_is_kept_without_the_keys_that_were_purged_since() {
    run(async |store| {
        let (public, set) = transaction(&["a", "b"]);
        store.write(purge("a", 5)).await.expect("it is written");
        sweep(&store).await;
        let channel = PrivateChannel::new("trade".into(), MspId::new("Org1MSP"), store.clone(), Arc::default());
        let hashed = HashedSet::of_transaction(&TxId::new("tx"), at(1).version, &public);
        let late = channel.late_rows(&hashed[0], &set.writes).await.expect("the tables work");
        store.write(late.expect("it is the transaction's set")).await.expect("it is written");
        assert_eq!(stored_keys(&store, &at(1)).await, ["b"]);
        let found = store.value("vault", "pair", "a", 10).await.expect("the tables work");
        assert_eq!(found, None);
    });
}

/// The bound did not count the sets of the same message. And it was one for all senders, so that an organisation could keep out the
/// sets of another, and even the endorser's own, for a transaction whose id it knew.
#[test]
fn an_organisation_cannot_send_many_sets_for_a_transaction_or_keep_out_those_of_others() {
    run(async |store| {
        let tx_id = TxId::new("tx");
        let sets: Vec<PrivateSet> = (0..=VARIANTS_MAX).map(|number| transaction(&[&number.to_string()]).1).collect();
        let (flood, honest) = (MspId::new("FloodMSP"), MspId::new("HonestMSP"));
        store.stage(&tx_id, 1, &sets, Some(&flood)).await.expect_err("they are too many");
        store.stage(&tx_id, 1, &sets[1..], Some(&flood)).await.expect("they are few enough");
        store.stage(&tx_id, 1, &sets[1..], Some(&flood)).await.expect("they are known");
        store.stage(&tx_id, 1, &sets[..1], Some(&flood)).await.expect_err("it is one too many");
        let [first, others @ ..] = &sets[..] else { panic!("there are some") };
        let hash = sha256(&first.writes);
        assert_eq!(store.staged(&tx_id, "vault", "pair", &hash).await.expect("the tables work"), None);
        store.stage(&tx_id, 1, std::slice::from_ref(first), Some(&honest)).await.expect("it is the sender's first");
        let own = transaction(&["own"]).1;
        store.stage(&tx_id, 1, std::slice::from_ref(&own), None).await.expect("it is the peer's own");
        for set in others.iter().chain([first, &own]) {
            let found = store.staged(&tx_id, "vault", "pair", &sha256(&set.writes)).await.expect("the tables work");
            assert_eq!(found.as_ref(), Some(&set.writes));
        }
    });
}
