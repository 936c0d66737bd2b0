//! Compares the verdicts of every path of this crate with those of aws-lc-rs and, on request, with those of the `p256`
//! crate. It tests any number of signatures, and uses all processors.
//!
//! `cargo run --release -p heddle-p256-verify --example differential -- CASES [--second EVERY] [--seed SEED] [--file
//! FILE]`
//!
//! About half of the signatures are valid; in the others the key, the digest, r or s is altered. With `--second`, one
//! in EVERY signatures is also compared with the `p256` crate. With `--file`, each round appends its counts to the
//! file, and a run with the same file continues where the last run ended. If a difference occurs, the program prints
//! everything needed to reproduce it, ends after that round, and exits with 1.

#![allow(
    clippy::disallowed_methods,
    reason = "a program of its own, with threads and a clock, that no simulation runs"
)]

#[path = "../tests/cases/mod.rs"]
mod cases;

use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use cases::{Cases, Counts, Harness, Prng};
use p256_verify::Backend;

/// Cases of one thread in one round.
const BLOCK: usize = 100_000;
/// Cases that are made before they are verified.
const PART: usize = 1000;
const KEYS: usize = 64;
/// One batch in this many takes the portable path, which costs most.
const PORTABLE_EVERY: usize = 4;

struct DifferentialConfig {
    cases: u64,
    second_every: Option<usize>,
    seed: u64,
    file: Option<String>,
}

fn options() -> Option<DifferentialConfig> {
    let mut arguments = std::env::args().skip(1);
    let cases = arguments.next()?.replace('_', "").parse().ok()?;
    let mut options = DifferentialConfig { cases, second_every: None, seed: 1, file: None };
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        match name.as_str() {
            "--second" => options.second_every = Some(value.parse().ok()?),
            "--seed" => options.seed = value.parse().ok()?,
            "--file" => options.file = Some(value),
            _ => return None,
        }
    }
    Some(options)
}

/// A line of the file: blocks that are done, then the counts.
fn line(blocks: u64, counts: &Counts) -> String {
    let Counts { cases, valid, one, many, cold, portable, second, unsure, differences } = counts;
    format!(
        "blocks {blocks} cases {cases} valid {valid} one {one} many {many} cold {cold} portable {portable} second {second} \
         left_to_library {unsure} differences {differences}"
    )
}

fn read(file: &str) -> Option<(u64, Counts)> {
    let text = std::fs::read_to_string(file).ok()?;
    let last = text.lines().rfind(|line| line.starts_with("blocks "))?;
    let numbers: Vec<u64> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
    let &[blocks, cases, valid, one, many, cold, portable, second, unsure, differences] = &numbers[..] else {
        return None;
    };
    Some((blocks, Counts { cases, valid, one, many, cold, portable, second, unsure, differences }))
}

/// Block `block` of a seed: the same cases on every thread.
fn block(harness: &Harness, options: &DifferentialConfig, block: u64) -> Counts {
    let seed = options.seed.wrapping_mul(0x1_0000_0001).wrapping_add(block.wrapping_mul(2));
    let (mut cases, mut rng) = (Cases::new(seed), Prng::new(seed + 1));
    let mut counts = Counts::default();
    for _ in 0..BLOCK / PART {
        let part: Vec<_> = (0..PART).map(|_| cases.next(&harness.signers)).collect();
        counts.add(&harness.run(&part, &mut rng, PORTABLE_EVERY, options.second_every));
    }
    if counts.differences > 0 {
        eprintln!("in block {block} of seed {}", options.seed);
    }
    counts
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("differential CASES [--second EVERY] [--seed SEED] [--file FILE]");
        return ExitCode::from(2);
    };
    let harness = Harness::with_keys(KEYS, options.seed, &[Backend::Ifma, Backend::Portable]);
    let paths: Vec<Backend> = harness.verifiers.iter().map(|(verifier, _)| verifier.backend()).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let (mut blocks, mut counts) = options.file.as_deref().and_then(read).unwrap_or_default();
    eprintln!("paths {paths:?}, {threads} threads, from block {blocks}");
    while counts.cases < options.cases {
        let start = Instant::now();
        let round = std::thread::scope(|scope| {
            let workers: Vec<_> = (blocks..blocks + threads)
                .map(|number| {
                    let (harness, options) = (&harness, &options);
                    scope.spawn(move || block(harness, options, number))
                })
                .collect();
            let mut round = Counts::default();
            for worker in workers {
                round.add(&worker.join().expect("a worker panics only where an implementation does"));
            }
            round
        });
        blocks += threads;
        counts.add(&round);
        let line = line(blocks, &counts);
        eprintln!("{line} ({:.1} µs a case)", start.elapsed().as_secs_f64() * 1e6 / round.cases as f64);
        if let Some(file) = &options.file {
            let file = OpenOptions::new().create(true).append(true).open(file);
            file.and_then(|mut file| writeln!(file, "{line}")).expect("the file can be written");
        }
        if counts.differences > 0 {
            return ExitCode::FAILURE;
        }
    }
    println!("{}", line(blocks, &counts));
    ExitCode::SUCCESS
}
