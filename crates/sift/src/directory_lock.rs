//! Locks a node's directory, so that only one node, of all processes, uses it at a time.

use base::rt::disk::Directory;
use storage::DataDirectory;

use crate::Error;

/// Locks a directory until the returned value is dropped.
///
/// # Errors
/// [`Error::Locked`] when another node has it; [`Error::Invalid`] for a directory with files of something else, or of
/// another version; [`Error::NodeDisk`].
pub(crate) async fn lock_directory(directory: Directory) -> Result<DataDirectory, Error> {
    DataDirectory::lock(directory).await.map_err(|error| match error {
        storage::Error::Locked { path } => Error::Locked(path),
        error @ storage::Error::Version { .. } => Error::Invalid(error.to_string()),
        error => Error::Disk { doing: "taking a node's directory", reason: error.to_string() },
    })
}
