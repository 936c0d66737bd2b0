//! The command line: the commands and their help texts.
//!
//! `docs/cli.md` is generated from these declarations, and a test compares the two.

pub mod chaincode;
pub mod contract;
pub mod deny;
mod directory;
pub mod executors;
pub mod farmem;
pub mod kv;
pub mod ledger;
pub mod network;
pub mod node;
pub mod orderer;
pub mod peer;
pub mod pool;
mod program;
pub mod relay;

pub use directory::{DIRECTORY, DirectoryArguments};
pub use heddle_cli::exit;
pub use program::{BenchArguments, Cli, Command};
