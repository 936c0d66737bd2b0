//! All fuzz targets in one program, over libFuzzer; `cargo xtask fuzz` builds and runs it.
//!
//! Environment variables select the target. `HEDDLE_FUZZ_TARGET` is its name; with `HEDDLE_FUZZ_TARGET=list` the
//! program prints the names. `HEDDLE_FUZZ_SEEDS` is a folder into which the program writes the target's seeds before
//! libFuzzer reads its folders. All arguments are libFuzzer's.
#![no_main]
#![allow(unsafe_code)] // What libFuzzer calls has fixed names.

use std::path::Path;
use std::sync::LazyLock;

use base::fuzz::FuzzTarget;
use heddle_fuzz::allocator::Counting;
use heddle_fuzz::mutate::restructured_in_place;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TARGET: LazyLock<FuzzTarget> = LazyLock::new(|| {
    let name = std::env::var("HEDDLE_FUZZ_TARGET").unwrap_or_default();
    if name == "list" {
        heddle_fuzz::targets().iter().for_each(|target| println!("{}", target.name));
        std::process::exit(0);
    }
    heddle_fuzz::targets().into_iter().find(|target| target.name == name).unwrap_or_else(|| {
        eprintln!("there is no fuzz target `{name}`; HEDDLE_FUZZ_TARGET=list prints them");
        std::process::exit(2);
    })
});

fuzz_target!(
    init: {
        if let Some(folder) = std::env::var_os("HEDDLE_FUZZ_SEEDS") {
            for (number, seed) in (TARGET.seeds)().into_iter().enumerate() {
                let path = Path::new(&folder).join(format!("seed-{number:03}"));
                std::fs::write(path, seed).expect("the folder for seeds can be written to");
            }
        }
        // Creates lazy tables here; otherwise their memory would count for the first input.
        (TARGET.seeds)().iter().for_each(|seed| (TARGET.run)(seed));
    },
    |data: &[u8]| (TARGET.run)(data)
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    restructured_in_place(TARGET.shape, data, size, max_size, seed)
        .unwrap_or_else(|| fuzzer_mutate(data, size, max_size))
});
