//! Chooses the primary of a disaggregated peer, as an operator could.
//!
//! This manager is outside the simulated world and observes it from there. If a primary was down, paused or cut off
//! from its storage node for longer than the peer's time-out, its spare replaces it, provided that the spare is up. Now
//! and then a healthy primary is replaced. The replaced primary is not notified: it notices that it is fenced.
//!
//! If the compute nodes of a peer choose the primary themselves ([`replica::failover`]), this module only disturbs
//! them: now and then it pauses the primary for longer than the time-out of the others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt;

use super::Network;
use super::members::ORGANIZATIONS;
use crate::mutant::Mutant;
use crate::scenario::{self, PoolConfig};

/// How often it checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How much longer a primary stays paused than the others need to take over.
const PAUSE_BEYOND_TIMEOUT: Duration = Duration::from_millis(400);

/// The primaries.
#[derive(Default)]
pub struct FailoverManager(Mutex<FailoverManagerInner>);

#[derive(Default)]
struct FailoverManagerInner {
    /// By the place of the organisation: which of its compute nodes.
    primaries: [usize; ORGANIZATIONS],
    takeovers: u64,
}

impl FailoverManager {
    fn lock(&self) -> MutexGuard<'_, FailoverManagerInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of a peer's compute nodes is its primary.
    pub fn primary(&self, organization: usize) -> usize {
        self.lock().primaries[organization]
    }

    /// Counts a compute node that has become primary by itself.
    pub fn record_takeover(&self) {
        self.lock().takeovers += 1;
    }

    /// How often a spare has become a primary.
    pub fn takeovers(&self) -> u64 {
        self.lock().takeovers
    }
}

/// Pauses a node for a while.
async fn pause_node(network: Arc<Network>, name: String, time: Duration) {
    let node = network.node(&name);
    if node.is_up() && !node.is_paused() {
        network.recorder.log(format_args!("{name} stands still"));
        node.pause();
        rt::sleep(time).await;
        node.resume();
    }
}

/// Cuts a primary off from its storage node and the peer's other compute node for a while. Clients still reach it.
async fn partition_primary(network: Arc<Network>, organization: usize, name: String, time: Duration) {
    let others = network.scenario.compute_nodes(organization).into_iter().filter(|other| *other != name);
    let others: Vec<String> = others.chain([scenario::storage(organization)]).collect();
    network.recorder.log(format_args!("{name} is cut off from its peer"));
    others.iter().for_each(|other| network.sim.cut(&name, other));
    rt::sleep(time).await;
    others.iter().for_each(|other| network.sim.heal(&name, other));
}

/// Replaces primaries of all peers, until it is aborted.
pub async fn assign_primaries(network: Arc<Network>) {
    let peers: Vec<(usize, &PoolConfig)> = (0..ORGANIZATIONS)
        .filter_map(|place| Some((place, network.scenario.peer_modes[place].pools()?)))
        .filter(|(_, pools)| pools.has_standby)
        .collect();
    let mut away_since = [None; ORGANIZATIONS];
    let mut primary_since = [rt::now(); ORGANIZATIONS];
    loop {
        rt::sleep(POLL_INTERVAL).await;
        let now = rt::now();
        for (place, pools) in &peers {
            let (name, storage) = (network.primary(*place), scenario::storage(*place));
            if pools.automatic_failover {
                if !pools.spurious_failover_interval.is_zero()
                    && now - primary_since[*place] >= pools.spurious_failover_interval
                {
                    primary_since[*place] = now;
                    let (network, time) = (Arc::clone(&network), pools.failover_timeout * 2 + PAUSE_BEYOND_TIMEOUT);
                    // A paused primary answers no request: one that ignores the end of its epoch must be asked meanwhile.
                    drop(match network.mutant {
                        Some(Mutant::LeaseIgnored) => rt::spawn(partition_primary(network, *place, name, time * 3)),
                        _ => rt::spawn(pause_node(network, name, time)),
                    });
                }
                continue;
            }
            let node = network.node(&name);
            let is_away = !node.is_up() || node.is_paused() || network.sim.is_cut(&name, &storage);
            let since = &mut away_since[*place];
            *since = if is_away { since.or(Some(now)) } else { None };
            let is_given_up = since.is_some_and(|since| now - since >= pools.failover_timeout);
            let is_whim = !pools.spurious_failover_interval.is_zero()
                && now - primary_since[*place] >= pools.spurious_failover_interval;
            let other = 1 - network.failover.primary(*place);
            let spare = network.node(&network.scenario.compute_nodes(*place)[other]);
            if (is_given_up || is_whim) && spare.is_up() && !spare.is_paused() {
                network.recorder.log(format_args!("{} is to take over from {name}", spare.name()));
                let mut state = network.failover.lock();
                state.primaries[*place] = other;
                state.takeovers += 1;
                drop(state);
                (away_since[*place], primary_since[*place]) = (None, now);
            }
        }
    }
}
