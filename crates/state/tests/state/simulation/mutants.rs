//! Planted mistakes, each of which the checks must catch, and the worlds in which they show.

use replica::fault::Mutant as ReplicaMutant;
use state::disaggregated::fault::Mutant;

use super::scenario::Focus;
use super::seeds::{run, seeds, suspicious};

/// Seeds of which at least one must catch a planted mistake.
const MUTANT_SEEDS: u64 = 1000;
/// A planted mistake of the state, or of the protocol between primary and followers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    State(Mutant),
    Replica(ReplicaMutant),
    /// Below the state: a fault point that is the mistake.
    Fault(&'static str),
}

impl Planted {
    pub const NONE: Planted = Planted::State(Mutant::None);

    /// The worlds in which the mistake shows.
    fn focus(self) -> Focus {
        match self {
            Planted::State(Mutant::MovedStays) => Focus::Moves,
            Planted::State(Mutant::MarksStay) => Focus::Replays,
            Planted::State(Mutant::CopyHeaded) => Focus::Copies,
            Planted::State(Mutant::OldHeaded) => Focus::OldLocations,
            Planted::State(Mutant::JoinStale) => Focus::Joins,
            Planted::State(Mutant::AllocatedEarly | Mutant::SwitchUntold) => Focus::Switches,
            Planted::State(Mutant::NumberUncovered) => Focus::Numbers,
            _ => Focus::Everything,
        }
    }

    /// Whether a seed catches it, and by what.
    fn caught_by(self, seed: u64) -> Option<String> {
        match run(seed, self, self.focus()) {
            Err(failure) => Some(failure.to_string().lines().next().unwrap_or_default().to_owned()),
            Ok(report) => suspicious(&report),
        }
    }
}

pub fn plant(mutant: Planted) {
    match mutant {
        Planted::State(mutant) => state::disaggregated::fault::plant(mutant),
        Planted::Replica(mutant) => replica::fault::plant(mutant),
        Planted::Fault(_) => {}
    }
}

const ALL: [Planted; 35] = [
    Planted::State(Mutant::LinkEarly),
    Planted::State(Mutant::NoIncarnation),
    Planted::State(Mutant::FillSurvives),
    Planted::State(Mutant::ReuseEarly),
    Planted::State(Mutant::PublishEarly),
    Planted::State(Mutant::PublishUndurable),
    Planted::State(Mutant::KeepUndone),
    Planted::State(Mutant::PartUncached),
    Planted::State(Mutant::NoMark),
    Planted::State(Mutant::EvictUncovered),
    Planted::State(Mutant::LearntOutlivesEviction),
    Planted::State(Mutant::EvictedReusedEarly),
    Planted::Replica(ReplicaMutant::AckEarly),
    Planted::Replica(ReplicaMutant::CountUnacknowledged),
    Planted::Replica(ReplicaMutant::ServePastLease),
    Planted::State(Mutant::EvictUnacknowledged),
    Planted::Replica(ReplicaMutant::GrantUnproven),
    Planted::Replica(ReplicaMutant::ServeEarly),
    Planted::Replica(ReplicaMutant::LeaveServing),
    Planted::Replica(ReplicaMutant::WholeFirstLease),
    Planted::State(Mutant::MovedStale),
    Planted::State(Mutant::MarkEarly),
    Planted::State(Mutant::MarksStay),
    Planted::State(Mutant::OpenAtSavepoint),
    Planted::State(Mutant::MembershipKept),
    Planted::State(Mutant::MovedStays),
    Planted::State(Mutant::SurveyBlind),
    Planted::State(Mutant::RetiredUnnoted),
    Planted::State(Mutant::NumberUncovered),
    Planted::State(Mutant::CopyHeaded),
    Planted::State(Mutant::OldHeaded),
    Planted::State(Mutant::SwitchUntold),
    Planted::State(Mutant::AllocatedEarly),
    Planted::State(Mutant::JoinStale),
    Planted::Fault("pool.migrate.mutant.unnoted"),
];

#[test]
fn planted_mistakes_are_caught() {
    let mut missed = Vec::new();
    for planted in ALL {
        match (0..MUTANT_SEEDS).find_map(|seed| Some((seed, planted.caught_by(seed)?))) {
            Some((seed, how)) => {
                println!("{planted:?} is caught by seed {seed}: {how}");
                // What was caught is the mistake, and not its world.
                let without = run(seed, Planted::NONE, planted.focus());
                let report =
                    without.unwrap_or_else(|failure| panic!("seed {seed} fails without {planted:?}: {failure}"));
                assert_eq!(suspicious(&report), None, "seed {seed} without {planted:?}");
            }
            None => missed.push(planted),
        }
    }
    assert!(missed.is_empty(), "none of {MUTANT_SEEDS} seeds catches {missed:?}");
}

/// To be run after a change of a world. `STATE_SEEDS=from..to` says of how many seeds, and `STATE_MUTANT=name` of which
/// mistake.
#[test]
#[ignore = "takes minutes for each mistake"]
fn how_many_seeds_catch_each_mistake() {
    let only = std::env::var("STATE_MUTANT").unwrap_or_default();
    for planted in ALL.into_iter().filter(|planted| format!("{planted:?}").contains(&only)) {
        let caught: Vec<u64> = seeds().filter(|seed| planted.caught_by(*seed).is_some()).collect();
        assert!(!caught.is_empty(), "no seed catches {planted:?}");
        println!("{planted:?}: {} seeds, the first are {:?}", caught.len(), &caught[..caught.len().min(8)]);
    }
}
