//! The simulated network: one orderer or a group, and a peer for each organisation, on separate nodes that run the real code.
//!
//! * [`nodes`]: orderers, monolithic peers, and the parts that all peers have in common.
//! * [`compute`]: compute nodes of disaggregated peers; [`pools`]: the memory and storage nodes of these peers.
//! * [`ordering`]: groups of orderers, and the memory nodes that hold their log.
//! * [`private_links`]: the links between peers of different organisations.
//! * [`failover`]: chooses the primary of disaggregated peers whose compute nodes do not choose it themselves.

pub mod compute;
pub mod failover;
pub mod keys;
pub mod members;
pub mod nodes;
pub mod ordering;
pub mod pools;
pub mod private_links;
pub mod service;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::Epoch;
use base::rt::CancellationToken;
use base::rt::simulation::{Sim, SimNode};
use chain::Peer;
use chain::order::Orderer;
use chain::order::orderer_channel::OrdererChannel;
use contract::ContractRegistry;
use ledger::ChannelConfig;
use replica::ComputeRole;
use rma::sim::SimProvider;
use rules::definitions::ContractDefinitions;

use crate::mutant::Mutant;
use crate::recorder::Recorder;
use crate::scenario::{self, PeerMode, Scenario};
use crate::vault::{self, VAULT, Vault};
use compute::{PrimaryMemory, RunningComputeNode};
use failover::FailoverManager;
use members::{CHANNEL, Members, ORGANIZATIONS};
use ordering::OrdererObservations;
use pools::RunningStorageNode;

/// What each node runs, for the checks of the simulator. Nodes do not use it to reach one another.
pub struct RunningRoles<T>(Mutex<BTreeMap<String, Arc<T>>>);

impl<T> Default for RunningRoles<T> {
    fn default() -> Self {
        RunningRoles(Mutex::default())
    }
}

/// Removes a role from [`RunningRoles`] when it ends, also by a crash.
pub struct RunningRoleGuard<'a, T> {
    running: &'a RunningRoles<T>,
    node: String,
}

impl<T> RunningRoles<T> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what runs on a node.
    pub fn register(&self, node: &str, role: Arc<T>) -> RunningRoleGuard<'_, T> {
        self.lock().insert(node.to_owned(), role);
        RunningRoleGuard { running: self, node: node.to_owned() }
    }

    /// What runs on a node, if it is up.
    pub fn get(&self, node: &str) -> Option<Arc<T>> {
        self.lock().get(node).cloned()
    }
}

impl<T> Drop for RunningRoleGuard<'_, T> {
    fn drop(&mut self) {
        let role = self.running.lock().remove(&self.node);
        drop(role);
    }
}

/// All nodes and the data that they share.
pub struct Network {
    /// The simulated world.
    pub sim: Sim,
    /// What the seed decided.
    pub scenario: Scenario,
    /// The identities of all participants, and the genesis block.
    pub members: Members,
    /// Records what nodes show and clients learn.
    pub recorder: Recorder,
    /// The planted mistake, if there is one.
    pub mutant: Option<Mutant>,
    peers: RunningRoles<Peer>,
    /// Compute nodes that find out by themselves who is the primary.
    pub compute_nodes: RunningRoles<RunningComputeNode>,
    /// The orderers, by node.
    pub running_orderers: RunningRoles<Orderer>,
    /// The observations of the orderers.
    pub orderers: OrdererObservations,
    /// The pooled memory of compute nodes.
    pub primary_memory: RunningRoles<PrimaryMemory>,
    /// The storage nodes of disaggregated peers.
    pub storage_nodes: RunningRoles<RunningStorageNode>,
    /// The remote memory of the simulated world.
    pub provider: SimProvider,
    /// Chooses primaries where compute nodes do not choose one themselves.
    pub failover: FailoverManager,
    /// Ends the visits of compute nodes that come and go.
    pub guests: CancellationToken,
}

impl Network {
    /// Starts all nodes.
    pub fn start(
        sim: Sim,
        scenario: Scenario,
        mutant: Option<Mutant>,
        witness: Recorder,
    ) -> Result<Arc<Network>, String> {
        let members = Members::found(&scenario)?;
        let network = Arc::new(Network {
            provider: SimProvider::new(&sim),
            sim,
            scenario,
            members,
            recorder: witness,
            mutant,
            peers: RunningRoles::default(),
            compute_nodes: RunningRoles::default(),
            running_orderers: RunningRoles::default(),
            orderers: OrdererObservations::default(),
            primary_memory: RunningRoles::default(),
            storage_nodes: RunningRoles::default(),
            failover: FailoverManager::default(),
            guests: CancellationToken::new(),
        });
        for name in network.scenario.logs() {
            network.start_node(name, ordering::run_log_memory_node);
        }
        for name in network.scenario.orderers() {
            network.start_node(name, nodes::run_orderer);
        }
        for place in 0..ORGANIZATIONS {
            let PeerMode::Disaggregated(_) = &network.scenario.peer_modes[place] else {
                network.start_node(scenario::peer(place), nodes::run_monolithic_peer);
                continue;
            };
            network.start_node(scenario::storage(place), pools::run_storage_node);
            for name in network.scenario.memory_nodes(place) {
                network.start_node(name, pools::run_memory_node);
            }
            for name in network.scenario.compute_nodes(place) {
                match network.has_automatic_failover(place) {
                    true => network.start_node(name, compute::run_compute_node_with_failover),
                    false => network.start_node(name, compute::run_compute_node),
                }
            }
            if network.has_automatic_failover(place) {
                network.start_node(scenario::guest(place), compute::run_guest);
            }
        }
        Ok(network)
    }

    /// The contracts that peers can run.
    pub fn registry(&self) -> ContractRegistry {
        let mut registry = ContractRegistry::native();
        if self.scenario.private_data.is_some() {
            registry.register(VAULT, Arc::new(Vault)).expect("no native contract has its name");
        }
        registry
    }

    /// The definitions with which peers start; the other contracts follow the channel's policy.
    pub fn definitions(&self) -> ContractDefinitions {
        let vault = self.scenario.private_data.as_ref().map(vault::definition);
        vault.into_iter().map(|definition| (VAULT.to_owned(), definition)).collect()
    }

    fn start_node<F>(self: &Arc<Self>, name: String, role: fn(Arc<Network>, String) -> F)
    where
        F: Future<Output = Result<(), nodes::Ended>> + Send + 'static,
    {
        let of = Arc::clone(self);
        self.node(&name.clone()).start(move || nodes::supervise(Arc::clone(&of), name.clone(), role));
    }

    /// A node.
    pub fn node(&self, name: &str) -> SimNode {
        self.sim.node(name)
    }

    /// The channel at each orderer; `None` for an orderer that does not run.
    pub fn orderer_channels(&self) -> Vec<Option<Arc<OrdererChannel>>> {
        let names = self.scenario.orderers();
        names.iter().map(|name| self.running_orderers.get(name)?.channel(CHANNEL)).collect()
    }

    /// The node that commits for each peer.
    pub fn primaries(&self) -> Vec<String> {
        (0..ORGANIZATIONS).map(|place| self.primary(place)).collect()
    }

    /// The node that commits for a peer; the first node if there is none.
    pub fn primary(&self, organization: usize) -> String {
        let mut nodes = self.scenario.compute_nodes(organization);
        if !self.has_automatic_failover(organization) {
            return nodes.swap_remove(self.failover.primary(organization));
        }
        let newest = (0..nodes.len()).max_by_key(|at| (self.primary_epoch(&nodes[*at]), std::cmp::Reverse(*at)));
        nodes.swap_remove(newest.expect("a peer has a node"))
    }

    /// The epoch under which a node commits for a peer now, where the nodes find out by themselves which one does.
    pub fn epoch(&self, organization: usize) -> Option<Epoch> {
        self.scenario.compute_nodes(organization).iter().filter_map(|name| self.primary_epoch(name)).max()
    }

    fn primary_epoch(&self, name: &str) -> Option<Epoch> {
        match self.compute_nodes.get(name)?.node.role() {
            ComputeRole::Primary(epoch) => Some(epoch),
            ComputeRole::Follower | ComputeRole::Waiting => None,
        }
    }

    /// Whether a compute node joins a peer and leaves it now and then.
    pub fn has_guest(&self, organization: usize) -> bool {
        self.has_automatic_failover(organization) && !self.guests.is_cancelled()
    }

    /// Whether the compute nodes of a peer find out by themselves who is the primary.
    pub fn has_automatic_failover(&self, organization: usize) -> bool {
        self.scenario.peer_modes[organization].pools().is_some_and(|pools| pools.automatic_failover)
    }

    /// The peer that a node commits for, while it does.
    pub fn peer(&self, node: &str) -> Option<Arc<Peer>> {
        let taking = || Some(self.compute_nodes.get(node)?.node.primary()?.peer);
        self.peers.get(node).or_else(taking)
    }

    /// The newest configuration that a peer which runs has in force.
    pub fn newest_config(&self) -> Option<Arc<ChannelConfig>> {
        let configs =
            self.primaries().into_iter().filter_map(|name| Some(self.peer(&name)?.channel(CHANNEL)?.config()));
        configs.max_by_key(|config| config.sequence())
    }

    /// The sequence of a contract's definition at a node; 0 if the ledger has none, `None` if the node does not run.
    pub fn definition(&self, node: &str, contract: &str) -> Option<i64> {
        let policies = self.peer(node)?.channel(CHANNEL)?.policies();
        let is_on_ledger = policies.on_ledger().contains(contract);
        let sequence = policies.definitions().get(contract).map_or(0, |definition| definition.sequence);
        Some(if is_on_ledger { sequence } else { 0 })
    }

    /// The newest sequence of a contract's definition at any peer.
    pub fn newest_definition(&self, contract: &str) -> i64 {
        self.primaries().iter().filter_map(|name| self.definition(name, contract)).max().unwrap_or(0)
    }

    /// The name under which commits are reported to clients: of the peer if its nodes answer for one another, else of the node.
    pub fn commit_source(&self, organization: usize, node: &str) -> String {
        if self.has_automatic_failover(organization) { scenario::peer(organization) } else { node.to_owned() }
    }

    /// All nodes that run something for the network.
    pub fn server_names(&self) -> Vec<String> {
        let mut names = self.scenario.orderers();
        names.extend(self.scenario.logs());
        for (place, form) in self.scenario.peer_modes.iter().enumerate() {
            names.extend(self.scenario.compute_nodes(place));
            names.extend(self.scenario.memory_nodes(place));
            names.extend(form.pools().map(|_| scenario::storage(place)));
        }
        names
    }

    /// The organisation to which this node belongs.
    pub fn organization_index(&self, node: &str) -> usize {
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
