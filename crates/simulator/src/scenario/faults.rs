//! What breaks, and when.

use std::time::Duration;

use base::rt::simulation::{Bounds, Chance, Fault, FaultKind, Plan, Step};

use super::{FAULTS_MIN, Form, MANY_RECORDS, Ordering, Role, client, memory, peer, role_of, spare, storage};
use crate::coverage::{FAULT_POINTS, POOLED_FAULT_POINTS, RAFT_FAULT_POINTS, SIFT_FAULT_POINTS};

/// In half of the seeds none, else a few points: a run in which everything is held up shows little else. The points of pooled
/// peers are many, and each is passed far oftener than the others: more of them are drawn, and each strikes seldom. Where an
/// index grows, that is held up.
pub(super) fn points(
    chance: &mut Chance,
    forms: &[Form],
    records: u64,
    ordering: Ordering,
) -> Vec<(&'static str, f64)> {
    let mut points = Vec::new();
    if chance.one_in(2) {
        let count = 1 + chance.index(4);
        points.extend((0..count).map(|_| (*chance.pick(&FAULT_POINTS), *chance.pick(&[0.02, 0.05, 0.2]))));
    }
    let is_pooled = forms.iter().any(|form| form.pools().is_some());
    if is_pooled && !chance.one_in(3) {
        let count = 1 + chance.index(10);
        for _ in 0..count {
            let (name, rate) = *chance.pick(&POOLED_FAULT_POINTS);
            points.push((name, rate * *chance.pick(&[0.2, 1.0, 1.0])));
        }
    }
    if is_pooled && records >= MANY_RECORDS {
        points.extend(POOLED_FAULT_POINTS.iter().filter(|(name, _)| name.starts_with("state.split.")));
    }
    let of_group: &[(&'static str, f64)] = match ordering {
        Ordering::Solo => &[],
        Ordering::Sift { .. } => &SIFT_FAULT_POINTS,
        Ordering::Raft => &RAFT_FAULT_POINTS,
    };
    if !of_group.is_empty() && chance.one_in(2) {
        let count = 1 + chance.index(of_group.len());
        points.extend((0..count).map(|_| *chance.pick(of_group)));
    }
    points
}

/// Faults of nodes, disks and clocks, faults of what is between nodes, clients included, and now and then a whole peer. Where several
/// orderers order, one to three times what only they can get over, or as often as it must be.
pub(super) fn plan(
    chance: &mut Chance,
    forms: &[Form],
    clients: usize,
    ordering: Ordering,
    upheavals: Option<usize>,
) -> Plan {
    let (orderers, logs) = (ordering.orderers(), ordering.logs());
    let groups: Vec<Group> = forms.iter().enumerate().map(|(place, form)| Group::new(place, form)).collect();
    let with_disks: Vec<String> =
        orderers.iter().cloned().chain(groups.iter().map(|group| group.disk.clone())).collect();
    let servers: Vec<String> =
        orderers.iter().chain(&logs).cloned().chain(groups.iter().flat_map(Group::nodes)).collect();
    let within = Duration::from_millis(20)..Duration::from_millis(2_500);
    let of_nodes = Bounds {
        nodes: servers.clone(),
        kinds: vec![FaultKind::Crash, FaultKind::Crash, FaultKind::Crash, FaultKind::Pause],
        faults: 2 + chance.index(2 + servers.len() / 2),
        within: within.clone(),
        lasting: Duration::from_millis(1)..Duration::from_millis(800),
        down_max: 1 + chance.index(servers.len()),
    };
    let of_disks = Bounds {
        nodes: with_disks.clone(),
        kinds: vec![FaultKind::Fill, FaultKind::Fail],
        faults: chance.index(4),
        ..of_nodes.clone()
    };
    let of_clocks = Bounds {
        nodes: servers.clone(),
        kinds: vec![FaultKind::Drift],
        faults: if chance.one_in(2) { 0 } else { chance.index(6) },
        lasting: Duration::from_millis(50)..Duration::from_secs(3),
        ..of_nodes.clone()
    };
    let mut steps = Plan::random(chance.number(), &of_nodes).steps;
    steps.extend(Plan::random(chance.number(), &of_disks).steps);
    steps.extend(Plan::random(chance.number(), &of_clocks).steps);
    let links = links(&groups, clients, &orderers, &logs);
    for _ in 0..1 + chance.index(2 + servers.len() / 3) {
        let (one, other) = chance.pick(&links).clone();
        let of_link = Bounds {
            nodes: vec![one, other],
            kinds: vec![FaultKind::Cut, FaultKind::Cut, FaultKind::Break],
            faults: 1,
            within: within.clone(),
            lasting: Duration::from_millis(5)..Duration::from_millis(1_500),
            down_max: 0,
        };
        steps.extend(Plan::random(chance.number(), &of_link).steps);
    }
    if chance.one_in(4) {
        let at = Duration::from_millis(100 + chance.below(2_000));
        for node in chance.pick(&groups).nodes() {
            let lasting = Duration::from_millis(1 + chance.below(400));
            steps.push(Step { at, fault: Fault::Crash(node), lasting: Some(lasting) });
        }
    }
    if ordering.is_group() {
        for _ in 0..upheavals.unwrap_or_else(|| 1 + chance.index(3)) {
            steps.extend(upheaval(chance, &orderers, &logs));
        }
    }
    // Steps that did not fit beside the others are missing.
    for (place, node) in with_disks.iter().enumerate().take(FAULTS_MIN.saturating_sub(steps.len())) {
        let at = Duration::from_millis(3_000 + 500 * place as u64);
        steps.push(Step { at, fault: Fault::Crash(node.clone()), lasting: Some(Duration::from_millis(200)) });
    }
    steps.sort_by_key(|step| step.at);
    Plan { steps }
}

/// What happens to a group of orderers: one that may lead is killed, stands still or is cut off from all others, which then go on
/// without it; its memory nodes lose what they hold, one or all; or all of it loses power.
fn upheaval(chance: &mut Chance, orderers: &[String], logs: &[String]) -> Vec<Step> {
    let at = Duration::from_millis(100 + chance.below(2_200));
    // Longer than others wait before one of them leads, and shorter than clients wait for an answer.
    let lasting = Some(Duration::from_millis(200 + chance.below(300)));
    let one = chance.pick(orderers).clone();
    let crash = |nodes: &[String], chance: &mut Chance| {
        let crash = |node: &String| {
            let lasting = Some(Duration::from_millis(1 + chance.below(600)));
            Step { at, fault: Fault::Crash(node.clone()), lasting }
        };
        nodes.iter().map(crash).collect()
    };
    match chance.index(if logs.is_empty() { 6 } else { 9 }) {
        0 => vec![Step { at, fault: Fault::Crash(one), lasting }],
        1 => vec![Step { at, fault: Fault::Pause(one), lasting }],
        2..=4 => {
            let others = orderers.iter().filter(|other| **other != one).chain(logs);
            let cut = |other: &String| Step { at, fault: Fault::Cut(one.clone(), other.clone()), lasting };
            others.map(cut).collect()
        }
        5 => crash(&[orderers, logs].concat(), chance),
        6..=7 => crash(&[chance.pick(logs).clone()], chance),
        _ => crash(logs, chance),
    }
}

/// The nodes of one peer.
struct Group {
    compute: Vec<String>,
    memory: Vec<String>,
    /// The one that has a disk.
    disk: String,
}

impl Group {
    fn new(place: usize, form: &Form) -> Group {
        let Form::Disaggregated(pools) = form else {
            return Group { compute: vec![peer(place)], memory: Vec::new(), disk: peer(place) };
        };
        let mut compute = vec![peer(place)];
        compute.extend(pools.has_spare.then(|| spare(place)));
        let memory = (0..pools.memory_nodes).map(|number| memory(place, number)).collect();
        Group { compute, memory, disk: storage(place) }
    }

    fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.compute.iter().chain(&self.memory).cloned().collect();
        if !nodes.contains(&self.disk) {
            nodes.push(self.disk.clone());
        }
        nodes
    }
}

/// The pairs of nodes that talk to one another.
fn links(groups: &[Group], clients: usize, orderers: &[String], logs: &[String]) -> Vec<(String, String)> {
    let mut links = Vec::new();
    for (place, orderer) in orderers.iter().enumerate() {
        let others = orderers[..place].iter().chain(logs);
        links.extend(others.map(|other| (orderer.clone(), other.clone())));
    }
    for group in groups {
        for compute in &group.compute {
            links.extend(orderers.iter().map(|orderer| (orderer.clone(), compute.clone())));
            let pooled = group.memory.iter().chain((group.disk != *compute).then_some(&group.disk));
            links.extend(pooled.map(|node| (compute.clone(), node.clone())));
            links.push((compute.clone(), client(links.len() % clients)));
        }
    }
    links
}

/// The kind of a fault, for counting.
pub fn kind_of(fault: &Fault) -> &'static str {
    match fault {
        Fault::Crash(node) => match role_of(node) {
            Role::Orderer => "crash orderer",
            Role::Log => "crash memory node of orderers",
            Role::Storage => "crash storage node",
            Role::Memory => "crash memory node",
            Role::Peer | Role::Client => "crash peer",
        },
        Fault::Pause(node) => match role_of(node) {
            Role::Orderer => "pause orderer",
            Role::Log => "pause memory node of orderers",
            Role::Storage => "pause storage node",
            Role::Memory => "pause memory node",
            Role::Peer | Role::Client => "pause peer",
        },
        Fault::Restart(_) => "restart",
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
