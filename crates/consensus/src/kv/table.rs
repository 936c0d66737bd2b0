//! Index and chains in remote memory, as they are read.

use base::Bytes;
use futures_util::future::try_join_all;

use super::layout::{RECORD_PEEK_BYTES, Record, decode_beginning, decode_record, pointed};
use super::{Shared, UNKNOWN, Versioned, lock};
use crate::Error;
use crate::layout::word;

/// The pointer of a bucket, from memory if it is not known here.
pub(super) async fn first(shared: &Shared, bucket: u64) -> Result<u64, Error> {
    let known = lock(&shared.state).index[bucket as usize];
    if known != UNKNOWN {
        return Ok(known);
    }
    Ok(word(&shared.coordinator.read(shared.sizes.bucket_at(bucket), 8).await?, 0))
}

/// The record that begins with a block.
pub(super) async fn record(shared: &Shared, block: u32) -> Result<Record, Error> {
    let sizes = &shared.sizes;
    let bytes = shared.coordinator.read(sizes.block_at(u64::from(block)), sizes.block_bytes as usize).await?;
    decode_record(block, &bytes.freeze(), sizes)
}

/// As [`record`], without its value, which may lack.
pub(super) async fn record_head(shared: &Shared, block: u32) -> Result<Record, Error> {
    let sizes = &shared.sizes;
    let length = (sizes.block_bytes as usize).min(RECORD_PEEK_BYTES);
    let bytes = shared.coordinator.read(sizes.block_at(u64::from(block)), length).await?;
    match decode_beginning(block, &bytes.freeze(), sizes)? {
        Some(found) => Ok(Record { value: Bytes::new(), ..found }),
        None => record(shared, block).await,
    }
}

/// The value of a key. What it gives, or fails with, counts only if the chain has not changed meanwhile.
pub(super) async fn find(shared: &Shared, key: &[u8], bucket: u64) -> Result<Option<Versioned>, Error> {
    let mut at = first(shared, bucket).await?;
    let mut steps = 0;
    while let Some(block) = pointed(at, &shared.sizes)? {
        let found = record(shared, block).await?;
        if found.key == key {
            let value = value(shared, &found).await?;
            return Ok(Some(Versioned { value, version: found.version }));
        }
        at = found.next;
        steps += 1;
        if steps > shared.sizes.blocks {
            return Err(Error::Corrupt("a chain of a key-value store that has no end"));
        }
    }
    Ok(None)
}

async fn value(shared: &Shared, record: &Record) -> Result<Bytes, Error> {
    if record.blocks.len() == 1 {
        // The block is not to be kept for a short value.
        return Ok(Bytes::copy_from_slice(&record.value));
    }
    let sizes = &shared.sizes;
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
