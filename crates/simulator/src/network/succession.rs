//! Who is the primary of a disaggregated peer: what a manager decides in production.
//!
//! It stands outside of the simulated world and looks at it from there: a primary that was down, paused or cut off from its
//! storage node for longer than the peer is patient is replaced by its spare, if that is up. Now and then a primary is
//! replaced to which nothing has happened. Nobody tells a primary that it has been replaced: it finds itself fenced.
//!
//! Peers whose compute nodes find out by themselves ([`chain::succession`]) are only disturbed: now and then their primary is
//! paused for longer than the others are patient.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt;

use super::Network;
use super::members::ORGANIZATIONS;
use crate::mutant::Mutant;
use crate::scenario::{self, Pools};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(5);
/// How much longer a primary stands still than the others need to begin.
const STANDSTILL: Duration = Duration::from_millis(400);

/// The primaries.
#[derive(Default)]
pub struct Succession(Mutex<State>);

#[derive(Default)]
struct State {
    /// By the place of the organisation: which of its compute nodes.
    primaries: [usize; ORGANIZATIONS],
    takeovers: u64,
}

impl Succession {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of a peer's compute nodes is its primary.
    pub fn primary(&self, place: usize) -> usize {
        self.lock().primaries[place]
    }

    /// A compute node has found by itself that it is to be the primary.
    pub fn taken_over(&self) {
        self.lock().takeovers += 1;
    }

    /// How often a spare has become a primary.
    pub fn takeovers(&self) -> u64 {
        self.lock().takeovers
    }
}

/// Pauses a node for a while.
async fn stand_still(network: Arc<Network>, name: String, time: Duration) {
    let node = network.node(&name);
    if node.is_up() && !node.is_paused() {
        network.witness.tell(format_args!("{name} stands still"));
        node.pause();
        rt::sleep(time).await;
        node.resume();
    }
}

/// Cuts a primary off from its storage node and the peer's other compute node for a while. Clients still reach it.
async fn stand_apart(network: Arc<Network>, place: usize, name: String, time: Duration) {
    let others = network.scenario.compute_nodes(place).into_iter().filter(|other| *other != name);
    let others: Vec<String> = others.chain([scenario::storage(place)]).collect();
    network.witness.tell(format_args!("{name} stands apart"));
    others.iter().for_each(|other| network.sim.cut(&name, other));
    rt::sleep(time).await;
    others.iter().for_each(|other| network.sim.heal(&name, other));
}

/// Replaces primaries of all peers, until it is aborted.
pub async fn reign(network: Arc<Network>) {
    let peers: Vec<(usize, &Pools)> = (0..ORGANIZATIONS)
        .filter_map(|place| Some((place, network.scenario.forms[place].pools()?)))
        .filter(|(_, pools)| pools.has_spare)
        .collect();
    let mut away_since = [None; ORGANIZATIONS];
    let mut reigning_since = [rt::now(); ORGANIZATIONS];
    loop {
        rt::sleep(PERIOD).await;
        let now = rt::now();
        for (place, pools) in &peers {
            let (name, storage) = (network.primary(*place), scenario::storage(*place));
            if pools.follows {
                if !pools.whims_every.is_zero() && now - reigning_since[*place] >= pools.whims_every {
                    reigning_since[*place] = now;
                    let (network, time) = (Arc::clone(&network), pools.patience * 2 + STANDSTILL);
                    // One that stands still answers nobody: who ignores that it is over must be asked meanwhile.
                    drop(match network.mutant {
                        Some(Mutant::OfficeIgnored) => rt::spawn(stand_apart(network, *place, name, time * 3)),
                        _ => rt::spawn(stand_still(network, name, time)),
                    });
                }
                continue;
            }
            let node = network.node(&name);
            let is_away = !node.is_up() || node.is_paused() || network.sim.is_cut(&name, &storage);
            let since = &mut away_since[*place];
            *since = if is_away { since.or(Some(now)) } else { None };
            let is_given_up = since.is_some_and(|since| now - since >= pools.patience);
            let is_whim = !pools.whims_every.is_zero() && now - reigning_since[*place] >= pools.whims_every;
            let other = 1 - network.succession.primary(*place);
            let spare = network.node(&network.scenario.compute_nodes(*place)[other]);
            if (is_given_up || is_whim) && spare.is_up() && !spare.is_paused() {
                network.witness.tell(format_args!("{} is to take over from {name}", spare.name()));
                let mut state = network.succession.lock();
                state.primaries[*place] = other;
                state.takeovers += 1;
                drop(state);
                (away_since[*place], reigning_since[*place]) = (None, now);
            }
        }
    }
}
