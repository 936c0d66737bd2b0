//! `budget.toml`: keeps what an operator said about the memory of a running peer for the peer's next start.
//!
//! The file lies in the compute node's folder and holds two numbers: the budget in bytes, and the budget that the
//! configuration had at that time. They are in force while the configuration still has that value; a later change of
//! the configuration overrides them. The file also holds the memory nodes that the peer has vacated, and those that have
//! joined it since it was planned, with the peer's tokens there.

use std::collections::BTreeSet;
use std::path::Path;

use base::durable::{self, FileAccess};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, pool};
use crate::network::NodeError;
use crate::process::file::DonorFile;

/// The file's name.
pub const BUDGET_FILE: &str = "budget.toml";

const HEAD: &str = "\
# The remote-memory budget that `heddle peer memory` gave this peer, in bytes. It is in force until pool.peer_bytes of the
# configuration differs from \"configured_bytes\", or until this file is removed. The memory nodes that were vacated, and those
# that have joined, with the peer's tokens: keep this file private.
";

/// Addresses of memory nodes that a peer has vacated.
pub type VacatedNodes = BTreeSet<String>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetFile {
    bytes: u64,
    configured_bytes: u64,
    #[serde(default)]
    vacated: VacatedNodes,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    joined: Vec<DonorFile>,
}

/// What an operator said about a peer's memory.
#[derive(Clone, Debug)]
pub struct MemorySettings {
    /// The budget.
    pub bytes: u64,
    /// The memory nodes that the peer does not use.
    pub vacated: VacatedNodes,
    /// The memory nodes that have joined the peer since it was planned.
    pub joined: Vec<DonorFile>,
}

/// The settings with which a peer starts.
///
/// # Errors
/// The file cannot be read or parsed; the error says what to do.
pub fn load(folder: &Path, configured_bytes: u64, section_bytes: u64) -> Result<MemorySettings, NodeError> {
    let path = folder.join(BUDGET_FILE);
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(MemorySettings { bytes: configured_bytes, vacated: VacatedNodes::new(), joined: Vec::new() });
        }
        read => read.map_err(NodeError::file("reading", &path))?,
    };
    let origin = path.display().to_string();
    let budget: BudgetFile = toml::from_str(&text).map_err(|error| {
        let message = format!("{error}\nremove it, and pool.peer_bytes applies again");
        NodeError::Config(ConfigError::Syntax { origin: origin.clone(), message })
    })?;
    let BudgetFile { vacated, joined, .. } = budget;
    if budget.configured_bytes != configured_bytes {
        return Ok(MemorySettings { bytes: configured_bytes, vacated, joined });
    }
    pool::check_budget("bytes", budget.bytes, section_bytes)
        .map_err(|(key, problem)| NodeError::Config(ConfigError::Value { origin, key, problem }))?;
    Ok(MemorySettings { bytes: budget.bytes, vacated, joined })
}

/// Stores them. Durable on return.
///
/// # Errors
/// The file cannot be written.
pub fn store(folder: &Path, configured_bytes: u64, settings: MemorySettings) -> std::io::Result<()> {
    let MemorySettings { bytes, vacated, joined } = settings;
    let budget = BudgetFile { bytes, configured_bytes, vacated, joined };
    let text = HEAD.to_owned() + &toml::to_string(&budget).expect("it has a TOML form");
    durable::write(&folder.join(BUDGET_FILE), text.as_bytes(), FileAccess::Owner)
}
