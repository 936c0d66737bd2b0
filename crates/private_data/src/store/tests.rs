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
            async |table| Arc::new(LocalPrivateRows::open(engine.as_ref(), "trade", table).await.expect("it opens"));
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
            assert!(store.sweep().await.expect("the tables work"));
            assert_eq!(stored_keys(&store, &at(1)).await, ["c"], "{blocks:?}");
            assert!(!store.sweep().await.expect("the tables work"));
        });
    }
}

/// A set was missing when its block was committed. It arrived after the purge of one of its keys was completed, from a peer that had
/// not committed the purge, and was kept with the purged key.
#[test]
fn a_late_set_is_kept_without_the_keys_that_were_purged_since() {
    run(async |store| {
        let (public, set) = transaction(&["a", "b"]);
        store.write(purge("a", 5)).await.expect("it is written");
        store.sweep().await.expect("the tables work");
        let channel = PrivateChannel::new("trade".into(), MspId::new("Org1MSP"), store.clone(), Arc::default());
        let hashed = HashedSet::of_transaction(&TxId::new("tx"), at(1).version, &public);
        let late = channel.late_rows(&hashed[0], &set.writes).await.expect("the tables work");
        store.write(late.expect("it is the transaction's set")).await.expect("it is written");
        assert_eq!(stored_keys(&store, &at(1)).await, ["b"]);
        let found = store.value("vault", "pair", "a", 10).await.expect("the tables work");
        assert_eq!(found, None);
    });
}

/// The bound did not count the sets of the same message. And it held for the endorser's own set, so that another organisation
/// could prevent the endorsement of a transaction whose id it knew.
#[test]
fn others_cannot_send_many_sets_for_a_transaction_or_keep_out_the_endorsers_own() {
    run(async |store| {
        let tx_id = TxId::new("tx");
        let sets: Vec<PrivateSet> = (0..=VARIANTS_MAX).map(|number| transaction(&[&number.to_string()]).1).collect();
        store.stage(&tx_id, 1, &sets, VARIANTS_MAX).await.expect_err("they are too many");
        store.stage(&tx_id, 1, &sets[1..], VARIANTS_MAX).await.expect("they are few enough");
        store.stage(&tx_id, 1, &sets[1..], VARIANTS_MAX).await.expect("they are known");
        store.stage(&tx_id, 1, &sets[..1], VARIANTS_MAX).await.expect_err("it is one too many");
        store.stage(&tx_id, 1, &sets[..1], usize::MAX).await.expect("it is the peer's own");
        let found = store.staged(&tx_id, "vault", "pair", &sha256(&sets[0].writes)).await.expect("the tables work");
        assert_eq!(found.as_ref(), Some(&sets[0].writes));
    });
}
