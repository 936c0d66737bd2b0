//! The directory of a network, as an argument.

use std::path::PathBuf;

use clap::Args;

/// The default directory of a network.
pub const DIRECTORY: &str = "./heddle-data";

/// The network that a command uses.
#[derive(Args, Debug, Clone)]
pub struct DirectoryArguments {
    /// The network's directory
    #[arg(long = "dir", value_name = "DIR", default_value = DIRECTORY)]
    pub dir: PathBuf,
}
