//! Options that figures share.

use std::path::PathBuf;

use clap::Args;

/// Options that the figures share.
#[derive(Args, Debug, Clone)]
pub struct FigureArguments {
    /// A quick look: little data and short runs instead of the sizes above
    #[arg(long)]
    pub quick: bool,
    /// Determines the keys
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: FigureOutput,
}

/// The files of a figure's results.
#[derive(Args, Debug, Clone)]
pub struct FigureOutput {
    /// Write the result as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Draw the rows as SVG [default: beside the JSON]
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub plot: Option<PathBuf>,
}

impl FigureOutput {
    /// The file of the plot, if there is one.
    pub fn plot(&self) -> Option<PathBuf> {
        self.plot.clone().or_else(|| self.json.as_ref().map(|json| json.with_extension("svg")))
    }
}
