//! The files of a network's directory.

use std::path::Path;

use base::durable::{self, FileAccess};

use crate::network::error::NodeError;

pub(crate) const CONFIG_FILE: &str = "heddle.toml";
/// The certificates and keys.
pub(super) const ORGANIZATIONS: &str = "organizations";

/// Writes a file that everyone may read, and creates the folders above it. Durable on return.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    durable::write(path, bytes, FileAccess::Everybody).map_err(NodeError::file("writing", path))
}

/// As [`write`], but only the owner may read the file.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    durable::write(path, bytes, FileAccess::Owner).map_err(NodeError::file("writing", path))
}
