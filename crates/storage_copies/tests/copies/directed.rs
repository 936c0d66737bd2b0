//! Single losses, moves and what waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rt::simulation::{Sim, Simulation};
use base::rt::{self, CancellationToken, Instant};
use base::{Epoch, ErrorKind};
use storage::blocks::Blocks;
use storage::node::{RemoteBlocks, RemoteStoreConfig};
use storage_copies::{ChannelCopies, CopySet, begin_epoch, copy_states, force_view, newest_epoch};

use crate::evidence::SharedEvidence;
use crate::faults::{newest_members, settle, validate};
use crate::world::{CHANNEL, TestBlock, run_follower, run_primary, set, start_nodes};

const LONG: Duration = Duration::from_secs(600);

fn simulate<F, Fut>(seed: u64, scenario: F)
where
    F: FnOnce(Sim) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let run = Simulation::new(seed).time_max(LONG).run(scenario);
    run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
}

/// A primary and a follower over two copies that are complete.
pub async fn start(sim: &Sim, nodes: usize, wanted: usize) -> (SharedEvidence, CopySet, CancellationToken) {
    start_nodes(sim, nodes);
    let (evidence, end, set) = (SharedEvidence::default(), CancellationToken::new(), set(nodes, wanted));
    drop(sim.node("p1").spawn(run_primary(evidence.clone(), set.clone(), sim.rng(), end.clone())));
    drop(sim.node("f1").spawn(run_follower(evidence.clone(), set.clone(), sim.rng(), end.clone())));
    settle(&evidence, &set).await;
    (evidence, set, end)
}

async fn finish(evidence: SharedEvidence, set: CopySet, end: CancellationToken) {
    end.cancel();
    rt::sleep(Duration::from_secs(1)).await;
    validate(&evidence, &set).await;
    let accusations = evidence.lock().accusations.clone();
    assert!(accusations.is_empty(), "{accusations:?}");
}

/// The longest time without a durable block, until dropped.
fn watch_pauses(evidence: SharedEvidence) -> Arc<Mutex<Duration>> {
    let longest = Arc::new(Mutex::new(Duration::ZERO));
    let noted = longest.clone();
    drop(rt::spawn(async move {
        let (mut known, mut since): (usize, Instant) = (0, rt::now());
        loop {
            rt::sleep(Duration::from_millis(1)).await;
            let now = evidence.lock().durable.len();
            let mut longest = noted.lock().expect("nobody panics");
            *longest = (*longest).max(since.elapsed());
            if now != known {
                (known, since) = (now, rt::now());
            }
        }
    }));
    longest
}

/// However a copy is lost, the pause is below a second of virtual time, and the copy is built again.
#[test]
fn losing_either_copy_pauses_the_peer_for_less_than_a_second() {
    for seed in 0..9 {
        simulate(seed, move |sim| async move {
            let (evidence, set, end) = start(&sim, 2, 2).await;
            let longest = watch_pauses(evidence.clone());
            for lost in ["s1", "s2", "s1"] {
                match seed % 3 {
                    0 => {
                        sim.node(lost).crash();
                        rt::sleep(Duration::from_secs(3)).await;
                        sim.node(lost).restart();
                    }
                    1 => {
                        sim.node(lost).pause();
                        rt::sleep(Duration::from_secs(3)).await;
                        sim.node(lost).resume();
                    }
                    _ => {
                        sim.cut("p1", lost);
                        rt::sleep(Duration::from_secs(3)).await;
                        sim.heal("p1", lost);
                    }
                }
                settle(&evidence, &set).await;
            }
            let longest = *longest.lock().expect("nobody panics");
            assert!(longest < Duration::from_secs(1), "seed {seed}: {longest:?}");
            finish(evidence, set, end).await;
        });
    }
}

/// A copy is begun at a node as soon as it comes back, however often others were tried in vain.
#[test]
fn a_node_that_never_answers_delays_no_other() {
    for seed in 0..4 {
        simulate(seed, move |sim| async move {
            let (evidence, set, end) = start(&sim, 3, 2).await;
            sim.node("s3").crash();
            sim.node("s2").pause();
            // Of several lengths, since pauses between attempts grow.
            rt::sleep(Duration::from_secs(4 + 3 * seed)).await;
            sim.node("s3").restart();
            rt::sleep(Duration::from_secs(2)).await;
            let states = copy_states(&set, CHANNEL).await;
            let views = states.iter().filter_map(|(_, state)| Some(&state.as_ref().ok()?.registered.view));
            let newest = views.max_by_key(|view| view.id).expect("a node answers");
            assert!(newest.copy("copy-3").is_some(), "seed {seed}: {newest:?}");
            sim.node("s2").resume();
            finish(evidence, set, end).await;
        });
    }
}

/// A node whose disk is replaced gets everything again, and then the other one may go.
#[test]
fn a_disk_that_is_replaced_is_filled_again() {
    simulate(1, |sim| async move {
        let (evidence, set, end) = start(&sim, 2, 2).await;
        for lost in ["s2", "s1"] {
            sim.node(lost).crash();
            rt::sleep(Duration::from_secs(2)).await;
            sim.node(lost).disk().wipe();
            sim.node(lost).restart();
            settle(&evidence, &set).await;
        }
        finish(evidence, set, end).await;
    });
}

/// A copy moves from one node to another while blocks are committed, with one copy and with two.
#[test]
fn a_copy_moves_under_traffic() {
    for wanted in [1, 2] {
        simulate(7 + wanted as u64, move |sim| async move {
            start_nodes(&sim, 3);
            rt::sleep(Duration::from_millis(50)).await;
            let set = set(3, wanted);
            let epoch = begin_epoch(&set, CHANNEL, None).await.expect("the nodes are there");
            let copies = Arc::new(ChannelCopies::open(set.clone(), CHANNEL, epoch).await.expect("they open"));
            let (writer, mut rng) = (copies.blocks(), sim.rng());
            let appending = rt::spawn(async move {
                let mut appended = Vec::new();
                for _ in 0..400 {
                    let block = TestBlock::after(writer.tip(), &mut rng);
                    block.append(writer.as_ref()).await.expect("it goes on");
                    writer.sync().await.expect("it goes on");
                    appended.push(block);
                    rt::sleep(Duration::from_millis(10)).await;
                }
                appended
            });
            let members = async |count: usize| {
                while copies.view().members().count() != count {
                    rt::sleep(Duration::from_millis(20)).await;
                }
            };
            members(wanted).await;
            let old = copies.view().members().next().expect("there is one").to_owned();
            let free = set.nodes.iter().find(|node| !copies.view().is_member(&node.name)).expect("one is free");
            copies.add(&free.name).expect("it may be added");
            members(wanted + 1).await;
            copies.drop_copy(&old).expect("another one is complete");
            members(wanted).await;
            let appended = appending.await.expect("it ends");
            assert!(copies.view().is_member(&free.name) && !copies.view().is_member(&old));
            assert_eq!(copies.report().len(), wanted);
            // The node that was left is not needed any more.
            let host = &set.node(&old).expect("it is configured").address;
            sim.node(host).crash();
            drop(copies);
            let evidence = SharedEvidence::default();
            let all: Vec<_> = appended.into_iter().map(|block| (block.number, block.header_hash, block.text)).collect();
            evidence.lock().report(1, 0, &all);
            validate(&evidence, &set).await;
            let accusations = evidence.lock().accusations.clone();
            assert!(accusations.is_empty(), "{accusations:?}");
        });
    }
}

/// If the primary and one copy are lost together, nobody can know whether the other copy was left out: the peer waits for it, or for
/// an operator.
#[test]
fn a_candidate_waits_for_a_member_that_may_have_been_used_alone() {
    simulate(3, |sim| async move {
        let (evidence, set, end) = start(&sim, 2, 2).await;
        sim.node("s2").crash();
        sim.node("p1").crash();
        rt::sleep(Duration::from_secs(2)).await;
        let error = begin_epoch(&set, CHANNEL, None).await.expect_err("a member does not answer");
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        let before = newest_epoch(&set, CHANNEL).await.expect("one answers");
        let view = force_view(&set, CHANNEL, "copy-1").await.expect("its copy is complete");
        assert_eq!(view.members().collect::<Vec<_>>(), ["copy-1"]);
        let epoch = begin_epoch(&set, CHANNEL, None).await.expect("one copy is enough now");
        assert!(epoch > before);
        // The other one comes back, and is built again from the one that was chosen.
        sim.node("s2").restart();
        drop(sim.node("p2").spawn(run_primary(evidence.clone(), set.clone(), sim.rng(), end.clone())));
        settle(&evidence, &set).await;
        assert_eq!(newest_members(&set).await.len(), 2);
        finish(evidence, set, end).await;
    });
}

/// A peer whose configuration names one node of several must not go on with that one.
#[test]
fn a_peer_that_knows_one_of_several_copies_is_refused() {
    simulate(4, |sim| async move {
        let (evidence, both, end) = start(&sim, 2, 2).await;
        let only = CopySet { nodes: both.nodes[..1].to_vec(), ..both.clone() };
        let error = begin_epoch(&only, CHANNEL, None).await.expect_err("another copy may have more");
        assert!(error.to_string().contains("none of the configured"), "{error}");
        let error = storage::node::begin_epoch("s1", &both.token, CHANNEL).await.expect_err("there are copies");
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        finish(evidence, both, end).await;
    });
}

async fn open_foreign(epoch: Epoch) -> Result<RemoteBlocks, storage::Error> {
    let (address, token, channel) = ("s1".to_owned(), Default::default(), CHANNEL.to_owned());
    RemoteBlocks::open(RemoteStoreConfig { address, token, channel, epoch }).await
}

/// An epoch that has not begun at a copy does not begin there because somebody opens a link under it.
#[test]
fn a_link_begins_no_epoch_at_a_copy() {
    simulate(5, |sim| async move {
        let (evidence, set, end) = start(&sim, 2, 2).await;
        let newest = newest_epoch(&set, CHANNEL).await.expect("they answer");
        let foreign = Epoch(newest.get() + 5);
        open_foreign(foreign).await.expect_err("nobody has begun it here");
        finish(evidence, set, end).await;
        sim.inject("storage.copies.mutant.admit_foreign_epoch", 1.0);
        open_foreign(foreign).await.expect("the planted mistake is seen");
    });
}

/// Addresses that are mixed up are noticed before anything is written.
#[test]
fn copies_whose_addresses_are_mixed_up_are_refused() {
    simulate(6, |sim| async move {
        let (evidence, set, end) = start(&sim, 2, 2).await;
        let mut mixed = set.clone();
        let first = mixed.nodes[0].address.clone();
        mixed.nodes[0].address = std::mem::replace(&mut mixed.nodes[1].address, first);
        let error = begin_epoch(&mixed, CHANNEL, None).await.expect_err("the names are exchanged");
        assert!(error.to_string().contains("mixed up"), "{error}");
        finish(evidence, set, end).await;
    });
}
