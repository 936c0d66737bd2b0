//! Each planted mistake is found by the checkers.

use page_coherence::fault::{Mutant, plant};

use crate::run::run;

/// Seeds after which a mistake must have been found.
const SEEDS: u64 = 400;

#[test]
fn every_mutant_is_caught() {
    let all = [
        Mutant::KeepOnWrite,
        Mutant::ShareUnprotected,
        Mutant::EvictClean,
        Mutant::OmitOutstanding,
        Mutant::NeverRetry,
        Mutant::KeepStale,
        Mutant::WholePage,
        Mutant::TrustGivenPages,
        Mutant::LeaveWritable,
        Mutant::ServeInTie,
        Mutant::DropDirty,
        Mutant::ForgetMerge,
        Mutant::LoadFromStorage,
        Mutant::ForgetFetch,
        Mutant::ReplyUnnoticed,
        Mutant::KeepDiscarded,
        Mutant::InstallDiscarded,
        Mutant::ListOvertaken,
        Mutant::TakeUnsent,
        Mutant::ListShared,
        Mutant::InstallPulled,
        Mutant::KeepShared,
        Mutant::ServeUnannounced,
        Mutant::KeepServed,
        Mutant::CancelRunning,
    ];
    let mut missed = Vec::new();
    for mutant in all {
        plant(mutant);
        let found = (0..SEEDS).find_map(|seed| run(seed).wrong.map(|wrong| (seed, wrong)));
        plant(Mutant::None);
        match found {
            Some((seed, wrong)) => println!("{mutant:?}: seed {seed}: {wrong}"),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
