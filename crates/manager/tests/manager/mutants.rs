//! Each planted mistake is found by the checkers.

use manager::fault::{Mutant, plant};

use crate::run::run;

/// Seeds after which a mistake must have been found.
const SEEDS: u64 = 60;

#[test]
fn every_mutant_is_caught() {
    let all = [
        Mutant::ActUnrecorded,
        Mutant::IgnoreFence,
        Mutant::ForgetLaunch,
        Mutant::NoHysteresis,
        Mutant::NoCooldown,
        Mutant::LaunchBeyondLimit,
        Mutant::RaiseBeyondLimit,
        Mutant::GrowBeyondLimit,
        Mutant::NodesFirst,
        Mutant::DrainPlanned,
        Mutant::KeepStray,
        Mutant::KeepSilent,
        Mutant::CountSilent,
        Mutant::GrowWhenFull,
        Mutant::GrowInVain,
        Mutant::LoseQuota,
        Mutant::StopHolder,
        Mutant::StopUnheard,
        Mutant::StartAtOnce,
        Mutant::KeepIdle,
        Mutant::KeepStopped,
        Mutant::ForgetLacking,
    ];
    let mut missed = Vec::new();
    for mutant in all {
        plant(mutant);
        let found =
            (0..SEEDS).find_map(|seed| run(seed, None).violations.into_iter().next().map(|wrong| (seed, wrong)));
        plant(Mutant::None);
        match found {
            Some((seed, wrong)) => println!("{mutant:?}: seed {seed}: {wrong}"),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
