//! Everything that a seed decides before the network starts: its size and speed, the form of each peer, and the faults with
//! their times.

mod faults;
mod ordering;
mod peer_mode;
mod private_data;

use std::time::Duration;

use base::rt::simulation::{FaultPlan, Prng};
use chain::order::CuttingMode;
use identity::SignatureVerifier;
use ledger::config::EndorsementRule;

use crate::mutant::Mutant;
use crate::network::members::ORGANIZATIONS;

pub use faults::kind_of;
pub use ordering::{ORDERERS, OrderingEngine};
pub use peer_mode::{PeerMode, PoolConfig};
pub use private_data::PrivateDataConfig;

/// The least number of client operations of a seed.
pub const OPERATIONS_MIN: usize = 200;
/// The least number of faults of a seed.
pub const FAULTS_MIN: usize = 3;

/// Records for which an index of pooled memory has to grow.
const MANY_RECORDS: u64 = 700;

/// In one of this many seeds all participants sign with P-256. Such a seed takes four times as long as others.
const SIGNS_P256_ONE_IN: u64 = 16;
/// The first of them.
pub const SIGNS_P256: u64 = 2;

/// Upheavals of a group of orderers in which a mistake is planted.
const PLANTED_ORDERER_FAULTS: usize = 5;

/// The orderer's node; the first one's if there are several.
pub const ORDERER: &str = "orderer";

/// The node of an orderer.
pub fn orderer(number: usize) -> String {
    if number == 0 { ORDERER.to_owned() } else { format!("{ORDERER}{}", number + 1) }
}

/// A memory node of the orderers.
pub fn log_memory_node(number: usize) -> String {
    format!("log{}", number + 1)
}

/// The node of a peer, by the place of its organisation.
pub fn peer(organization: usize) -> String {
    format!("peer{}", organization + 1)
}

/// The compute node that stands by for a peer.
pub fn standby(organization: usize) -> String {
    format!("peer{}-spare", organization + 1)
}

/// The compute node that joins a peer and leaves it.
pub fn guest(organization: usize) -> String {
    format!("peer{}-guest", organization + 1)
}

/// The storage node of a peer.
pub fn storage(organization: usize) -> String {
    format!("peer{}-storage", organization + 1)
}

/// A memory node of a peer.
pub fn memory(organization: usize, number: usize) -> String {
    format!("peer{}-memory{}", organization + 1, number + 1)
}

/// The role of a node, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// An orderer.
    Orderer,
    /// A memory node of the orderers.
    LogMemory,
    /// A monolithic peer, or a compute node.
    Peer,
    /// A storage node of a peer.
    Storage,
    /// A memory node of a peer.
    Memory,
    /// A client.
    Client,
}

/// The role of a node of this name.
pub fn role_of(node: &str) -> NodeRole {
    match node {
        _ if node.starts_with(ORDERER) => NodeRole::Orderer,
        _ if node.starts_with("log") => NodeRole::LogMemory,
        _ if node.starts_with("client") => NodeRole::Client,
        _ if node.ends_with("-storage") => NodeRole::Storage,
        _ if node.contains("-memory") => NodeRole::Memory,
        _ => NodeRole::Peer,
    }
}

/// The node of a client.
pub fn client(organization: usize) -> String {
    format!("client{}", organization + 1)
}

/// One seed's network and faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed that decides all of this.
    pub seed: u64,
    /// The ordering engine.
    pub ordering: OrderingEngine,
    /// Whether all participants sign with P-256, as in production, and not with Ed25519.
    pub signs_p256: bool,
    /// Whether one orderer of a group is away for a while after the faults, in every seed.
    pub checks_majority: bool,
    /// How many clients there are.
    pub clients: usize,
    /// Of each client.
    pub operations: usize,
    /// The longest that a client waits between two operations.
    pub think_max: Duration,
    /// Smallbank customers, and records of the YCSB table.
    pub customers: u64,
    /// Records of the YCSB table.
    pub records: u64,
    /// Organisations that must endorse.
    pub endorsements_min: usize,
    /// Whether the orderer acknowledges an envelope only when its block is durable.
    pub durable_acknowledgements: bool,
    /// When orderers cut a block.
    pub cutting: CuttingMode,
    /// Whether orderers change the order of transactions within a block.
    pub reorder: bool,
    /// Whether clients ask a peer before they submit whether the transaction can still be valid.
    pub early_abort: bool,
    /// The most envelopes in a block.
    pub batch_messages: u32,
    /// How long after its first envelope a block is cut.
    pub batch_timeout: Duration,
    /// How long messages on links take, in microseconds.
    pub link_micros: (u64, u64),
    /// How long disks take to make something durable, in microseconds.
    pub sync_micros: (u64, u64),
    /// Blocks after which a peer moves its state's savepoint.
    pub persist_interval_blocks: u64,
    /// The length at which a peer's block store starts a new segment.
    pub segment_bytes: u64,
    /// Bytes of records that a peer's state keeps in memory besides those that are not persisted.
    pub cache_bytes: usize,
    /// Bytes of unpersisted data at which a peer persists them before it continues.
    pub delta_bytes: usize,
    /// Of each organisation's peer.
    pub peer_modes: Vec<PeerMode>,
    /// How private data are distributed, if the clients use any.
    pub private_data: Option<PrivateDataConfig>,
    /// The fault points, and the probability of a fault at each.
    pub fault_points: Vec<(&'static str, f64)>,
    /// The faults, each with its time.
    pub plan: FaultPlan,
}

impl Scenario {
    /// The scenario of `seed`. A planted mistake determines the form of its peer.
    pub fn of(seed: u64, mutant: Option<Mutant>) -> Scenario {
        // Not the generator of the run itself, which starts from the plain seed.
        let mut rng = Prng::new(seed ^ 0x5ce7_a110_5eed_0000);
        let clients = 6 + rng.index(9);
        let think_max = Duration::from_millis(5 + rng.below(60));
        // Sometimes enough that the index of pooled memory has to grow.
        let records = if rng.one_in(10) { MANY_RECORDS + rng.below(100) } else { 20 + rng.below(60) };
        let mut forms: Vec<PeerMode> = (0..ORGANIZATIONS).map(|_| PeerMode::draw(&mut rng)).collect();
        if let Some(mutant) = mutant {
            forms[Mutant::PEER] = mutant.peer_mode(PoolConfig::draw(&mut rng));
        }
        let ordering = match mutant {
            None => OrderingEngine::of(seed),
            Some(mutant) if mutant.is_in_groups() => OrderingEngine::sift(seed),
            Some(_) => OrderingEngine::Solo,
        };
        let private_data = PrivateDataConfig::of(seed, mutant);
        // A generator of their own, so that seeds keep their meaning.
        let mut contention = Prng::new(seed ^ 0xc027_e271_0200_0000);
        let private_points = private_data.iter().flat_map(|_| private_data::points(seed, mutant));
        let (link, sync) = (&[(50, 500), (20, 100), (200, 5_000)], &[(50, 2_000), (20, 200), (1_000, 25_000)]);
        Scenario {
            seed,
            ordering,
            signs_p256: seed % SIGNS_P256_ONE_IN == SIGNS_P256 || mutant == Some(Mutant::TablesWrong),
            checks_majority: mutant == Some(Mutant::PeerStays),
            clients,
            operations: OPERATIONS_MIN.div_ceil(clients) + rng.index(2),
            think_max,
            customers: 4 + rng.below(20),
            records,
            endorsements_min: *rng.pick(&[2, 2, 2, 1, 3]),
            // A group always does.
            durable_acknowledgements: rng.one_in(2) || ordering.is_group() || mutant == Some(Mutant::ReorderLoses),
            cutting: if seed.is_multiple_of(2) { CuttingMode::Idle } else { CuttingMode::Limits },
            reorder: contention.one_in(2) || mutant.is_some_and(Mutant::is_in_reordering),
            early_abort: contention.one_in(2) || mutant.is_some_and(Mutant::is_in_early_abort),
            batch_messages: 4 + rng.below(7) as u32,
            batch_timeout: Duration::from_millis(10 + rng.below(90)),
            link_micros: *rng.pick(link),
            sync_micros: *rng.pick(sync),
            // Sometimes enough that a storage node materialises rows by itself before it is asked to.
            persist_interval_blocks: if rng.one_in(3) { 30 } else { 1 + rng.below(12) },
            segment_bytes: *rng.pick(&[20_000, 60_000, 64 << 20]),
            cache_bytes: *rng.pick(&[0, 2_000, 1 << 20]),
            fault_points: faults::points(&mut rng, &forms, records, ordering)
                .into_iter()
                .chain(private_points)
                .collect(),
            plan: faults::plan(&mut rng, &forms, clients, ordering, mutant.map(|_| PLANTED_ORDERER_FAULTS)),
            peer_modes: forms,
            private_data,
            delta_bytes: *rng.pick(&[3_000, 20_000, 128 << 20]),
        }
    }

    /// The orderers.
    pub fn orderers(&self) -> Vec<String> {
        self.ordering.orderers()
    }

    /// The orderer of a group that is away after the faults, to check that the others continue without it; in every third
    /// seed, since it takes long.
    pub fn unreachable_orderer(&self) -> Option<String> {
        let mut orderers = self.orderers();
        let number = self.seed / 10;
        let is_looked_at = orderers.len() > 1 && (number.is_multiple_of(3) || self.checks_majority);
        is_looked_at.then(|| orderers.swap_remove(number as usize / 3 % orderers.len()))
    }

    /// The memory nodes of a group of orderers.
    pub fn logs(&self) -> Vec<String> {
        self.ordering.logs()
    }

    /// The compute nodes of a peer, its first primary first.
    pub fn compute_nodes(&self, organization: usize) -> Vec<String> {
        let has_spare = self.peer_modes[organization].pools().is_some_and(|pools| pools.has_standby);
        std::iter::once(peer(organization)).chain(has_spare.then(|| standby(organization))).collect()
    }

    /// The memory nodes of a peer.
    pub fn memory_nodes(&self, organization: usize) -> Vec<String> {
        let count = self.peer_modes[organization].pools().map_or(0, |pools| pools.memory_nodes);
        (0..count).map(|number| memory(organization, number)).collect()
    }

    /// The verifier of a peer: with tables at every other peer. All nodes of a peer verify alike.
    pub fn verifier(&self, organization: usize) -> SignatureVerifier {
        match (self.seed + organization as u64).is_multiple_of(2) {
            true => SignatureVerifier::Tables,
            false => SignatureVerifier::Library,
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
            assert_eq!(FaultPlan::parse(&scenario.plan.to_string()).as_ref(), Ok(&scenario.plan));
            assert_eq!(format!("{scenario:?}"), format!("{:?}", Scenario::of(seed, None)));
        }
    }
}
