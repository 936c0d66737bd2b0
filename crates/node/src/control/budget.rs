//! `budget.toml`: how much remote memory an operator gave a peer while it ran, for its next start.
//!
//! It lies in the folder of the compute node and says two numbers: the bytes, and what the configuration said when they were
//! set. As long as the configuration says the same, the file counts; whoever changes the configuration later has the last
//! word.

use std::path::Path;

use base::durable::{self, Access};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, pool};
use crate::network::NodeError;

/// The file's name.
pub const FILE: &str = "budget.toml";

const HEAD: &str = "\
# How much remote memory `heddle peer memory` gave this peer, in bytes. It counts until pool.peer_bytes of the configuration
# is another one than \"configured_bytes\", or until this file is removed.
";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    bytes: u64,
    configured_bytes: u64,
}

/// The budget that a peer starts with.
///
/// # Errors
/// A file that cannot be read or understood; it says so and what to do.
pub fn load(folder: &Path, configured_bytes: u64, section_bytes: u64) -> Result<u64, NodeError> {
    let path = folder.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(configured_bytes),
        read => read.map_err(NodeError::file("reading", &path))?,
    };
    let origin = path.display().to_string();
    let budget: Budget = toml::from_str(&text).map_err(|error| {
        let message = format!("{error}\nremove it: pool.peer_bytes counts then");
        NodeError::Config(ConfigError::Syntax { origin: origin.clone(), message })
    })?;
    if budget.configured_bytes != configured_bytes {
        return Ok(configured_bytes);
    }
    pool::check_budget("bytes", budget.bytes, section_bytes)
        .map_err(|(key, problem)| NodeError::Config(ConfigError::Value { origin, key, problem }))?;
    Ok(budget.bytes)
}

/// Keeps a budget. Durable on return.
///
/// # Errors
/// The file cannot be written.
pub fn store(folder: &Path, bytes: u64, configured_bytes: u64) -> std::io::Result<()> {
    let budget = Budget { bytes, configured_bytes };
    let text = HEAD.to_owned() + &toml::to_string(&budget).expect("two numbers have a TOML form");
    durable::write(&folder.join(FILE), text.as_bytes(), Access::Everybody)
}
