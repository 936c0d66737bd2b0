//! `heddle bench sift-…`: Sift's figures; how they are measured is in [`bench::sift`].

use base::rt::Stop;
use bench::sift::Options;

use super::figure::{Progress, show};
use crate::cli::bench::Sift;
use crate::failure::Failure;

fn options(arguments: &Sift) -> Options {
    let count = |number: u64| usize::try_from(number).expect("the command line's limits are small");
    let mut options = Options {
        keys: arguments.keys,
        value_bytes: count(arguments.value_bytes),
        clients: arguments.clients,
        rounds: count(arguments.rounds),
        seconds: arguments.seconds,
        seed: arguments.common.seed,
    };
    if arguments.common.quick {
        (options.keys, options.rounds, options.seconds) = (10_000, 1, 0.3);
    }
    options
}

pub async fn fig5(arguments: &Sift, stop: &Stop) -> Result<(), Failure> {
    let progress = Progress::new();
    let figure = bench::sift::fig5(&options(arguments), stop, |part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

pub async fn fig6(arguments: &Sift, stop: &Stop) -> Result<(), Failure> {
    let progress = Progress::new();
    let figure = bench::sift::fig6(&options(arguments), stop, |part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}
