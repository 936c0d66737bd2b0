//! Runs whole networks in simulation and under faults, and checks them with an oracle. The networks are built from the
//! real code of `chain` and of all layers below it.
//!
//! A seed determines the network and its faults; [`Scenario::of`](scenario::Scenario::of) returns them without running
//! anything. [`seed::run`] runs that network, which takes seconds:
//!
//! ```
//! use base::rt::simulation::FaultPlan;
//! use simulator::scenario::{FAULTS_MIN, NodeRole, OPERATIONS_MIN, ORDERERS, OrderingEngine, Scenario, role_of};
//! use simulator::seed::RunConfig;
//!
//! let scenario = Scenario::of(20, None);
//! assert_eq!(scenario.ordering, OrderingEngine::Sift { memory_nodes: 3 }); // As in every tenth seed.
//! assert_eq!((scenario.orderers().len(), scenario.logs().len()), (ORDERERS, 3));
//! assert!(scenario.logs().iter().all(|node| role_of(node) == NodeRole::LogMemory));
//! assert!(scenario.clients * scenario.operations >= OPERATIONS_MIN);
//!
//! // A failure prints its fault plan as text. A developer shortens the plan and runs the same seed with it.
//! let text = scenario.plan.to_string();
//! let plan = FaultPlan::parse(&text).expect("a plan is read as it was printed");
//! assert_eq!(plan, scenario.plan);
//! assert!(plan.steps.len() >= FAULTS_MIN);
//! let again = RunConfig { seed: 20, plan: Some(plan), ..RunConfig::default() };
//! assert_eq!((again.seed, again.mutant), (scenario.seed, None));
//! ```
//!
//! * [`scenario`]: everything that a seed decides: sizes, delays, the fault plan.
//! * [`network`]: the network on simulated nodes, and the links between its nodes and its clients. It has three peers,
//!   each monolithic or disaggregated, and either one orderer or a group of orderers. The group runs Sift on memory
//!   nodes, or Raft.
//! * [`client`]: clients that use and misuse the network.
//! * [`recorder`]: records what clients and other nodes have seen, and compares later observations with it while a seed
//!   runs.
//! * [`oracle`]: the ledger's rules, applied to one transaction after the other; [`evidence`]: compares the end of a
//!   run with the oracle.
//! * [`reads`]: compares the reads of endorsers with the ledger; [`early_aborts`]: compares with it the transactions that peers
//!   would not have had ordered.
//! * [`vault`]: the contract that uses private data; [`private_evidence`]: compares them with
//!   the ledger at the end.
//! * [`mutant`]: planted mistakes, which the checkers must catch.
//! * [`seed`]: one run; [`final_checks`]: the checks after the faults of a run; [`campaign`]: many runs, on all cores.
//!
//! `docs/simulation.md` says how to run, replay and extend the simulator.
//!
//! # Guarantees
//!
//! * A seed determines its run: two runs of it have the same events, messages and bytes on disk ([`seed`]).
//! * The oracle shares no validation rule, cache or decoder with the code under test; it shares only the signature
//!   check, the hash function and the generated wire types ([`oracle`]).
//! * A checker finds every planted mistake ([`mutant`]), and a long campaign reaches every fault point and every kind
//!   of fault ([`coverage`]).
//! * A failure names its seed and, if they were given, its plan and mutant: one command line repeats it.
//!
//! # What it needs around it
//!
//! * Above: its own program, which runs a campaign or one seed, and `tests/seeds.rs`, which runs fixed seeds in every
//!   test run.
//! * Below: `base::rt::simulation` provides the simulated world: time, randomness, disks, links and faults. The code
//!   under test is `chain` and all layers below it.
//! * Not covered: gRPC, sockets, TLS and whole processes. The tests of `gateway` and `node` and the project's other
//!   tools cover these.
#![deny(missing_docs)]

pub mod campaign;
pub mod client;
pub mod coverage;
pub mod early_aborts;
pub mod evidence;
pub mod final_checks;
pub mod mutant;
pub mod network;
pub mod oracle;
pub mod private_evidence;
pub mod reads;
pub mod recorder;
pub mod scenario;
pub mod seed;
pub mod vault;
