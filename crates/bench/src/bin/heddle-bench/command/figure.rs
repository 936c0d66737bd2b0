//! `heddle bench` for the figures that need no network.

use std::time::Duration;

use base::rt::CancellationToken;
use indicatif::{ProgressBar, ProgressStyle};
use measurement::figure::Figure;

use crate::cli::component::{
    FarMemoryArguments, OrderingArguments, ProviderChoice, RmaArguments, SignaturesArguments, StateArguments,
    StatePart, ValidateArguments,
};
use crate::cli::figure::FigureOutput;
use crate::failure::CommandError;
use crate::output;

/// The frame interval of the terminal's spinner.
const TURN: Duration = Duration::from_millis(120);

pub async fn state(arguments: &StateArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let options = bench::state::StateConfig {
        data_bytes: arguments.data_mib << 20,
        value_bytes: usize::try_from(arguments.value_bytes).expect("at most 1 MiB, says the command line"),
        seconds: arguments.seconds,
        pairs: usize::try_from(arguments.pairs).expect("at most 99, says the command line"),
        seed: arguments.seed,
        steady: Duration::from_secs_f64(arguments.steady_seconds),
        only: arguments.only.map(|part| match part {
            StatePart::Reads => bench::state::StatePart::Reads,
            StatePart::Blocks => bench::state::StatePart::Blocks,
            StatePart::Load => bench::state::StatePart::Load,
            StatePart::Pressure => bench::state::StatePart::Pressure,
        }),
        ..bench::state::StateConfig::default()
    };
    let progress = FigureProgress::new();
    let figure = bench::state::run(&options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

pub async fn validate(arguments: &ValidateArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let defaults = bench::validate::ValidateConfig::default();
    let count = |number: u64| usize::try_from(number).expect("the command line's limits are small");
    let options = bench::validate::ValidateConfig {
        block_transactions: match arguments.transactions {
            Some(transactions) => vec![count(transactions)],
            None => defaults.block_transactions,
        },
        blocks: count(arguments.blocks),
        seed: arguments.seed,
    };
    let progress = FigureProgress::new();
    let figure = bench::validate::run(&options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

pub async fn rma(arguments: &RmaArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let defaults = bench::rma::RmaConfig::default();
    let options = bench::rma::RmaConfig {
        rounds: usize::try_from(arguments.rounds).expect("at most 9,999, says the command line"),
        batch: Duration::from_millis(arguments.batch_ms),
        data_bytes: arguments.data_mib << 20,
        seed: arguments.seed,
        shm: arguments.provider != Some(ProviderChoice::Tcp),
        tcp: arguments.provider != Some(ProviderChoice::Shm),
        shapes: if arguments.unshaped { Vec::new() } else { defaults.shapes },
    };
    let progress = FigureProgress::new();
    let figure = bench::rma::run(&options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

pub async fn far_memory(arguments: &FarMemoryArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let (data_mib, rounds) = if arguments.quick { (32, 1) } else { (arguments.data_mib, arguments.rounds) };
    let defaults = bench::far_memory::FarMemoryConfig::default();
    let options = bench::far_memory::FarMemoryConfig {
        rounds: usize::try_from(rounds).expect("at most 999, says the command line"),
        region_bytes: data_mib << 20,
        budget_bytes: data_mib << 18,
        faults: if arguments.quick { 1_000 } else { defaults.faults },
        tcp: arguments.provider == ProviderChoice::Tcp,
        unshaped: arguments.unshaped,
    };
    let progress = FigureProgress::new();
    let figure = bench::far_memory::run(&options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

pub fn signatures(arguments: &SignaturesArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let options = bench::signatures::SignaturesConfig {
        keys: usize::try_from(arguments.keys).expect("at most 3,000, says the command line"),
        rounds: usize::try_from(arguments.rounds).expect("at most 9,999, says the command line"),
        seed: arguments.seed,
    };
    let progress = FigureProgress::new();
    let figure = bench::signatures::run(&options, stop, &|part| progress.report(part));
    drop(progress);
    show(&figure?, &arguments.output)
}

pub async fn ordering(arguments: &OrderingArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let count = |number: u64| usize::try_from(number).expect("the command line's limits are small");
    let mut options = bench::ordering::OrderingConfig {
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
    let progress = FigureProgress::new();
    let figure = bench::ordering::run(&options, stop, &|part| progress.report(part)).await;
    drop(progress);
    show(&figure?, &arguments.common.output)
}

/// Prints a figure, and writes the requested files.
pub fn show(figure: &Figure, wanted: &FigureOutput) -> Result<(), CommandError> {
    output::print(&figure.to_table())?;
    if let Some(path) = &wanted.json {
        figure.write_json(path)?;
    }
    if let Some(path) = wanted.plot() {
        figure.write_svg(&path)?;
    }
    Ok(())
}

/// A progress line in the terminal; nothing if standard error is not a terminal.
pub struct FigureProgress(ProgressBar);

impl FigureProgress {
    pub fn new() -> FigureProgress {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {elapsed:>4}  {msg}");
        bar.set_style(style.expect("the template is well formed"));
        bar.enable_steady_tick(TURN);
        FigureProgress(bar)
    }

    pub fn report(&self, part: &str) {
        self.0.set_message(part.to_owned());
    }
}

impl Drop for FigureProgress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
