//! Runs a few whole seeds. `cargo xtask sim` runs more. The step `simulation` of `cargo xtask test` runs a thousand and plants
//! every mistake.

use base::rt::simulation::FaultPlan;
use identity::SignatureVerifier;
use simulator::coverage::{FAILOVER_ON_RAFT, FAILOVER_ON_SIFT, TAKEOVER};
use simulator::mutant::Mutant;
use simulator::scenario::{FAULTS_MIN, OPERATIONS_MIN, OrderingEngine, SIGNS_P256, Scenario};
use simulator::seed::{RunConfig, run, run_once};

#[test]
fn a_few_seeds_pass_and_repeat() {
    for seed in 0..3 {
        let outcome = run(&RunConfig { seed, ..RunConfig::default() });
        let outcome = outcome.unwrap_or_else(|broken| panic!("{broken}\n{}", broken.details(40)));
        assert!(outcome.operations.values().sum::<u64>() >= OPERATIONS_MIN as u64);
        assert!(outcome.faults.values().sum::<u64>() >= FAULTS_MIN as u64);
        assert!(outcome.codes[&0] > 0 && outcome.codes[&11] > 0, "{:?}", outcome.codes);
    }
}

/// They agree block for block, and the mistake planted in the tables is found.
#[test]
fn peers_with_tables_and_peers_with_the_library_follow_the_same_channel() {
    for seed in [SIGNS_P256, SIGNS_P256 + 16] {
        let scenario = Scenario::of(seed, None);
        assert!(scenario.signs_p256);
        let verifiers: Vec<SignatureVerifier> =
            (0..scenario.peer_modes.len()).map(|place| scenario.verifier(place)).collect();
        assert!(verifiers.contains(&SignatureVerifier::Tables) && verifiers.contains(&SignatureVerifier::Library));
        let outcome = run(&RunConfig { seed, ..RunConfig::default() });
        outcome.unwrap_or_else(|broken| panic!("{broken}\n{}", broken.details(40)));
    }
    let caught = (0..40).find_map(|seed| {
        run_once(&RunConfig { seed, mutant: Some(Mutant::TablesWrong), ..RunConfig::default() }).err()
    });
    assert!(caught.is_some(), "40 seeds have not found what is planted in the tables");
}

/// Most of them get another leader, but not each.
#[test]
fn groups_of_orderers_are_among_the_first_seeds_and_change_their_leader() {
    for (seeds, failover) in [([0, 10, 20, 30], FAILOVER_ON_SIFT), ([1, 21, 41, 61], FAILOVER_ON_RAFT)] {
        let failovers = seeds.map(|seed| {
            assert_eq!(Scenario::of(seed, None).ordering == OrderingEngine::Raft, failover == FAILOVER_ON_RAFT);
            let outcome = run_once(&RunConfig { seed, ..RunConfig::default() });
            let outcome = outcome.unwrap_or_else(|broken| panic!("{broken}\n{}", broken.details(40)));
            outcome.faults.get(failover).copied().unwrap_or_default()
        });
        assert!(failovers.iter().sum::<u64>() > 0, "{failover}");
    }
}

#[test]
fn a_plan_in_text_takes_the_place_of_the_seeds_own() {
    let plan = FaultPlan::parse(
        "at 100ms crash peer2 for 300ms; at 200ms cut orderer peer1 for 100ms; at 300ms fill orderer for 50ms",
    );
    let order = RunConfig { seed: 5, plan: Some(plan.expect("the plan is well formed")), ..RunConfig::default() };
    let mut outcome = run_once(&order).unwrap_or_else(|broken| panic!("{broken}\n{}", broken.details(40)));
    // Takeovers are not faults of the plan.
    outcome.faults.remove(TAKEOVER);
    assert_eq!(outcome.faults.into_iter().collect::<Vec<_>>(), [("crash peer", 1), ("cut", 1), ("full disk", 1)]);
}
