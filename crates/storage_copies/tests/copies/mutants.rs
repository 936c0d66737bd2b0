//! Planted mistakes, each of which the checks must find.

use crate::faults::run;

const SEEDS_MAX: u64 = 400;

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

#[test]
fn a_view_that_no_node_has() {
    is_caught("storage.copies.mutant.view_not_durable");
}

#[test]
fn a_candidate_that_leaves_out_who_does_not_answer() {
    is_caught("storage.copies.mutant.candidate_skips_member");
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

#[test]
fn copied_rows_that_replace_newer_ones() {
    is_caught("storage.copies.mutant.copy_overwrites");
}

#[test]
fn a_reader_that_does_not_ask_for_the_view() {
    is_caught("storage.copies.mutant.reader_trusts_view");
}
