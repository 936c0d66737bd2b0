//! Reads the index and the chains of a store from remote memory.

use base::Bytes;
use futures_util::future::try_join_all;
use wire::u64_at;

use super::layout::{KvRecord, RECORD_PEEK_BYTES, decode_pointer, decode_record, decode_record_head};
use super::{KvCore, UNKNOWN, VersionedValue, lock};
use crate::Error;

/// The pointer of a bucket, read from remote memory if it is not known here.
pub(super) async fn first(shared: &KvCore, bucket: u64) -> Result<u64, Error> {
    let known = lock(&shared.state).index[bucket as usize];
    if known != UNKNOWN {
        return Ok(known);
    }
    Ok(u64_at(&shared.coordinator.read(shared.geometry.bucket_at(bucket), 8).await?, 0))
}

/// The record that starts with a block.
pub(super) async fn record(shared: &KvCore, block: u32) -> Result<KvRecord, Error> {
    let sizes = &shared.geometry;
    let bytes = shared.coordinator.read(sizes.block_at(u64::from(block)), sizes.block_bytes as usize).await?;
    decode_record(block, &bytes.freeze(), sizes)
}

/// As [`record`], but its value may be missing.
pub(super) async fn record_head(shared: &KvCore, block: u32) -> Result<KvRecord, Error> {
    let sizes = &shared.geometry;
    let length = (sizes.block_bytes as usize).min(RECORD_PEEK_BYTES);
    let bytes = shared.coordinator.read(sizes.block_at(u64::from(block)), length).await?;
    match decode_record_head(block, &bytes.freeze(), sizes)? {
        Some(found) => Ok(KvRecord { value: Bytes::new(), ..found }),
        None => record(shared, block).await,
    }
}

/// The value of a key. The result, or the error, is valid only if the chain has not changed meanwhile.
pub(super) async fn find(shared: &KvCore, key: &[u8], bucket: u64) -> Result<Option<VersionedValue>, Error> {
    let mut at = first(shared, bucket).await?;
    let mut steps = 0;
    while let Some(block) = decode_pointer(at, &shared.geometry)? {
        let found = record(shared, block).await?;
        if found.key == key {
            let value = value(shared, &found).await?;
            return Ok(Some(VersionedValue { value, version: found.version }));
        }
        at = found.next;
        steps += 1;
        if steps > shared.geometry.blocks {
            return Err(Error::Corrupt("a chain of a key-value store has no end"));
        }
    }
    Ok(None)
}

async fn value(shared: &KvCore, record: &KvRecord) -> Result<Bytes, Error> {
    if record.blocks.len() == 1 {
        // A copy, so that a short value does not keep the block.
        return Ok(Bytes::copy_from_slice(&record.value));
    }
    let sizes = &shared.geometry;
    let block_bytes = sizes.block_bytes as usize;
    let mut rest = Vec::with_capacity(record.blocks.len() - 1);
    for block in &record.blocks[1..] {
        rest.push(shared.coordinator.read(sizes.block_at(u64::from(*block)), block_bytes));
    }
    let mut value = Vec::with_capacity(record.value.len() + (record.blocks.len() - 1) * block_bytes);
    value.extend_from_slice(&record.value);
    for block in try_join_all(rest).await? {
        value.extend_from_slice(&block);
    }
    value.truncate(record.value_bytes);
    Ok(Bytes::from(value))
}
