//! Planted mistakes, each of which the checks must find: most in any of the seeds, some in a scenario of their own.

use std::time::Duration;

use base::rt;
use base::rt::simulation::{Sim, Simulation};
use base::{BlockNumber, Bytes, Epoch, Version};
use storage::node::{RemotePrivateRows, RemoteStoreConfig};
use storage::{PrivateRow, PrivateRows};
use storage_copies::{ChannelCopies, begin_epoch};

use crate::directed::start;
use crate::faults::{run, validate};
use crate::world::{CHANNEL, run_primary, set, start_nodes};

const SEEDS_MAX: u64 = 40;
/// More than are written while a page is copied, so that most keys are not written again.
const KEYS: u64 = 64;
const LONG: Duration = Duration::from_secs(600);

fn is_caught(mutant: &'static str) {
    let found =
        (0..SEEDS_MAX).find_map(|seed| run(seed, Some(mutant)).value.into_iter().next().map(|what| (seed, what)));
    let (seed, what) = found.unwrap_or_else(|| panic!("{mutant} was not found in {SEEDS_MAX} seeds"));
    println!("{mutant}: seed {seed}: {what}");
}

#[test]
fn one_copy_is_enough() {
    is_caught("storage.copies.mutant.count_one");
}

/// The primary loses the first copy, which a follower still reads.
async fn read_the_copy_that_was_left_out(sim: Sim, mutant: bool) -> Vec<String> {
    let (evidence, _, end) = start(&sim, 2, 2).await;
    if mutant {
        sim.inject("storage.copies.mutant.view_not_durable", 1.0);
    }
    sim.cut("p1", "s1");
    rt::sleep(Duration::from_secs(3)).await;
    end.cancel();
    evidence.lock().accusations.clone()
}

#[test]
fn a_view_that_no_node_has() {
    let outcome = |mutant| {
        let run = Simulation::new(1).time_max(LONG).run(move |sim| read_the_copy_that_was_left_out(sim, mutant));
        run.unwrap_or_else(|failure| panic!("{failure}")).value
    };
    assert_eq!(outcome(false), Vec::<String>::new());
    assert_ne!(outcome(true), Vec::<String>::new());
}

/// The old primary went on with the second copy alone; a candidate reaches only the first one.
async fn reach_the_copy_that_was_left_out(sim: Sim, mutant: bool) -> Vec<String> {
    let (evidence, set, end) = start(&sim, 2, 2).await;
    if mutant {
        sim.inject("storage.copies.mutant.candidate_skips_member", 1.0);
    }
    sim.cut("p1", "s1");
    rt::sleep(Duration::from_secs(2)).await;
    sim.node("p1").crash();
    sim.cut("p2", "s2");
    drop(sim.node("p2").spawn(run_primary(evidence.clone(), set.clone(), sim.rng(), end.clone())));
    rt::sleep(Duration::from_secs(3)).await;
    sim.heal_all();
    rt::sleep(Duration::from_secs(5)).await;
    end.cancel();
    rt::sleep(Duration::from_secs(1)).await;
    validate(&evidence, &set).await;
    evidence.lock().accusations.clone()
}

#[test]
fn a_candidate_that_leaves_out_who_does_not_answer() {
    let outcome = |mutant| {
        let run = Simulation::new(1).time_max(LONG).run(move |sim| reach_the_copy_that_was_left_out(sim, mutant));
        run.unwrap_or_else(|failure| panic!("{failure}")).value
    };
    assert_eq!(outcome(false), Vec::<String>::new());
    assert_ne!(outcome(true), Vec::<String>::new());
}

#[test]
fn a_candidate_that_keeps_copies_that_differ() {
    is_caught("storage.copies.mutant.keep_shorter_copy");
}

#[test]
fn a_learner_that_is_a_member_before_it_has_the_blocks() {
    is_caught("storage.copies.mutant.member_early");
}

#[test]
fn a_copy_without_private_rows() {
    is_caught("storage.copies.mutant.no_private_rows");
}

/// Rows are written again and again while a copy is built, several times; the copy must have the last values.
async fn write_while_a_copy_is_built(sim: Sim, mutant: bool) -> Vec<String> {
    start_nodes(&sim, 2);
    rt::sleep(Duration::from_millis(50)).await;
    let set = set(2, 1);
    let epoch = begin_epoch(&set, CHANNEL, None).await.expect("the nodes are there");
    let copies = ChannelCopies::open(set.clone(), CHANNEL, epoch).await.expect("they open");
    if mutant {
        sim.inject("storage.copies.mutant.copy_overwrites", 1.0);
    }
    let [committed, _] = copies.private();
    let key = |number: u64| Bytes::from(format!("k{}", number % KEYS));
    let row = |value: u64| PrivateRow {
        namespace: "n".to_owned(),
        key: key(value),
        version: Version::new(1, 0),
        value: Some(Bytes::from(value.to_string())),
    };
    let (mut last, mut wrong) = (0, Vec::new());
    for _ in 0..20 {
        copies.add("copy-2").expect("it may be added");
        while !copies.view().is_member("copy-2") || last < KEYS {
            last += 1;
            committed.write(vec![row(last)]).await.expect("the copies work");
        }
        let remote = RemoteStoreConfig {
            address: "s2".to_owned(),
            token: Bytes::new(),
            channel: CHANNEL.to_owned(),
            epoch: Epoch(0),
        };
        let [reads, _] = RemotePrivateRows::of_follower(remote);
        // The last value of each key.
        for value in last + 1 - KEYS..=last {
            let found = reads.get_many(&[("n", &key(value))], BlockNumber(u64::MAX)).await.expect("it answers");
            if found[0].as_ref().and_then(|found| found.value.clone()) != row(value).value {
                wrong.push(format!("{value} was written, and the copy has {found:?}"));
            }
        }
        copies.drop_copy("copy-2").expect("the other one is complete");
        while copies.view().is_member("copy-2") {
            rt::sleep(Duration::from_millis(20)).await;
        }
    }
    wrong
}

#[test]
fn copied_rows_that_replace_newer_ones() {
    let outcome = |seed, mutant| {
        let run = Simulation::new(seed).time_max(LONG).run(move |sim| write_while_a_copy_is_built(sim, mutant));
        run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).value
    };
    assert_eq!(outcome(1, false), Vec::<String>::new());
    assert!((0..20).any(|seed| !outcome(seed, true).is_empty()), "the planted mistake was not found");
}

#[test]
fn a_reader_that_does_not_ask_for_the_view() {
    is_caught("storage.copies.mutant.reader_trusts_view");
}
