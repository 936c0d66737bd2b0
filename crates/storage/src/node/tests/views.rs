//! Tests of a node's part in views: which epochs begin, which views it takes, and what a new learner removes.

use base::rt::{self};
use base::{ErrorKind, Version};

use super::basics::simulate;
use super::*;
use crate::private::{PrivateRow, PrivateRows};
use crate::state_store::StateStore;

fn view(number: u64, epoch: u64, copies: &[(&str, bool)]) -> View {
    let copies =
        copies.iter().map(|(name, is_learner)| ChannelCopy { name: (*name).to_owned(), is_learner: *is_learner });
    View { id: ViewId { number, epoch: Epoch(epoch) }, copies: copies.collect() }
}

async fn install(epoch: u64, view: View, own: usize, reset: CopyReset) -> Result<(), Error> {
    let registered = RegisteredView { view, own: Some(own) };
    let installation = Installation { epoch: Epoch(epoch), registered, reset };
    install_view(ADDRESS, &Bytes::from_static(TOKEN), CHANNEL, installation).await
}

async fn begin(epoch: u64, number: u64, of: u64) -> Result<CopyStatus, Error> {
    let newest = ViewId { number, epoch: Epoch(of) };
    begin_epoch_in(ADDRESS, &Bytes::from_static(TOKEN), CHANNEL, Epoch(epoch), newest).await
}

async fn status() -> CopyStatus {
    copy_status(ADDRESS, &Bytes::from_static(TOKEN), CHANNEL).await.expect("the node answers")
}

fn private(key: &'static str, version: u64, value: &'static str) -> PrivateRow {
    PrivateRow {
        namespace: "n".to_owned(),
        key: Bytes::from_static(key.as_bytes()),
        version: Version::new(version, 0),
        value: Some(Bytes::from_static(value.as_bytes())),
    }
}

#[test]
fn an_epoch_begins_by_name_and_a_view_only_grows() {
    simulate(31, |_, node| async move {
        let token = Bytes::from_static(TOKEN);
        assert_eq!(status().await, CopyStatus::default(), "asking creates nothing");
        begin(1, 0, 0).await.expect("it is the first");
        install(1, view(1, 1, &[("a", false)]), 0, CopyReset::Nothing).await.expect("the epoch has begun");
        install(1, view(1, 1, &[("a", false)]), 0, CopyReset::Nothing).await.expect("repeating changes nothing");
        let error = begin_epoch(ADDRESS, &token, CHANNEL).await.expect_err("there are views");
        assert_eq!(error.kind(), ErrorKind::Rejected);
        let error = begin(2, 0, 0).await.expect_err("there is a newer view");
        assert_eq!(error.kind(), ErrorKind::Retry);
        assert_eq!(begin(1, 1, 1).await.expect_err("it has begun").kind(), ErrorKind::Fenced);
        begin(5, 1, 1).await.expect("it is newer");
        let older = install(1, view(2, 1, &[("a", false), ("b", false)]), 0, CopyReset::Nothing).await;
        assert_eq!(older.expect_err("a later epoch has begun").kind(), ErrorKind::Fenced);
        let early = install(6, view(2, 6, &[("a", false)]), 0, CopyReset::Nothing).await;
        early.expect_err("the epoch has not begun");
        install(5, view(2, 5, &[("a", false), ("b", false)]), 0, CopyReset::Nothing).await.expect("it is newer");
        let older = install(5, view(1, 5, &[("a", false)]), 0, CopyReset::Nothing).await;
        older.expect_err("views only grow");
        RemoteBlocks::open(options(7)).await.expect_err("a link begins no epoch here");
        // Across crashes too.
        node.crash();
        rt::sleep(Duration::from_millis(10)).await;
        node.restart();
        rt::sleep(Duration::from_secs(1)).await;
        let found = status().await;
        assert_eq!((found.epoch, found.registered.view.id.number), (Epoch(5), 2));
        assert!(found.registered.is_member());
    });
}

#[test]
fn a_learner_removes_what_it_is_told_to_even_across_a_crash() {
    for reset in [CopyReset::PrivateRows, CopyReset::Everything] {
        simulate(32, move |sim, node| async move {
            begin(1, 0, 0).await.expect("it is the first");
            install(1, view(1, 1, &[("a", false)]), 0, CopyReset::Nothing).await.expect("the epoch has begun");
            {
                let blocks = RemoteBlocks::open(options(1)).await.expect("the epoch has begun");
                let mut rng = Prng::new(1);
                for _ in 0..30 {
                    TestBlock::after(blocks.tip(), &mut rng).append(&blocks).await.expect("it follows");
                }
                blocks.sync().await.expect("the disk works");
                let rows = RemoteStateStore::open(options(1)).await.expect("the epoch has begun");
                rows.materialize(30).await.expect("the blocks are there");
                let [committed, _] = RemotePrivateRows::of_primary(options(1));
                let view = ViewId { number: 1, epoch: Epoch(1) };
                committed.write_copied(vec![private("k", 3, "v")], view, 7).await.expect("the disk works");
                assert_eq!(status().await.private_write, (Epoch(1), 7));
            }
            // The node crashes while it removes.
            sim.inject_next("storage.node.resetting", 1);
            let crashing = node.clone();
            sim.call_after(Duration::from_millis(30), move || crashing.crash());
            let learning = view(2, 1, &[("b", false), ("a", true)]);
            let _ = install(1, learning.clone(), 1, reset).await;
            rt::sleep(Duration::from_millis(100)).await;
            node.restart();
            rt::sleep(Duration::from_secs(1)).await;
            install(1, learning, 1, reset).await.expect("it is the same, or was lost");
            let found = status().await;
            assert!(found.registered.is_learner());
            assert_eq!(found.private_write, (Epoch(0), 0));
            assert_eq!(found.tip.height, if reset == CopyReset::Everything { 0 } else { 30 });
            // It takes blocks of earlier epochs, and rows that it does not have.
            let blocks = RemoteBlocks::open_learner(options(1)).await.expect("it learns");
            TestBlock::after(blocks.tip(), &mut Prng::new(2)).append_under(&blocks, 1).await.expect("it follows");
            blocks.sync().await.expect("the disk works");
            let [committed, _] = RemotePrivateRows::of_primary(options(1));
            let view = ViewId { number: 2, epoch: Epoch(1) };
            committed.write_copied(vec![private("k", 3, "new")], view, 8).await.expect("the disk works");
            committed.copy(vec![private("k", 3, "old"), private("l", 2, "w")]).await.expect("it learns");
            let page = committed.scan(Bytes::new()).await.expect("it answers");
            assert_eq!(page.rows, [private("k", 3, "new"), private("l", 2, "w")]);
            assert_eq!(status().await.private_write, (Epoch(1), 8), "copies have no numbers");
            install(1, self::view(3, 1, &[("b", false), ("a", false)]), 1, CopyReset::Nothing)
                .await
                .expect("it is complete");
            let error = committed.copy(vec![private("m", 2, "w")]).await.expect_err("it is complete");
            assert_eq!(error.kind(), ErrorKind::Rejected);
        });
    }
}

#[test]
fn transient_rows_of_another_view_are_refused() {
    simulate(33, |_, _| async move {
        begin(1, 0, 0).await.expect("it is the first");
        install(1, view(1, 1, &[("a", false)]), 0, CopyReset::Nothing).await.expect("the epoch has begun");
        let [_, transient] = RemotePrivateRows::of_follower(options(0));
        let row = || vec![private("k", 3, "v")];
        let of = |number| ViewId { number, epoch: Epoch(1) };
        assert_eq!(transient.write(row()).await.expect_err("it names no view").kind(), ErrorKind::Retry);
        assert_eq!(transient.write_copied(row(), of(2), 0).await.expect_err("another view").kind(), ErrorKind::Retry);
        transient.write_copied(row(), of(1), 0).await.expect("it is the node's view");
        let reads = RemoteReads::new(options(0));
        reads.check_view(of(1)).await.expect("it is the node's view");
        assert_eq!(reads.check_view(of(2)).await.expect_err("another view").kind(), ErrorKind::Retry);
    });
}
