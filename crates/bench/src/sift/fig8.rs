//! Figure 8: simulates how long groups wait for a backup from a shared pool.
//!
//! 1. Each coordinator and each backup runs on its own machine. Machines fail at random times.
//! 2. When a coordinator fails, its group takes a backup from the pool. If the pool is empty, the group waits for the next
//!    backup. For each failed machine a replacement is provisioned, which then joins the pool.
//! 3. A point of the figure is the mean wait over the failures of all groups and over many repetitions.
//!
//! The numbers of machines, days and failures come from the paper's trace; the provisioning time comes from the paper.
//! The trace does not give the times of the failures. They are drawn at random: either each machine independently
//! (`independent`), or half of the failures as whole racks, whose machines fail within seconds (`racks`).
//!
//! The wait is computed with one token per backup. The pool starts with B tokens, and each failure adds a token after
//! the time to provision. For j > B, the j-th failure takes the token that the (j-B)-th failure adds, and waits until
//! that token is in the pool.

use base::rt::CancellationToken;

use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure, RatioBound};
use measurement::random::Random;

const SECONDS_PER_DAY: f64 = 86_400.0;
/// How far apart the machines of a rack fail.
const RACK_SPREAD_S: f64 = 5.0;
/// The fraction of failures that come by racks.
const BY_RACKS: f64 = 0.5;
/// Extra recovery time that counts as none, in seconds: a thousandth of the time to provision.
const ENOUGH_S: f64 = 0.1;
/// The paper's findings: groups, and the backups that suffice for them; the names of our ratios, alone and by racks.
const FINDINGS: [(u64, u64, [&str; 2], [&str; 2]); 2] = [
    (
        1_000,
        6,
        ["extra_recovery_s_1000_groups_6_backups", "extra_recovery_s_1000_groups_6_backups_racks"],
        ["backups_for_1000_groups", "backups_for_1000_groups_racks"],
    ),
    (
        3_000,
        20,
        ["extra_recovery_s_3000_groups_20_backups", "extra_recovery_s_3000_groups_20_backups_racks"],
        ["backups_for_3000_groups", "backups_for_3000_groups_racks"],
    ),
];

/// The parameters of the simulation.
#[derive(Clone, Debug)]
pub struct Fig8Config {
    /// Machines of the cluster.
    pub machines: u64,
    /// Days.
    pub days: f64,
    /// Machines that fail in these days.
    pub failures: u64,
    /// Machines of a rack.
    pub rack: u64,
    /// Seconds until another machine is provisioned.
    pub provision_s: f64,
    /// Numbers of groups.
    pub groups: Vec<u64>,
    /// The most backups.
    pub backups_max: u64,
    /// Repetitions.
    pub repeats: u64,
    /// Fixes which machines fail and when.
    pub seed: u64,
}

/// Machines that fail, in the order of time.
fn failures(options: &Fig8Config, by_racks: bool, random: &mut Random) -> Vec<(f64, u64)> {
    let length = options.days * SECONDS_PER_DAY;
    let racks = match by_racks {
        true => (options.failures as f64 * BY_RACKS / options.rack as f64).round() as u64,
        false => 0,
    };
    let mut failures = Vec::with_capacity(options.failures as usize);
    for _ in 0..racks {
        let (at, rack) = (random.unit() * length, random.below((options.machines / options.rack).max(1)));
        let machines = rack * options.rack..((rack + 1) * options.rack).min(options.machines);
        failures.extend(machines.map(|machine| (at + random.unit() * RACK_SPREAD_S, machine)));
    }
    while (failures.len() as u64) < options.failures {
        failures.push((random.unit() * length, random.below(options.machines)));
    }
    failures.sort_by(|one, other| one.0.total_cmp(&other.0));
    failures
}

/// The mean wait per failure of a group, in seconds, for each size of the pool from zero on.
fn waits(options: &Fig8Config, groups: u64, failures: &[(f64, u64)], places: &[u64]) -> Vec<f64> {
    let pools = 0..=options.backups_max;
    pools
        .map(|backups| {
            // The parts of machines are drawn: the first places are the groups', the next the pool's.
            let concerned = failures.iter().filter(|(_, machine)| places[*machine as usize] < groups + backups);
            let concerned: Vec<(f64, bool)> =
                concerned.map(|(at, machine)| (*at, places[*machine as usize] < groups)).collect();
            let (mut waited, mut count) = (0.0, 0_u64);
            for (place, (at, is_group)) in concerned.iter().enumerate() {
                if !is_group {
                    continue;
                }
                count += 1;
                if let Some(before) = place.checked_sub(backups as usize) {
                    waited += (concerned[before].0 + options.provision_s - at).max(0.0);
                }
            }
            waited / count.max(1) as f64
        })
        .collect()
}

/// A place for each machine, drawn at random.
fn group_machines(machines: u64, random: &mut Random) -> Vec<u64> {
    let mut places: Vec<u64> = (0..machines).collect();
    for last in (1..places.len()).rev() {
        places.swap(last, random.below(last as u64 + 1) as usize);
    }
    places
}

/// Means over the repetitions, for each size of the pool.
fn simulate(options: &Fig8Config, groups: u64, by_racks: bool, stop: &CancellationToken) -> Result<Vec<f64>, Error> {
    let mut sums = vec![0.0; options.backups_max as usize + 1];
    for repeat in 0..options.repeats {
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let mut random = Random::new(options.seed ^ (repeat << 32) ^ groups);
        let failures = failures(options, by_racks, &mut random);
        let places = group_machines(options.machines, &mut random);
        for (sum, wait) in sums.iter_mut().zip(waits(options, groups, &failures, &places)) {
            *sum += wait / options.repeats as f64;
        }
    }
    Ok(sums)
}

/// Figure 8.
///
/// # Errors
/// More groups than machines, or the run was stopped.
pub fn run(options: &Fig8Config, stop: &CancellationToken, tell: impl Fn(&str)) -> Result<Figure, Error> {
    let most = options.groups.iter().copied().max().unwrap_or_default();
    if most + options.backups_max > options.machines {
        let reason = format!("{most} groups and their backups on {} machines", options.machines);
        return Err(Error::Part { what: "a cluster", reason });
    }
    let mut figure = Figure::new("sift-fig8", "Sift, figure 8: recovery that lasts longer for want of a backup");
    figure.setting("machines", options.machines);
    figure.setting("days", options.days);
    figure.setting("failures", options.failures);
    figure.setting("rack", options.rack);
    figure.setting("provision_s", options.provision_s);
    figure.setting("repeats", options.repeats);
    figure.setting("seed", options.seed);
    let mut ratios = Vec::new();
    for (by_racks, model) in [(false, "independent"), (true, "racks")] {
        for groups in &options.groups {
            tell(&format!("{model}, {groups} groups"));
            let means = simulate(options, *groups, by_racks, stop)?;
            let label = format!("{groups} groups");
            for (backups, mean) in means.iter().enumerate() {
                let numbers = [("backups", backups as f64), ("extra_recovery_s", *mean)];
                figure.row(&[("failures", model), ("groups", &label)], &numbers);
            }
            if let Some((_, enough, extra, needed)) = FINDINGS.iter().find(|(of, ..)| of == groups) {
                let which = usize::from(by_racks);
                let bound = |bound: f64| (!by_racks).then_some(RatioBound::AtMost(bound));
                let mean = means.get(*enough as usize).copied().unwrap_or(options.provision_s);
                ratios.push((extra[which], mean, bound(ENOUGH_S)));
                let least = means.iter().position(|mean| *mean <= ENOUGH_S).unwrap_or(means.len());
                ratios.push((needed[which], least as f64, bound(*enough as f64)));
            }
        }
    }
    for (name, value, bound) in ratios {
        figure.ratio(name, value, bound);
    }
    figure.curves(CurvePlot { x: "backups", x_log: false, y: "extra_recovery_s" });
    figure.note(format!(
        "the mean over all failures of coordinators, without the time of a takeover; {ENOUGH_S} s counts as none"
    ));
    figure.note(format!(
        "racks: {:.0} % of the failures are of whole racks of {} machines, which is an assumption of ours",
        BY_RACKS * 100.0,
        options.rack
    ));
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Fig8Config {
        Fig8Config {
            machines: 10,
            days: 1.0,
            failures: 4,
            rack: 5,
            provision_s: 100.0,
            groups: vec![4],
            backups_max: 3,
            repeats: 1,
            seed: 1,
        }
    }

    #[test]
    fn who_finds_no_backup_waits_for_the_next_machine() {
        let places: Vec<u64> = (0..10).collect();
        // Three coordinators within a few seconds, another one after all are provisioned, and an unused machine.
        let failures = [(0.0, 0), (1.0, 1), (2.0, 9), (3.0, 2), (1_000.0, 3)];
        let waits = waits(&options(), 4, &failures, &places);
        let close = |at: usize, expected: f64| assert!((waits[at] - expected).abs() < 1e-9, "{at}: {waits:?}");
        close(0, 100.0);
        // One gets the backup, two wait for the machines that are provisioned for the failures before them.
        close(1, (99.0 + 98.0) / 4.0);
        close(2, 97.0 / 4.0);
        close(3, 0.0);
    }

    #[test]
    fn a_backup_that_fails_is_one_less() {
        let places: Vec<u64> = (0..10).collect();
        // The fifth machine is the only backup.
        let waits = waits(&options(), 4, &[(0.0, 4), (10.0, 0)], &places);
        assert!((waits[1] - 90.0).abs() < 1e-9, "{waits:?}");
        assert!((waits[2]).abs() < 1e-9, "{waits:?}");
    }

    #[test]
    fn as_many_machines_fail_as_are_asked_for() {
        let options = Fig8Config { machines: 1_000, failures: 400, rack: 20, ..options() };
        for by_racks in [false, true] {
            let failures = failures(&options, by_racks, &mut Random::new(3));
            assert_eq!(failures.len(), 400);
            assert!(failures.is_sorted_by(|one, other| one.0 <= other.0));
        }
    }
}
