//! What a seed decides before anything runs: how large and how slow the network is, and what breaks when.

use std::time::Duration;

use base::rt::simulation::{Bounds, Chance, Fault, FaultKind, Plan, Step};
use ledger::config::EndorsementRule;

use crate::coverage::FAULT_POINTS;
use crate::network::members::ORGANIZATIONS;

/// Client operations that a seed has at least.
pub const OPERATIONS_MIN: usize = 200;
/// Faults that a seed has at least.
pub const FAULTS_MIN: usize = 3;

/// The orderer's node.
pub const ORDERER: &str = "orderer";

/// The node of a peer, by the place of its organisation.
pub fn peer(place: usize) -> String {
    format!("peer{}", place + 1)
}

/// The node of a client.
pub fn client(place: usize) -> String {
    format!("client{}", place + 1)
}

/// One seed's network and faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub clients: usize,
    /// Of each client.
    pub operations: usize,
    /// The longest that a client waits between two operations.
    pub think_max: Duration,
    /// Smallbank customers, and records of the YCSB table.
    pub customers: u64,
    pub records: u64,
    /// Organisations that must endorse.
    pub endorsements_min: usize,
    /// Whether the orderer acknowledges an envelope only when its block is durable.
    pub durable_acknowledgements: bool,
    pub batch_messages: u32,
    pub batch_timeout: Duration,
    /// How long messages on links take, in microseconds.
    pub link_micros: (u64, u64),
    /// How long disks take to make something durable, in microseconds.
    pub sync_micros: (u64, u64),
    /// Blocks after which a peer moves its state's savepoint.
    pub persist_interval_blocks: u64,
    /// The length at which a peer's block store begins a new segment.
    pub segment_bytes: u64,
    /// Bytes of records that a peer's state keeps in memory besides what is not persisted.
    pub cache_bytes: usize,
    /// Bytes of what is not persisted at which a peer persists it before it goes on.
    pub delta_bytes: usize,
    /// How often faults are injected at points in the code.
    pub fault_points: Vec<(&'static str, f64)>,
    pub plan: Plan,
}

impl Scenario {
    /// What `seed` decides.
    pub fn of(seed: u64) -> Scenario {
        // Not the generator of the run itself, which starts from the seed as it is.
        let mut chance = Chance::new(seed ^ 0x5ce7_a110_5eed_0000);
        let clients = 6 + chance.index(9);
        let think_max = Duration::from_millis(5 + chance.below(60));
        let (link, sync) = (&[(50, 500), (20, 100), (200, 5_000)], &[(50, 2_000), (20, 200), (1_000, 25_000)]);
        Scenario {
            seed,
            clients,
            operations: OPERATIONS_MIN.div_ceil(clients) + chance.index(2),
            think_max,
            customers: 4 + chance.below(20),
            records: 20 + chance.below(60),
            endorsements_min: *chance.pick(&[2, 2, 2, 1, 3]),
            durable_acknowledgements: chance.one_in(2),
            batch_messages: 4 + chance.below(7) as u32,
            batch_timeout: Duration::from_millis(10 + chance.below(90)),
            link_micros: *chance.pick(link),
            sync_micros: *chance.pick(sync),
            persist_interval_blocks: 1 + chance.below(12),
            segment_bytes: *chance.pick(&[20_000, 60_000, 64 << 20]),
            cache_bytes: *chance.pick(&[0, 2_000, 1 << 20]),
            fault_points: fault_points(&mut chance),
            plan: plan(&mut chance, clients),
            delta_bytes: *chance.pick(&[3_000, 20_000, 128 << 20]),
        }
    }

    /// The policy of all contracts.
    pub fn endorsement_rule(&self) -> EndorsementRule {
        match self.endorsements_min {
            1 => EndorsementRule::Any,
            ORGANIZATIONS => EndorsementRule::All,
            _ => EndorsementRule::Majority,
        }
    }
}

/// In half of the seeds none, else a few points: a run in which everything is held up shows little else.
fn fault_points(chance: &mut Chance) -> Vec<(&'static str, f64)> {
    if chance.one_in(2) {
        return Vec::new();
    }
    let count = 1 + chance.index(4);
    (0..count).map(|_| (*chance.pick(&FAULT_POINTS), *chance.pick(&[0.02, 0.05, 0.2]))).collect()
}

/// Faults of nodes, and faults of what is between nodes, clients included.
fn plan(chance: &mut Chance, clients: usize) -> Plan {
    let servers: Vec<String> = std::iter::once(ORDERER.to_owned()).chain((0..ORGANIZATIONS).map(peer)).collect();
    let everybody = servers.iter().cloned().chain((0..clients).map(client)).collect();
    let within = Duration::from_millis(20)..Duration::from_millis(2_500);
    let of_nodes = Bounds {
        nodes: servers.clone(),
        kinds: vec![
            FaultKind::Crash,
            FaultKind::Crash,
            FaultKind::Crash,
            FaultKind::Crash,
            FaultKind::Pause,
            FaultKind::Fill,
            FaultKind::Fail,
        ],
        faults: 2 + chance.index(6),
        within: within.clone(),
        lasting: Duration::from_millis(1)..Duration::from_millis(800),
        down_max: 1 + chance.index(4),
    };
    let of_links = Bounds {
        nodes: if chance.one_in(2) { servers.clone() } else { everybody },
        kinds: vec![FaultKind::Cut, FaultKind::Cut, FaultKind::Break],
        faults: 1 + chance.index(4),
        within,
        lasting: Duration::from_millis(5)..Duration::from_millis(1_500),
        down_max: 0,
    };
    let mut steps = Plan::random(chance.number(), &of_nodes).steps;
    steps.extend(Plan::random(chance.number(), &of_links).steps);
    // Steps that did not fit beside the others are missing.
    for (place, node) in servers.iter().enumerate().take(FAULTS_MIN.saturating_sub(steps.len())) {
        let at = Duration::from_millis(3_000 + 500 * place as u64);
        steps.push(Step { at, fault: Fault::Crash(node.clone()), lasting: Some(Duration::from_millis(200)) });
    }
    steps.sort_by_key(|step| step.at);
    Plan { steps }
}

/// The kind of a fault, for counting.
pub fn kind_of(fault: &Fault) -> &'static str {
    match fault {
        Fault::Crash(_) => "crash",
        Fault::Restart(_) => "restart",
        Fault::Pause(_) => "pause",
        Fault::Resume(_) => "resume",
        Fault::Cut(..) => "cut",
        Fault::Mute(..) => "mute",
        Fault::Heal(..) => "heal",
        Fault::Break(..) => "break",
        Fault::Fill(_) => "full disk",
        Fault::Free(_) => "free",
        Fault::Fail(_) => "failing disk",
        Fault::Mend(_) => "mend",
        Fault::Rot(_) => "rot",
        Fault::Drift(..) => "drift",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_has_enough_operations_and_faults_and_repeats() {
        for seed in 0..500 {
            let scenario = Scenario::of(seed);
            assert!(scenario.clients * scenario.operations >= OPERATIONS_MIN, "seed {seed}");
            assert!(scenario.plan.steps.len() >= FAULTS_MIN, "seed {seed}: {}", scenario.plan);
            assert_eq!(Plan::parse(&scenario.plan.to_string()).as_ref(), Ok(&scenario.plan));
            assert_eq!(format!("{scenario:?}"), format!("{:?}", Scenario::of(seed)));
        }
    }
}
