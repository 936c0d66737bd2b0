//! Runs one seed, from a network without blocks to a verdict.
//!
//! 1. The network starts, and the data that contracts need is loaded. The only faults so far are delays in index
//!    splits.
//! 2. Clients work while the fault plan runs. The recorder observes.
//! 3. All faults are healed. With a group of orderers, in some seeds a minority is cut off again once the group is whole:
//!    the majority must commit a transaction and deliver it to every peer. Then a fresh transaction and a change of the
//!    configuration must commit, all peers must reach the height of the orderers, all pooled memory must be accounted
//!    for, and members of private collections must get all private data that anybody has.
//! 4. All nodes crash once more and restart with their previous state.
//! 5. Peers and storage nodes stop in order, and their ledgers are verified on disk. Then [`evidence`] evaluates the
//!    run.
//!
//! Every seed runs twice. The second run ends after step 4 and must have the same digest as the first run had there.
//! The digest covers every task, every message and every byte on disk.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::event::EventValue;
use base::rt;
use base::rt::simulation::{FaultPlan, FaultPoint, Sim, Simulation, SimulationReport, TraceDigest};
use state::disaggregated::fault;

use crate::client::vault::key;
use crate::client::workload::{ContractCall, loads};
use crate::client::{ClientClaims, SimulatedClient};
use crate::coverage::TAKEOVER;
use crate::evidence::{self, CodeCounts, RunEvidence};
use crate::final_checks::{self, wait_until_caught_up};
use crate::mutant::Mutant;
use crate::network::{Network, failover, ordering};
use crate::private_evidence;
use crate::recorder::{Observations, Recorder};
use crate::scenario::{self, Scenario, kind_of};
use crate::vault::VAULT;

/// The most virtual time of a run.
const TIME_MAX: Duration = Duration::from_secs(300);
/// The most steps of a run.
const STEPS_MAX: u64 = 20_000_000;
/// How long the network may take for each task after the faults.
pub const HEALTHY_MAX: Duration = Duration::from_secs(60);
/// Lines of the trace that a failure shows.
const TRACE_LINES: usize = 60;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct RunConfig {
    /// The seed.
    pub seed: u64,
    /// The mistake to plant, if any.
    pub mutant: Option<Mutant>,
    /// Instead of the seed's own.
    pub plan: Option<FaultPlan>,
}

/// The result of a run that found no violation.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The seed.
    pub seed: u64,
    /// The digest of all events up to step 4; equal for both runs of the seed.
    pub digest: TraceDigest,
    /// Polls of tasks.
    pub steps: u64,
    /// Virtual time.
    pub elapsed: Duration,
    /// Blocks of the ledger.
    pub blocks: u64,
    /// How clients' operations ended.
    pub operations: BTreeMap<&'static str, u64>,
    /// How often each validation code occurs in the ledger.
    pub codes: CodeCounts,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// By fault point: how often it was reached, and how often its fault was injected.
    pub fault_points: BTreeMap<&'static str, FaultPoint>,
    /// What happened, line by line, with the seconds of virtual time.
    pub story: Vec<String>,
}

/// The result of a run that found a violation.
#[derive(Clone, Debug)]
pub struct RunFailure {
    /// What was run, so that the failure can be repeated.
    pub config: RunConfig,
    /// The violation.
    pub reason: String,
    /// As it ran.
    pub plan: FaultPlan,
    /// What happened, line by line, with the seconds of virtual time.
    pub story: Vec<String>,
    /// The last events of the trace.
    pub trace: Vec<String>,
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.config.seed, self.reason)?;
        let RunConfig { seed, mutant, plan } = &self.config;
        match (mutant, plan) {
            (None, None) => write!(f, "  replay with: cargo xtask sim --seed {seed}")?,
            _ => write!(f, "  replay with: cargo run --profile checks -p heddle-simulator -- --seed {seed}")?,
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

impl RunFailure {
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
/// The violation; a second run that differs from the first is one too.
pub fn run(order: &RunConfig) -> Result<RunOutcome, Box<RunFailure>> {
    let first = run_once(order)?;
    let second = run_part(order, RunExtent::UntilLastCrash)?;
    if first.digest == second.digest {
        return Ok(first);
    }
    // The first line in which the two stories differ is the most telling.
    let differs = first.story.iter().zip(&second.story).find(|(one, other)| one != other);
    let differs = differs.map_or(String::new(), |(one, other)| format!("; first {one:?}, then {other:?}"));
    let reason = format!("the same seed gave two runs, {} and {}{differs}", first.digest, second.digest);
    let plan = scenario_of(order).plan;
    Err(Box::new(RunFailure { config: order.clone(), reason, plan, story: second.story, trace: Vec::new() }))
}

fn scenario_of(order: &RunConfig) -> Scenario {
    let mut scenario = Scenario::of(order.seed, order.mutant);
    if let Some(plan) = &order.plan {
        scenario.plan = plan.clone();
    }
    scenario
}

/// How much of a run to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunExtent {
    All,
    /// Steps 1 to 4.
    UntilLastCrash,
}

/// Runs a seed once.
///
/// # Errors
/// The violation.
pub fn run_once(order: &RunConfig) -> Result<RunOutcome, Box<RunFailure>> {
    run_part(order, RunExtent::All)
}

fn run_part(order: &RunConfig, part: RunExtent) -> Result<RunOutcome, Box<RunFailure>> {
    let scenario = scenario_of(order);
    let plan = scenario.plan.clone();
    let notes = Observations::default();
    let micros = |(from, to)| Duration::from_micros(from)..Duration::from_micros(to);
    let simulation = Simulation::new(order.seed)
        .steps_max(STEPS_MAX)
        .time_max(TIME_MAX)
        .trace_lines_max(TRACE_LINES)
        .link_delay(micros(scenario.link_micros))
        .sync_delay(micros(scenario.sync_micros));
    let mutant = order.mutant;
    let in_world = notes.clone();
    // The hooks of the state and of the ordering engines belong to the thread, on which the whole world runs.
    fault::plant(mutant.map_or(fault::Mutant::None, Mutant::of_state));
    ordered_log::fault::plant(mutant.map_or(ordered_log::fault::Mutant::None, Mutant::of_ordering));
    let result = simulation.run(|sim| async move {
        let witness = Recorder::new(sim.clone(), in_world);
        let watching = witness.clone();
        let driven = async {
            let driven = drive(sim, scenario, mutant, witness.clone(), part).await;
            driven.map_err(|reason| witness.report_violation(reason)).ok()
        };
        watching.watch(driven).await.expect("an error is an accusation, which ends the run")
    });
    fault::plant(fault::Mutant::None);
    ordered_log::fault::plant(ordered_log::fault::Mutant::None);
    match result {
        Ok(SimulationReport { events, .. }) if unexpected_events(&events).is_some() => {
            let reason = unexpected_events(&events).unwrap_or_default();
            Err(Box::new(RunFailure { config: order.clone(), reason, plan, story: notes.story(), trace: Vec::new() }))
        }
        Ok(SimulationReport {
            value: RunResults { claims, codes, blocks, takeovers, orderer_faults: upheavals, digest },
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
            Ok(RunOutcome {
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
            let reason = notes.violation().unwrap_or_else(|| failure.reason.to_string());
            let (story, trace) = (notes.story(), failure.recent);
            Err(Box::new(RunFailure { config: order.clone(), reason, plan, story, trace }))
        }
    }
}

/// An event of the state that shows a violation of the protocols of pooled memory, whether or not it led to a wrong result.
fn unexpected_events(events: &BTreeMap<&'static str, EventValue>) -> Option<String> {
    let names = ["heddle_state_records_untrusted_total", "heddle_state_slots_missed_total"];
    let counted = names.into_iter().filter_map(|name| match events.get(name) {
        Some(EventValue::Counter(count)) if *count > 0 => Some(format!("{name} is {count}")),
        _ => None,
    });
    counted.reduce(|one, other| format!("{one}, {other}"))
}

/// The facts that a run leaves.
struct RunResults {
    claims: ClientClaims,
    codes: CodeCounts,
    blocks: u64,
    takeovers: u64,
    /// Events of groups of orderers.
    orderer_faults: BTreeMap<&'static str, u64>,
    /// Of everything up to the end of step 4.
    digest: TraceDigest,
}

async fn drive(
    sim: Sim,
    scenario: Scenario,
    mutant: Option<Mutant>,
    witness: Recorder,
    part: RunExtent,
) -> Result<RunResults, String> {
    witness.log(format_args!("{scenario:?}"));
    let clients = scenario.clients;
    let plan = scenario.plan.clone();
    let calls = loads(&scenario);
    let network = Network::start(sim.clone(), scenario, mutant, witness.clone())?;
    // An index grows most while it is filled.
    for (name, probability) in network.scenario.fault_points.iter().filter(|(name, _)| name.starts_with("state.split."))
    {
        sim.inject(name, *probability);
    }
    let mut claims = commit_all(&network, calls, "load what contracts need").await?;

    if let Some(mutant) = mutant {
        mutant.plant(&network);
    }
    for (name, probability) in &network.scenario.fault_points {
        sim.inject(name, *probability);
    }
    let work = (0..clients).map(|place| {
        let client = SimulatedClient::new(Arc::clone(&network), place, sim.rng());
        network.node(&scenario::client(place)).spawn(client.work())
    });
    let work: Vec<_> = work.collect();
    let faults = rt::spawn({
        let sim = sim.clone();
        async move { sim.run_plan(&plan).await }
    });
    let successions = rt::spawn(failover::assign_primaries(Arc::clone(&network))).abort_on_drop();
    for client in work {
        claims.add(client.await.map_err(|_| "a client was aborted")?);
    }
    faults.await.map_err(|_| "the fault plan was aborted")?;

    drop(successions);
    network.guests.cancel();
    network.heal();
    witness.log("everything is healed");
    if let Some(away) = network.scenario.unreachable_orderer() {
        ordering::wait_until_whole(&network).await?;
        ordering::isolate_minority(&network, &away);
        let call = ContractCall::new("basic", "CreateAsset", ["majority", "red", "1", "most", "1"].map(str::to_owned));
        claims.add(commit_all(&network, vec![call], "commit a transaction with a majority of the orderers").await?);
        final_checks::wait_until_caught_up_without(&network, &away).await?;
        network.heal();
    }
    let mut last =
        vec![ContractCall::new("basic", "CreateAsset", ["alive", "green", "1", "everybody", "1"].map(str::to_owned))];
    if network.scenario.private_data.is_some() {
        last.push(ContractCall::new(VAULT, "put", [key(0), "the last".to_owned()]));
    }
    claims.add(commit_all(&network, last, "commit a fresh transaction after everything was healed").await?);
    let client = SimulatedClient::new(Arc::clone(&network), 0, sim.rng());
    let changed = network.node(&scenario::client(0)).spawn(client.commit_config());
    claims.add(done_within(changed, "change its configuration after everything was healed").await?);
    let client = SimulatedClient::new(Arc::clone(&network), 0, sim.rng());
    let defined = network.node(&scenario::client(0)).spawn(client.commit_definition());
    claims.add(done_within(defined, "change a definition after everything was healed").await?);
    // Wait until envelopes that were submitted without waiting for them are in a block, or lost.
    rt::sleep(2 * network.scenario.batch_timeout + Duration::from_millis(100)).await;
    let height = wait_until_caught_up(&network).await?;
    let before = final_checks::digests(&network).await?;
    final_checks::check_memory(&network).await?;
    let private = private_evidence::wait_until_reconciled(&network, &claims).await?;

    for name in network.server_names() {
        network.node(&name).crash();
    }
    network.heal();
    let height_after = wait_until_caught_up(&network).await?;
    if height_after != height {
        return Err(format!("the network had {height} blocks, and {height_after} after a crash of all nodes"));
    }
    let after = final_checks::digests(&network).await?;
    let (digest, takeovers) = (sim.digest(), network.failover.takeovers());
    let upheavals = network.orderers.counts();
    if part == RunExtent::UntilLastCrash {
        return Ok(RunResults {
            claims,
            codes: CodeCounts::new(),
            blocks: height,
            takeovers,
            orderer_faults: upheavals,
            digest,
        });
    }
    let private_after = private_evidence::wait_until_reconciled(&network, &claims).await?;
    let evidence = RunEvidence {
        blocks: final_checks::orderer_blocks(&network)?,
        peers: final_checks::peers(&network, before, after).await?,
        private: [private, private_after],
        claims,
    };
    final_checks::verify_on_disk(&network).await?;
    let codes = evidence::check_evidence(&network, &evidence)?;
    Ok(RunResults { claims: evidence.claims, codes, blocks: height, takeovers, orderer_faults: upheavals, digest })
}

/// Has a separate client commit calls.
async fn commit_all(network: &Arc<Network>, calls: Vec<ContractCall>, what: &str) -> Result<ClientClaims, String> {
    let client = SimulatedClient::new(Arc::clone(network), 0, network.sim.rng());
    let work = network.node(&scenario::client(0)).spawn(async move { client.commit_all(&calls).await });
    done_within(work, what).await
}

/// The claims of a client that must reach its goal.
async fn done_within(work: rt::Task<ClientClaims>, what: &str) -> Result<ClientClaims, String> {
    let done = rt::timeout(HEALTHY_MAX, work).await;
    let done = done.map_err(|_| format!("the network did not {what} within {HEALTHY_MAX:?}"))?;
    done.map_err(|_| "a client was aborted".to_owned())
}
