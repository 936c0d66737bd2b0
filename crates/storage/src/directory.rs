//! The directory that holds all data of one process.
//!
//! 1. A file `LOCK` is locked for as long as the process lives, so that no two processes write one directory.
//! 2. A file `VERSION` holds one line, `heddle 1`: the name and the version of the format of the whole directory.
//! 3. A new or empty directory becomes a directory of this version. A directory with another version is refused before
//!    anything in it is touched, and so is a directory that has content but no `VERSION`.
//!
//! A change that older programs would misread raises the version. Each file format in the directory has a version of
//! its own as well. The modules that use the directory define its contents.

use std::path::Path;

use base::rt::disk::{Directory, File};

use crate::Error;

/// The version of the directory's format that this program reads and writes.
pub const FORMAT_VERSION: u32 = 1;
/// The longest version file that is read.
const VERSION_BYTES_MAX: usize = 256;

const VERSION_FILE: &str = "VERSION";
const VERSION_FILE_NEW: &str = "VERSION.new";
const LOCK_FILE: &str = "LOCK";

/// An open data directory. The lock is held until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct DataDirectory {
    directory: Directory,
    _lock: File,
}

impl DataDirectory {
    /// Opens a data directory, and creates it if it does not exist. Durable on return.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process uses it; [`Error::Version`] if its format is not this program's; errors of the
    /// operating system.
    pub async fn open(path: impl AsRef<Path>) -> Result<DataDirectory, Error> {
        let path = path.as_ref();
        let directory = Directory::open(path).await.map_err(|error| Error::io("opening", path, error))?;
        DataDirectory::lock(directory).await
    }

    /// As [`DataDirectory::open`], for a directory that is already open.
    ///
    /// # Errors
    /// As [`DataDirectory::open`].
    pub async fn lock(directory: Directory) -> Result<DataDirectory, Error> {
        let path = directory.path().to_path_buf();
        let io = |doing| {
            let path = path.clone();
            move |error| Error::io(doing, &path, error)
        };
        let names = directory.list().map_err(io("listing"))?;
        // Checked before the lock file is created, so that a directory of another program stays unchanged.
        let is_new = !names.iter().any(|name| name == VERSION_FILE);
        if is_new && names.iter().any(|name| name != LOCK_FILE && name != VERSION_FILE_NEW) {
            return Err(Error::Version {
                path,
                found: "has files in it and no VERSION file, so it is not a data directory".into(),
                advice: "choose an empty directory",
            });
        }
        let lock = directory.open_file(LOCK_FILE, true).map_err(io("locking"))?;
        if !lock.try_lock().map_err(io("locking"))? {
            return Err(Error::Locked { path });
        }
        if is_new {
            let text = format!("heddle {FORMAT_VERSION}\n");
            let file = directory.open_file(VERSION_FILE_NEW, true).map_err(io("writing VERSION in"))?;
            file.truncate(0).map_err(io("writing VERSION in"))?;
            file.write_at(0, text.as_bytes()).map_err(io("writing VERSION in"))?;
            file.sync().await.map_err(io("syncing VERSION in"))?;
            directory.rename(VERSION_FILE_NEW, VERSION_FILE).map_err(io("writing VERSION in"))?;
            directory.sync().await.map_err(io("syncing"))?;
        } else {
            let file = directory.open_file(VERSION_FILE, false).map_err(io("reading VERSION in"))?;
            let text = file.read_at(0, VERSION_BYTES_MAX).map_err(io("reading VERSION in"))?;
            check_version(&path, &text)?;
        }
        Ok(DataDirectory { directory, _lock: lock })
    }

    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// A directory within it, created durably if it does not exist.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub async fn subdirectory(&self, name: &str) -> Result<Directory, Error> {
        let path = self.directory.path().join(name);
        self.directory.subdirectory(name).await.map_err(|error| Error::io("opening", &path, error))
    }
}

fn check_version(path: &Path, text: &[u8]) -> Result<(), Error> {
    let refuse = |found: String, advice| Err(Error::Version { path: path.to_path_buf(), found, advice });
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.trim_end().strip_prefix("heddle "))
        .and_then(|number| number.parse::<u32>().ok());
    match number {
        Some(FORMAT_VERSION) => Ok(()),
        Some(number) if number > FORMAT_VERSION => refuse(
            format!("has data format {number}, and this program knows formats up to {FORMAT_VERSION}"),
            "run the version of heddle that wrote it, or a later one",
        ),
        Some(number) => refuse(
            format!("has data format {number}, which this program no longer reads"),
            "start with an empty directory and let the node fetch its blocks again",
        ),
        None => refuse(
            "has a VERSION file that this program cannot read".into(),
            "restore the file if it was damaged (one line, \"heddle\" and a number), or choose an empty directory",
        ),
    }
}

#[cfg(test)]
mod tests;
