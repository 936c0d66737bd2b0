//! The simulated network: one orderer and a peer for each organisation, on nodes of their own, running the real code.

pub mod members;
pub mod nodes;
pub mod service;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::rt::simulation::{Node, Sim};
use chain::Peer;
use chain::order::Orderer;

use crate::mutant::Mutant;
use crate::scenario::{self, ORDERER, Scenario};
use crate::witness::Witness;
use members::{Members, ORGANIZATIONS};

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
    pub peers: Running<Peer>,
    pub orderer: Running<Orderer>,
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
            sim,
            scenario,
            members,
            witness,
            mutant,
            peers: Running::default(),
            orderer: Running::default(),
        });
        let of = Arc::clone(&network);
        network.node(ORDERER).start(move || nodes::supervise(Arc::clone(&of), ORDERER.to_owned(), nodes::order));
        for name in network.peer_names() {
            let of = Arc::clone(&network);
            network
                .node(&name.clone())
                .start(move || nodes::supervise(Arc::clone(&of), name.clone(), nodes::endorse_and_commit));
        }
        Ok(network)
    }

    /// A node.
    pub fn node(&self, name: &str) -> Node {
        self.sim.node(name)
    }

    /// The names of the peers' nodes.
    pub fn peer_names(&self) -> Vec<String> {
        (0..ORGANIZATIONS).map(scenario::peer).collect()
    }

    /// All nodes that hold data.
    pub fn server_names(&self) -> Vec<String> {
        std::iter::once(ORDERER.to_owned()).chain(self.peer_names()).collect()
    }

    /// Which organisation's peer a node is.
    pub fn place(&self, peer: &str) -> usize {
        self.peer_names().iter().position(|name| name == peer).expect("a peer's node has a peer's name")
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
            node.resume();
            node.restart();
        }
    }
}
