//! The way of [`crate::tables::fuzz`] to the model's log.

use super::log;
use crate::checksum;
use crate::tables::Savepoint;

/// A log of one record with one row.
pub fn encode_log(key: &[u8], value: &[u8]) -> Vec<u8> {
    log::encode_record(&Savepoint { height: 3, ..Savepoint::default() }, [(key, value)].into_iter(), &[])
}

/// Where the whole records of a log end, as it is and as one record whose checksum is right.
pub fn replayed(input: &[u8]) -> usize {
    let mut record = (input.len() as u64).to_le_bytes().to_vec();
    record.extend(checksum(input).to_le_bytes());
    record.extend(input);
    let _ = log::replay(&record);
    log::replay(input).2
}
