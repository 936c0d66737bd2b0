//! The simulated network: one orderer or a group of them, and a peer for each organisation, on nodes of their own, running the real
//! code.
//!
//! * [`nodes`]: orderers, monolithic peers, and what all peers do alike.
//! * [`compute`]: compute nodes of disaggregated peers; [`pools`]: their memory and storage nodes.
//! * [`ordering`]: several orderers, and the memory nodes that they order on.
//! * [`succession`]: who is the primary of a disaggregated peer whose compute nodes are told.

pub mod compute;
pub mod keys;
pub mod members;
pub mod nodes;
pub mod ordering;
pub mod pools;
pub mod service;
pub mod succession;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::Epoch;
use base::rt::simulation::{Node, Sim};
use chain::Peer;
use chain::order::Orderer;
use chain::order::chain::Chain;
use chain::succession::Standing;
use rma::sim::SimFabric;

use crate::mutant::Mutant;
use crate::scenario::{self, Form, Scenario};
use crate::witness::Witness;
use compute::{Pooled, Taking};
use members::{CHANNEL, Members, ORGANIZATIONS};
use ordering::Orderers;
use pools::Store;
use succession::Succession;

/// What nodes run, where the simulator's end can take hold of it. Nodes have nothing of one another from here.
pub struct Running<T>(Mutex<BTreeMap<String, Arc<T>>>);

impl<T> Default for Running<T> {
    fn default() -> Self {
        Running(Mutex::default())
    }
}

/// Takes a role out of [`Running`] when it ends, by a crash too.
pub struct Shown<'a, T> {
    running: &'a Running<T>,
    node: String,
}

impl<T> Running<T> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what runs on a node.
    pub fn show(&self, node: &str, role: Arc<T>) -> Shown<'_, T> {
        self.lock().insert(node.to_owned(), role);
        Shown { running: self, node: node.to_owned() }
    }

    /// What runs on a node, if it is up.
    pub fn of(&self, node: &str) -> Option<Arc<T>> {
        self.lock().get(node).cloned()
    }
}

impl<T> Drop for Shown<'_, T> {
    fn drop(&mut self) {
        let role = self.running.lock().remove(&self.node);
        drop(role);
    }
}

/// All nodes and what they know.
pub struct Network {
    pub sim: Sim,
    pub scenario: Scenario,
    pub members: Members,
    pub witness: Witness,
    pub mutant: Option<Mutant>,
    peers: Running<Peer>,
    /// Compute nodes that find out by themselves who is the primary.
    pub computes: Running<Taking>,
    pub orderer: Running<Orderer>,
    /// What is known of the orderers.
    pub orderers: Orderers,
    /// The pooled memory of compute nodes.
    pub pooled: Running<Pooled>,
    pub stores: Running<Store>,
    pub fabric: SimFabric,
    pub succession: Succession,
}

impl Network {
    /// Starts all nodes.
    pub fn start(
        sim: Sim,
        scenario: Scenario,
        mutant: Option<Mutant>,
        witness: Witness,
    ) -> Result<Arc<Network>, String> {
        let members = Members::found(&scenario)?;
        let network = Arc::new(Network {
            fabric: SimFabric::new(&sim),
            sim,
            scenario,
            members,
            witness,
            mutant,
            peers: Running::default(),
            computes: Running::default(),
            orderer: Running::default(),
            orderers: Orderers::default(),
            pooled: Running::default(),
            stores: Running::default(),
            succession: Succession::default(),
        });
        for name in network.scenario.logs() {
            network.start_node(name, ordering::remember);
        }
        for name in network.scenario.orderers() {
            network.start_node(name, nodes::order);
        }
        for place in 0..ORGANIZATIONS {
            let Form::Disaggregated(_) = &network.scenario.forms[place] else {
                network.start_node(scenario::peer(place), nodes::endorse_and_commit);
                continue;
            };
            network.start_node(scenario::storage(place), pools::keep);
            for name in network.scenario.memory_nodes(place) {
                network.start_node(name, pools::lend);
            }
            for name in network.scenario.compute_nodes(place) {
                match network.follows(place) {
                    true => network.start_node(name, compute::take_part),
                    false => network.start_node(name, compute::endorse_and_commit),
                }
            }
        }
        Ok(network)
    }

    fn start_node<F>(self: &Arc<Self>, name: String, role: fn(Arc<Network>, String) -> F)
    where
        F: Future<Output = Result<(), nodes::Ended>> + Send + 'static,
    {
        let of = Arc::clone(self);
        self.node(&name.clone()).start(move || nodes::supervise(Arc::clone(&of), name.clone(), role));
    }

    /// A node.
    pub fn node(&self, name: &str) -> Node {
        self.sim.node(name)
    }

    /// The channel at each orderer; nothing of one that does not run.
    pub fn orders(&self) -> Vec<Option<Arc<Chain>>> {
        let names = self.scenario.orderers();
        names.iter().map(|name| self.orderer.of(name)?.chain(CHANNEL)).collect()
    }

    /// The node that commits for each peer.
    pub fn primaries(&self) -> Vec<String> {
        (0..ORGANIZATIONS).map(|place| self.primary(place)).collect()
    }

    /// The node that commits for a peer; where nobody knows one, the first.
    pub fn primary(&self, place: usize) -> String {
        let mut nodes = self.scenario.compute_nodes(place);
        if !self.follows(place) {
            return nodes.swap_remove(self.succession.primary(place));
        }
        let newest = (0..nodes.len()).max_by_key(|at| (self.reigns(&nodes[*at]), std::cmp::Reverse(*at)));
        nodes.swap_remove(newest.expect("a peer has a node"))
    }

    /// The epoch under which somebody commits for a peer now, where the nodes find out by themselves who does.
    pub fn reign(&self, place: usize) -> Option<Epoch> {
        self.scenario.compute_nodes(place).iter().filter_map(|name| self.reigns(name)).max()
    }

    fn reigns(&self, name: &str) -> Option<Epoch> {
        match self.computes.of(name)?.node.standing() {
            Standing::Primary(epoch) => Some(epoch),
            Standing::Reader | Standing::Waiting => None,
        }
    }

    /// Whether the compute nodes of a peer find out by themselves who is the primary.
    pub fn follows(&self, place: usize) -> bool {
        self.scenario.forms[place].pools().is_some_and(|pools| pools.follows)
    }

    /// The peer that a node commits for, while it does.
    pub fn peer(&self, node: &str) -> Option<Arc<Peer>> {
        let taking = || Some(self.computes.of(node)?.node.primary()?.peer);
        self.peers.of(node).or_else(taking)
    }

    /// Who says what was committed, as far as a client can tell: a peer whose nodes answer for one another, or a node.
    pub fn teller(&self, place: usize, node: &str) -> String {
        if self.follows(place) { scenario::peer(place) } else { node.to_owned() }
    }

    /// All nodes that run something for the network.
    pub fn server_names(&self) -> Vec<String> {
        let mut names = self.scenario.orderers();
        names.extend(self.scenario.logs());
        for (place, form) in self.scenario.forms.iter().enumerate() {
            names.extend(self.scenario.compute_nodes(place));
            names.extend(self.scenario.memory_nodes(place));
            names.extend(form.pools().map(|_| scenario::storage(place)));
        }
        names
    }

    /// Which organisation's node this is.
    pub fn place(&self, node: &str) -> usize {
        let is_of = |place: &usize| {
            let rest = node.strip_prefix(&scenario::peer(*place));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        (0..ORGANIZATIONS).find(is_of).expect("a peer's node has a peer's name")
    }

    /// Ends all faults: links and disks work, and all nodes are up.
    pub fn heal(&self) {
        self.sim.heal_all();
        for (name, _) in &self.scenario.fault_points {
            self.sim.inject(name, 0.0);
        }
        for name in self.server_names() {
            let node = self.node(&name);
            node.disk().set_capacity(None);
            node.disk().set_failing(false);
            node.set_clock_drift_ppm(0);
            node.resume();
            node.restart();
        }
    }
}
