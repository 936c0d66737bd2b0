//! One seed, from a network without blocks to a verdict.
//!
//! 1. The network starts; what contracts need is loaded, without faults yet.
//! 2. Clients work while the fault plan runs. The witness watches.
//! 3. Everything is healed. A fresh transaction must commit, and all peers must come to the same height as the orderer.
//! 4. All nodes crash once more, and come back with the state that they had.
//! 5. Peers stop in an orderly way, and their ledgers are verified on disk. Then [`verdict`](crate::verdict) is reached.
//!
//! A seed is run twice. The second run ends with step 4, and must have the digest of the first until there: every task,
//! message and byte on disk the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::rt::disk::Directory;
use base::rt::simulation::{Digest, FaultPoint, Plan, Report, Sim, Simulation};
use chain::Channel;
use identity::Hash;
use ledger::verify::{VerifyOptions, verify};
use storage::GroupSync;
use storage::blocks::{BlockOptions, BlockStore};

use crate::client::workload::{Call, loads};
use crate::client::{Claims, Client, wait_until};
use crate::mutant::Mutant;
use crate::network::Network;
use crate::network::members::CHANNEL;
use crate::network::nodes::{BLOCKS, DATA};
use crate::scenario::{self, ORDERER, Scenario, kind_of};
use crate::verdict::{self, Codes, Evidence, PeerEvidence};
use crate::witness::{Notes, Witness};

/// The most virtual time of a run.
const TIME_MAX: Duration = Duration::from_secs(300);
/// The most steps of a run.
const STEPS_MAX: u64 = 5_000_000;
/// How long the network may take for what it must do without faults.
const HEALTHY_MAX: Duration = Duration::from_secs(60);
/// Lines of the trace that a failure shows.
const TRACE_LINES: usize = 60;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Order {
    pub seed: u64,
    pub mutant: Option<Mutant>,
    /// Instead of the seed's own.
    pub plan: Option<Plan>,
}

/// What a run came to that found nothing wrong.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub digest: Digest,
    pub steps: u64,
    /// Virtual time.
    pub elapsed: Duration,
    pub blocks: u64,
    /// How clients' operations ended.
    pub operations: BTreeMap<&'static str, u64>,
    pub codes: Codes,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    pub fault_points: BTreeMap<&'static str, FaultPoint>,
    pub story: Vec<String>,
}

/// A run that found something wrong.
#[derive(Clone, Debug)]
pub struct Broken {
    pub order: Order,
    pub reason: String,
    /// As it ran.
    pub plan: Plan,
    pub story: Vec<String>,
    /// The last events of the trace.
    pub trace: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.order.seed, self.reason)?;
        write!(f, "  replay with: cargo xtask sim --seed {}", self.order.seed)?;
        if let Some(mutant) = self.order.mutant {
            write!(f, "\n  with the planted mistake {}", mutant.name())?;
        }
        write!(f, "\n  fault plan: {}", self.plan)
    }
}

impl Broken {
    /// The end of the story and of the trace.
    pub fn details(&self, story_lines: usize) -> String {
        let story = self.story.len().saturating_sub(story_lines);
        let mut text = String::from("  story:\n");
        self.story[story..].iter().for_each(|line| text += &format!("    {line}\n"));
        text += "  trace:\n";
        self.trace.iter().for_each(|line| text += &format!("    {line}\n"));
        text
    }
}

/// Runs a seed twice.
///
/// # Errors
/// What is wrong, the second run being another than the first included.
pub fn run(order: &Order) -> Result<Outcome, Box<Broken>> {
    let first = run_once(order)?;
    let second = run_part(order, Part::ToTheLastCrash)?;
    if first.digest == second.digest {
        return Ok(first);
    }
    // The first line of the two stories that differs says most.
    let differs = first.story.iter().zip(&second.story).find(|(one, other)| one != other);
    let differs = differs.map_or(String::new(), |(one, other)| format!("; first {one:?}, then {other:?}"));
    let reason = format!("the same seed gave two runs, {} and {}{differs}", first.digest, second.digest);
    let plan = scenario_of(order).plan;
    Err(Box::new(Broken { order: order.clone(), reason, plan, story: second.story, trace: Vec::new() }))
}

fn scenario_of(order: &Order) -> Scenario {
    let mut scenario = Scenario::of(order.seed);
    if let Some(plan) = &order.plan {
        scenario.plan = plan.clone();
    }
    scenario
}

/// How much of a run to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    /// Steps 1 to 4.
    ToTheLastCrash,
}

/// Runs a seed once.
///
/// # Errors
/// What is wrong.
pub fn run_once(order: &Order) -> Result<Outcome, Box<Broken>> {
    run_part(order, Part::All)
}

fn run_part(order: &Order, part: Part) -> Result<Outcome, Box<Broken>> {
    let scenario = scenario_of(order);
    let plan = scenario.plan.clone();
    let notes = Notes::default();
    let micros = |(from, to)| Duration::from_micros(from)..Duration::from_micros(to);
    let simulation = Simulation::new(order.seed)
        .steps_max(STEPS_MAX)
        .time_max(TIME_MAX)
        .trace_lines_max(TRACE_LINES)
        .link_delay(micros(scenario.link_micros))
        .sync_delay(micros(scenario.sync_micros));
    let mutant = order.mutant;
    let in_world = notes.clone();
    let result = simulation.run(|sim| async move {
        let witness = Witness::new(sim.clone(), in_world);
        let watching = witness.clone();
        let driven = async {
            let driven = drive(sim, scenario, mutant, witness.clone(), part).await;
            driven.map_err(|reason| witness.accuse(reason)).ok()
        };
        watching.watch(driven).await.expect("an error is an accusation, which ends the run")
    });
    match result {
        Ok(Report { value: Facts { claims, codes, blocks, digest }, steps, elapsed, fault_points, .. }) => {
            let mut faults = BTreeMap::new();
            for step in &plan.steps {
                *faults.entry(kind_of(&step.fault)).or_default() += 1;
            }
            Ok(Outcome {
                seed: order.seed,
                digest,
                steps,
                elapsed,
                blocks,
                operations: claims.outcomes,
                codes,
                faults,
                fault_points,
                story: notes.story(),
            })
        }
        Err(failure) => {
            let reason = notes.accusation().unwrap_or_else(|| failure.reason.to_string());
            let (story, trace) = (notes.story(), failure.recent);
            Err(Box::new(Broken { order: order.clone(), reason, plan, story, trace }))
        }
    }
}

/// What a run leaves.
struct Facts {
    claims: Claims,
    codes: Codes,
    blocks: u64,
    /// Of everything up to the end of step 4.
    digest: Digest,
}

async fn drive(
    sim: Sim,
    scenario: Scenario,
    mutant: Option<Mutant>,
    witness: Witness,
    part: Part,
) -> Result<Facts, String> {
    witness.tell(format_args!("{scenario:?}"));
    let clients = scenario.clients;
    let plan = scenario.plan.clone();
    let calls = loads(&scenario);
    let network = Network::start(sim.clone(), scenario, mutant, witness.clone())?;
    let mut claims = insist(&network, calls, "load what contracts need").await?;

    if let Some(mutant) = mutant {
        mutant.plant(&network);
    }
    for (name, probability) in &network.scenario.fault_points {
        sim.inject(name, *probability);
    }
    let work = (0..clients).map(|place| {
        let client = Client::new(Arc::clone(&network), place, sim.chance());
        network.node(&scenario::client(place)).spawn(client.work())
    });
    let work: Vec<_> = work.collect();
    let faults = rt::spawn({
        let sim = sim.clone();
        async move { sim.run_plan(&plan).await }
    });
    for client in work {
        claims.add(client.await.map_err(|_| "a client was aborted")?);
    }
    faults.await.map_err(|_| "the fault plan was aborted")?;

    network.heal();
    witness.tell("everything is healed");
    let last = Call::new("basic", "CreateAsset", ["alive", "green", "1", "everybody", "1"].map(str::to_owned));
    claims.add(insist(&network, vec![last], "commit a fresh transaction after everything was healed").await?);
    // What was handed over and not waited for becomes a block, or nothing.
    rt::sleep(2 * network.scenario.batch_timeout + Duration::from_millis(100)).await;
    let height = caught_up(&network).await?;
    let before = digests(&network).await?;

    for name in network.server_names() {
        network.node(&name).crash();
    }
    network.heal();
    let height_after = caught_up(&network).await?;
    if height_after != height {
        return Err(format!("the network had {height} blocks, and {height_after} after a crash of all nodes"));
    }
    let after = digests(&network).await?;
    let digest = sim.digest();
    if part == Part::ToTheLastCrash {
        return Ok(Facts { claims, codes: Codes::new(), blocks: height, digest });
    }

    let blocks = orderer_blocks(&network)?;
    let mut peers = Vec::new();
    for (place, name) in network.peer_names().into_iter().enumerate() {
        let blocks = read_all(&*channel(&network, &name)?).await?;
        peers.push(PeerEvidence { name, blocks, digests: [before[place], after[place]] });
    }
    verify_on_disk(&network).await?;
    let evidence = Evidence { blocks, peers, claims };
    let codes = verdict::reach(&network, &evidence)?;
    Ok(Facts { claims: evidence.claims, codes, blocks: height, digest })
}

/// Has calls committed by a client of their own.
async fn insist(network: &Arc<Network>, calls: Vec<Call>, what: &str) -> Result<Claims, String> {
    let client = Client::new(Arc::clone(network), 0, network.sim.chance());
    let work = network.node(&scenario::client(0)).spawn(async move { client.insist(&calls).await });
    let done = rt::timeout(HEALTHY_MAX, work).await;
    let done = done.map_err(|_| format!("the network did not {what} within {HEALTHY_MAX:?}"))?;
    done.map_err(|_| "a client was aborted".to_owned())
}

fn channel(network: &Network, peer: &str) -> Result<Arc<Channel>, String> {
    let channel = network.peers.of(peer).and_then(|peer| peer.channel(CHANNEL));
    channel.ok_or_else(|| format!("{peer} does not run"))
}

fn orderer_height(network: &Network) -> Option<u64> {
    Some(network.orderer.of(ORDERER)?.chain(CHANNEL)?.height())
}

/// Waits until all peers have as many blocks as the orderer.
async fn caught_up(network: &Network) -> Result<u64, String> {
    let heights = || {
        let mut heights = vec![orderer_height(network)];
        heights.extend(network.peer_names().iter().map(|name| Some(channel(network, name).ok()?.height())));
        heights
    };
    let equal = || {
        let heights = heights();
        heights[0].is_some() && heights.iter().all(|height| *height == heights[0])
    };
    if wait_until(HEALTHY_MAX, equal).await {
        return Ok(orderer_height(network).expect("the heights were just compared"));
    }
    Err(format!("orderer and peers did not come to one height within {HEALTHY_MAX:?}: {:?}", heights()))
}

/// The digest of every peer's state.
async fn digests(network: &Network) -> Result<Vec<Hash>, String> {
    let mut digests = Vec::new();
    for name in network.peer_names() {
        let channel = channel(network, &name)?;
        let digest = network.node(&name).spawn(async move { channel.state().digest().await });
        let digest = digest.await.map_err(|_| format!("{name} went away"))?;
        digests.push(digest.map_err(|error| format!("the state of {name}: {error}"))?);
    }
    Ok(digests)
}

fn orderer_blocks(network: &Network) -> Result<Vec<base::Bytes>, String> {
    let chain =
        network.orderer.of(ORDERER).and_then(|orderer| orderer.chain(CHANNEL)).ok_or("the orderer went away")?;
    let block = |number| match chain.block(number) {
        Ok(Some(block)) => Ok(block),
        other => Err(format!("the orderer's block {number}: {other:?}")),
    };
    (0..chain.height()).map(block).collect()
}

async fn read_all(channel: &Channel) -> Result<Vec<base::Bytes>, String> {
    let mut blocks = Vec::new();
    for number in 0..channel.height() {
        match channel.read_block(number).await {
            Ok(Some(block)) => blocks.push(block),
            other => return Err(format!("a peer's block {number}: {other:?}")),
        }
    }
    Ok(blocks)
}

/// Stops the peers and the orderer, and verifies what they leave on disk.
async fn verify_on_disk(network: &Network) -> Result<(), String> {
    for name in network.peer_names() {
        let peer = network.peers.of(&name).ok_or_else(|| format!("{name} does not run"))?;
        let stopped = network.node(&name).spawn(async move { peer.stop().await.map_err(|error| error.to_string()) });
        stopped.await.map_err(|_| format!("{name} went away"))?.map_err(|error| format!("stopping {name}: {error}"))?;
    }
    for name in network.server_names() {
        let options = VerifyOptions { validated: name != ORDERER, creators: false };
        if name == ORDERER {
            // It has no orderly way to end here; its log is read as a crash leaves it.
            network.node(&name).crash();
        } else if !wait_until(HEALTHY_MAX, || network.peers.of(&name).is_none()).await {
            return Err(format!("{name} was stopped and runs on"));
        }
        let verified = network.node(&name).spawn(async move {
            let directory = Directory::open(format!("{DATA}/{BLOCKS}/{CHANNEL}")).await;
            let directory = directory.map_err(|error| error.to_string())?;
            let store = BlockStore::open(directory, GroupSync::new(), BlockOptions::default()).await;
            let (store, _) = store.map_err(|error| error.to_string())?;
            verify(&store, options, |_| {}).await.map_err(|error| error.to_string())
        });
        let report = verified.await.map_err(|_| format!("{name} went away"))?;
        report.map_err(|reason| format!("the ledger of {name} on disk: {reason}"))?;
    }
    Ok(())
}
