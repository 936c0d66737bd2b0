//! The block store itself: appending, syncing and reading.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use base::rt;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::disk::{Directory, File};
use base::rt::sync::Mutex as AsyncMutex;
use base::{BlockNumber, Bytes, Epoch, TxId, TxIndex};

use super::files::{SegmentFiles, create_segment};
use super::fingerprints::fingerprint;
use super::format::{
    DurableWatermark, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader,
    TransactionList, WATERMARK_OFFSETS, checksum_parts, encode_transactions,
};
use super::index::{BlockIndex, ChainTip, RecordOffset, SegmentIndex};
use super::recovery::{OpenReport, recover, write_index};
use crate::{Error, GroupSync, SyncHandle, checksum, events, lock};

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct BlockStoreConfig {
    /// A segment that has reached this length takes no further block.
    pub segment_bytes: u64,
    /// Sealed segments kept open for reading.
    pub open_segments_max: usize,
}

impl Default for BlockStoreConfig {
    fn default() -> Self {
        BlockStoreConfig { segment_bytes: 64 * 1024 * 1024, open_segments_max: 64 }
    }
}

/// The largest value that [`BlockStoreConfig::segment_bytes`] may have: offsets in a segment fit 32 bits.
const SEGMENT_BYTES_MAX: u64 = u32::MAX as u64;

/// A block to be appended.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock<'a> {
    /// Its number, which must be the store's height.
    pub number: BlockNumber,
    /// The hash of its header.
    pub header_hash: [u8; 32],
    /// The hash of the header before it; [`super::NO_PREVIOUS`] for block 0.
    pub previous_hash: [u8; 32],
    /// The epoch of the primary that appends it; `Epoch(0)` if there are no epochs.
    pub epoch: Epoch,
    /// Its bytes, stored one part after another and read back in one piece.
    pub parts: &'a [Bytes],
    /// Its transactions in order, each with its validation code. An empty id is kept and not indexed.
    pub transactions: &'a [(TxId, u8)],
}

/// A block as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// Its number.
    pub number: BlockNumber,
    /// The hash of its header, as the caller of [`BlockStore::append`] gave it.
    pub header_hash: [u8; 32],
    /// The hash of the header before it; [`super::NO_PREVIOUS`] for block 0.
    pub previous_hash: [u8; 32],
    /// The epoch of the primary that appended it; `Epoch(0)` if there were no epochs.
    pub epoch: Epoch,
    /// Its bytes, in one piece.
    pub payload: Bytes,
    /// Its transactions in order, each with its validation code.
    pub transactions: Vec<(TxId, u8)>,
}

/// Where a transaction was committed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionLocation {
    /// The number of the block.
    pub block: BlockNumber,
    /// Its position in the block.
    pub index: TxIndex,
    /// Its validation code.
    pub code: u8,
}

/// A store of blocks; see [the module](super). Clones share it.
#[derive(Clone)]
pub struct BlockStore {
    shared: Arc<BlockStoreCore>,
}

struct BlockStoreCore {
    directory: Directory,
    options: BlockStoreConfig,
    group: GroupSync,
    files: SegmentFiles,
    index: RwLock<BlockIndex>,
    writer: AsyncMutex<SegmentWriter>,
    current: Mutex<WriteProgress>,
    watermark: Mutex<WatermarkSlot>,
    durable: WatchSender<u64>,
    broken: Mutex<Option<Arc<str>>>,
}

/// The end of the last segment, used by appends.
struct SegmentWriter {
    file: File,
    segment: SegmentIndex,
    /// A write failed, so there may be bytes beyond the last record.
    leftover: bool,
    /// The next block begins a new segment, unless this one is empty.
    is_full: bool,
}

/// How far the last segment has been written, used by syncs.
#[derive(Clone)]
struct WriteProgress {
    first: BlockNumber,
    file: File,
    handle: SyncHandle,
    end: u64,
    height: u64,
}

/// The newest durable watermark, and the slot for the next one.
struct WatermarkSlot {
    first: BlockNumber,
    height: u64,
    slot: usize,
}

impl BlockStore {
    /// Opens the store in a directory used by nothing else, and creates it if the directory is empty. All blocks found are
    /// durable on return.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if durable blocks have damage that opening can detect; errors of the operating system.
    pub async fn open(
        directory: Directory,
        group: GroupSync,
        options: BlockStoreConfig,
    ) -> Result<(BlockStore, OpenReport), Error> {
        if options.segment_bytes > SEGMENT_BYTES_MAX {
            let given = options.segment_bytes;
            return Err(Error::TooLarge { what: "segment_bytes", given, max: SEGMENT_BYTES_MAX });
        }
        let recovered = recover(&directory).await?;
        let tip = recovered.index.tip();
        let handle = group.register(recovered.last_file.clone());
        let current = WriteProgress {
            first: recovered.last.first,
            file: recovered.last_file.clone(),
            handle,
            end: recovered.last.end,
            height: tip.height,
        };
        let writer =
            SegmentWriter { file: recovered.last_file, segment: recovered.last, leftover: false, is_full: false };
        let marked = WatermarkSlot { first: current.first, height: 0, slot: 0 };
        let files = SegmentFiles::new(directory.clone(), options.open_segments_max);
        files.insert(current.first, current.file.clone());
        let shared = BlockStoreCore {
            directory,
            options,
            group,
            files,
            index: RwLock::new(recovered.index),
            writer: AsyncMutex::new(writer),
            current: Mutex::new(current.clone()),
            watermark: Mutex::new(marked),
            durable: watch(tip.height).0,
            broken: Mutex::new(None),
        };
        let store = BlockStore { shared: Arc::new(shared) };
        store.advance_durable(&current);
        Ok((store, recovered.report))
    }

    /// Appends the next block. Visible to readers on return, durable after [`BlockStore::sync`].
    ///
    /// A dropped future has not appended the block.
    ///
    /// # Errors
    /// [`Error::Fenced`] under an older epoch than the newest block's; [`Error::OutOfOrder`] and
    /// [`Error::WrongPrevious`] for a block that is not the next one; [`Error::TooLarge`] above [`RECORD_BYTES_MAX`];
    /// [`Error::DiskFull`], after which the same block may be appended later; [`Error::Broken`] after a failed fsync.
    pub async fn append(&self, block: NewBlock<'_>) -> Result<(), Error> {
        let mut writer = self.shared.writer.lock().await;
        self.check_intact()?;
        let tip = writer.segment.tip;
        if block.epoch < tip.epoch {
            return Err(Error::Fenced { given: block.epoch, newest: tip.epoch });
        }
        if block.number.get() != tip.height {
            return Err(Error::OutOfOrder { given: block.number, height: tip.height });
        }
        if block.previous_hash != tip.header_hash {
            return Err(Error::WrongPrevious { given: block.number });
        }
        let (header, transactions) = encode(block)?;
        // Once full, it stays full: a next segment whose creation failed must be tried again, not skipped.
        writer.is_full |= writer.segment.end >= self.shared.options.segment_bytes;
        writer.is_full |= rt::fault_point("storage.blocks.segment_early");
        if writer.is_full && !writer.segment.blocks.is_empty() {
            self.begin_segment(&mut writer).await?;
        }
        self.write(&mut writer, &header, block, transactions)
    }

    fn write(
        &self,
        writer: &mut SegmentWriter,
        header: &RecordHeader,
        block: NewBlock<'_>,
        transactions: Bytes,
    ) -> Result<(), Error> {
        let path = || self.shared.files.path(writer.segment.first);
        let io = |error| Error::io("appending to", &path(), error);
        if writer.leftover {
            // A shorter record written over a longer one would leave the longer one's last bytes behind it.
            writer.file.truncate(writer.segment.end).map_err(io)?;
            writer.leftover = false;
        }
        let mut parts = Vec::with_capacity(block.parts.len() + 2);
        parts.push(Bytes::copy_from_slice(&header.encode()));
        parts.extend_from_slice(block.parts);
        parts.push(transactions);
        if let Err(error) = write_record(&writer.file, writer.segment.end, &parts) {
            let error = io(error);
            writer.leftover = writer.file.truncate(writer.segment.end).is_err();
            return Err(error);
        }
        let from = writer.segment.blocks.len();
        writer.segment.push(header, block.transactions.iter().map(|(id, _)| id.as_str()));
        self.index_mut().extend(&writer.segment, from);
        {
            let mut current = lock(&self.shared.current);
            current.end = writer.segment.end;
            current.height = writer.segment.tip.height;
        }
        events::BlocksAppended.add(1);
        events::BlockBytesAppended.add(header.record_bytes().expect("the lengths were checked by `encode`"));
        Ok(())
    }

    /// Seals the last segment and begins the next one. If it fails or is dropped, nothing has changed.
    async fn begin_segment(&self, writer: &mut SegmentWriter) -> Result<(), Error> {
        // Bound first, so that the guard is not held across the wait.
        let current = lock(&self.shared.current).clone();
        self.sync_now(current).await?;
        write_index(&self.shared.directory, &writer.segment);
        let tip = writer.segment.tip;
        let first = BlockNumber(tip.height);
        let header = SegmentHeader { first, previous_hash: tip.header_hash, epoch: tip.epoch };
        let file = create_segment(&self.shared.directory, header).await?;
        let handle = self.shared.group.register(file.clone());
        self.shared.files.insert(first, file.clone());
        let end = SEGMENT_HEADER_BYTES;
        *lock(&self.shared.current) = WriteProgress { first, file: file.clone(), handle, end, height: tip.height };
        *writer = SegmentWriter { file, segment: SegmentIndex::new(first, end, tip), leftover: false, is_full: false };
        let mut index = self.index_mut();
        index.seal_segment();
        index.start_segment(first, end);
        events::SegmentsSealed.add(1);
        Ok(())
    }

    /// Makes every block appended before this call durable, sharing the fsync with all other waiting writers of the disk;
    /// returns the number of durable blocks.
    ///
    /// Dropping the future is safe; it is then unknown how far the fsync has come.
    ///
    /// # Errors
    /// If an fsync failed, now or before: the store is then broken and must be opened again.
    pub async fn sync(&self) -> Result<u64, Error> {
        self.check_intact()?;
        let current = lock(&self.shared.current).clone();
        if current.height > self.durable_height() {
            self.sync_now(current).await?;
        }
        Ok(self.durable_height())
    }

    async fn sync_now(&self, current: WriteProgress) -> Result<(), Error> {
        if let Err(error) = current.handle.sync().await {
            // The kernel may have dropped the pages it could not write, so another fsync would succeed and prove nothing.
            let path = self.shared.files.path(current.first);
            let reason = format!("fsync of {}: {error}", path.display());
            tracing::error!(%reason, "the block store is closed");
            lock(&self.shared.broken).get_or_insert_with(|| reason.into());
            return self.check_intact();
        }
        self.advance_durable(&current);
        Ok(())
    }

    /// Records that everything up to `current` is durable.
    fn advance_durable(&self, current: &WriteProgress) {
        self.shared.durable.send_if_modified(|durable| {
            let newer = current.height > *durable;
            *durable = current.height.max(*durable);
            newer
        });
        let mut marked = lock(&self.shared.watermark);
        if (marked.first, marked.height) >= (current.first, current.height) {
            return;
        }
        let mark = DurableWatermark { end: current.end, height: current.height }.encode();
        // The mark only improves what opening can detect; failing to write it does not fail the sync.
        if rt::fault_point("storage.blocks.mark_missing") {
            return;
        }
        if let Err(error) = current.file.write_at(WATERMARK_OFFSETS[marked.slot], &mark) {
            tracing::warn!(%error, "the durable mark was not written");
        }
        *marked = WatermarkSlot { first: current.first, height: current.height, slot: 1 - marked.slot };
    }

    /// Syncs everything, the durable watermark included, so that the next opening can distinguish damage from a torn write in
    /// every block. The store remains usable.
    ///
    /// # Errors
    /// As [`BlockStore::sync`].
    pub async fn close(&self) -> Result<(), Error> {
        self.sync().await?;
        let current = lock(&self.shared.current).clone();
        self.sync_now(current).await
    }

    /// Number of blocks appended.
    pub fn height(&self) -> u64 {
        self.tip().height
    }

    /// The end of the chain.
    pub fn tip(&self) -> ChainTip {
        self.index().tip()
    }

    /// Number of blocks that are durable.
    pub fn durable_height(&self) -> u64 {
        *self.shared.durable.borrow()
    }

    /// A subscription to [`BlockStore::durable_height`].
    pub fn subscribe_durable(&self) -> WatchReceiver<u64> {
        self.shared.durable.subscribe()
    }

    /// Memory taken by the indexes, in bytes.
    pub fn index_memory_bytes(&self) -> usize {
        self.index().memory_bytes()
    }

    /// The bytes of a block, as they were appended; `None` at and above the height.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they differ from the bytes that were written; errors of the operating system.
    pub fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        let Some((header, record)) = self.read_record(number)? else { return Ok(None) };
        Ok(Some(record.slice(header.payload_range())))
    }

    /// A block with everything that was appended with it; `None` at and above the height.
    ///
    /// # Errors
    /// As [`BlockStore::read`].
    pub fn read_stored(&self, number: BlockNumber) -> Result<Option<StoredBlock>, Error> {
        let Some((header, record)) = self.read_record(number)? else { return Ok(None) };
        let transactions = self.collect_transactions(&header, &record[header.transactions_range()])?;
        Ok(Some(StoredBlock {
            number,
            header_hash: header.header_hash,
            previous_hash: header.previous_hash,
            epoch: header.epoch,
            payload: record.slice(header.payload_range()),
            transactions,
        }))
    }

    /// The transactions of a block in order, with their validation codes; `None` at and above the height.
    ///
    /// # Errors
    /// As [`BlockStore::read`].
    pub fn transactions(&self, number: BlockNumber) -> Result<Option<Vec<(TxId, u8)>>, Error> {
        let Some((header, list)) = self.read_transactions(number)? else { return Ok(None) };
        Ok(Some(self.collect_transactions(&header, &list)?))
    }

    /// The number of the block with this header hash.
    ///
    /// # Errors
    /// As [`BlockStore::read`].
    pub fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        let candidates = self.index().with_header_hash(header_hash);
        for number in candidates.into_iter().map(BlockNumber) {
            let Some((header, _)) = self.read_header(number)? else { continue };
            if header.header_hash == *header_hash {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Where a transaction was committed, valid or not: its first place, if it was committed several times.
    ///
    /// An absent id, as nearly all ids that validation looks up are, costs one probe of a table in memory.
    ///
    /// # Errors
    /// As [`BlockStore::read`].
    pub fn find_transaction(&self, id: &TxId) -> Result<Option<TransactionLocation>, Error> {
        if id.is_empty() {
            return Ok(None);
        }
        let fingerprint = fingerprint(id.as_str().as_bytes());
        let candidates = self.index().with_transaction(fingerprint);
        for number in candidates.into_iter().map(BlockNumber) {
            let Some((header, list)) = self.read_transactions(number)? else { continue };
            for (index, item) in TransactionList::new(&list, header.transactions).enumerate() {
                let (found, code) = item.map_err(|what| self.corrupt(number, what))?;
                if found == id.as_str() {
                    return Ok(Some(TransactionLocation { block: number, index: TxIndex(index as u32), code }));
                }
            }
        }
        Ok(None)
    }

    /// The tags of the transaction ids of all blocks whose fingerprints lie in a shard. They tell which ids are absent, as
    /// in [`BlockStore::find_transaction`].
    pub(crate) fn transaction_tags(&self, shard: u8) -> Vec<u32> {
        self.index().transaction_tags(shard)
    }

    /// The blocks from number `from` on. The iterator ends at the height, and continues when it is asked again after
    /// further appends.
    pub fn iterate(&self, from: BlockNumber) -> BlockIterator {
        BlockIterator { store: self.clone(), next: from }
    }

    fn collect_transactions(&self, header: &RecordHeader, list: &[u8]) -> Result<Vec<(TxId, u8)>, Error> {
        TransactionList::new(list, header.transactions)
            .map(|item| item.map(|(id, code)| (TxId::new(id), code)))
            .collect::<Result<_, _>>()
            .map_err(|what| self.corrupt(header.number, what))
    }

    fn read_record(&self, number: BlockNumber) -> Result<Option<(RecordHeader, Bytes)>, Error> {
        let Some(place) = self.locate(number) else { return Ok(None) };
        let record = self.read_at(number, place, 0, place.bytes)?;
        let header = self.decode_header(number, place, &record)?;
        header.check_body(&record).map_err(|what| self.corrupt(number, what))?;
        Ok(Some((header, record)))
    }

    fn read_header(&self, number: BlockNumber) -> Result<Option<(RecordHeader, RecordOffset)>, Error> {
        let Some(place) = self.locate(number) else { return Ok(None) };
        let bytes = self.read_at(number, place, 0, RECORD_HEADER_BYTES as u64)?;
        Ok(Some((self.decode_header(number, place, &bytes)?, place)))
    }

    fn read_transactions(&self, number: BlockNumber) -> Result<Option<(RecordHeader, Bytes)>, Error> {
        let Some((header, place)) = self.read_header(number)? else { return Ok(None) };
        let range = header.transactions_range();
        let list = self.read_at(number, place, range.start as u64, range.len() as u64)?;
        if checksum(&list) != header.transactions_checksum {
            return Err(self.corrupt(number, "the transaction list does not have the checksum it was written with"));
        }
        Ok(Some((header, list)))
    }

    fn decode_header(&self, number: BlockNumber, place: RecordOffset, bytes: &[u8]) -> Result<RecordHeader, Error> {
        let header = RecordHeader::decode(bytes).map_err(|what| self.corrupt(number, what))?;
        if header.number != number || header.record_bytes() != Some(place.bytes) {
            return Err(self.corrupt(number, format!("the record of block {} lies in its place", header.number)));
        }
        Ok(header)
    }

    fn read_at(&self, number: BlockNumber, place: RecordOffset, from: u64, bytes: u64) -> Result<Bytes, Error> {
        let file = self.shared.files.get(place.first)?;
        let read = file
            .read_at(place.offset + from, bytes as usize)
            .map_err(|error| Error::io("reading", &self.shared.files.path(place.first), error))?;
        if (read.len() as u64) < bytes {
            return Err(self.corrupt(number, "the record is cut off"));
        }
        Ok(read)
    }

    fn locate(&self, number: BlockNumber) -> Option<RecordOffset> {
        self.index().locate(number)
    }

    fn corrupt(&self, number: BlockNumber, what: impl Into<String>) -> Error {
        events::CorruptionsFound.add(1);
        let place = self.locate(number);
        let path =
            place.map_or_else(|| self.shared.directory.path().into(), |place| self.shared.files.path(place.first));
        Error::corrupt(Path::new(&path), place.map_or(0, |place| place.offset), Some(number), what)
    }

    fn check_intact(&self) -> Result<(), Error> {
        match &*lock(&self.shared.broken) {
            Some(reason) => Err(Error::Broken { reason: Arc::clone(reason) }),
            None => Ok(()),
        }
    }

    fn index(&self) -> RwLockReadGuard<'_, BlockIndex> {
        self.shared.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, BlockIndex> {
        self.shared.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_record(file: &File, offset: u64, parts: &[Bytes]) -> io::Result<()> {
    if rt::fault_point("storage.blocks.append_torn") {
        // As when the disk fills up in the middle of the record.
        file.write_vectored_at(offset, &parts[..parts.len() - 1])?;
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_vectored_at(offset, parts)
}

/// The header and the encoded transaction list of a new block's record.
fn encode(block: NewBlock<'_>) -> Result<(RecordHeader, Bytes), Error> {
    let too_large = |what, given, max| Err(Error::TooLarge { what, given, max });
    let Ok(count) = u32::try_from(block.transactions.len()) else {
        return too_large("transactions of a block", block.transactions.len() as u64, u64::from(u32::MAX));
    };
    if let Some((id, _)) = block.transactions.iter().find(|(id, _)| id.len() as u64 > RECORD_BYTES_MAX) {
        return too_large("bytes of a transaction id", id.len() as u64, RECORD_BYTES_MAX);
    }
    let transactions = encode_transactions(block.transactions);
    let header = RecordHeader {
        number: block.number,
        epoch: block.epoch,
        header_hash: block.header_hash,
        previous_hash: block.previous_hash,
        transactions: count,
        payload_bytes: block.parts.iter().map(|part| part.len() as u64).sum(),
        transactions_bytes: transactions.len() as u64,
        payload_checksum: checksum_parts(block.parts),
        transactions_checksum: checksum(&transactions),
    };
    match header.record_bytes() {
        Some(bytes) if bytes <= RECORD_BYTES_MAX => Ok((header, transactions)),
        bytes => too_large("bytes of a block", bytes.unwrap_or(u64::MAX), RECORD_BYTES_MAX),
    }
}

/// Iterates over stored blocks in order; see [`BlockStore::iterate`].
#[derive(Clone, Debug)]
pub struct BlockIterator {
    store: BlockStore,
    next: BlockNumber,
}

impl Iterator for BlockIterator {
    type Item = Result<StoredBlock, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let block = self.store.read_stored(self.next).transpose()?;
        self.next = self.next.next();
        Some(block)
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockStore")
            .field("directory", &self.shared.directory.path())
            .field("height", &self.height())
            .field("durable", &self.durable_height())
            .finish()
    }
}
