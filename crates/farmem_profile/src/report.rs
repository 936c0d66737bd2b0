//! Functions, ranked by their remote accesses.

use std::collections::BTreeMap;
use std::time::Duration;

use farmem::AccessProfile;

use crate::attribution::Attribution;
use crate::symbols::{FunctionIndex, FunctionTable};

/// Callers, and functions of runtimes, that are kept of each function.
const DETAILS_MAX: usize = 8;

/// The remote accesses of a run, by function.
#[derive(Clone, PartialEq, Debug)]
pub struct FunctionReport {
    /// The functions that made remote accesses, those with the most first; with callers, then those that had called them.
    pub rows: Vec<FunctionRow>,
    /// Remote accesses of the run: page faults that were served from far memory.
    pub accesses: u64,
    /// How many of them were sampled.
    pub samples: u64,
    /// One of this many accesses was sampled.
    pub every: u32,
    /// For how long the run took.
    pub time: Duration,
    /// What the reader should know about the rows.
    pub notes: Vec<String>,
}

/// One function.
#[derive(Clone, PartialEq, Debug)]
pub struct FunctionRow {
    /// Its name, or the bounds of code without one.
    pub function: String,
    /// The file that has its code.
    pub object: String,
    /// Its remote accesses, those of runtimes that it has called included; estimated if not each access was sampled.
    pub accesses: u64,
    /// Its part of all accesses, of 1.
    pub share: f64,
    /// Pages that came ahead of its streams, asked for with these accesses.
    pub pages_ahead: u64,
    /// For how long it ran, by [its accesses](crate#the-time-that-a-function-runs).
    pub time: Duration,
    /// Accesses a second of that time; `None` if it is unknown.
    pub accesses_per_second: Option<f64>,
    /// Accesses of the function and of all that it had called, as far as callers were found; `None` if none were searched for.
    pub inclusive: Option<u64>,
    /// The functions of runtimes in which its accesses happened, those with the most first.
    pub runtimes: Vec<FunctionCount>,
    /// The functions that had called it, likewise; empty if none were searched for.
    pub callers: Vec<FunctionCount>,
}

/// A part of the accesses of a function, by another function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionCount {
    /// The other function's name.
    pub function: String,
    /// The file that has its code.
    pub object: String,
    /// The accesses.
    pub accesses: u64,
}

/// The sums of one function.
#[derive(Default)]
struct FunctionSums {
    accesses: u64,
    pages_ahead: u64,
    inclusive: u64,
    time: Duration,
    runtimes: BTreeMap<FunctionIndex, u64>,
    callers: BTreeMap<FunctionIndex, u64>,
}

impl FunctionReport {
    /// Reads the symbols of the files that a profile names, and sums up. `time` is that of the whole run.
    pub fn new(profile: &AccessProfile, time: Duration) -> FunctionReport {
        let table = FunctionTable::new(profile);
        let sites: Vec<Option<Attribution>> =
            profile.sites.iter().map(|accesses| Attribution::of(&accesses.site, &table)).collect();
        let mut sums: BTreeMap<FunctionIndex, FunctionSums> = BTreeMap::new();
        for (accesses, site) in profile.sites.iter().zip(&sites) {
            let Some(site) = site.as_ref().filter(|_| accesses.accesses > 0) else { continue };
            let of_function = sums.entry(site.function).or_default();
            of_function.accesses += accesses.accesses;
            of_function.pages_ahead += accesses.pages_ahead;
            site.runtime.into_iter().for_each(|runtime| {
                *of_function.runtimes.entry(runtime).or_default() += accesses.accesses;
            });
            site.callers.first().into_iter().for_each(|caller| {
                *of_function.callers.entry(*caller).or_default() += accesses.accesses;
            });
            // A function that has called itself counts once.
            let mut all = site.callers.clone();
            all.push(site.function);
            all.sort_unstable();
            all.dedup();
            all.iter().for_each(|function| sums.entry(*function).or_default().inclusive += accesses.accesses);
        }
        add_times(profile, &sites, &mut sums);
        FunctionReport {
            rows: rows(profile, &table, sums),
            accesses: profile.accesses,
            samples: profile.samples,
            every: profile.config.every.get(),
            time,
            notes: notes(profile, &table),
        }
    }
}

/// Adds the time between accesses: to the function that makes both, or in halves.
fn add_times(profile: &AccessProfile, sites: &[Option<Attribution>], sums: &mut BTreeMap<FunctionIndex, FunctionSums>) {
    let function = |site: u32| sites.get(site as usize)?.as_ref().map(|site| site.function);
    for run in &profile.runs {
        let (Some(from), Some(to)) = (function(run.from), function(run.to)) else { continue };
        let parts = if from == to {
            [(from, run.time), (to, Duration::ZERO)]
        } else {
            [from, to].map(|of| (of, run.short_time / 2))
        };
        for (function, time) in parts {
            sums.entry(function).or_default().time += time;
        }
    }
}

/// The rows, ranked.
fn rows(
    profile: &AccessProfile,
    table: &FunctionTable,
    sums: BTreeMap<FunctionIndex, FunctionSums>,
) -> Vec<FunctionRow> {
    let attributed: u64 = sums.values().map(|sums| sums.accesses).sum();
    let has_callers = profile.config.callers;
    // With callers, functions that made no access themselves have rows too.
    let made = sums.into_iter().filter(|(_, sums)| sums.accesses > 0 || (has_callers && sums.inclusive > 0));
    let mut rows: Vec<FunctionRow> = made
        .map(|(function, sums)| {
            let seconds = sums.time.as_secs_f64();
            let named = &table.functions[function];
            FunctionRow {
                function: named.name.clone(),
                object: named.object.clone(),
                accesses: sums.accesses,
                share: sums.accesses as f64 / attributed.max(1) as f64,
                pages_ahead: sums.pages_ahead,
                time: sums.time,
                accesses_per_second: (seconds > 0.0).then(|| sums.accesses as f64 / seconds),
                inclusive: has_callers.then_some(sums.inclusive),
                runtimes: ranked(&sums.runtimes, table),
                callers: ranked(&sums.callers, table),
            }
        })
        .collect();
    rows.sort_by(|one, other| {
        let key = |row: &FunctionRow| std::cmp::Reverse((row.accesses, row.inclusive));
        (key(one), &one.function, &one.object).cmp(&(key(other), &other.function, &other.object))
    });
    rows
}

fn ranked(counts: &BTreeMap<FunctionIndex, u64>, table: &FunctionTable) -> Vec<FunctionCount> {
    let mut counts: Vec<(FunctionIndex, u64)> = counts.iter().map(|(function, count)| (*function, *count)).collect();
    counts.sort_by_key(|(function, count)| (std::cmp::Reverse(*count), *function));
    let rows = counts.into_iter().take(DETAILS_MAX).map(|(function, accesses)| {
        let function = &table.functions[function];
        FunctionCount { function: function.name.clone(), object: function.object.clone(), accesses }
    });
    rows.collect()
}

fn notes(profile: &AccessProfile, table: &FunctionTable) -> Vec<String> {
    let unknown = profile.sites.first().map_or(0, |site| site.accesses);
    let reason = profile.failure.as_deref().unwrap_or("the profile had too many places in code");
    let unknown = (unknown > 0).then(|| format!("the code of {unknown} accesses is unknown: {reason}"));
    let sampled = profile.config.every.get();
    let sampled =
        (sampled > 1).then(|| format!("one of {sampled} accesses was sampled, so counts of functions are estimates"));
    unknown.into_iter().chain(sampled).chain(table.notes.iter().cloned()).collect()
}

#[cfg(test)]
mod tests;
