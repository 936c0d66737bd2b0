//! What a seed decides before anything runs: how large and how slow the network is, which form each peer has, and what
//! breaks when.

mod faults;
mod form;
mod ordering;

use std::time::Duration;

use base::rt::simulation::{Chance, Plan};
use chain::order::Cutting;
use identity::Verifier;
use ledger::config::EndorsementRule;

use crate::mutant::Mutant;
use crate::network::members::ORGANIZATIONS;

pub use faults::kind_of;
pub use form::{Form, Pools};
pub use ordering::{ORDERERS, Ordering};

/// Client operations that a seed has at least.
pub const OPERATIONS_MIN: usize = 200;
/// Faults that a seed has at least.
pub const FAULTS_MIN: usize = 3;

/// Records of which an index of pooled memory needs more than it begins with.
const MANY_RECORDS: u64 = 700;

/// In one of this many seeds everybody signs with P-256. Such a seed takes four times as long as others.
const SIGNS_P256_ONE_IN: u64 = 16;
/// The first of them.
pub const SIGNS_P256: u64 = 2;

/// What happens so often to a group of orderers in which a mistake is planted.
const UPHEAVALS_PLANTED: usize = 5;

/// The orderer's node; of several, the first one's.
pub const ORDERER: &str = "orderer";

/// The node of an orderer.
pub fn orderer(number: usize) -> String {
    if number == 0 { ORDERER.to_owned() } else { format!("{ORDERER}{}", number + 1) }
}

/// A memory node of the orderers.
pub fn log(number: usize) -> String {
    format!("log{}", number + 1)
}

/// The node of a peer, by the place of its organisation.
pub fn peer(place: usize) -> String {
    format!("peer{}", place + 1)
}

/// The compute node that stands by for a peer.
pub fn spare(place: usize) -> String {
    format!("peer{}-spare", place + 1)
}

/// The storage node of a peer.
pub fn storage(place: usize) -> String {
    format!("peer{}-storage", place + 1)
}

/// A memory node of a peer.
pub fn memory(place: usize, number: usize) -> String {
    format!("peer{}-memory{}", place + 1, number + 1)
}

/// What a node is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Orderer,
    /// A memory node of the orderers.
    Log,
    /// A monolithic peer, or a compute node.
    Peer,
    Storage,
    Memory,
    Client,
}

/// The role of a node of this name.
pub fn role_of(node: &str) -> Role {
    match node {
        _ if node.starts_with(ORDERER) => Role::Orderer,
        _ if node.starts_with("log") => Role::Log,
        _ if node.starts_with("client") => Role::Client,
        _ if node.ends_with("-storage") => Role::Storage,
        _ if node.contains("-memory") => Role::Memory,
        _ => Role::Peer,
    }
}

/// The node of a client.
pub fn client(place: usize) -> String {
    format!("client{}", place + 1)
}

/// One seed's network and faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub ordering: Ordering,
    /// Whether all sign with P-256, as in production, and not with Ed25519.
    pub signs_p256: bool,
    /// Whether one orderer of a group is away for a while when faults are over, whatever the seed.
    pub looks_at_majority: bool,
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
    /// When orderers cut a block.
    pub cutting: Cutting,
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
    /// Of each organisation's peer.
    pub forms: Vec<Form>,
    /// How often faults are injected at points in the code.
    pub fault_points: Vec<(&'static str, f64)>,
    pub plan: Plan,
}

impl Scenario {
    /// What `seed` decides. A planted mistake says which form its peer must have.
    pub fn of(seed: u64, mutant: Option<Mutant>) -> Scenario {
        // Not the generator of the run itself, which starts from the seed as it is.
        let mut chance = Chance::new(seed ^ 0x5ce7_a110_5eed_0000);
        let clients = 6 + chance.index(9);
        let think_max = Duration::from_millis(5 + chance.below(60));
        // Now and then so many that the index of pooled memory has to grow.
        let records = if chance.one_in(10) { MANY_RECORDS + chance.below(100) } else { 20 + chance.below(60) };
        let mut forms: Vec<Form> = (0..ORGANIZATIONS).map(|_| Form::draw(&mut chance)).collect();
        if let Some(mutant) = mutant {
            forms[Mutant::PEER] = mutant.form(Pools::draw(&mut chance));
        }
        let ordering = match mutant {
            None => Ordering::of(seed),
            Some(mutant) if mutant.is_in_groups() => Ordering::sift(seed),
            Some(_) => Ordering::Solo,
        };
        let (link, sync) = (&[(50, 500), (20, 100), (200, 5_000)], &[(50, 2_000), (20, 200), (1_000, 25_000)]);
        Scenario {
            seed,
            ordering,
            signs_p256: seed % SIGNS_P256_ONE_IN == SIGNS_P256 || mutant == Some(Mutant::TablesWrong),
            looks_at_majority: mutant == Some(Mutant::PeerStays),
            clients,
            operations: OPERATIONS_MIN.div_ceil(clients) + chance.index(2),
            think_max,
            customers: 4 + chance.below(20),
            records,
            endorsements_min: *chance.pick(&[2, 2, 2, 1, 3]),
            // A group always does.
            durable_acknowledgements: chance.one_in(2) || ordering.is_group(),
            cutting: if seed.is_multiple_of(2) { Cutting::Idle } else { Cutting::Limits },
            batch_messages: 4 + chance.below(7) as u32,
            batch_timeout: Duration::from_millis(10 + chance.below(90)),
            link_micros: *chance.pick(link),
            sync_micros: *chance.pick(sync),
            // Now and then so many that a storage node makes rows by itself before it is asked to.
            persist_interval_blocks: if chance.one_in(5) { 30 } else { 1 + chance.below(12) },
            segment_bytes: *chance.pick(&[20_000, 60_000, 64 << 20]),
            cache_bytes: *chance.pick(&[0, 2_000, 1 << 20]),
            fault_points: faults::points(&mut chance, &forms, records, ordering),
            plan: faults::plan(&mut chance, &forms, clients, ordering, mutant.map(|_| UPHEAVALS_PLANTED)),
            forms,
            delta_bytes: *chance.pick(&[3_000, 20_000, 128 << 20]),
        }
    }

    /// The orderers.
    pub fn orderers(&self) -> Vec<String> {
        self.ordering.orderers()
    }

    /// The orderer of a group that is to be away when faults are over, to see whether the others go on without it; in every third
    /// seed, since it takes long.
    pub fn away(&self) -> Option<String> {
        let mut orderers = self.orderers();
        let number = self.seed / 10;
        let is_looked_at = orderers.len() > 1 && (number.is_multiple_of(3) || self.looks_at_majority);
        is_looked_at.then(|| orderers.swap_remove(number as usize / 3 % orderers.len()))
    }

    /// The memory nodes of a group of orderers.
    pub fn logs(&self) -> Vec<String> {
        self.ordering.logs()
    }

    /// The compute nodes of a peer: the one that begins as its primary first.
    pub fn compute_nodes(&self, place: usize) -> Vec<String> {
        let has_spare = self.forms[place].pools().is_some_and(|pools| pools.has_spare);
        std::iter::once(peer(place)).chain(has_spare.then(|| spare(place))).collect()
    }

    /// The memory nodes of a peer.
    pub fn memory_nodes(&self, place: usize) -> Vec<String> {
        let count = self.forms[place].pools().map_or(0, |pools| pools.memory_nodes);
        (0..count).map(|number| memory(place, number)).collect()
    }

    /// How a peer verifies: every other one with tables. All nodes of a peer verify alike.
    pub fn verifier(&self, place: usize) -> Verifier {
        match (self.seed + place as u64).is_multiple_of(2) {
            true => Verifier::Tables,
            false => Verifier::Library,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_has_enough_operations_and_faults_and_repeats() {
        for seed in 0..500 {
            let scenario = Scenario::of(seed, None);
            assert!(scenario.clients * scenario.operations >= OPERATIONS_MIN, "seed {seed}");
            assert!(scenario.plan.steps.len() >= FAULTS_MIN, "seed {seed}: {}", scenario.plan);
            assert_eq!(Plan::parse(&scenario.plan.to_string()).as_ref(), Ok(&scenario.plan));
            assert_eq!(format!("{scenario:?}"), format!("{:?}", Scenario::of(seed, None)));
        }
    }
}
