//! A log store on a simulated disk: one file with consecutive entries, and one with the hard state.

use std::sync::Mutex;

use async_trait::async_trait;
use base::Bytes;
use base::rt::disk::{Directory, File};

use crate::{Error, LogStore};

const HEAD_BYTES: u64 = 16;

/// A log store that keeps entries and hard state in files of the node. Not for production: entries stay for ever.
pub struct FileLogStore {
    directory: Directory,
    file: File,
    state: Mutex<LogStoreState>,
}

#[derive(Default)]
struct LogStoreState {
    /// The offset of each entry, and of the next one.
    offsets: Vec<u64>,
    durable: u64,
}

fn failed(error: std::io::Error) -> Error {
    Error::LogStore(error.to_string())
}

fn checksum(bytes: &[u8]) -> u64 {
    // FNV: enough to tell a torn entry from a whole one.
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl FileLogStore {
    /// Opens the log store on the disk; a new one has the entry with which all logs start.
    ///
    /// # Errors
    /// [`Error::LogStore`].
    pub async fn open(first: &Bytes) -> Result<FileLogStore, Error> {
        let directory = Directory::open("journal").await.map_err(failed)?;
        let file = directory.open_file("entries", true).map_err(failed)?;
        directory.sync().await.map_err(failed)?;
        let length = file.len().map_err(failed)?;
        let mut offsets = vec![0];
        let mut at = 0;
        while at + HEAD_BYTES <= length {
            let head = file.read_at(at, HEAD_BYTES as usize).map_err(failed)?;
            let word = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().expect("eight bytes"));
            let bytes = word(0);
            if bytes == 0 || bytes > length - at - HEAD_BYTES {
                break;
            }
            let body = file.read_at(at + HEAD_BYTES, bytes as usize).map_err(failed)?;
            if checksum(&body) != word(8) {
                break;
            }
            at += HEAD_BYTES + bytes;
            offsets.push(at);
        }
        file.truncate(at).map_err(failed)?;
        file.sync().await.map_err(failed)?;
        let durable = offsets.len() as u64 - 1;
        let store = FileLogStore { directory, file, state: Mutex::new(LogStoreState { offsets, durable }) };
        if durable == 0 {
            store.append(0, first.clone()).await?;
            store.sync().await?;
        }
        Ok(store)
    }
}

#[async_trait]
impl LogStore for FileLogStore {
    fn height(&self) -> u64 {
        self.state.lock().expect("no holder panics").offsets.len() as u64 - 1
    }

    fn durable(&self) -> u64 {
        self.state.lock().expect("no holder panics").durable
    }

    fn read(&self, position: u64) -> Result<Option<Bytes>, Error> {
        let state = self.state.lock().expect("no holder panics");
        let (Some(from), Some(until)) =
            (state.offsets.get(position as usize), state.offsets.get(position as usize + 1))
        else {
            return Ok(None);
        };
        let bytes = self.file.read_at(from + HEAD_BYTES, (until - from - HEAD_BYTES) as usize).map_err(failed)?;
        Ok(Some(bytes))
    }

    async fn append(&self, position: u64, entry: Bytes) -> Result<(), Error> {
        let mut state = self.state.lock().expect("no holder panics");
        assert_eq!(position, state.offsets.len() as u64 - 1, "report: an engine appends elsewhere than at the end");
        let at = *state.offsets.last().expect("at least one");
        let mut record = (entry.len() as u64).to_le_bytes().to_vec();
        record.extend_from_slice(&checksum(&entry).to_le_bytes());
        record.extend_from_slice(&entry);
        self.file.write_at(at, &record).map_err(failed)?;
        state.offsets.push(at + record.len() as u64);
        Ok(())
    }

    async fn sync(&self) -> Result<u64, Error> {
        let height = self.height();
        self.file.sync().await.map_err(failed)?;
        let mut state = self.state.lock().expect("no holder panics");
        state.durable = state.durable.max(height.min(state.offsets.len() as u64 - 1));
        Ok(state.durable)
    }

    async fn truncate(&self, height: u64) -> Result<(), Error> {
        {
            let mut state = self.state.lock().expect("no holder panics");
            assert!(height >= 1, "report: the first entry is given up");
            if height >= state.offsets.len() as u64 {
                return Ok(());
            }
            state.offsets.truncate(height as usize + 1);
            state.durable = state.durable.min(height);
            self.file.truncate(state.offsets[height as usize]).map_err(failed)?;
        }
        self.file.sync().await.map_err(failed)
    }

    fn hard_state(&self) -> Result<Bytes, Error> {
        if !self.directory.list().map_err(failed)?.iter().any(|name| name == "note") {
            return Ok(Bytes::new());
        }
        let file = self.directory.open_file("note", false).map_err(failed)?;
        let length = file.len().map_err(failed)?;
        file.read_at(0, length as usize).map_err(failed)
    }

    async fn set_hard_state(&self, note: Bytes) -> Result<(), Error> {
        let file = self.directory.open_file("note.new", true).map_err(failed)?;
        file.truncate(0).map_err(failed)?;
        file.write_at(0, &note).map_err(failed)?;
        file.sync().await.map_err(failed)?;
        self.directory.rename("note.new", "note").map_err(failed)?;
        self.directory.sync().await.map_err(failed)
    }
}
