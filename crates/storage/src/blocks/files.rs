//! Names and open files of a store's segments.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use base::BlockNumber;
use base::rt::disk::{Directory, File};

use super::format::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::{Error, lock};

const SEGMENT_SUFFIX: &str = ".segment";
const INDEX_SUFFIX: &str = ".index";

/// The name of the segment that begins with a block. Names sort as numbers do.
pub fn segment_name(first: BlockNumber) -> String {
    format!("{:020}{SEGMENT_SUFFIX}", first.get())
}

/// The name of that segment's index.
pub fn index_name(first: BlockNumber) -> String {
    format!("{:020}{INDEX_SUFFIX}", first.get())
}

/// The first block of a segment of this name; `None` for a name that is not a segment's.
pub fn parse_segment_name(name: &str) -> Option<BlockNumber> {
    let digits = name.strip_suffix(SEGMENT_SUFFIX)?;
    if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(BlockNumber)
}

/// Creates a segment without blocks, durable on return. One of the same name, left by an earlier attempt, is replaced.
///
/// # Errors
/// Errors of the operating system; nothing refers to the segment in that case.
pub async fn create_segment(directory: &Directory, header: SegmentHeader) -> Result<File, Error> {
    let name = segment_name(header.first);
    let path = directory.path().join(&name);
    let io = |error| Error::io("creating the segment", &path, error);
    let file = directory.open_file(&name, true).map_err(io)?;
    file.truncate(0).map_err(io)?;
    let mut bytes = vec![0; SEGMENT_HEADER_BYTES as usize];
    let fields = header.encode();
    bytes[..fields.len()].copy_from_slice(&fields);
    file.write_at(0, &bytes).map_err(io)?;
    file.sync().await.map_err(io)?;
    directory.sync().await.map_err(io)?;
    Ok(file)
}

/// Open files of sealed segments, a bounded number of them.
pub struct SegmentFiles {
    directory: Directory,
    open_max: usize,
    open: Mutex<OpenFiles>,
}

#[derive(Default)]
struct OpenFiles {
    files: BTreeMap<BlockNumber, (File, u64)>,
    uses: u64,
}

impl SegmentFiles {
    pub fn new(directory: Directory, open_max: usize) -> SegmentFiles {
        SegmentFiles { directory, open_max: open_max.max(2), open: Mutex::default() }
    }

    pub fn path(&self, first: BlockNumber) -> PathBuf {
        self.directory.path().join(segment_name(first))
    }

    /// Adds a file that is already open.
    pub fn insert(&self, first: BlockNumber, file: File) {
        let mut open = lock(&self.open);
        open.uses += 1;
        let used = open.uses;
        open.files.insert(first, (file, used));
        if open.files.len() > self.open_max {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(first, _)| *first);
            open.files.remove(&oldest.expect("the table has more than one file"));
        }
    }

    /// # Errors
    /// Errors of the operating system.
    pub fn get(&self, first: BlockNumber) -> Result<File, Error> {
        {
            let mut open = lock(&self.open);
            open.uses += 1;
            let now = open.uses;
            if let Some((file, used)) = open.files.get_mut(&first) {
                *used = now;
                return Ok(file.clone());
            }
        }
        let file = self
            .directory
            .open_file(&segment_name(first), false)
            .map_err(|error| Error::io("opening the segment", &self.path(first), error))?;
        self.insert(first, file.clone());
        Ok(file)
    }
}
