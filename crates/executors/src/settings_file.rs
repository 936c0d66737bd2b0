//! The role's settings in the file of a memory node, which is run beside it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The table `[executors]` of a memory node's file: the role beside that node. The keys are the options of `heddle farmem executors`, which has their
/// defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecutorsFile {
    /// Where programs connect.
    pub socket: PathBuf,
    /// The program of executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<PathBuf>,
    /// Users that may have executors beside root and the role's user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<u32>,
    /// Every user may.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_owner: bool,
    /// The most executors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executors_max: Option<u32>,
    /// The most executors of one owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_owner: Option<u32>,
    /// The most functions that run at the same time in an executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contexts: Option<u32>,
    /// Bytes of an executor's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processors of an executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<f64>,
    /// Bytes of memory of all executors of an owner together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_memory_bytes: Option<u64>,
    /// Processors of all executors of an owner together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_processor: Option<f64>,
    /// The folder of files for pages that an executor has no memory for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<PathBuf>,
    /// Bytes of the file of an executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_bytes: Option<u64>,
    /// After how many seconds without an answer an executor is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence_seconds: Option<u64>,
    /// Where relays of other hosts connect, as `tls:host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// The certificate for their links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Files with the authorities of organisations, by the organisation's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trust: BTreeMap<String, PathBuf>,
    /// The user that owns an organisation's executors, as `uid` or `uid:gid`, by the organisation's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, String>,
    /// The most programs of one organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_tenant: Option<u32>,
    /// Where the role serves its metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
}
