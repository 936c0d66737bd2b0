//! `heddle bench teleport-…`.

use clap::Args;

use super::figure::FigureOutput;

/// A figure of TELEPORT.
#[derive(Args, Debug, Clone)]
pub struct TeleportArguments {
    /// Rounds, of which the medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=999))]
    pub rounds: u64,
    /// Memory of the data, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    pub data_mib: u64,
    /// Without the time of the paper's link between caller and executor; the ratios then have no bounds
    #[arg(long)]
    pub unshaped: bool,
    /// A quick look: 16 MiB, one round
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// A measured process.
#[derive(Args, Debug, Clone)]
pub struct TeleportProcessArguments {
    /// The part, and its settings as NAME=VALUE
    #[arg(value_name = "PART", required = true, num_args = 1..)]
    pub part: Vec<String>,
}
