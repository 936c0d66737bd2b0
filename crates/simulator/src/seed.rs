//! One seed, from a network without blocks to a verdict.
//!
//! 1. The network starts; what contracts need is loaded, without faults yet.
//! 2. Clients work while the fault plan runs. The witness watches.
//! 3. Everything is healed. Where a group of orderers orders, now and then all but a majority of it is taken away again: what is left
//!    must commit a transaction, and reach every peer. Then a fresh transaction must commit, all peers must come to the same height as
//!    the orderers, and pooled memory must be accounted for.
//! 4. All nodes crash once more, and come back with the state that they had.
//! 5. Peers and storage nodes stop in an orderly way, and their ledgers are verified on disk. Then [`verdict`](crate::verdict) is reached.
//!
//! A seed is run twice. The second run ends with step 4, and must have the digest of the first until there: every task,
//! message and byte on disk the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::event::Value;
use base::rt;
use base::rt::simulation::{Digest, FaultPoint, Plan, Report, Sim, Simulation};
use consensus::ordered;
use state::disaggregated::fault;

use crate::client::workload::{Call, loads};
use crate::client::{Claims, Client};
use crate::coverage::TAKEOVER;
use crate::ending::{self, caught_up};
use crate::mutant::Mutant;
use crate::network::{Network, ordering, succession};
use crate::scenario::{self, Scenario, kind_of};
use crate::verdict::{self, Codes, Evidence};
use crate::witness::{Notes, Witness};

/// The most virtual time of a run.
const TIME_MAX: Duration = Duration::from_secs(300);
/// The most steps of a run.
const STEPS_MAX: u64 = 20_000_000;
/// How long the network may take for what it must do without faults.
pub const HEALTHY_MAX: Duration = Duration::from_secs(60);
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
        let Order { seed, mutant, plan } = &self.order;
        match (mutant, plan) {
            (None, None) => write!(f, "  replay with: cargo xtask sim --seed {seed}")?,
            _ => write!(f, "  replay with: cargo run --release -p heddle-simulator -- --seed {seed}")?,
        }
        if let Some(mutant) = mutant {
            write!(f, " --mutant {}", mutant.name())?;
        }
        if let Some(plan) = plan {
            write!(f, " --plan '{plan}'")?;
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
    let mut scenario = Scenario::of(order.seed, order.mutant);
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
    // The hooks of the state and of the engines that order are the thread's, on which the whole world runs.
    fault::plant(mutant.map_or(fault::Mutant::None, Mutant::of_state));
    ordered::fault::plant(mutant.map_or(ordered::fault::Mutant::None, Mutant::of_ordering));
    let result = simulation.run(|sim| async move {
        let witness = Witness::new(sim.clone(), in_world);
        let watching = witness.clone();
        let driven = async {
            let driven = drive(sim, scenario, mutant, witness.clone(), part).await;
            driven.map_err(|reason| witness.accuse(reason)).ok()
        };
        watching.watch(driven).await.expect("an error is an accusation, which ends the run")
    });
    fault::plant(fault::Mutant::None);
    ordered::fault::plant(ordered::fault::Mutant::None);
    match result {
        Ok(Report { events, .. }) if suspicious(&events).is_some() => {
            let reason = suspicious(&events).unwrap_or_default();
            Err(Box::new(Broken { order: order.clone(), reason, plan, story: notes.story(), trace: Vec::new() }))
        }
        Ok(Report {
            value: Facts { claims, codes, blocks, takeovers, upheavals, digest },
            steps,
            elapsed,
            fault_points,
            ..
        }) => {
            let mut faults = BTreeMap::new();
            for step in &plan.steps {
                *faults.entry(kind_of(&step.fault)).or_default() += 1;
            }
            if takeovers > 0 {
                faults.insert(TAKEOVER, takeovers);
            }
            faults.extend(upheavals);
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

/// What the state counts when pooled memory was not as its protocols promise, whether a result was wrong for it or not.
fn suspicious(events: &BTreeMap<&'static str, Value>) -> Option<String> {
    let names = ["heddle_state_records_untrusted_total", "heddle_state_slots_missed_total"];
    let counted = names.into_iter().filter_map(|name| match events.get(name) {
        Some(Value::Counter(count)) if *count > 0 => Some(format!("{name} is {count}")),
        _ => None,
    });
    counted.reduce(|one, other| format!("{one}, {other}"))
}

/// What a run leaves.
struct Facts {
    claims: Claims,
    codes: Codes,
    blocks: u64,
    takeovers: u64,
    /// What happened to groups of orderers.
    upheavals: BTreeMap<&'static str, u64>,
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
    // An index grows most while it is filled.
    for (name, probability) in network.scenario.fault_points.iter().filter(|(name, _)| name.starts_with("state.split."))
    {
        sim.inject(name, *probability);
    }
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
    let successions = rt::spawn(succession::reign(Arc::clone(&network))).abort_on_drop();
    for client in work {
        claims.add(client.await.map_err(|_| "a client was aborted")?);
    }
    faults.await.map_err(|_| "the fault plan was aborted")?;

    drop(successions);
    network.heal();
    witness.tell("everything is healed");
    if let Some(away) = network.scenario.away() {
        ordering::leave_a_majority(&network, &away);
        let call = Call::new("basic", "CreateAsset", ["majority", "red", "1", "most", "1"].map(str::to_owned));
        claims.add(insist(&network, vec![call], "commit a transaction with a majority of the orderers").await?);
        ending::caught_up_without(&network, &away).await?;
        network.heal();
    }
    let last = Call::new("basic", "CreateAsset", ["alive", "green", "1", "everybody", "1"].map(str::to_owned));
    claims.add(insist(&network, vec![last], "commit a fresh transaction after everything was healed").await?);
    // What was handed over and not waited for becomes a block, or nothing.
    rt::sleep(2 * network.scenario.batch_timeout + Duration::from_millis(100)).await;
    let height = caught_up(&network).await?;
    let before = ending::digests(&network).await?;
    ending::check_memory(&network).await?;

    for name in network.server_names() {
        network.node(&name).crash();
    }
    network.heal();
    let height_after = caught_up(&network).await?;
    if height_after != height {
        return Err(format!("the network had {height} blocks, and {height_after} after a crash of all nodes"));
    }
    let after = ending::digests(&network).await?;
    let (digest, takeovers) = (sim.digest(), network.succession.takeovers());
    let upheavals = network.orderers.counts();
    if part == Part::ToTheLastCrash {
        return Ok(Facts { claims, codes: Codes::new(), blocks: height, takeovers, upheavals, digest });
    }
    let evidence = Evidence {
        blocks: ending::orderer_blocks(&network)?,
        peers: ending::peers(&network, before, after).await?,
        claims,
    };
    ending::verify_on_disk(&network).await?;
    let codes = verdict::reach(&network, &evidence)?;
    Ok(Facts { claims: evidence.claims, codes, blocks: height, takeovers, upheavals, digest })
}

/// Has calls committed by a client of their own.
async fn insist(network: &Arc<Network>, calls: Vec<Call>, what: &str) -> Result<Claims, String> {
    let client = Client::new(Arc::clone(network), 0, network.sim.chance());
    let work = network.node(&scenario::client(0)).spawn(async move { client.insist(&calls).await });
    let done = rt::timeout(HEALTHY_MAX, work).await;
    let done = done.map_err(|_| format!("the network did not {what} within {HEALTHY_MAX:?}"))?;
    done.map_err(|_| "a client was aborted".to_owned())
}
