//! Planted mistakes that the checkers must catch: a simulator that misses these proves nothing when it finds no
//! failure.
//!
//! Most mistakes are not in the code under test, but in faulty disks, engines, stores and hosts below the first peer or
//! the orderer. To the layers above they look like a block that is published before its fsync, a savepoint that covers
//! missing rows, a read that an invalidation did not reach, or a fence without effect. The other mistakes are hooks in
//! the code under test. Some of these hooks also serve the tests of their own crates, but this simulator must detect
//! their effects as well.

mod engine;
mod pools;

use std::time::Duration;

use base::rt;
use base::rt::simulation::SimNode;
use replica::offload::OffloadMode;
use state::disaggregated::fault;

use crate::network::Network;
use crate::network::nodes::DATA;
use crate::scenario::{self, ORDERER, PeerMode, PoolConfig};
pub use engine::LyingEngine;
pub use pools::{LyingHost, LyingStores};

/// The time after the start at which a node's data goes back: blocks were made and recorded in it.
const ROLLBACK_AFTER: Duration = Duration::from_millis(2_500);

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// The first peer publishes a block although its fsync has done nothing.
    PeerPublishesUnsynced,
    /// The orderer delivers a block although its fsync has done nothing.
    OrdererDeliversUnsynced,
    /// The first peer checks conflicts against outdated versions.
    ConflictMissed,
    /// The first peer applies the writes of invalid transactions.
    InvalidApplied,
    /// The first peer's savepoint is one block ahead of the state, so that a replay skips it.
    ReplaySkips,
    /// The first peer's savepoint moves without the rows that it covers, so that a replay starts too late.
    SavepointEmpty,
    /// The first peer's storage node answers appends although its fsync has done nothing.
    StorageAnswersUnsynced,
    /// The first peer's compute node publishes a block before the storage node has answered.
    CommitUnanswered,
    /// The first peer's history of keys does not include blocks after the first query.
    HistoryStale,
    /// Storage nodes append without checking the epoch.
    AppendUnfenced,
    /// The first peer's compute nodes all open under the epoch that they find, so that none is fenced.
    EpochKept,
    /// The first peer's memory nodes answer a fence without revoking memory.
    MemoryKept,
    /// Primaries answer although storage has not confirmed their epoch.
    LeaseIgnored,
    /// Primaries accept any verdict on signatures, even by other policies or for another block.
    VerdictUnchecked,
    /// Links and slots point to a record before it is written.
    LinkEarly,
    /// A fill completes although the key was invalidated meanwhile.
    FillSurvives,
    /// Orderers of a group show a block as soon as one disk has it.
    OrdererShowsEarly,
    /// A new leader of a group continues from its own disk, whatever the others have.
    OrdererOwnDisk,
    /// An orderer that has lost the lead acknowledges its envelopes by the number of a block that is another orderer's.
    OrdererAnswersLate,
    /// Peers stay with an orderer that sends keepalives, although it lacks blocks that others have.
    PeerStays,
    /// The orderer loses power, and comes back with its data of an earlier time.
    OrdererGoesBack,
    /// The same for the first peer's storage node; its compute nodes are restarted.
    StorageGoesBack,
    /// Peers with tables of keys accept invalid signatures.
    TablesWrong,
    /// Peers go on validating by the old configuration after a configuration block.
    ConfigKept,
    /// Peers keep the verdicts that they reached ahead of time by older definitions.
    VerdictsKept,
    /// Peers do not note with a stored block what it changes beyond the writes of its transactions.
    UpdatesForgotten,
    /// Peers ignore the policies of single keys.
    KeyPoliciesIgnored,
    /// Orderers put envelopes into blocks that were checked under an earlier configuration.
    ChangeUnchecked,
    /// A new leader continues under the committed configuration, not under the newest one of its log.
    ConfigForgotten,
    /// Peers do not note which private sets they lack.
    PrivateMissingForgotten,
    /// Contracts read a private value whose hash is not the one on the ledger.
    PrivateStale,
    /// Peers append a block before its private data are durable.
    PrivateEarly,
    /// Peers store private data of other peers without comparing hashes.
    PrivateUnchecked,
    /// Peers keep private data that have expired.
    PrivateExpiryForgotten,
    /// Peers that become members of a collection do not ask for earlier data.
    PrivateJoinIgnored,
    /// The hashes of private data leave the state a block late.
    PrivateExpiryLate,
    /// Peers keep waiting sets of committed transactions.
    PrivateWaitingKept,
    /// Orderers that change the order of a block lose one transaction and repeat another.
    ReorderLoses,
    /// Peers abort transactions early that read the newest version.
    AbortsFresh,
    /// Peers abort transactions early that are committed as valid.
    AbortsCommitted,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 40] = [
        Mutant::PeerPublishesUnsynced,
        Mutant::OrdererDeliversUnsynced,
        Mutant::ConflictMissed,
        Mutant::InvalidApplied,
        Mutant::ReplaySkips,
        Mutant::SavepointEmpty,
        Mutant::StorageAnswersUnsynced,
        Mutant::CommitUnanswered,
        Mutant::HistoryStale,
        Mutant::AppendUnfenced,
        Mutant::EpochKept,
        Mutant::MemoryKept,
        Mutant::LeaseIgnored,
        Mutant::VerdictUnchecked,
        Mutant::LinkEarly,
        Mutant::FillSurvives,
        Mutant::OrdererShowsEarly,
        Mutant::OrdererOwnDisk,
        Mutant::OrdererAnswersLate,
        Mutant::PeerStays,
        Mutant::OrdererGoesBack,
        Mutant::StorageGoesBack,
        Mutant::TablesWrong,
        Mutant::ConfigKept,
        Mutant::VerdictsKept,
        Mutant::UpdatesForgotten,
        Mutant::KeyPoliciesIgnored,
        Mutant::ChangeUnchecked,
        Mutant::ConfigForgotten,
        Mutant::PrivateMissingForgotten,
        Mutant::PrivateStale,
        Mutant::PrivateEarly,
        Mutant::PrivateUnchecked,
        Mutant::PrivateExpiryForgotten,
        Mutant::PrivateJoinIgnored,
        Mutant::PrivateExpiryLate,
        Mutant::PrivateWaitingKept,
        Mutant::ReorderLoses,
        Mutant::AbortsFresh,
        Mutant::AbortsCommitted,
    ];
    /// The peer that has it, by the place of its organisation.
    pub const PEER: usize = 0;

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::PeerPublishesUnsynced => "peer-publishes-unsynced",
            Mutant::OrdererDeliversUnsynced => "orderer-delivers-unsynced",
            Mutant::ConflictMissed => "conflict-missed",
            Mutant::InvalidApplied => "invalid-applied",
            Mutant::ReplaySkips => "replay-skips",
            Mutant::SavepointEmpty => "savepoint-empty",
            Mutant::StorageAnswersUnsynced => "storage-answers-unsynced",
            Mutant::CommitUnanswered => "commit-unanswered",
            Mutant::HistoryStale => "history-stale",
            Mutant::AppendUnfenced => "append-unfenced",
            Mutant::EpochKept => "epoch-kept",
            Mutant::MemoryKept => "memory-kept",
            Mutant::LeaseIgnored => "office-ignored",
            Mutant::VerdictUnchecked => "word-unchecked",
            Mutant::LinkEarly => "link-early",
            Mutant::FillSurvives => "fill-survives",
            Mutant::OrdererShowsEarly => "orderer-shows-early",
            Mutant::OrdererOwnDisk => "orderer-own-disk",
            Mutant::OrdererAnswersLate => "orderer-answers-late",
            Mutant::PeerStays => "peer-stays",
            Mutant::OrdererGoesBack => "orderer-goes-back",
            Mutant::StorageGoesBack => "storage-goes-back",
            Mutant::TablesWrong => "tables-wrong",
            Mutant::ConfigKept => "config-kept",
            Mutant::VerdictsKept => "verdicts-kept",
            Mutant::UpdatesForgotten => "updates-forgotten",
            Mutant::KeyPoliciesIgnored => "key-policies-ignored",
            Mutant::ChangeUnchecked => "change-unchecked",
            Mutant::ConfigForgotten => "config-forgotten",
            Mutant::PrivateMissingForgotten => "private-missing-forgotten",
            Mutant::PrivateStale => "private-stale",
            Mutant::PrivateEarly => "private-early",
            Mutant::PrivateUnchecked => "private-unchecked",
            Mutant::PrivateExpiryForgotten => "private-expiry-forgotten",
            Mutant::PrivateJoinIgnored => "private-join-ignored",
            Mutant::PrivateExpiryLate => "private-expiry-late",
            Mutant::PrivateWaitingKept => "private-waiting-kept",
            Mutant::ReorderLoses => "reorder-loses",
            Mutant::AbortsFresh => "aborts-fresh",
            Mutant::AbortsCommitted => "aborts-committed",
        }
    }

    /// The mutant of a name.
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.into_iter().find(|mutant| mutant.name() == name)
    }

    /// The form that its peer must have, given randomly drawn pools.
    pub fn peer_mode(self, pools: PoolConfig) -> PeerMode {
        match self {
            Mutant::PeerPublishesUnsynced
            | Mutant::OrdererDeliversUnsynced
            | Mutant::ConflictMissed
            | Mutant::InvalidApplied
            | Mutant::ReplaySkips
            | Mutant::SavepointEmpty
            | Mutant::OrdererShowsEarly
            | Mutant::OrdererOwnDisk
            | Mutant::OrdererAnswersLate
            | Mutant::PeerStays
            | Mutant::OrdererGoesBack
            | Mutant::TablesWrong
            | Mutant::ConfigKept
            | Mutant::VerdictsKept
            | Mutant::UpdatesForgotten
            | Mutant::KeyPoliciesIgnored
            | Mutant::ChangeUnchecked
            | Mutant::ConfigForgotten
            | Mutant::PrivateMissingForgotten
            | Mutant::PrivateStale
            | Mutant::PrivateEarly
            | Mutant::PrivateUnchecked
            | Mutant::PrivateExpiryForgotten
            | Mutant::PrivateJoinIgnored
            | Mutant::PrivateExpiryLate
            | Mutant::PrivateWaitingKept
            | Mutant::ReorderLoses
            | Mutant::AbortsFresh
            | Mutant::AbortsCommitted => PeerMode::Monolithic,
            Mutant::StorageGoesBack => PeerMode::Disaggregated(pools),
            Mutant::StorageAnswersUnsynced | Mutant::CommitUnanswered | Mutant::HistoryStale => {
                // Their stores lie only where the simulator chooses the primary.
                PeerMode::Disaggregated(PoolConfig { automatic_failover: false, ..pools })
            }
            // These show only where a primary is replaced.
            Mutant::AppendUnfenced | Mutant::EpochKept | Mutant::MemoryKept => {
                let whims_every = Duration::from_millis(300);
                PeerMode::Disaggregated(PoolConfig {
                    has_standby: true,
                    automatic_failover: false,
                    spurious_failover_interval: whims_every,
                    ..pools
                })
            }
            // This shows only where nodes replace one another by themselves.
            Mutant::LeaseIgnored => {
                let (patience, whims_every) = (Duration::from_millis(60), Duration::from_millis(2_000));
                PeerMode::Disaggregated(PoolConfig {
                    has_standby: true,
                    automatic_failover: true,
                    failover_timeout: patience,
                    spurious_failover_interval: whims_every,
                    // So that it finds old values without its pool, where it is fenced.
                    metadata_cache_bytes: 1 << 20,
                    data_cache_bytes: 1 << 20,
                    ..pools
                })
            }
            // This shows where there is a follower to ask.
            Mutant::VerdictUnchecked => PeerMode::Disaggregated(PoolConfig {
                has_standby: true,
                automatic_failover: true,
                offload: OffloadMode::Always,
                ..pools
            }),
            // These show where there is pooled memory, and where it is read.
            Mutant::LinkEarly | Mutant::FillSurvives => PeerMode::Disaggregated(PoolConfig {
                sections_max: pools.sections_max.max(4),
                donor_sections: pools.donor_sections.max(4),
                metadata_cache_bytes: 2_000,
                data_cache_bytes: 0,
                ..pools
            }),
        }
    }

    /// Text that the accusation must contain, for a mistake that another checker than the intended one could find as well.
    pub fn expected_violation(self) -> &'static str {
        match self {
            Mutant::OrdererGoesBack | Mutant::StorageGoesBack => "an earlier copy of the data was put back",
            Mutant::PrivateMissingForgotten | Mutant::PrivateEarly => "private data",
            Mutant::PrivateStale => "a private value",
            Mutant::PrivateUnchecked | Mutant::PrivateExpiryForgotten | Mutant::PrivateJoinIgnored => "private data",
            Mutant::AbortsFresh => "replaced none of its reads",
            Mutant::AbortsCommitted => "early, which is valid",
            Mutant::PrivateWaitingKept => "waiting sets of the committed transactions {\"",
            _ => "",
        }
    }

    /// Whether this mistake is planted in the peer at this place.
    pub fn is_in(self, network: &Network, organization: usize) -> bool {
        network.mutant == Some(self) && organization == Mutant::PEER
    }

    /// Whether it shows only where several orderers order.
    pub fn is_in_groups(self) -> bool {
        matches!(
            self,
            Mutant::OrdererShowsEarly
                | Mutant::OrdererOwnDisk
                | Mutant::OrdererAnswersLate
                | Mutant::PeerStays
                | Mutant::ConfigForgotten
        )
    }

    /// Whether it shows only where there are private data.
    pub fn is_in_private_data(self) -> bool {
        matches!(
            self,
            Mutant::PrivateMissingForgotten
                | Mutant::PrivateStale
                | Mutant::PrivateEarly
                | Mutant::PrivateUnchecked
                | Mutant::PrivateExpiryForgotten
                | Mutant::PrivateJoinIgnored
                | Mutant::PrivateExpiryLate
                | Mutant::PrivateWaitingKept
        )
    }

    /// Whether it shows only where orderers change the order of transactions.
    pub fn is_in_reordering(self) -> bool {
        self == Mutant::ReorderLoses
    }

    /// Whether it shows only where transactions are aborted early.
    pub fn is_in_early_abort(self) -> bool {
        matches!(self, Mutant::AbortsFresh | Mutant::AbortsCommitted)
    }

    /// Whether it shows only where private data expire.
    pub fn is_in_expiry(self) -> bool {
        matches!(self, Mutant::PrivateExpiryForgotten | Mutant::PrivateExpiryLate)
    }

    /// The hook of the ordering engine that it uses.
    pub fn of_ordering(self) -> ordered_log::fault::Mutant {
        match self {
            Mutant::OrdererShowsEarly => ordered_log::fault::Mutant::OneDisk,
            Mutant::OrdererOwnDisk => ordered_log::fault::Mutant::OwnDisk,
            _ => ordered_log::fault::Mutant::None,
        }
    }

    /// The hook of the state that it uses.
    pub fn of_state(self) -> fault::Mutant {
        match self {
            Mutant::LinkEarly => fault::Mutant::LinkEarly,
            Mutant::FillSurvives => fault::Mutant::FillSurvives,
            _ => fault::Mutant::None,
        }
    }

    /// Plants mistakes that are planted from outside, when the network runs and faults are about to start.
    pub fn plant(self, network: &Network) {
        let lie = |node: &str| network.node(node).disk().set_lying(true);
        match self {
            Mutant::PeerPublishesUnsynced => lie(&scenario::peer(Mutant::PEER)),
            Mutant::StorageAnswersUnsynced => lie(&scenario::storage(Mutant::PEER)),
            Mutant::OrdererDeliversUnsynced => lie(ORDERER),
            // Delayed while storage answers, so that blocks come in between.
            Mutant::FillSurvives => network.sim.inject("state.read.storage", 0.3),
            Mutant::AppendUnfenced => network.sim.inject("storage.node.mutant.append_unfenced", 1.0),
            Mutant::LeaseIgnored => network.sim.inject("chain.failover.mutant.lease", 1.0),
            Mutant::OrdererGoesBack => roll_back(network.node(ORDERER), Vec::new()),
            Mutant::StorageGoesBack => {
                let compute = network.scenario.compute_nodes(Mutant::PEER);
                let compute = compute.iter().map(|name| network.node(name)).collect();
                roll_back(network.node(&scenario::storage(Mutant::PEER)), compute);
            }
            Mutant::PeerStays => network.sim.inject("chain.deliver.mutant.stays", 1.0),
            Mutant::TablesWrong => network.sim.inject("identity.verifier.mutant.wrong", 1.0),
            Mutant::ConfigKept => network.sim.inject("chain.commit.mutant.keeps_config", 1.0),
            Mutant::VerdictsKept => network.sim.inject("chain.commit.mutant.keeps_verdicts", 1.0),
            Mutant::UpdatesForgotten => network.sim.inject("chain.commit.mutant.forgets_updates", 1.0),
            Mutant::KeyPoliciesIgnored => network.sim.inject("chain.validate.mutant.ignores_key_policies", 1.0),
            Mutant::ChangeUnchecked => network.sim.inject("chain.order.mutant.unchecked", 1.0),
            Mutant::ConfigForgotten => network.sim.inject("chain.order.mutant.committed_config", 1.0),
            Mutant::PrivateMissingForgotten => network.sim.inject("private.collect.mutant.forgets_missing", 1.0),
            Mutant::PrivateStale => network.sim.inject("chain.endorse.mutant.stale_private", 1.0),
            Mutant::PrivateEarly => network.sim.inject("chain.commit.mutant.early_append", 1.0),
            Mutant::PrivateExpiryForgotten => network.sim.inject("private.upkeep.mutant.keeps_expired", 1.0),
            Mutant::PrivateJoinIgnored => network.sim.inject("private.upkeep.mutant.ignores_join", 1.0),
            Mutant::PrivateExpiryLate => network.sim.inject("chain.validate.mutant.expires_late", 1.0),
            Mutant::PrivateWaitingKept => network.sim.inject("private.settle.mutant.keeps_committed", 1.0),
            Mutant::PrivateUnchecked => network.sim.inject("private.collect.mutant.unchecked", 1.0),
            Mutant::OrdererAnswersLate => network.sim.inject("chain.order.mutant.answers_late", 1.0),
            Mutant::ReorderLoses => network.sim.inject("chain.order.mutant.reorder_loses", 1.0),
            Mutant::AbortsFresh => network.sim.inject("chain.commit.mutant.aborts_fresh", 0.1),
            Mutant::AbortsCommitted => network.sim.inject("chain.commit.mutant.aborts_committed", 1.0),
            Mutant::VerdictUnchecked => {
                network.sim.inject("chain.offload.mutant.unchecked", 1.0);
                network.sim.inject("chain.offload.mutant.believed", 1.0);
                network.sim.inject("chain.offload.other_policies", 0.5);
            }
            _ => {}
        }
    }
}

/// Restores a node's present data after a while. Others crash before, so that only their recorded watermarks remain.
fn roll_back(node: SimNode, others: Vec<SimNode>) {
    let copy = node.disk().copy(DATA);
    drop(rt::spawn(async move {
        rt::sleep(ROLLBACK_AFTER).await;
        others.iter().for_each(SimNode::crash);
        node.crash();
        node.disk().restore(&copy);
        node.restart();
        others.iter().for_each(SimNode::restart);
    }));
}
