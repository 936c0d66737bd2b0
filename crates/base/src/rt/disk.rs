//! Directories and files.
//!
//! Durability, in production as in simulation:
//! 1. Written bytes are durable once [`File::sync`] has returned; before that a crash keeps, loses or tears each write.
//! 2. Creating a name ([`Directory::open_file`]), renaming and removing are durable once [`Directory::sync`] has
//!    returned; before that a crash may undo them.
//! 3. A directory that [`Directory::open`] or [`Directory::subdirectory`] created is durable when they return.
//!
//! Directories and files created in production are readable only by their owner (modes 0700 and 0600).
//!
//! Reads and writes go to the page cache and do not block, so they are plain functions. Every operation that waits for
//! the device is a future. In production `sync` runs on the pool for blocking calls. Dropping its future does not stop
//! a sync that has started.

mod production;

use std::path::{Path, PathBuf};
use std::{fmt, io};

use bytes::Bytes;

use super::{context, simulation};

/// A directory.
#[derive(Clone)]
pub struct Directory {
    inner: DirectoryInner,
}

#[derive(Clone)]
enum DirectoryInner {
    Production(production::Directory),
    Simulation(simulation::Directory),
}

/// An open file, read and written at offsets. Clones share it.
#[derive(Clone)]
pub struct File {
    inner: FileInner,
}

#[derive(Clone)]
enum FileInner {
    Production(production::File),
    Simulation(simulation::File),
}

impl Directory {
    /// Opens a directory, creating it and its parents where they are missing.
    ///
    /// # Errors
    /// An error of the operating system.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Directory> {
        let path = path.as_ref().to_path_buf();
        let inner = match context::ambient() {
            Some(ambient) => DirectoryInner::Simulation(simulation::Directory::open(ambient, path).await?),
            None => DirectoryInner::Production(production::Directory::open(path).await?),
        };
        Ok(Directory { inner })
    }

    /// Opens a directory within this one, creating it where it is missing.
    ///
    /// # Errors
    /// An error of the operating system; `InvalidInput` when `name` is not one plain name.
    pub async fn subdirectory(&self, name: &str) -> io::Result<Directory> {
        check_name(name)?;
        Directory::open(self.path().join(name)).await
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        match &self.inner {
            DirectoryInner::Production(directory) => directory.path(),
            DirectoryInner::Simulation(directory) => directory.path(),
        }
    }

    /// The names of its files and directories, sorted.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn list(&self) -> io::Result<Vec<String>> {
        match &self.inner {
            DirectoryInner::Production(directory) => directory.list(),
            DirectoryInner::Simulation(directory) => directory.list(),
        }
    }

    /// Opens a file for reading and writing; creates it empty when it is missing and `create` is true.
    ///
    /// # Errors
    /// `NotFound` when it is missing and `create` is false; `InvalidInput` when `name` is not one plain name.
    pub fn open_file(&self, name: &str, create: bool) -> io::Result<File> {
        check_name(name)?;
        match &self.inner {
            DirectoryInner::Production(directory) => {
                directory.open_file(name, create).map(|file| File { inner: FileInner::Production(file) })
            }
            DirectoryInner::Simulation(directory) => {
                directory.open_file(name, create).map(|file| File { inner: FileInner::Simulation(file) })
            }
        }
    }

    /// Removes a file's name. Open handles keep working.
    ///
    /// # Errors
    /// `NotFound` when there is no such file.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        match &self.inner {
            DirectoryInner::Production(directory) => directory.remove(name),
            DirectoryInner::Simulation(directory) => directory.remove(name),
        }
    }

    /// Renames a file in this directory, replacing a file that has the new name. A crash leaves the old or the new state of
    /// both names, never a mixture.
    ///
    /// # Errors
    /// `NotFound` when there is no file `from`.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        match &self.inner {
            DirectoryInner::Production(directory) => directory.rename(from, to),
            DirectoryInner::Simulation(directory) => directory.rename(from, to),
        }
    }

    /// Makes all names that were created, renamed and removed so far durable.
    ///
    /// # Errors
    /// An error of the operating system. After an error the state on disk is unknown: treat it as ambiguous.
    pub async fn sync(&self) -> io::Result<()> {
        match &self.inner {
            DirectoryInner::Production(directory) => directory.sync().await,
            DirectoryInner::Simulation(directory) => directory.sync().await,
        }
    }
}

impl File {
    /// Its length in bytes.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn len(&self) -> io::Result<u64> {
        match &self.inner {
            FileInner::Production(file) => file.len(),
            FileInner::Simulation(file) => file.len(),
        }
    }

    /// Whether its length is 0.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads up to `len` bytes at `offset`: fewer only where the file ends.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        match &self.inner {
            FileInner::Production(file) => file.read_at(offset, len),
            FileInner::Simulation(file) => file.read_at(offset, len),
        }
    }

    /// Reads exactly `len` bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before.
    pub fn read_exact_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let bytes = self.read_at(offset, len)?;
        if bytes.len() < len {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends within the bytes to be read"));
        }
        Ok(bytes)
    }

    /// Writes all of `bytes` at `offset`; the file grows as needed, and a gap reads as zeros.
    ///
    /// # Errors
    /// An error of the operating system (`StorageFull` when the disk is full); some of the bytes may have been written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.inner {
            FileInner::Production(file) => file.write_at(offset, bytes),
            FileInner::Simulation(file) => file.write_at(offset, bytes),
        }
    }

    /// Writes all of `parts`, one after the other, at `offset`.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_vectored_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        match &self.inner {
            FileInner::Production(file) => file.write_vectored_at(offset, parts),
            FileInner::Simulation(file) => file.write_vectored_at(offset, parts),
        }
    }

    /// Sets the length: truncates the file, or extends it by zeros.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn truncate(&self, len: u64) -> io::Result<()> {
        match &self.inner {
            FileInner::Production(file) => file.truncate(len),
            FileInner::Simulation(file) => file.truncate(len),
        }
    }

    /// Makes the bytes that were written before this call durable (fdatasync).
    ///
    /// # Errors
    /// An error of the operating system. After an error it is unknown which bytes are durable, and another sync does not tell:
    /// treat it as ambiguous, and read back.
    pub async fn sync(&self) -> io::Result<()> {
        match &self.inner {
            FileInner::Production(file) => file.sync().await,
            FileInner::Simulation(file) => file.sync().await,
        }
    }

    /// Takes an exclusive lock on the file, held until the last clone of this handle is dropped or the process ends.
    /// False when another handle holds it.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn try_lock(&self) -> io::Result<bool> {
        match &self.inner {
            FileInner::Production(file) => file.try_lock(),
            FileInner::Simulation(file) => file.try_lock(),
        }
    }
}

/// Rejects names that are not directly within a directory.
fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not the name of a file")));
    }
    Ok(())
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Directory({:?})", PathBuf::from(self.path()))
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("File")
    }
}
