//! `ready.json`: states that a process is ready, and its addresses. It lies beside the process's configuration.

use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::file::ProcessRole;
use crate::network::{NodeError, write};

const READY_FILE: &str = "ready.json";

/// A process that can be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// Such as `compute-org1`.
    pub name: String,
    /// Its role.
    pub role: ProcessRole,
    /// Its process ID.
    pub process: u32,
    /// The address at which it answers.
    pub address: String,
    /// The address of its metrics and health.
    pub metrics: SocketAddr,
    /// In `endpoints.json`: whether it is a compute node that was added to its peer, and not one of the plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_added: bool,
}

impl Ready {
    /// Reads the last report of the process in a folder, if there is one.
    pub fn load(folder: &Path) -> Option<Ready> {
        serde_json::from_slice(&std::fs::read(folder.join(READY_FILE)).ok()?).ok()
    }

    pub(super) fn store(&self, folder: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string_pretty(self).expect("it has a JSON form");
        write(&folder.join(READY_FILE), (text + "\n").as_bytes())
    }

    pub(super) fn remove(folder: &Path) {
        // If the file stays, it names a process that has ended, which its readers find out.
        let _ = std::fs::remove_file(folder.join(READY_FILE));
    }
}
