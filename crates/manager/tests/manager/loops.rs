//! The loops alone, step by step.

use std::time::Duration;

use manager::{
    Action, Manager, ManagerRecord, ManagerSettings, MemoryView, NodeOrigin, NodeView, Outcome, PeerView, PoolView,
};

fn node(number: usize, busy_percent: u32, queued: u32, quota_percent: Option<u32>) -> NodeView {
    let origin = if number > 1 { NodeOrigin::Managed } else { NodeOrigin::Planned };
    let name = if number > 1 { format!("compute-org1-{number}") } else { "compute-org1".to_owned() };
    let heard = Some(Duration::ZERO);
    NodeView { name, origin, heard, role: String::new(), busy_percent, queued, quota_percent }
}

fn pool(nodes: Vec<NodeView>, memory: Option<MemoryView>) -> PoolView {
    let has_quotas = nodes.iter().any(|node| node.quota_percent.is_some());
    let free_name = Some("compute-org1-9".to_owned());
    PoolView::from([("org1".to_owned(), PeerView { nodes, memory, free_name, has_quotas, storage: None })])
}

/// Shows a pool to a manager for a time, executing everything at once; returns what was done.
fn shown(manager: &mut Manager, pool: &PoolView, ms: std::ops::Range<u64>) -> Vec<Action> {
    let mut done = Vec::new();
    for ms in ms.step_by(100) {
        let now = Duration::from_millis(ms);
        manager.observe(pool, now, ms);
        for due in manager.due(now) {
            done.push(due.intent.action.clone());
            manager.complete("org1", due.intent.number, Outcome::Done, now, ms);
        }
    }
    done
}

#[test]
fn a_queue_counts_only_if_processors_work() {
    let settings = ManagerSettings::default();
    let waits_for_others = pool(vec![node(1, 20, 500, None)], None);
    let mut manager = Manager::start(ManagerRecord::default(), settings);
    assert_eq!(shown(&mut manager, &waits_for_others, 0..5000), []);
    let works = pool(vec![node(1, 60, 500, None)], None);
    let launched = shown(&mut manager, &works, 5000..5300);
    assert_eq!(launched, [Action::Launch { node: "compute-org1-9".to_owned() }]);
}

#[test]
fn a_long_queue_is_answered_at_once() {
    let settings = ManagerSettings::default();
    for (queued, grows) in [(settings.compute.queue_hot, true), (settings.compute.queue_hot - 1, false)] {
        let mut manager = Manager::start(ManagerRecord::default(), settings);
        let calm = pool(vec![node(1, 50, 0, Some(50))], None);
        assert_eq!(shown(&mut manager, &calm, 0..1000), []);
        let swamped = pool(vec![node(1, 100, queued, Some(50))], None);
        let raised = Action::SetQuota { node: "compute-org1".to_owned(), percent: 100 };
        let done = shown(&mut manager, &swamped, 1000..1100);
        assert_eq!(done.contains(&raised), grows, "{queued} queued: {done:?}");
    }
    // A node costs more than a quota: for fewer in the queue the peer is watched first.
    for (queued, grows) in [(settings.compute.queue_swamped, true), (settings.compute.queue_swamped - 1, false)] {
        let mut manager = Manager::start(ManagerRecord::default(), settings);
        assert_eq!(shown(&mut manager, &pool(vec![node(1, 50, 0, Some(100))], None), 0..1000), []);
        let done = shown(&mut manager, &pool(vec![node(1, 100, queued, Some(100))], None), 1000..1100);
        let launched = Action::Launch { node: "compute-org1-9".to_owned() };
        assert_eq!(done.contains(&launched), grows, "{queued} queued: {done:?}");
    }
}

#[test]
fn a_peer_that_nobody_hears_is_left_alone() {
    let mut silent = node(1, 100, 500, Some(50));
    silent.heard = Some(Duration::from_secs(20));
    let mut gone = node(2, 100, 500, Some(50));
    gone.heard = Some(Duration::from_secs(20));
    let mut manager = Manager::start(ManagerRecord::default(), ManagerSettings::default());
    let busy = pool(vec![node(1, 50, 0, Some(50)), node(2, 50, 0, Some(50))], None);
    // It runs, and no record names it: it goes.
    assert_eq!(shown(&mut manager, &busy, 0..100).len(), 1);
    let nobody = pool(vec![silent, node(1, 0, 0, None)], None);
    assert_eq!(shown(&mut manager, &nobody, 100..200), []);
    let nobody = pool(vec![gone], None);
    let mut manager = Manager::start(manager.record().clone(), ManagerSettings::default());
    assert_eq!(shown(&mut manager, &nobody, 0..20).len(), 1, "a stray is known by its being there");
}

#[test]
fn full_memory_whose_misses_are_cheap_does_not_grow() {
    let settings = ManagerSettings::default();
    let memory = |used_mib: u64, misses| MemoryView {
        budget_bytes: 256 << 20,
        leased_bytes: 256 << 20,
        used_bytes: used_mib << 20,
        available_bytes: 4 << 30,
        misses,
    };
    // A step costs 640 us/s: 6 misses a second cost 1,200, and 7 cost more than two steps.
    for (used, rate, grows) in [(256, 6, false), (256, 7, true), (100, 50, false)] {
        let mut manager = Manager::start(ManagerRecord::default(), settings);
        let mut done = Vec::new();
        for second in 0..11 {
            let view = pool(vec![node(1, 50, 0, None)], Some(memory(used, second * rate)));
            done.extend(shown(&mut manager, &view, second * 1000..second * 1000 + 100));
        }
        let grown = Action::SetMemory { bytes: (256 << 20) + settings.memory.step_bytes };
        assert_eq!(done.first() == Some(&grown), grows, "{used} MiB, {rate} misses a second: {done:?}");
    }
}

#[test]
fn an_unused_budget_stays_and_unused_memory_is_given_back() {
    let settings = ManagerSettings::default();
    for (leased_mib, shrinks) in [(0, false), (224, false), (240, true)] {
        let mut manager = Manager::start(ManagerRecord::default(), settings);
        let memory = MemoryView {
            budget_bytes: 256 << 20,
            leased_bytes: leased_mib << 20,
            used_bytes: 0,
            available_bytes: 4 << 30,
            misses: 0,
        };
        let view = pool(vec![node(1, 50, 0, None)], Some(memory));
        let done = shown(&mut manager, &view, 0..40_000);
        assert_eq!(!done.is_empty(), shrinks, "{leased_mib} MiB: {done:?}");
    }
}
