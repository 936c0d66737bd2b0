//! Each planted mistake is found by the checkers.

use farmem::mutant::{Mutant, plant};

use crate::tables::first_wrong;

/// Seeds after which a mistake must have been found.
const SEEDS: u64 = 30;

#[test]
fn every_mutant_of_the_page_table_is_caught() {
    let all = [
        Mutant::DropDirty,
        Mutant::FillWhileLeaving,
        Mutant::MissFirstWrite,
        Mutant::ForgetFailedWrite,
        Mutant::DropUnheld,
        Mutant::LostIsZero,
        Mutant::FillBeyondBudget,
        Mutant::EvictFilling,
        Mutant::DiscardInFlight,
        Mutant::DiscardedIsRemote,
    ];
    let mut missed = Vec::new();
    for mutant in all {
        plant(mutant);
        let found = (0..SEEDS).find_map(|seed| first_wrong(seed).map(|wrong| (seed, wrong)));
        plant(Mutant::None);
        match found {
            Some((seed, wrong)) => println!("{mutant:?}: seed {seed}: {wrong}"),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
