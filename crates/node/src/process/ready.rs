//! `ready.json`: that a process can be used, and where. It lies beside the process's configuration.

use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::file::ProcessRole;
use crate::network::{NodeError, write};

const FILE: &str = "ready.json";

/// A process that can be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// Such as `compute-org1`.
    pub name: String,
    /// What it does.
    pub role: ProcessRole,
    /// Its number.
    pub process: u32,
    /// Where it answers.
    pub address: String,
    /// Where its metrics and health are.
    pub metrics: SocketAddr,
}

impl Ready {
    /// Reads what the process of a folder said last, if it said anything.
    pub fn load(folder: &Path) -> Option<Ready> {
        serde_json::from_slice(&std::fs::read(folder.join(FILE)).ok()?).ok()
    }

    pub(super) fn store(&self, folder: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string_pretty(self).expect("it has a JSON form");
        write(&folder.join(FILE), (text + "\n").as_bytes())
    }

    pub(super) fn remove(folder: &Path) {
        // Where it stays, it names a process that has ended, which whoever reads it finds out.
        let _ = std::fs::remove_file(folder.join(FILE));
    }
}
