//! Table 2 and figures 9 and 10 of the Sift paper: the costs of stores with the same throughput.
//!
//! 1. Figure 7 is measured. The *target* is the throughput that Raft reaches with nodes limited to
//!    [`REFERENCE_PERCENT`] of a core. A Sift store needs some percentage of a core at its CPU node to reach the
//!    target; this percentage divided by [`REFERENCE_PERCENT`] is the *factor* of the store.
//! 2. The paper's Raft node has 8 cores and 64 GB. Sift's CPU node has 8 cores times the factor, rounded up, and 32 GB
//!    for the cache. A memory node has one core and 64 GB; with erasure-coded blocks it has 64 / (F+1) GB.
//! 3. A Raft group has 2F+1 nodes; a Sift group has 2F+1 memory nodes and F+1 CPU nodes. If groups share backups, a
//!    hundred groups share two backup CPU nodes. Each group then pays for its own CPU node and for a hundredth of those
//!    two.
//! 4. The prices per hour are those of the paper's section 6.4.3.

use base::rt::CancellationToken;

use super::child_processes::Program;
use super::fig7::{self, Fig7Config, ThroughputCurve};
use super::systems::SystemKind;
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::progress::{MeasurementFuture, ReportProgress};

/// The percentage of a core at which Raft's throughput is the target for all systems.
pub const REFERENCE_PERCENT: f64 = 50.0;
const RAFT_CORES: f64 = 8.0;
const NODE_GB: f64 = 64.0;
const CACHE_GB: f64 = 32.0;
const MEMORY_NODE_CORES: f64 = 1.0;
/// Groups that share a pool, and its CPU nodes.
const GROUPS: f64 = 100.0;
const POOL: f64 = 2.0;
/// The paper's savings with erasure-coded blocks and shared backups, for F = 1 and 2.
const SAVING_MIN: [f64; 2] = [0.35, 0.56];

/// A provider's prices, in dollars an hour.
struct MachinePrices {
    name: &'static str,
    core: f64,
    gb: f64,
}

const PRICES: [MachinePrices; 2] =
    [MachinePrices { name: "aws", core: 0.033, gb: 0.00275 }, MachinePrices { name: "gcp", core: 0.033, gb: 0.00445 }];

/// Cores and gigabytes of a machine.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Machine {
    cores: f64,
    gb: f64,
}

impl Machine {
    fn cost(self, prices: &MachinePrices) -> f64 {
        self.cores * prices.core + self.gb * prices.gb
    }
}

const RAFT_NODE: Machine = Machine { cores: RAFT_CORES, gb: NODE_GB };

/// The machines of a kind of store; `factor` is the need of its CPU node over a node of Raft.
#[derive(Clone, Copy, PartialEq, Debug)]
struct GroupMachines {
    cpu_node: Machine,
    memory: Machine,
}

impl GroupMachines {
    fn of(kind: SystemKind, failures: u32, factor: f64) -> GroupMachines {
        let parts = if kind == SystemKind::SiftErasureCoded { f64::from(failures + 1) } else { 1.0 };
        GroupMachines {
            cpu_node: Machine { cores: (RAFT_CORES * factor).ceil(), gb: CACHE_GB },
            memory: Machine { cores: MEMORY_NODE_CORES, gb: (NODE_GB / parts).ceil() },
        }
    }

    /// An hour of a group, over that of a group of Raft.
    fn over_raft(self, failures: u32, is_shared: bool, prices: &MachinePrices) -> f64 {
        let nodes = f64::from(2 * failures + 1);
        let cpu_nodes = if is_shared { 1.0 + POOL / GROUPS } else { f64::from(failures + 1) };
        let ours = cpu_nodes * self.cpu_node.cost(prices) + nodes * self.memory.cost(prices);
        ours / (nodes * RAFT_NODE.cost(prices))
    }
}

/// The need of Sift's CPU node over a node of Raft, for the same throughput.
fn factor(curves: &[ThroughputCurve], kind: SystemKind, failures: u32) -> Option<f64> {
    let find = |kind| curves.iter().find(|curve| curve.kind == kind && curve.failures == failures);
    let target = find(SystemKind::Raft)?.rate(REFERENCE_PERCENT);
    Some(find(kind)?.percent(target) / REFERENCE_PERCENT)
}

/// The result that is computed from a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CostTable {
    /// Table 2, with the costs.
    Table2,
    /// Figure 9: the costs for F = 1.
    Fig9,
    /// Figure 10: the costs for F = 2.
    Fig10,
}

/// Measures and computes.
///
/// # Errors
/// As [`fig7::curves`].
pub fn run<'a>(
    part: CostTable,
    program: &'a Program,
    options: &'a Fig7Config,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_all(part, program, options, stop, tell))
}

async fn run_all(
    part: CostTable,
    program: &Program,
    options: &Fig7Config,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<Figure, Error> {
    let (name, title, failures): (_, _, &[u32]) = match part {
        CostTable::Table2 => {
            ("sift-table2", "Sift, table 2: machines of equal throughput, and what they cost", &[1, 2])
        }
        CostTable::Fig9 => ("sift-fig9", "Sift, figure 9: cost of a group over that of Raft, F = 1", &[1]),
        CostTable::Fig10 => ("sift-fig10", "Sift, figure 10: cost of a group over that of Raft, F = 2", &[2]),
    };
    let options = Fig7Config { failures: failures.to_vec(), ..options.clone() };
    let (curves, limited_by) = fig7::curves(program, &options, stop, tell).await?;
    let mut figure = Figure::new(name, title);
    fig7::settings(&mut figure, program, &options, limited_by);
    figure.setting("reference_percent", REFERENCE_PERCENT);
    if part == CostTable::Table2 {
        machines(&mut figure, &curves, failures);
    }
    costs(&mut figure, &curves, failures);
    figure.note(format!(
        "cores are Raft's {RAFT_CORES} times the part of a core that the same read-heavy throughput needs, rounded up; \
         {POOL} backups for {GROUPS} groups where they are shared; prices and memory are the paper's"
    ));
    Ok(figure)
}

fn machines(figure: &mut Figure, curves: &[ThroughputCurve], failures: &[u32]) {
    for failures in failures {
        let survives = format!("F = {failures}");
        let mut row = |machine: &str, Machine { cores, gb }, factor: f64| {
            let numbers = [("cores", cores), ("gb", gb), ("share_over_raft", factor)];
            figure.row(&[("machine", machine), ("survives", &survives)], &numbers);
        };
        row("raft node", RAFT_NODE, 1.0);
        for (kind, processor, memory) in [
            (SystemKind::Sift, "sift processor", "sift memory node"),
            (SystemKind::SiftErasureCoded, "sift-coded processor", "sift-coded memory node"),
        ] {
            let Some(factor) = factor(curves, kind, *failures) else { continue };
            let machines = GroupMachines::of(kind, *failures, factor);
            row(processor, machines.cpu_node, factor);
            row(memory, machines.memory, 0.0);
        }
    }
}

fn costs(figure: &mut Figure, curves: &[ThroughputCurve], failures: &[u32]) {
    let savings = [("saving_aws_f1", "saving_gcp_f1"), ("saving_aws_f2", "saving_gcp_f2")];
    for failures in failures {
        let survives = format!("F = {failures}");
        for prices in &PRICES {
            for kind in [SystemKind::Sift, SystemKind::SiftErasureCoded] {
                let Some(factor) = factor(curves, kind, *failures) else { continue };
                let machines = GroupMachines::of(kind, *failures, factor);
                for (is_shared, backups) in [(false, "own"), (true, "shared")] {
                    let cost = machines.over_raft(*failures, is_shared, prices);
                    let labels = [
                        ("prices", prices.name),
                        ("system", kind.name()),
                        ("backups", backups),
                        ("survives", &survives),
                    ];
                    figure.row(&labels, &[("cost_over_raft", cost)]);
                    if kind == SystemKind::SiftErasureCoded && is_shared {
                        let (aws, gcp) = savings[*failures as usize - 1];
                        // The paper gives the largest saving, which is at one of the two providers.
                        let bound = RatioBound::AtLeast(SAVING_MIN[*failures as usize - 1]);
                        match prices.name {
                            "aws" => figure.ratio(aws, 1.0 - cost, Some(bound)),
                            _ => figure.ratio(gcp, 1.0 - cost, None),
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machines of the paper's table 2 give the savings of its section 6.4.3.
    #[test]
    fn the_papers_machines_cost_what_the_paper_says() {
        let saving = |failures: u32, gb: f64| {
            let erasure_coded = GroupMachines::of(SystemKind::SiftErasureCoded, failures, 12.0 / RAFT_CORES);
            assert_eq!(
                (erasure_coded.cpu_node, erasure_coded.memory),
                (Machine { cores: 12.0, gb: 32.0 }, Machine { cores: 1.0, gb })
            );
            1.0 - erasure_coded.over_raft(failures, true, &PRICES[0])
        };
        assert!((saving(1, 32.0) - 0.35).abs() < 0.01, "{}", saving(1, 32.0));
        assert!((saving(2, 22.0) - 0.56).abs() < 0.01, "{}", saving(2, 22.0));
        let alone = 1.0 - GroupMachines::of(SystemKind::SiftErasureCoded, 2, 1.5).over_raft(2, false, &PRICES[0]);
        assert!((alone - 0.13).abs() < 0.01, "{alone}");
    }

    #[test]
    fn a_cpu_node_that_needs_more_has_more_cores() {
        let curve = |kind, scale: f64| ThroughputCurve {
            kind,
            failures: 1,
            points: vec![(50.0, 100.0 * scale), (100.0, 200.0 * scale)],
        };
        let curves = [curve(SystemKind::Raft, 1.0), curve(SystemKind::Sift, 0.8)];
        let factor = factor(&curves, SystemKind::Sift, 1).expect("both were measured");
        assert!((factor - 1.25).abs() < 1e-9);
        assert_eq!(GroupMachines::of(SystemKind::Sift, 1, factor).cpu_node.cores, 10.0);
    }
}
