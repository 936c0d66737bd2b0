//! Files of the operating system. Files created here are readable only by their owner: ledgers, states and keys lie in them.

use std::fs;
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::durable;
use crate::rt::blocking;

/// Parts given to the kernel in one call; Linux takes at most 1024.
const PARTS_PER_CALL_MAX: usize = 256;
/// Mode of new files; existing files keep theirs. [`durable::create_folder`] does the same for directories.
const FILE_MODE: u32 = 0o600;

#[derive(Clone)]
pub struct Directory {
    path: Arc<PathBuf>,
}

#[derive(Clone)]
pub struct File {
    file: Arc<fs::File>,
}

impl Directory {
    pub async fn open(path: PathBuf) -> io::Result<Directory> {
        blocking(move || {
            durable::create_folder(&path)?;
            Ok(Directory { path: Arc::new(path) })
        })
        .await
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&*self.path)? {
            let name = entry?.file_name().into_string();
            // A name that is not text is not one of ours.
            names.extend(name.ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    pub fn open_file(&self, name: &str, create: bool) -> io::Result<File> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(create).truncate(false).mode(FILE_MODE);
        Ok(File { file: Arc::new(options.open(self.path.join(name))?) })
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    pub async fn sync(&self) -> io::Result<()> {
        let path = Arc::clone(&self.path);
        blocking(move || fs::File::open(&*path)?.sync_all()).await
    }
}

impl File {
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes.into())
    }

    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    pub fn write_vectored_at(&self, mut offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> =
            parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)).collect();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            let batch = rest.len().min(PARTS_PER_CALL_MAX);
            match rustix::io::pwritev(&*self.file, &rest[..batch], offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    pub async fn sync(&self) -> io::Result<()> {
        let file = Arc::clone(&self.file);
        blocking(move || file.sync_data()).await
    }

    pub fn try_lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(&*self.file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
