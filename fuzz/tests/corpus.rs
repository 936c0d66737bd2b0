//! Runs every decoder on its seeds, on the findings of earlier searches, and on a fixed number of mutated seeds,
//! without libFuzzer. So every test run replays what searches have found.

use std::fs;
use std::path::Path;

use base::fuzz::FuzzTarget;
use heddle_fuzz::allocator::Counting;
use heddle_fuzz::mutate::{Random, mutated};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Mutated inputs for each target.
const CHANGED: u64 = 2000;
/// Bytes of the longest of them.
const CHANGED_BYTES_MAX: usize = 16 << 10;

fn run(target: &FuzzTarget, what: &str, input: &[u8]) {
    let outcome = std::panic::catch_unwind(|| (target.run)(input));
    assert!(outcome.is_ok(), "{} fails on {what}: {}", target.name, shown(input));
}

/// The input as a line, so that a failure prints everything needed to repeat it.
fn shown(input: &[u8]) -> String {
    let hex: String = input.iter().take(4096).map(|byte| format!("{byte:02x}")).collect();
    format!("{} bytes, in hexadecimal {hex}", input.len())
}

fn corpus_of(target: &FuzzTarget) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a listed file").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.display().to_string(), fs::read(&path).expect("a corpus file"))).collect()
}

#[test]
fn every_decoder_holds_against_its_seeds_its_corpus_and_changed_inputs() {
    for target in heddle_fuzz::targets() {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let mut inputs: Vec<(String, Vec<u8>)> =
            seeds.into_iter().enumerate().map(|(number, seed)| (format!("seed {number}"), seed)).collect();
        inputs.extend(corpus_of(&target));
        for (what, input) in &inputs {
            run(&target, what, input);
        }
        for number in 0..CHANGED {
            let mut random = Random::new(number);
            let (what, input) = &inputs[random.below(inputs.len())];
            let mut input = input.clone();
            for _ in 0..=random.below(4) {
                input = mutated(target.shape, &input, CHANGED_BYTES_MAX, &mut random);
            }
            run(&target, &format!("{what}, changed with {number}"), &input);
        }
    }
}

#[test]
fn every_folder_of_the_corpus_is_a_targets_and_all_of_it_is_small() {
    const BYTES_MAX: u64 = 2 << 20;
    let names: Vec<&str> = heddle_fuzz::targets().iter().map(|target| target.name).collect();
    assert!(names.is_sorted() && names.windows(2).all(|pair| pair[0] != pair[1]), "names are not twice there");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut bytes = 0;
    for folder in fs::read_dir(&root).expect("there is a corpus") {
        let folder = folder.expect("a listed folder");
        let name = folder.file_name().into_string().expect("a plain name");
        assert!(
            names.contains(&name.as_str()),
            "{name} is the corpus of no target: remove it, or give a target this name"
        );
        for file in fs::read_dir(folder.path()).expect("a folder") {
            bytes += file.expect("a listed file").metadata().expect("a file").len();
        }
    }
    assert!(bytes <= BYTES_MAX, "the corpus has {bytes} bytes, more than {BYTES_MAX}");
}

/// The allocator enforces the memory limits of decoders: if it did not count, every bound above would hold.
#[test]
#[should_panic(expected = "above")]
fn the_allocator_counts() {
    base::fuzz::untrusted(b"four", || drop(vec![0_u8; 100 << 10]));
}
