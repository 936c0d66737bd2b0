//! Directories that one node of one process has to itself.

use base::rt::disk::Directory;
use storage::DataDirectory;

use crate::Error;

/// Takes a directory, until what is given is dropped.
///
/// # Errors
/// [`Error::Locked`] when another node has it; [`Error::Invalid`] for one with files of something else, or of another version;
/// [`Error::Disk`].
pub(crate) async fn own(directory: Directory) -> Result<DataDirectory, Error> {
    DataDirectory::lock(directory).await.map_err(|error| match error {
        storage::Error::Locked { path } => Error::Locked(path),
        error @ storage::Error::Version { .. } => Error::Invalid(error.to_string()),
        error => Error::Disk { doing: "taking a node's directory", reason: error.to_string() },
    })
}
