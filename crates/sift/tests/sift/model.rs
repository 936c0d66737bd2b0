//! A model of election, fence, takeover and log, checked in every order of its steps at small size.
//!
//! The model has three memory nodes and two CPU nodes. A step is one verb or message taking effect at one node, one
//! decision of a CPU node, or a fault: a CPU node crashes, a compare-and-swap succeeds without its sender learning of
//! it, a memory node loses its memory. Verbs that are in flight when their sender has crashed or was deposed need no
//! step of their own: they have the same effect as verbs of a slow CPU node, which may send them arbitrarily late.
//! `specs/GAPS.md` lists what the model leaves out, and why.
//!
//! Every planted [`Mistake`] must be found. The rules that an erasure-coded group adds are checked separately:
//! [`shards`].

mod shards;

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const MAJORITY: usize = 2;
const CPU_NODES: usize = 2;

/// A memory node.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Node {
    life: u8,
    /// The word that candidates compare-and-swap.
    word: u8,
    /// The newest fence, and its owner.
    fenced: (u8, u8),
    /// The term of its header; 0 for a node without a copy.
    header: u8,
    adopted: u8,
    /// Entries: the term of each and its value.
    log: Vec<(u8, u8)>,
}

/// The state of a CPU node.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Compare-and-swapping: the terms that it has read at each node, and the nodes that it has won.
    Standing {
        seen: [Option<u8>; NODES],
        tried: u8,
        won: u8,
    },
    /// Fencing: the incarnation in which each node was fenced.
    Fencing {
        held: [Option<u8>; NODES],
    },
    /// Repairing and adopting.
    Adopting {
        held: [Option<u8>; NODES],
        log: Vec<(u8, u8)>,
        adopted: u8,
    },
    /// Coordinating: how many entries each live node has acknowledged.
    Serving {
        held: [Option<u8>; NODES],
        log: Vec<(u8, u8)>,
        acked: [u8; NODES],
        live: u8,
    },
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct CpuNode {
    phase: Phase,
    term: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct World {
    nodes: [Node; NODES],
    processors: [CpuNode; CPU_NODES],
    /// Acknowledged entries.
    committed: Vec<(u8, u8)>,
    /// The CPU node elected in each term.
    elected: Vec<(u8, u8)>,
    values: u8,
    losses: u8,
    crashes: u8,
    ambiguous: u8,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Read(usize),
    Swap(usize, usize),
    /// The compare-and-swap succeeds, and the candidate does not learn of it.
    SwapAmbiguous(usize, usize),
    Elect(usize),
    GiveUp(usize),
    Fence(usize, usize),
    Recover(usize),
    Adopt(usize, usize),
    Serve(usize),
    Append(usize),
    Write(usize, usize),
    Commit(usize),
    Crash(usize),
    LoseMemory(usize),
    Readmit(usize, usize),
}

/// The planted mistake.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// An ambiguous compare-and-swap counts as won.
    AmbiguousIsWon,
    /// A fence does not end the earlier coordinator's verbs.
    NoRevocation,
    /// An entry counts as committed when one node has it.
    MinorityCommits,
    /// A candidate proposes the term that it has read.
    TermReused,
    /// A node that has lost its memory counts as an empty copy.
    BlankCounts,
    /// Logs are read while some nodes are not fenced yet.
    ReadBeforeFence,
}

struct Group {
    mistake: Mistake,
    terms: u8,
    values: u8,
    losses: u8,
    crashes: u8,
    ambiguous: u8,
}

fn count(set: u8) -> usize {
    set.count_ones() as usize
}

impl Group {
    /// Whether a CPU node's verbs take effect at a node.
    fn reaches(&self, world: &World, processor: usize, node: usize, held: &[Option<u8>; NODES]) -> bool {
        let (node, term) = (&world.nodes[node], world.processors[processor].term);
        let is_same_life = |at: usize| held[at] == Some(world.nodes[at].life);
        let at = world.nodes.iter().position(|other| std::ptr::eq(other, node)).expect("it is one of them");
        is_same_life(at) && (node.fenced == (term, processor as u8) || self.mistake == Mistake::NoRevocation)
    }

    /// The one log that the fenced copies reconcile to.
    fn reconcile(nodes: &[&Node]) -> Vec<(u8, u8)> {
        let newest = nodes.iter().map(|node| node.header).max().unwrap_or(0);
        let leading: Vec<&&Node> = nodes.iter().filter(|node| node.header == newest).collect();
        let mut log: Vec<(u8, u8)> = Vec::new();
        loop {
            let at = log.len();
            let next = leading.iter().find_map(|node| {
                let entry = node.log.get(at)?;
                let in_order = node.log[..at] == log[..];
                (in_order && (at < node.adopted as usize || entry.0 == newest)).then_some(*entry)
            });
            match next {
                Some(entry) => log.push(entry),
                None => return log,
            }
        }
    }
}

impl Model for Group {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let node = Node { life: 0, word: 1, fenced: (1, 9), header: 1, adopted: 0, log: Vec::new() };
        let processor = CpuNode { phase: Phase::Idle, term: 0 };
        vec![World {
            nodes: std::array::from_fn(|_| node.clone()),
            processors: std::array::from_fn(|_| processor.clone()),
            committed: Vec::new(),
            elected: Vec::new(),
            values: 0,
            losses: 0,
            crashes: 0,
            ambiguous: 0,
            wrong: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.wrong.is_some() {
            return;
        }
        for (at, processor) in world.processors.iter().enumerate() {
            let nodes = 0..NODES;
            match &processor.phase {
                Phase::Idle => steps.push(Step::Read(at)),
                Phase::Standing { seen, tried, won } => {
                    for node in nodes.filter(|node| seen[*node].is_some() && tried & 1 << node == 0) {
                        steps.push(Step::Swap(at, node));
                        if world.ambiguous < self.ambiguous {
                            steps.push(Step::SwapAmbiguous(at, node));
                        }
                    }
                    if count(*won) >= MAJORITY {
                        steps.push(Step::Elect(at));
                    } else if count(*tried) >= MAJORITY {
                        steps.push(Step::GiveUp(at));
                    }
                }
                Phase::Fencing { held } => {
                    steps.extend(nodes.filter(|node| held[*node].is_none()).map(|node| Step::Fence(at, node)));
                    steps.push(Step::Recover(at));
                }
                Phase::Adopting { adopted, .. } => {
                    steps.extend(nodes.filter(|node| adopted & 1 << node == 0).map(|node| Step::Adopt(at, node)));
                    steps.push(Step::Serve(at));
                }
                Phase::Serving { log, acked, live, .. } => {
                    if world.values < self.values {
                        steps.push(Step::Append(at));
                    }
                    for node in nodes {
                        if live & 1 << node == 0 {
                            steps.push(Step::Readmit(at, node));
                        } else if (acked[node] as usize) < log.len() {
                            steps.push(Step::Write(at, node));
                        }
                    }
                    steps.push(Step::Commit(at));
                }
            }
            if processor.phase != Phase::Idle && world.crashes < self.crashes {
                steps.push(Step::Crash(at));
            }
        }
        if world.losses < self.losses {
            steps.extend((0..NODES).map(Step::LoseMemory));
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        match step {
            Step::Read(at) => {
                // A node that was never admitted has no vote.
                let votes = |node: &Node| node.header > 0 || self.mistake == Mistake::BlankCounts;
                let seen: [Option<u8>; NODES] = std::array::from_fn(|node| {
                    Some(&before.nodes[node]).filter(|node| votes(node)).map(|node| node.word)
                });
                let newest = seen.iter().flatten().max().copied().unwrap_or(0);
                if seen.iter().flatten().count() < MAJORITY || newest >= self.terms {
                    return None;
                }
                world.processors[at].phase = Phase::Standing { seen, tried: 0, won: 0 };
            }
            Step::Swap(at, node) | Step::SwapAmbiguous(at, node) => {
                let Phase::Standing { seen, tried, won } = &mut world.processors[at].phase else { return None };
                let newest = seen.iter().flatten().max().copied().unwrap_or(0);
                let proposed = if self.mistake == Mistake::TermReused { newest.max(2) } else { newest + 1 };
                if proposed > self.terms {
                    return None;
                }
                *tried |= 1 << node;
                let succeeds = Some(world.nodes[node].word) == seen[node];
                if succeeds {
                    world.nodes[node].word = proposed;
                }
                match step {
                    Step::Swap(..) if succeeds => *won |= 1 << node,
                    Step::SwapAmbiguous(..) => {
                        world.ambiguous += 1;
                        if self.mistake == Mistake::AmbiguousIsWon {
                            *won |= 1 << node;
                        }
                    }
                    _ => {}
                }
                world.processors[at].term = proposed;
            }
            Step::Elect(at) => {
                let term = world.processors[at].term;
                if world.elected.iter().any(|(other, by)| *other == term && *by != at as u8) {
                    world.wrong = Some("two are elected for one term");
                }
                world.elected.push((term, at as u8));
                world.elected.sort_unstable();
                world.elected.dedup();
                world.processors[at].phase = Phase::Fencing { held: [None; NODES] };
            }
            Step::GiveUp(at) | Step::Crash(at) => {
                world.crashes += u8::from(matches!(step, Step::Crash(_)));
                world.processors[at] = CpuNode { phase: Phase::Idle, term: 0 };
            }
            Step::Fence(at, node) => {
                let term = world.processors[at].term;
                let Phase::Fencing { held } = &mut world.processors[at].phase else { return None };
                let fenced = &mut world.nodes[node].fenced;
                if term < fenced.0 || (term == fenced.0 && at as u8 != fenced.1) {
                    return None;
                }
                *fenced = (term, at as u8);
                held[node] = Some(world.nodes[node].life);
            }
            Step::Recover(at) => {
                let Phase::Fencing { held } = &before.processors[at].phase else { return None };
                let reached = |node: &usize| match self.mistake {
                    Mistake::ReadBeforeFence => held.iter().flatten().count() > 0,
                    _ => self.reaches(before, at, *node, held),
                };
                let copies: Vec<&Node> = (0..NODES)
                    .filter(reached)
                    .map(|node| &before.nodes[node])
                    .filter(|node| node.header > 0 || self.mistake == Mistake::BlankCounts)
                    .collect();
                if copies.len() < MAJORITY {
                    return None;
                }
                let log = Group::reconcile(&copies);
                let mut held = *held;
                if self.mistake == Mistake::ReadBeforeFence {
                    held = std::array::from_fn(|node| Some(before.nodes[node].life));
                }
                for node in (0..NODES).filter(|node| !reached(node)) {
                    held[node] = None;
                }
                world.processors[at].phase = Phase::Adopting { held, log, adopted: 0 };
            }
            Step::Adopt(at, node) => {
                let Phase::Adopting { held, log, .. } = before.processors[at].phase.clone() else { return None };
                let is_copy = before.nodes[node].header > 0 || self.mistake == Mistake::BlankCounts;
                let term = before.processors[at].term;
                if self.mistake == Mistake::ReadBeforeFence && before.nodes[node].fenced.0 < term {
                    // Late: the logs have been read.
                    world.nodes[node].fenced = (term, at as u8);
                }
                if !is_copy || !self.reaches(&world, at, node, &held) {
                    return None;
                }
                let copy = &mut world.nodes[node];
                // At their positions in the log; later entries stay.
                let stays = copy.log.split_off(copy.log.len().min(log.len()));
                copy.log = log.clone();
                copy.log.extend(stays);
                (copy.header, copy.adopted) = (term, log.len() as u8);
                if let Phase::Adopting { adopted, .. } = &mut world.processors[at].phase {
                    *adopted |= 1 << node;
                }
            }
            Step::Serve(at) => {
                let Phase::Adopting { held, log, adopted } = before.processors[at].phase.clone() else { return None };
                let probed = (0..NODES).filter(|node| self.reaches(before, at, *node, &held)).count();
                if count(adopted) < MAJORITY || probed < MAJORITY {
                    return None;
                }
                if log.len() < before.committed.len() || log[..before.committed.len()] != before.committed[..] {
                    world.wrong = Some("something committed is lost");
                }
                let acked = std::array::from_fn(|node| if adopted & 1 << node != 0 { log.len() as u8 } else { 0 });
                world.processors[at].phase = Phase::Serving { held, log, acked, live: adopted };
            }
            Step::Append(at) => {
                let term = world.processors[at].term;
                let Phase::Serving { log, .. } = &mut world.processors[at].phase else { return None };
                world.values += 1;
                log.push((term, world.values));
            }
            Step::Write(at, node) => {
                let Phase::Serving { held, log, acked, .. } = before.processors[at].phase.clone() else { return None };
                if !self.reaches(before, at, node, &held) {
                    return None;
                }
                let place = acked[node] as usize;
                let entries = &mut world.nodes[node].log;
                entries.truncate(entries.len().max(place));
                if place < entries.len() {
                    entries[place] = log[place];
                } else {
                    entries.push(log[place]);
                }
                if let Phase::Serving { acked, .. } = &mut world.processors[at].phase {
                    acked[node] += 1;
                }
            }
            Step::Commit(at) => {
                let Phase::Serving { log, acked, live, .. } = &before.processors[at].phase else { return None };
                let needed = if self.mistake == Mistake::MinorityCommits { 1 } else { MAJORITY };
                let mut reached: Vec<u8> =
                    (0..NODES).filter(|node| live & 1 << node != 0).map(|node| acked[node]).collect();
                reached.sort_unstable_by(|one, other| other.cmp(one));
                let common = reached.get(needed - 1).copied().unwrap_or(0) as usize;
                if common <= before.committed.len() {
                    let same = log[..common] == before.committed[..common];
                    world.wrong = (!same).then_some("something committed is changed");
                } else if log[..before.committed.len()] != before.committed[..] {
                    world.wrong = Some("something committed is changed");
                } else {
                    world.committed = log[..common].to_vec();
                }
            }
            Step::LoseMemory(node) => {
                world.losses += 1;
                let life = before.nodes[node].life + 1;
                world.nodes[node] = Node { life, word: 0, fenced: (0, 9), header: 0, adopted: 0, log: Vec::new() };
            }
            Step::Readmit(at, node) => {
                // In one step: connected, fenced and copied; and then confirmed by a majority of the other nodes.
                let Phase::Serving { held, log, .. } = before.processors[at].phase.clone() else { return None };
                let term = before.processors[at].term;
                let others: Vec<usize> =
                    (0..NODES).filter(|other| *other != node && self.reaches(before, at, *other, &held)).collect();
                let fenced = before.nodes[node].fenced;
                let is_newer = fenced.0 > term || (fenced.0 == term && fenced.1 != at as u8);
                if others.len() < MAJORITY || is_newer {
                    return None;
                }
                let newest = others.iter().map(|other| before.nodes[*other].word).max().unwrap_or(0);
                let adopted = others.iter().map(|other| before.nodes[*other].adopted).max().unwrap_or(0);
                let blank = &mut world.nodes[node];
                blank.word = blank.word.max(newest).max(term);
                blank.fenced = (term, at as u8);
                (blank.header, blank.adopted, blank.log) = (term, adopted, log.clone());
                let life = blank.life;
                if let Phase::Serving { held, acked, live, .. } = &mut world.processors[at].phase {
                    held[node] = Some(life);
                    acked[node] = log.len() as u8;
                    *live |= 1 << node;
                }
            }
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Group>> {
        vec![
            Property::always("a term has one winner, and nothing committed is lost or changed", |_, world: &World| {
                world.wrong.is_none()
            }),
            Property::sometimes("somebody commits", |_, world: &World| !world.committed.is_empty()),
            Property::sometimes("a second coordinator commits", |group: &Group, world: &World| {
                group.values < 2 || world.committed.windows(2).any(|pair| pair[0].0 < pair[1].0)
            }),
        ]
    }
}

const ALWAYS: &str = "a term has one winner, and nothing committed is lost or changed";

fn group(mistake: Mistake) -> Group {
    Group { mistake, terms: 3, values: 1, losses: 0, crashes: 0, ambiguous: 0 }
}

fn hold(group: Group) {
    let checker = group.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn no_order_of_steps_breaks_the_protocol() {
    hold(Group { values: 2, ..group(Mistake::None) });
}

#[test]
fn no_order_of_steps_breaks_it_where_nobody_learns_of_a_vote() {
    hold(Group { ambiguous: 1, ..group(Mistake::None) });
}

#[test]
fn no_order_of_steps_breaks_it_where_a_node_loses_its_memory() {
    hold(Group { losses: 1, ..group(Mistake::None) });
}

#[test]
fn every_planted_mistake_is_found() {
    use Mistake::{AmbiguousIsWon, BlankCounts, MinorityCommits, NoRevocation, ReadBeforeFence, TermReused};
    for mistake in [AmbiguousIsWon, NoRevocation, MinorityCommits, TermReused, BlankCounts, ReadBeforeFence] {
        let losses = u8::from(mistake == BlankCounts);
        let ambiguous = u8::from(mistake == AmbiguousIsWon);
        let group = Group { losses, ambiguous, ..group(mistake) };
        let checker = group.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discovery(ALWAYS).unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: {} steps, {:?}", found.clone().into_actions().len(), found.last_state().wrong);
    }
}
