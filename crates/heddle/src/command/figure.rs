//! `heddle bench` without a network: figures.

use std::time::Duration;

use base::rt::Stop;
use bench::figure::Figure;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::bench::{FigureOutput, Ordering, Provider, Rma, Signatures, State, StatePart};
use crate::failure::Failure;
use crate::output;

/// How often the line in the terminal turns.
const TURN: Duration = Duration::from_millis(120);

pub async fn state(arguments: &State, stop: &Stop) -> Result<(), Failure> {
    let options = bench::state::Options {
        data_bytes: arguments.data_mib << 20,
        value_bytes: usize::try_from(arguments.value_bytes).expect("at most 1 MiB, says the command line"),
        seconds: arguments.seconds,
        pairs: usize::try_from(arguments.pairs).expect("at most 99, says the command line"),
        seed: arguments.seed,
        steady: Duration::from_secs_f64(arguments.steady_seconds),
        only: arguments.only.map(|part| match part {
            StatePart::Reads => bench::state::Part::Reads,
            StatePart::Blocks => bench::state::Part::Blocks,
            StatePart::Load => bench::state::Part::Load,
            StatePart::Pressure => bench::state::Part::Pressure,
        }),
        ..bench::state::Options::default()
    };
    let progress = Progress::new();
    let figure = bench::state::run(&options, stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

pub async fn rma(arguments: &Rma, stop: &Stop) -> Result<(), Failure> {
    let defaults = bench::rma::Options::default();
    let options = bench::rma::Options {
        rounds: usize::try_from(arguments.rounds).expect("at most 9,999, says the command line"),
        batch: Duration::from_millis(arguments.batch_ms),
        data_bytes: arguments.data_mib << 20,
        seed: arguments.seed,
        shm: arguments.provider != Some(Provider::Tcp),
        tcp: arguments.provider != Some(Provider::Shm),
        shapes: if arguments.unshaped { Vec::new() } else { defaults.shapes },
    };
    let progress = Progress::new();
    let figure = bench::rma::run(&options, stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

pub fn signatures(arguments: &Signatures, stop: &Stop) -> Result<(), Failure> {
    let options = bench::signatures::Options {
        keys: usize::try_from(arguments.keys).expect("at most 3,000, says the command line"),
        rounds: usize::try_from(arguments.rounds).expect("at most 9,999, says the command line"),
        seed: arguments.seed,
    };
    let progress = Progress::new();
    let figure = bench::signatures::run(&options, stop, &|part| progress.tell(part));
    drop(progress);
    show(&figure?, &arguments.output)
}

pub async fn ordering(arguments: &Ordering, stop: &Stop) -> Result<(), Failure> {
    let count = |number: u64| usize::try_from(number).expect("the command line's limits are small");
    let mut options = bench::ordering::Options {
        transactions: arguments.transactions,
        transaction_bytes: count(arguments.transaction_bytes),
        rounds: count(arguments.rounds),
        seconds: arguments.seconds,
        is_quick: arguments.common.quick,
        folder: arguments.folder.clone(),
        seed: arguments.common.seed,
    };
    if arguments.common.quick {
        (options.rounds, options.seconds) = (1, 0.3);
    }
    let progress = Progress::new();
    let figure = bench::ordering::run(&options, stop, &|part| progress.tell(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

/// Prints a figure, and writes it where that is wanted.
pub fn show(figure: &Figure, wanted: &FigureOutput) -> Result<(), Failure> {
    output::print(&figure.to_table())?;
    if let Some(path) = &wanted.json {
        figure.write_json(path)?;
    }
    if let Some(path) = wanted.plot() {
        figure.write_svg(&path)?;
    }
    Ok(())
}

/// What is being measured, in the terminal; nothing when standard error is none.
pub struct Progress(ProgressBar);

impl Progress {
    pub fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {elapsed:>4}  {msg}");
        bar.set_style(style.expect("the template is well formed"));
        bar.enable_steady_tick(TURN);
        Progress(bar)
    }

    pub fn tell(&self, part: &str) {
        self.0.set_message(part.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
