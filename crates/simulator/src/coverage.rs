//! The events that must occur in a campaign of many seeds: a simulation is no evidence about code that it never reaches.

use crate::campaign::CampaignTotals;

/// Kinds of faults, as [`crate::scenario::kind_of`] names them, and their consequences: [`TAKEOVER`], and the events of groups
/// of orderers.
pub const FAULTS: [&str; 21] = [
    "break",
    "crash memory node",
    "crash memory node of orderers",
    "crash orderer",
    "crash peer",
    "crash storage node",
    "cut",
    "drift",
    FAILOVER_ON_RAFT,
    FAILOVER_ON_SIFT,
    "failing disk",
    "full disk",
    GROUP_REFORMATTED,
    MEMORY_NODE_READMITTED,
    "mute",
    "pause memory node",
    "pause memory node of orderers",
    "pause orderer",
    "pause peer",
    "pause storage node",
    TAKEOVER,
];

/// A spare compute node has become the primary, whatever the state of the previous primary.
pub const TAKEOVER: &str = "takeover";
/// A group on memory nodes has a new leader.
pub const FAILOVER_ON_SIFT: &str = "failover on sift";
/// A group on Raft has a new leader.
pub const FAILOVER_ON_RAFT: &str = "failover on raft";
/// A memory node of orderers had lost its contents, and its group has copied them there again.
pub const MEMORY_NODE_READMITTED: &str = "memory node of orderers back";
/// Too many memory nodes of orderers had lost their contents at once, and the group was formatted again.
pub const GROUP_REFORMATTED: &str = "group reformatted";

/// How clients' attempts to change the configuration or a definition end.
pub const CHANGES: [&str; 5] =
    ["changes refused", "reconfigured", "defined", "definition invalid", "definition refused"];

/// Validation codes that clients provoke.
pub const CODES: [u8; 9] = [0, 3, 5, 8, 9, 10, 11, 12, 23];

/// Fault points in the code under test that networks of all forms pass.
pub const FAULT_POINTS: [&str; 13] = [
    "chain.commit.appended",
    "chain.commit.applied",
    "chain.commit.durable",
    "chain.commit.validated",
    "chain.order.appended",
    "chain.order.durable",
    "state.persist.durable",
    "state.persist.written",
    "storage.blocks.append_torn",
    "storage.blocks.index_missing",
    "storage.blocks.mark_missing",
    "storage.blocks.segment_early",
    "validation.parallel.yield",
];

/// Fault points that only disaggregated peers pass, and the probability with which they strike if they are drawn: a verb is
/// posted thousands of times in a run, a section granted a few times.
pub const POOLED_FAULT_POINTS: [(&str, f64); 60] = [
    ("chain.offload.late", 0.1),
    ("chain.offload.lie", 0.02),
    ("chain.offload.other_block", 0.1),
    ("chain.offload.other_policies", 0.1),
    ("chain.failover.confirmed", 0.1),
    ("pool.fence.answer_lost", 0.2),
    ("pool.fence.lost", 0.2),
    ("pool.grant.answer_lost", 0.2),
    ("pool.grant.lost", 0.2),
    ("pool.grant.register", 0.2),
    ("pool.grow.link_lost", 0.2),
    ("pool.hello.answer_lost", 0.2),
    ("pool.hello.lost", 0.2),
    ("pool.list.answer_lost", 0.2),
    ("pool.list.lost", 0.2),
    ("pool.release.answer_lost", 0.5),
    ("pool.release.lost", 0.5),
    ("pool.revoke.unconfirmed", 0.2),
    ("pool.room.answer_lost", 0.8),
    ("pool.room.lost", 0.8),
    ("rma.sim.delay_revocation", 0.3),
    ("rma.sim.delay_verb", 0.01),
    ("rma.sim.exhausted", 0.2),
    ("rma.sim.lose_completion", 0.001),
    ("rma.sim.lose_verb", 0.001),
    ("rma.sim.tear", 0.01),
    ("state.apply.caches", 0.05),
    ("state.apply.link", 0.05),
    ("state.apply.locate", 0.05),
    ("state.apply.publish", 0.05),
    ("state.apply.slot", 0.05),
    ("state.apply.write", 0.05),
    ("state.fill.begin", 0.04),
    ("state.fill.slot", 0.04),
    ("state.fill.write", 0.04),
    ("state.grow", 0.2),
    ("state.loss", 0.5),
    ("state.range.page", 0.02),
    ("state.read.bucket", 0.02),
    ("state.read.record", 0.02),
    ("state.read.storage", 0.02),
    ("state.followers.ack", 0.02),
    ("state.followers.done", 0.05),
    ("state.followers.follow", 0.02),
    ("state.followers.grant", 0.05),
    ("state.followers.join", 0.2),
    ("state.followers.tell", 0.05),
    ("state.savepoint", 0.2),
    ("state.split.begin", 0.2),
    ("state.split.directory", 0.2),
    ("state.split.rewrite", 0.2),
    ("state.verb.ambiguous", 0.001),
    ("storage.history.page", 0.2),
    ("storage.node.append_received", 0.1),
    ("storage.node.appended", 0.1),
    ("storage.node.durable", 0.1),
    ("storage.node.epoch_written", 0.2),
    ("storage.node.materialized", 1.0),
    ("storage.node.materializing", 1.0),
    ("storage.node.pruning", 0.1),
];

/// Fault points that orderers on memory nodes pass, and the probability with which they strike. For verbs it is lower than at
/// peers, since with every other heartbeat late no leader lasts.
pub const SIFT_FAULT_POINTS: [(&str, f64); 8] = [
    ("consensus.node.answer_lost", 0.05),
    ("consensus.node.request_lost", 0.05),
    ("consensus.node.unconfirmed", 0.05),
    ("rma.sim.delay_revocation", 0.2),
    ("rma.sim.delay_verb", 0.002),
    ("rma.sim.lose_completion", 0.0005),
    ("rma.sim.lose_verb", 0.0005),
    ("rma.sim.tear", 0.01),
];

/// Fault points that orderers on Raft pass.
pub const RAFT_FAULT_POINTS: [(&str, f64); 1] = [("consensus.raft.lose_message", 0.01)];

/// A member of a private collection answers another member's request with forged data.
pub const MEMBER_LIES: &str = "simulator.member.lies";

/// Fault points that members of private collections pass, and the probability with which they strike.
pub const PRIVATE_FAULT_POINTS: [(&str, f64); 12] = [
    ("chain.commit.private_written", 0.1),
    ("private.collect.answer_lost", 0.4),
    ("private.collect.found", 0.1),
    ("private.push.answer_lost", 0.2),
    ("private.push.lost", 0.4),
    ("private.reconcile.found", 0.5),
    ("private.settle.adopted", 0.2),
    ("private.settle.removed", 0.2),
    ("private.sweep.sets", 0.2),
    ("private.sweep.values", 0.2),
    ("private.sweep.waiting", 0.2),
    (MEMBER_LIES, 0.3),
];

/// The events that have not occurred.
pub fn missing(totals: &CampaignTotals) -> Vec<String> {
    let faults = FAULTS.iter().filter(|fault| !totals.faults.contains_key(*fault));
    let changes = CHANGES.iter().filter(|outcome| !totals.operations.contains_key(*outcome));
    let codes = CODES.iter().filter(|code| !totals.codes.contains_key(code));
    let pooled = POOLED_FAULT_POINTS.iter().chain(&SIFT_FAULT_POINTS).chain(&RAFT_FAULT_POINTS);
    let pooled = pooled.chain(&PRIVATE_FAULT_POINTS).map(|(name, _)| name);
    let points = FAULT_POINTS
        .iter()
        .chain(pooled)
        .filter(|name| totals.fault_points.get(*name).is_none_or(|point| point.injected == 0));
    faults
        .map(|fault| format!("the fault {fault}"))
        .chain(changes.map(|outcome| format!("an attempt to change rules with the outcome {outcome}")))
        .chain(codes.map(|code| format!("validation code {code}")))
        .chain(points.map(|name| format!("the fault point {name}")))
        .collect()
}
