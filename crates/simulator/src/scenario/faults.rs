//! Draws the faults of a seed, and their times.

use std::time::Duration;

use base::rt::simulation::{Fault, FaultKind, FaultPlan, FaultPlanLimits, FaultStep, Prng};

use super::{
    FAULTS_MIN, MANY_RECORDS, NodeRole, OrderingEngine, PeerMode, client, memory, peer, role_of, standby, storage,
};
use crate::coverage::{FAULT_POINTS, POOLED_FAULT_POINTS, RAFT_FAULT_POINTS, SIFT_FAULT_POINTS};

/// Draws the fault points: none in half of the seeds, else a few, because a run in which everything is delayed shows little
/// else. Pooled peers have many points and pass each far more often than the others: more of them are drawn, and each strikes
/// rarely. Where an index grows, its splits are held up.
pub(super) fn points(
    rng: &mut Prng,
    peer_modes: &[PeerMode],
    records: u64,
    ordering: OrderingEngine,
) -> Vec<(&'static str, f64)> {
    let mut points = Vec::new();
    if rng.one_in(2) {
        let count = 1 + rng.index(4);
        points.extend((0..count).map(|_| (*rng.pick(&FAULT_POINTS), *rng.pick(&[0.02, 0.05, 0.2]))));
    }
    let is_pooled = peer_modes.iter().any(|form| form.pools().is_some());
    if is_pooled && !rng.one_in(3) {
        let count = 1 + rng.index(10);
        for _ in 0..count {
            let (name, rate) = *rng.pick(&POOLED_FAULT_POINTS);
            points.push((name, rate * *rng.pick(&[0.2, 1.0, 1.0])));
        }
    }
    if is_pooled && records >= MANY_RECORDS {
        points.extend(POOLED_FAULT_POINTS.iter().filter(|(name, _)| name.starts_with("state.split.")));
    }
    let of_group: &[(&'static str, f64)] = match ordering {
        OrderingEngine::Solo => &[],
        OrderingEngine::Sift { .. } => &SIFT_FAULT_POINTS,
        OrderingEngine::Raft => &RAFT_FAULT_POINTS,
    };
    if !of_group.is_empty() && rng.one_in(2) {
        let count = 1 + rng.index(of_group.len());
        points.extend((0..count).map(|_| *rng.pick(of_group)));
    }
    points
}

/// Faults of nodes, disks and clocks, of the links between nodes, clients included, and now and then of a whole peer. Where
/// several orderers order, also one to three upheavals that only a group survives, or as many as a planted mistake needs.
pub(super) fn plan(
    rng: &mut Prng,
    forms: &[PeerMode],
    clients: usize,
    ordering: OrderingEngine,
    orderer_faults: Option<usize>,
) -> FaultPlan {
    let (orderers, logs) = (ordering.orderers(), ordering.logs());
    let groups: Vec<PeerNodeNames> =
        forms.iter().enumerate().map(|(place, form)| PeerNodeNames::new(place, form)).collect();
    let with_disks: Vec<String> =
        orderers.iter().cloned().chain(groups.iter().map(|group| group.disk.clone())).collect();
    let servers: Vec<String> =
        orderers.iter().chain(&logs).cloned().chain(groups.iter().flat_map(PeerNodeNames::nodes)).collect();
    let within = Duration::from_millis(20)..Duration::from_millis(2_500);
    let of_nodes = FaultPlanLimits {
        nodes: servers.clone(),
        kinds: vec![FaultKind::Crash, FaultKind::Crash, FaultKind::Crash, FaultKind::Pause],
        faults: 2 + rng.index(2 + servers.len() / 2),
        within: within.clone(),
        lasting: Duration::from_millis(1)..Duration::from_millis(800),
        down_max: 1 + rng.index(servers.len()),
    };
    let of_disks = FaultPlanLimits {
        nodes: with_disks.clone(),
        kinds: vec![FaultKind::Fill, FaultKind::Fail],
        faults: rng.index(4),
        ..of_nodes.clone()
    };
    let of_clocks = FaultPlanLimits {
        nodes: servers.clone(),
        kinds: vec![FaultKind::Drift],
        faults: if rng.one_in(2) { 0 } else { rng.index(6) },
        lasting: Duration::from_millis(50)..Duration::from_secs(3),
        ..of_nodes.clone()
    };
    let mut steps = FaultPlan::random(rng.number(), &of_nodes).steps;
    steps.extend(FaultPlan::random(rng.number(), &of_disks).steps);
    steps.extend(FaultPlan::random(rng.number(), &of_clocks).steps);
    let links = links(&groups, clients, &orderers, &logs);
    for _ in 0..1 + rng.index(2 + servers.len() / 3) {
        let (one, other) = rng.pick(&links).clone();
        let of_link = FaultPlanLimits {
            nodes: vec![one, other],
            kinds: vec![FaultKind::Cut, FaultKind::Cut, FaultKind::Break],
            faults: 1,
            within: within.clone(),
            lasting: Duration::from_millis(5)..Duration::from_millis(1_500),
            down_max: 0,
        };
        steps.extend(FaultPlan::random(rng.number(), &of_link).steps);
    }
    if rng.one_in(4) {
        let at = Duration::from_millis(100 + rng.below(2_000));
        for node in rng.pick(&groups).nodes() {
            let lasting = Duration::from_millis(1 + rng.below(400));
            steps.push(FaultStep { at, fault: Fault::Crash(node), lasting: Some(lasting) });
        }
    }
    if ordering.is_group() {
        for _ in 0..orderer_faults.unwrap_or_else(|| 1 + rng.index(3)) {
            steps.extend(orderer_fault(rng, &orderers, &logs));
        }
    }
    // Replaces steps that did not fit beside the others.
    for (place, node) in with_disks.iter().enumerate().take(FAULTS_MIN.saturating_sub(steps.len())) {
        let at = Duration::from_millis(3_000 + 500 * place as u64);
        steps.push(FaultStep { at, fault: Fault::Crash(node.clone()), lasting: Some(Duration::from_millis(200)) });
    }
    steps.sort_by_key(|step| step.at);
    FaultPlan { steps }
}

/// A fault of a group of orderers: an orderer that may lead is killed, paused or cut off from all others, which then continue
/// without it; one or all of the group's memory nodes lose their contents; or the whole group loses power.
fn orderer_fault(rng: &mut Prng, orderers: &[String], logs: &[String]) -> Vec<FaultStep> {
    let at = Duration::from_millis(100 + rng.below(2_200));
    // Longer than the others' election time-out, and shorter than clients wait for an answer.
    let lasting = Some(Duration::from_millis(200 + rng.below(300)));
    let one = rng.pick(orderers).clone();
    let crash = |nodes: &[String], rng: &mut Prng| {
        let crash = |node: &String| {
            let lasting = Some(Duration::from_millis(1 + rng.below(600)));
            FaultStep { at, fault: Fault::Crash(node.clone()), lasting }
        };
        nodes.iter().map(crash).collect()
    };
    match rng.index(if logs.is_empty() { 6 } else { 9 }) {
        0 => vec![FaultStep { at, fault: Fault::Crash(one), lasting }],
        1 => vec![FaultStep { at, fault: Fault::Pause(one), lasting }],
        2..=4 => {
            let others = orderers.iter().filter(|other| **other != one).chain(logs);
            let cut = |other: &String| FaultStep { at, fault: Fault::Cut(one.clone(), other.clone()), lasting };
            others.map(cut).collect()
        }
        5 => crash(&[orderers, logs].concat(), rng),
        6..=7 => crash(&[rng.pick(logs).clone()], rng),
        _ => crash(logs, rng),
    }
}

/// The nodes of one peer.
struct PeerNodeNames {
    compute: Vec<String>,
    memory: Vec<String>,
    /// The node that has a disk.
    disk: String,
}

impl PeerNodeNames {
    fn new(organization: usize, form: &PeerMode) -> PeerNodeNames {
        let PeerMode::Disaggregated(pools) = form else {
            return PeerNodeNames { compute: vec![peer(organization)], memory: Vec::new(), disk: peer(organization) };
        };
        let mut compute = vec![peer(organization)];
        compute.extend(pools.has_standby.then(|| standby(organization)));
        let memory = (0..pools.memory_nodes).map(|number| memory(organization, number)).collect();
        PeerNodeNames { compute, memory, disk: storage(organization) }
    }

    fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.compute.iter().chain(&self.memory).cloned().collect();
        if !nodes.contains(&self.disk) {
            nodes.push(self.disk.clone());
        }
        nodes
    }
}

/// The pairs of nodes that communicate.
fn links(groups: &[PeerNodeNames], clients: usize, orderers: &[String], logs: &[String]) -> Vec<(String, String)> {
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
            NodeRole::Orderer => "crash orderer",
            NodeRole::LogMemory => "crash memory node of orderers",
            NodeRole::Storage => "crash storage node",
            NodeRole::Memory => "crash memory node",
            NodeRole::Peer | NodeRole::Client => "crash peer",
        },
        Fault::Pause(node) => match role_of(node) {
            NodeRole::Orderer => "pause orderer",
            NodeRole::LogMemory => "pause memory node of orderers",
            NodeRole::Storage => "pause storage node",
            NodeRole::Memory => "pause memory node",
            NodeRole::Peer | NodeRole::Client => "pause peer",
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
