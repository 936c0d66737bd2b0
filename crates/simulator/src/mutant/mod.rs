//! Planted mistakes that the checkers must catch: a simulator that finds nothing says nothing until these are found.
//!
//! Most are not in the code under test. They are disks, engines, stores and hosts that lie, put under the first peer or under
//! the orderer: to the layers above they look like a block published before its fsync, a savepoint that covers what it does
//! not hold, a read that an invalidation did not reach, a fence that does not hold. The others are hooks that the layers
//! below have, most for their own simulations; what they break must be seen from here as well.

mod engine;
mod pools;

use std::time::Duration;

use base::rt;
use base::rt::simulation::Node;
use chain::validate::borrow::When;
use consensus::ordered;
use state::disaggregated::fault;

use crate::network::Network;
use crate::network::nodes::DATA;
use crate::scenario::{self, Form, ORDERER, Pools};
pub use engine::LyingEngine;
pub use pools::{LyingHost, LyingStores};

/// How long after the beginning a node's data goes back: then blocks were made since, and noted.
const GOES_BACK_AFTER: Duration = Duration::from_millis(2_500);

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// The first peer publishes a block although its fsync has done nothing.
    PeerPublishesUnsynced,
    /// The orderer delivers a block although its fsync has done nothing.
    OrdererDeliversUnsynced,
    /// The first peer checks conflicts against versions that it remembers and that have changed.
    ConflictMissed,
    /// The first peer applies what invalid transactions write.
    InvalidApplied,
    /// The first peer's savepoint says one block more than the state holds, so that a replay skips it.
    ReplaySkips,
    /// The first peer's savepoint moves without the rows that it covers, so that a replay begins too late.
    SavepointEmpty,
    /// The first peer's storage node answers appends although its fsync has done nothing.
    StorageAnswersUnsynced,
    /// The first peer's compute node publishes a block before the storage node has answered.
    CommitUnanswered,
    /// The first peer's history of keys does not catch up with blocks after the first question.
    HistoryStale,
    /// Storage nodes append without looking at the epoch.
    AppendUnfenced,
    /// The first peer's compute nodes all open under the epoch that they find, so that nobody is fenced.
    EpochKept,
    /// The first peer's memory nodes answer a fence and leave memory with whoever had it.
    MemoryKept,
    /// Primaries answer although storage has not confirmed that they still are.
    OfficeIgnored,
    /// Primaries take any word for a signature, also of a node with other rules and for another block.
    WordUnchecked,
    /// Links and slots point to a record before it was written.
    LinkEarly,
    /// A fill goes on although the key was invalidated meanwhile.
    FillSurvives,
    /// Orderers of a group show a block as soon as one disk has it.
    OrdererShowsEarly,
    /// An orderer that begins to lead a group goes on from its own disk, whatever the others have.
    OrdererOwnDisk,
    /// An orderer that has lost the lead answers for its envelopes when another's block has the number of theirs.
    OrdererAnswersLate,
    /// Peers stay with an orderer that says that it is alive, though it has no blocks that others have.
    PeerStays,
    /// The orderer loses its power, and comes back with its data of an earlier time.
    OrdererGoesBack,
    /// So does the first peer's storage node, and its compute nodes are started again.
    StorageGoesBack,
    /// Peers with tables of keys find wrong signatures right.
    TablesWrong,
}

impl Mutant {
    /// All there are.
    pub const ALL: [Mutant; 23] = [
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
        Mutant::OfficeIgnored,
        Mutant::WordUnchecked,
        Mutant::LinkEarly,
        Mutant::FillSurvives,
        Mutant::OrdererShowsEarly,
        Mutant::OrdererOwnDisk,
        Mutant::OrdererAnswersLate,
        Mutant::PeerStays,
        Mutant::OrdererGoesBack,
        Mutant::StorageGoesBack,
        Mutant::TablesWrong,
    ];
    /// The peer that has it, by the place of its organisation.
    pub const PEER: usize = 0;

    /// What the command line calls it.
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
            Mutant::OfficeIgnored => "office-ignored",
            Mutant::WordUnchecked => "word-unchecked",
            Mutant::LinkEarly => "link-early",
            Mutant::FillSurvives => "fill-survives",
            Mutant::OrdererShowsEarly => "orderer-shows-early",
            Mutant::OrdererOwnDisk => "orderer-own-disk",
            Mutant::OrdererAnswersLate => "orderer-answers-late",
            Mutant::PeerStays => "peer-stays",
            Mutant::OrdererGoesBack => "orderer-goes-back",
            Mutant::StorageGoesBack => "storage-goes-back",
            Mutant::TablesWrong => "tables-wrong",
        }
    }

    /// The mutant of a name.
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.into_iter().find(|mutant| mutant.name() == name)
    }

    /// The form that its peer must have, given pools by chance.
    pub fn form(self, pools: Pools) -> Form {
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
            | Mutant::TablesWrong => Form::Monolithic,
            Mutant::StorageGoesBack => Form::Disaggregated(pools),
            Mutant::StorageAnswersUnsynced | Mutant::CommitUnanswered | Mutant::HistoryStale => {
                // Their stores lie where one node is told to be the primary.
                Form::Disaggregated(Pools { follows: false, ..pools })
            }
            // Those show only where somebody is replaced.
            Mutant::AppendUnfenced | Mutant::EpochKept | Mutant::MemoryKept => {
                let whims_every = Duration::from_millis(300);
                Form::Disaggregated(Pools { has_spare: true, follows: false, whims_every, ..pools })
            }
            // And this where nobody says so.
            Mutant::OfficeIgnored => {
                let (patience, whims_every) = (Duration::from_millis(60), Duration::from_millis(2_000));
                Form::Disaggregated(Pools { has_spare: true, follows: true, patience, whims_every, ..pools })
            }
            // This where there is somebody to ask, whoever it is.
            Mutant::WordUnchecked => {
                Form::Disaggregated(Pools { has_spare: true, follows: true, borrow: When::Always, ..pools })
            }
            // And these where there is memory to go wrong, and where it is looked at.
            Mutant::LinkEarly | Mutant::FillSurvives => Form::Disaggregated(Pools {
                sections_max: pools.sections_max.max(4),
                donor_sections: pools.donor_sections.max(4),
                metadata_cache_bytes: 2_000,
                data_cache_bytes: 0,
                ..pools
            }),
        }
    }

    /// What must be said of it, where something else than what is to notice it could accuse it as well.
    pub fn says(self) -> &'static str {
        match self {
            Mutant::OrdererGoesBack | Mutant::StorageGoesBack => "an earlier copy of the data was put back",
            _ => "",
        }
    }

    /// Whether this mistake is planted in the peer at this place.
    pub fn is_in(self, network: &Network, place: usize) -> bool {
        network.mutant == Some(self) && place == Mutant::PEER
    }

    /// Whether it shows only where several orderers order.
    pub fn is_in_groups(self) -> bool {
        matches!(
            self,
            Mutant::OrdererShowsEarly | Mutant::OrdererOwnDisk | Mutant::OrdererAnswersLate | Mutant::PeerStays
        )
    }

    /// The hook of the engine that orders that it uses.
    pub fn of_ordering(self) -> ordered::fault::Mutant {
        match self {
            Mutant::OrdererShowsEarly => ordered::fault::Mutant::OneDisk,
            Mutant::OrdererOwnDisk => ordered::fault::Mutant::OwnDisk,
            _ => ordered::fault::Mutant::None,
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

    /// Plants it where that is done from outside, when the network runs and faults are about to begin.
    pub fn plant(self, network: &Network) {
        let lie = |node: &str| network.node(node).disk().set_lying(true);
        match self {
            Mutant::PeerPublishesUnsynced => lie(&scenario::peer(Mutant::PEER)),
            Mutant::StorageAnswersUnsynced => lie(&scenario::storage(Mutant::PEER)),
            Mutant::OrdererDeliversUnsynced => lie(ORDERER),
            // Held up while storage answers, so that blocks come in between.
            Mutant::FillSurvives => network.sim.inject("state.read.storage", 0.3),
            Mutant::AppendUnfenced => network.sim.inject("storage.node.mutant.append_unfenced", 1.0),
            Mutant::OfficeIgnored => network.sim.inject("chain.succession.mutant.office", 1.0),
            Mutant::OrdererGoesBack => go_back(network.node(ORDERER), Vec::new()),
            Mutant::StorageGoesBack => {
                let compute = network.scenario.compute_nodes(Mutant::PEER);
                let compute = compute.iter().map(|name| network.node(name)).collect();
                go_back(network.node(&scenario::storage(Mutant::PEER)), compute);
            }
            Mutant::PeerStays => network.sim.inject("chain.deliver.mutant.stays", 1.0),
            Mutant::TablesWrong => network.sim.inject("identity.verifier.mutant.wrong", 1.0),
            Mutant::OrdererAnswersLate => network.sim.inject("chain.order.mutant.answers_late", 1.0),
            Mutant::WordUnchecked => {
                network.sim.inject("chain.borrow.mutant.unchecked", 1.0);
                network.sim.inject("chain.borrow.mutant.believed", 1.0);
                network.sim.inject("chain.borrow.other_rules", 0.5);
            }
            _ => {}
        }
    }
}

/// Puts a node's data of now back after a while. Others crash before, so that they remember nothing but what they have noted.
fn go_back(node: Node, others: Vec<Node>) {
    let copy = node.disk().copy(DATA);
    drop(rt::spawn(async move {
        rt::sleep(GOES_BACK_AFTER).await;
        others.iter().for_each(Node::crash);
        node.crash();
        node.disk().put_back(&copy);
        node.restart();
        others.iter().for_each(Node::restart);
    }));
}
