//! A model of a coded group: what each memory node has of one block, when places of the log are used again, and whether the next
//! coordinator can bring shares to one version. That terms have one winner and fences hold is [`super`]'s matter.
//!
//! Three memory nodes, of which two shares make the block; a log of two places; every entry writes the block. A step is a verb that
//! takes effect, a decision of the coordinator, or a fault: its end, a node that loses its memory, one that is cut off and dropped.
//! Between any two steps the coordinator may end for good, so what the next one needs must be there at all times.
//!
//! A node is *gone* when it has lost its memory, or was dropped and all others have answered since; until it is admitted again.

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
/// Shares that make a block, and a majority.
const NEEDED: usize = 2;
const PLACES: u8 = 2;

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Node {
    /// It holds nothing.
    blank: bool,
    gone: bool,
    /// Of its header: the reign that adopted it, and the entries that its memory has at least.
    reign: u8,
    covered: u8,
    /// The version of its share: entries that were applied to it.
    share: u8,
    /// The entries that its log has.
    from: u8,
    to: u8,
}

impl Node {
    fn has(&self, entry: u8) -> bool {
        !self.blank && (self.from..self.to).contains(&entry)
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum Reign {
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

/// What the coordinator knows; of each node, how much it has acknowledged.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Coordinator {
    live: u8,
    appended: u8,
    written: [u8; NODES],
    applied: [u8; NODES],
    covered: [u8; NODES],
    /// Entries before this one may be overwritten.
    room: u8,
    /// All live nodes have answered since the last was lost.
    answered: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct World {
    nodes: [Node; NODES],
    reign: Reign,
    reigns: u8,
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
    /// A place is used again when the headers of a majority cover it.
    RoomByMajority,
    /// A place is used again on the word of nodes that may be gone.
    RoomUnanswered,
    /// A node counts again with the share that it had.
    NotEncodedAnew,
    /// A takeover replays from the end of the log and not from each node's header.
    HeadersAsOne,
}

struct Coded {
    mistake: Mistake,
    entries: u8,
    reigns: u8,
    losses: u8,
    cuts: u8,
}

fn is_in(set: u8, node: usize) -> bool {
    set & 1 << node != 0
}

fn members(set: u8) -> impl Iterator<Item = usize> + Clone {
    (0..NODES).filter(move |node| is_in(set, *node))
}

/// What so many of some nodes have at least.
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

    /// Where the log of some nodes ends, and which of them lead.
    fn end(&self, nodes: u8) -> (u8, u8) {
        let newest = members(nodes).map(|node| self.nodes[node].reign).max().unwrap_or(0);
        let leading = members(nodes).filter(|node| self.nodes[*node].reign == newest).map(|node| 1 << node).sum();
        (members(leading).map(|node| self.nodes[node].to).max().unwrap_or(0), leading)
    }

    /// Those of some nodes whose shares can be made again up to the end of the log.
    fn can_be_led(&self, nodes: u8) -> impl Iterator<Item = usize> {
        let (end, leading) = self.end(nodes);
        let first = members(leading).map(|node| self.nodes[node].from).min().unwrap_or(0);
        let is_there = |entry: u8| {
            members(leading).any(|node| self.nodes[node].has(entry))
                || entry < first && members(nodes).any(|node| self.nodes[node].has(entry))
        };
        let leads = |node: &usize| {
            let covered = self.nodes[*node].covered;
            // Its own log must hold all of it, since it may be the only one that leads next.
            end.saturating_sub(covered) <= PLACES && (covered..end).all(is_there)
        };
        members(nodes).filter(leads).collect::<Vec<_>>().into_iter()
    }

    /// Why the next coordinator could not go on, though at most one node is gone.
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

impl Model for Coded {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let node = Node { blank: false, gone: false, reign: 1, covered: 0, share: 0, from: 0, to: 0 };
        let none = [0; NODES];
        let coordinator =
            Coordinator { live: 7, appended: 0, written: none, applied: none, covered: none, room: 0, answered: true };
        vec![World {
            nodes: std::array::from_fn(|_| node.clone()),
            reign: Reign::Serving(coordinator),
            reigns: 1,
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
        match &world.reign {
            Reign::Vacant => {
                let copies = world.copies();
                let sets = (1..1 << NODES).filter(|set| set & !copies == 0 && set.count_ones() as usize >= NEEDED);
                steps.extend(sets.filter(|_| world.reigns < self.reigns).map(Step::TakeOver));
            }
            Reign::Taking { nodes, .. } => {
                steps.extend(members(*nodes).flat_map(|node| [Step::Adopt(node), Step::Replay(node)]));
                steps.extend([Step::Serve, Step::End]);
            }
            Reign::Serving(coordinator) => {
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
        let World { nodes, reign, cuts, .. } = &mut world;
        match (step, reign) {
            (Step::LoseMemory(node), _) => {
                if nodes[node].blank {
                    return None;
                }
                nodes[node] = Node { blank: true, gone: true, reign: 0, covered: 0, share: 0, from: 0, to: 0 };
                world.losses += 1;
            }
            (Step::End, reign) => *reign = Reign::Vacant,
            (Step::Append, Reign::Serving(coordinator)) => {
                if coordinator.appended == self.entries || coordinator.appended - coordinator.room >= PLACES {
                    return None;
                }
                coordinator.appended += 1;
            }
            (Step::Write(at), Reign::Serving(coordinator)) => {
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
            (Step::Apply(at), Reign::Serving(coordinator)) => {
                let posted = coordinator.written[at].min(before.committed);
                if nodes[at].blank || coordinator.applied[at] >= posted {
                    return None;
                }
                coordinator.applied[at] += 1;
                nodes[at].share += 1;
            }
            (Step::Cover(at), Reign::Serving(coordinator)) => {
                if nodes[at].blank || coordinator.covered[at] == coordinator.applied[at] {
                    return None;
                }
                coordinator.covered[at] = coordinator.applied[at];
                nodes[at].covered = coordinator.applied[at];
            }
            (Step::Answer, Reign::Serving(coordinator)) => {
                if coordinator.answered || members(coordinator.live).any(|node| nodes[node].blank) {
                    return None;
                }
                coordinator.answered = true;
                (0..NODES).filter(|node| !is_in(coordinator.live, *node)).for_each(|node| nodes[node].gone = true);
            }
            (Step::MakeRoom, Reign::Serving(coordinator)) => {
                let live = coordinator.live.count_ones() as usize;
                let needed = if self.mistake == Mistake::RoomByMajority { NEEDED } else { live };
                let room = common(&coordinator.covered, coordinator.live, needed);
                let may = coordinator.answered || self.mistake == Mistake::RoomUnanswered;
                if !may || room <= coordinator.room {
                    return None;
                }
                coordinator.room = room;
            }
            (Step::Drop(at), Reign::Serving(coordinator)) => {
                if !nodes[at].blank {
                    if *cuts == self.cuts {
                        return None;
                    }
                    *cuts += 1;
                }
                coordinator.live &= !(1 << at);
                coordinator.answered = false;
                if (coordinator.live.count_ones() as usize) < NEEDED {
                    world.reign = Reign::Vacant;
                }
            }
            (Step::Admit(at), Reign::Serving(coordinator)) => {
                let Coordinator { live, appended, applied, covered, .. } = coordinator;
                let appended = *appended;
                let others = members(*live);
                if others.clone().any(|node| nodes[node].blank || applied[node] < appended || covered[node] < appended)
                {
                    return None;
                }
                let share = if self.mistake == Mistake::NotEncodedAnew { nodes[at].share } else { appended };
                let (from, to) = (appended, appended);
                nodes[at] =
                    Node { blank: false, gone: false, reign: before.reigns, covered: appended, share, from, to };
                *live |= 1 << at;
                for known in [&mut coordinator.written, applied, covered] {
                    known[at] = appended;
                }
            }
            (Step::TakeOver(set), reign) => {
                let (end, _) = before.end(set);
                *reign = Reign::Taking { nodes: set, end, adopted: 0, replayed: 0 };
                world.reigns += 1;
            }
            (Step::Adopt(at), Reign::Taking { nodes: set, end, adopted, .. }) => {
                if nodes[at].blank || is_in(*adopted, at) || !before.can_be_led(*set).any(|node| node == at) {
                    return None;
                }
                nodes[at].reign = before.reigns;
                nodes[at].from = nodes[at].from.max(end.saturating_sub(PLACES)).min(nodes[at].covered);
                nodes[at].to = *end;
                *adopted |= 1 << at;
            }
            (Step::Replay(at), Reign::Taking { end, adopted, replayed, .. }) => {
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
            (Step::Serve, Reign::Taking { end, replayed, .. }) => {
                let (end, live) = (*end, *replayed);
                if (live.count_ones() as usize) < NEEDED || members(live).any(|node| nodes[node].blank) {
                    return None;
                }
                // What others have beyond the end is of a reign that does not lead any more.
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
                world.reign = Reign::Serving(Coordinator { live, appended, written, applied, covered, room, answered });
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

    fn properties(&self) -> Vec<Property<Coded>> {
        vec![
            Property::always(ALWAYS, |_, world: &World| world.wrong.is_none()),
            Property::sometimes("places are used again", |_, world: &World| world.committed > PLACES),
            Property::sometimes("a node comes back, and another one goes", |group: &Coded, world: &World| {
                group.losses < 2 || world.losses == 2 && world.nodes.iter().filter(|node| node.gone).count() == 1
            }),
            Property::sometimes(
                "a second coordinator commits",
                |_, world: &World| matches!(&world.reign, Reign::Serving(coordinator) if world.reigns > 1 && coordinator.appended == world.committed),
            ),
        ]
    }
}

const ALWAYS: &str = "with one node gone at most, nothing committed is lost, and shares can be made again";

fn coded(mistake: Mistake) -> Coded {
    Coded { mistake, entries: 3, reigns: 2, losses: 1, cuts: 1 }
}

fn hold(group: Coded) {
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
    hold(Coded { losses: 2, cuts: 0, ..coded(Mistake::None) });
}

#[test]
fn every_mistake_about_shares_is_found() {
    use Mistake::{HeadersAsOne, NotEncodedAnew, RoomByMajority, RoomUnanswered};
    for mistake in [RoomByMajority, RoomUnanswered, NotEncodedAnew, HeadersAsOne] {
        let checker = coded(mistake).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discovery(ALWAYS).unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: {:?}, {:?}", found.last_state().wrong, found.clone().into_actions());
    }
}
