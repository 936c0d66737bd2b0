//! A model of an erasure-coded group. It has the shard of one block at each memory node and the reuse of log space, and
//! checks that the next coordinator can always bring the shards to one version. [`super`] checks that terms have one
//! winner and that fences hold.
//!
//! The model has three memory nodes, and any two of their shards give the block back. The log has two positions, and
//! every entry writes the block. A step is a verb that takes effect, a decision of the coordinator, or a fault: the
//! coordinator ends, a node loses its memory, or a node is cut off and dropped. The coordinator may end for good
//! between any two steps, so everything that the next coordinator needs must be at the nodes at all times.
//!
//! A node becomes *gone* when it loses its memory, or when it was dropped and all other nodes have answered since; it
//! stays gone until it is re-admitted.

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
/// Shards that give a block back, which is also a majority.
const NEEDED: usize = 2;
const PLACES: u8 = 2;

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Node {
    /// It holds nothing.
    blank: bool,
    gone: bool,
    /// From its header: the term that adopted it, and the entries that its memory has at least.
    term: u8,
    covered: u8,
    /// The version of its shard: the number of entries that were applied to it.
    share: u8,
    /// The range of entries that its log has.
    from: u8,
    to: u8,
}

impl Node {
    fn has(&self, entry: u8) -> bool {
        !self.blank && (self.from..self.to).contains(&entry)
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum LeaderTerm {
    Vacant,
    /// Bringing nodes up to the end of the log.
    Taking {
        nodes: u8,
        end: u8,
        adopted: u8,
        replayed: u8,
    },
    Serving(Coordinator),
}

/// The coordinator's knowledge: how much each node has acknowledged.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Coordinator {
    live: u8,
    appended: u8,
    written: [u8; NODES],
    applied: [u8; NODES],
    covered: [u8; NODES],
    /// Entries before this one may be overwritten.
    room: u8,
    /// All live nodes have answered since a node was last lost.
    answered: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct World {
    nodes: [Node; NODES],
    term: LeaderTerm,
    terms: u8,
    committed: u8,
    losses: u8,
    cuts: u8,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Append,
    Write(usize),
    Apply(usize),
    Cover(usize),
    Answer,
    MakeRoom,
    Drop(usize),
    Admit(usize),
    End,
    TakeOver(u8),
    Adopt(usize),
    Replay(usize),
    Serve,
    LoseMemory(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Log space is reused when the headers of a majority cover it.
    CapacityByMajority,
    /// Log space is reused on the word of nodes that may be gone.
    CapacityUnanswered,
    /// A node is re-admitted with the shard that it had.
    NotReencoded,
    /// A takeover replays from the end of the log instead of from each node's header, so it replays nothing.
    HeadersAsOne,
}

struct ErasureCodedGroup {
    mistake: Mistake,
    entries: u8,
    terms: u8,
    losses: u8,
    cuts: u8,
}

fn is_in(set: u8, node: usize) -> bool {
    set & 1 << node != 0
}

fn members(set: u8) -> impl Iterator<Item = usize> + Clone {
    (0..NODES).filter(move |node| is_in(set, *node))
}

/// The value that at least `needed` nodes of a set have reached.
fn common(of: &[u8; NODES], set: u8, needed: usize) -> u8 {
    let mut all: Vec<u8> = members(set).map(|node| of[node]).collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    all.get(needed - 1).copied().unwrap_or(0)
}

impl World {
    /// The nodes that hold anything.
    fn copies(&self) -> u8 {
        (0..NODES).filter(|node| !self.nodes[*node].blank).map(|node| 1 << node).sum()
    }

    /// The end of the log of a set of nodes, and the nodes with the greatest term.
    fn end(&self, nodes: u8) -> (u8, u8) {
        let newest = members(nodes).map(|node| self.nodes[node].term).max().unwrap_or(0);
        let leading = members(nodes).filter(|node| self.nodes[*node].term == newest).map(|node| 1 << node).sum();
        (members(leading).map(|node| self.nodes[node].to).max().unwrap_or(0), leading)
    }

    /// The nodes of a set whose shards can be computed up to the end of the log.
    fn can_be_led(&self, nodes: u8) -> impl Iterator<Item = usize> {
        let (end, leading) = self.end(nodes);
        let first = members(leading).map(|node| self.nodes[node].from).min().unwrap_or(0);
        let is_there = |entry: u8| {
            members(leading).any(|node| self.nodes[node].has(entry))
                || entry < first && members(nodes).any(|node| self.nodes[node].has(entry))
        };
        let leads = |node: &usize| {
            let covered = self.nodes[*node].covered;
            // Its own log must hold all of it, since the next takeover may read only this one.
            end.saturating_sub(covered) <= PLACES && (covered..end).all(is_there)
        };
        members(nodes).filter(leads).collect::<Vec<_>>().into_iter()
    }

    /// Why the next coordinator could not continue, although at most one node is gone.
    fn trouble(&self) -> Option<&'static str> {
        let gone: u8 = (0..NODES).filter(|node| self.nodes[*node].gone).map(|node| 1 << node).sum();
        if gone.count_ones() > 1 {
            return None;
        }
        let there = self.copies() & !gone;
        for nodes in [there, self.copies()] {
            if self.end(nodes).0 < self.committed {
                return Some("something committed is lost");
            }
            if self.can_be_led(nodes).count() < NEEDED {
                return Some("too few shares can be made again");
            }
        }
        None
    }
}

impl Model for ErasureCodedGroup {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let node = Node { blank: false, gone: false, term: 1, covered: 0, share: 0, from: 0, to: 0 };
        let none = [0; NODES];
        let coordinator =
            Coordinator { live: 7, appended: 0, written: none, applied: none, covered: none, room: 0, answered: true };
        vec![World {
            nodes: std::array::from_fn(|_| node.clone()),
            term: LeaderTerm::Serving(coordinator),
            terms: 1,
            committed: 0,
            losses: 0,
            cuts: 0,
            wrong: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.wrong.is_some() {
            return;
        }
        match &world.term {
            LeaderTerm::Vacant => {
                let copies = world.copies();
                let sets = (1..1 << NODES).filter(|set| set & !copies == 0 && set.count_ones() as usize >= NEEDED);
                steps.extend(sets.filter(|_| world.terms < self.terms).map(Step::TakeOver));
            }
            LeaderTerm::Taking { nodes, .. } => {
                steps.extend(members(*nodes).flat_map(|node| [Step::Adopt(node), Step::Replay(node)]));
                steps.extend([Step::Serve, Step::End]);
            }
            LeaderTerm::Serving(coordinator) => {
                steps.extend([Step::Append, Step::Answer, Step::MakeRoom, Step::End]);
                for node in 0..NODES {
                    match is_in(coordinator.live, node) {
                        true => {
                            steps.extend([Step::Write(node), Step::Apply(node), Step::Cover(node), Step::Drop(node)]);
                        }
                        false => steps.push(Step::Admit(node)),
                    }
                }
            }
        }
        if world.losses < self.losses {
            steps.extend((0..NODES).map(Step::LoseMemory));
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        let World { nodes, term, cuts, .. } = &mut world;
        match (step, term) {
            (Step::LoseMemory(node), _) => {
                if nodes[node].blank {
                    return None;
                }
                nodes[node] = Node { blank: true, gone: true, term: 0, covered: 0, share: 0, from: 0, to: 0 };
                world.losses += 1;
            }
            (Step::End, term) => *term = LeaderTerm::Vacant,
            (Step::Append, LeaderTerm::Serving(coordinator)) => {
                if coordinator.appended == self.entries || coordinator.appended - coordinator.room >= PLACES {
                    return None;
                }
                coordinator.appended += 1;
            }
            (Step::Write(at), LeaderTerm::Serving(coordinator)) => {
                let entry = coordinator.written[at];
                if nodes[at].blank || entry == coordinator.appended {
                    return None;
                }
                nodes[at].to = entry + 1;
                nodes[at].from = nodes[at].from.max((entry + 1).saturating_sub(PLACES));
                coordinator.written[at] += 1;
                let committed = common(&coordinator.written, coordinator.live, NEEDED);
                world.committed = world.committed.max(committed);
            }
            (Step::Apply(at), LeaderTerm::Serving(coordinator)) => {
                let posted = coordinator.written[at].min(before.committed);
                if nodes[at].blank || coordinator.applied[at] >= posted {
                    return None;
                }
                coordinator.applied[at] += 1;
                nodes[at].share += 1;
            }
            (Step::Cover(at), LeaderTerm::Serving(coordinator)) => {
                if nodes[at].blank || coordinator.covered[at] == coordinator.applied[at] {
                    return None;
                }
                coordinator.covered[at] = coordinator.applied[at];
                nodes[at].covered = coordinator.applied[at];
            }
            (Step::Answer, LeaderTerm::Serving(coordinator)) => {
                if coordinator.answered || members(coordinator.live).any(|node| nodes[node].blank) {
                    return None;
                }
                coordinator.answered = true;
                (0..NODES).filter(|node| !is_in(coordinator.live, *node)).for_each(|node| nodes[node].gone = true);
            }
            (Step::MakeRoom, LeaderTerm::Serving(coordinator)) => {
                let live = coordinator.live.count_ones() as usize;
                let needed = if self.mistake == Mistake::CapacityByMajority { NEEDED } else { live };
                let room = common(&coordinator.covered, coordinator.live, needed);
                let may = coordinator.answered || self.mistake == Mistake::CapacityUnanswered;
                if !may || room <= coordinator.room {
                    return None;
                }
                coordinator.room = room;
            }
            (Step::Drop(at), LeaderTerm::Serving(coordinator)) => {
                if !nodes[at].blank {
                    if *cuts == self.cuts {
                        return None;
                    }
                    *cuts += 1;
                }
                coordinator.live &= !(1 << at);
                coordinator.answered = false;
                if (coordinator.live.count_ones() as usize) < NEEDED {
                    world.term = LeaderTerm::Vacant;
                }
            }
            (Step::Admit(at), LeaderTerm::Serving(coordinator)) => {
                let Coordinator { live, appended, applied, covered, .. } = coordinator;
                let appended = *appended;
                let others = members(*live);
                if others.clone().any(|node| nodes[node].blank || applied[node] < appended || covered[node] < appended)
                {
                    return None;
                }
                let share = if self.mistake == Mistake::NotReencoded { nodes[at].share } else { appended };
                let (from, to) = (appended, appended);
                nodes[at] = Node { blank: false, gone: false, term: before.terms, covered: appended, share, from, to };
                *live |= 1 << at;
                for known in [&mut coordinator.written, applied, covered] {
                    known[at] = appended;
                }
            }
            (Step::TakeOver(set), term) => {
                let (end, _) = before.end(set);
                *term = LeaderTerm::Taking { nodes: set, end, adopted: 0, replayed: 0 };
                world.terms += 1;
            }
            (Step::Adopt(at), LeaderTerm::Taking { nodes: set, end, adopted, .. }) => {
                if nodes[at].blank || is_in(*adopted, at) || !before.can_be_led(*set).any(|node| node == at) {
                    return None;
                }
                nodes[at].term = before.terms;
                nodes[at].from = nodes[at].from.max(end.saturating_sub(PLACES)).min(nodes[at].covered);
                nodes[at].to = *end;
                *adopted |= 1 << at;
            }
            (Step::Replay(at), LeaderTerm::Taking { end, adopted, replayed, .. }) => {
                if nodes[at].blank
                    || !is_in(*adopted, at)
                    || is_in(*replayed, at)
                    || (adopted.count_ones() as usize) < NEEDED
                {
                    return None;
                }
                if self.mistake != Mistake::HeadersAsOne {
                    nodes[at].share = *end;
                }
                nodes[at].covered = *end;
                *replayed |= 1 << at;
            }
            (Step::Serve, LeaderTerm::Taking { end, replayed, .. }) => {
                let (end, live) = (*end, *replayed);
                if (live.count_ones() as usize) < NEEDED || members(live).any(|node| nodes[node].blank) {
                    return None;
                }
                // Entries that other nodes have beyond the end are of a term that does not count any more.
                for node in (0..NODES).filter(|node| !is_in(live, *node)) {
                    nodes[node].to = nodes[node].to.min(end);
                    nodes[node].from = nodes[node].from.min(nodes[node].to);
                }
                members(live).for_each(|node| nodes[node].gone = false);
                let known = std::array::from_fn(|node| if is_in(live, node) { end } else { 0 });
                let (written, applied, covered) = (known, known, known);
                let appended = end;
                let room = end.saturating_sub(PLACES);
                let answered = false;
                world.term =
                    LeaderTerm::Serving(Coordinator { live, appended, written, applied, covered, room, answered });
                world.committed = end;
            }
            _ => return None,
        }
        world.wrong = world.trouble();
        let lies = |node: &Node| !node.blank && node.share < node.covered;
        if world.nodes.iter().any(lies) {
            world.wrong = Some("a share is older than its header says");
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<ErasureCodedGroup>> {
        vec![
            Property::always(ALWAYS, |_, world: &World| world.wrong.is_none()),
            Property::sometimes("places are used again", |_, world: &World| world.committed > PLACES),
            Property::sometimes(
                "a node comes back, and another one goes",
                |group: &ErasureCodedGroup, world: &World| {
                    group.losses < 2 || world.losses == 2 && world.nodes.iter().filter(|node| node.gone).count() == 1
                },
            ),
            Property::sometimes(
                "a second coordinator commits",
                |_, world: &World| matches!(&world.term, LeaderTerm::Serving(coordinator) if world.terms > 1 && coordinator.appended == world.committed),
            ),
        ]
    }
}

const ALWAYS: &str = "with one node gone at most, nothing committed is lost, and shares can be made again";

fn coded(mistake: Mistake) -> ErasureCodedGroup {
    ErasureCodedGroup { mistake, entries: 3, terms: 2, losses: 1, cuts: 1 }
}

fn hold(group: ErasureCodedGroup) {
    let checker = group.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn no_order_of_steps_leaves_too_few_shares_where_a_node_is_cut_off() {
    hold(coded(Mistake::None));
}

#[test]
fn no_order_of_steps_leaves_too_few_shares_where_one_node_after_another_loses_its_memory() {
    hold(ErasureCodedGroup { losses: 2, cuts: 0, ..coded(Mistake::None) });
}

#[test]
fn every_mistake_about_shares_is_found() {
    use Mistake::{CapacityByMajority, CapacityUnanswered, HeadersAsOne, NotReencoded};
    for mistake in [CapacityByMajority, CapacityUnanswered, NotReencoded, HeadersAsOne] {
        let checker = coded(mistake).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discovery(ALWAYS).unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: {:?}, {:?}", found.last_state().wrong, found.clone().into_actions());
    }
}
