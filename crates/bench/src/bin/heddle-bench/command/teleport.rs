//! `heddle bench teleport-…`.

use std::path::PathBuf;

use base::rt::CancellationToken;
use bench::teleport::contention::ContentionFigure;
use bench::teleport::{OPERATIONS, TeleportConfig, ablation, breakdown, contention as contended, false_sharing};
use measurement::error::Error;
use measurement::figure::Figure;

use super::figure::{FigureProgress, show};
use crate::cli::teleport::TeleportArguments;
use crate::failure::CommandError;

/// Data and operations of a quick look.
const QUICK_MIB: u64 = 16;
const QUICK_OPERATIONS: u64 = 300_000;

pub async fn fig6(arguments: &TeleportArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    measure(arguments, async |config, tell| ablation::run(config, stop, tell).await).await
}

pub async fn fig7(arguments: &TeleportArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    measure(arguments, async |config, tell| false_sharing::run(config, stop, tell).await).await
}

pub async fn fig20(arguments: &TeleportArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    measure(arguments, async |config, tell| breakdown::run(config, stop, tell).await).await
}

pub async fn contention(
    figure: ContentionFigure,
    arguments: &TeleportArguments,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    measure(arguments, async |config, tell| contended::run(figure, config, stop, tell).await).await
}

async fn measure(
    arguments: &TeleportArguments,
    run: impl AsyncFnOnce(&TeleportConfig, &dyn Fn(&str)) -> Result<Figure, Error>,
) -> Result<(), CommandError> {
    let (mib, rounds) = if arguments.quick { (QUICK_MIB, 1) } else { (arguments.data_mib, arguments.rounds) };
    let program: PathBuf = std::env::current_exe()
        .map_err(|error| CommandError::new(format!("the path of this program is unknown: {error}")))?;
    let config = TeleportConfig {
        rounds: usize::try_from(rounds).expect("at most 999, says the command line"),
        data_bytes: mib << 20,
        operations: if arguments.quick { QUICK_OPERATIONS } else { OPERATIONS },
        unshaped: arguments.unshaped,
        program,
    };
    let progress = FigureProgress::new();
    let figure = run(&config, &|step| progress.report(step)).await;
    drop(progress);
    show(&figure?, &arguments.output)
}
