//! Gives [`crate::tables::fuzz`] access to the log of the model engine.

use super::log;
use crate::checksum;
use crate::tables::Savepoint;

/// A log of one record with one row.
pub fn encode_log(key: &[u8], value: &[u8]) -> Vec<u8> {
    log::encode_record(&Savepoint { height: 3, ..Savepoint::default() }, [(key, value)].into_iter(), &[])
}

/// Replays the input as one record with a correct checksum, and as a log; returns where the whole records of that log end.
pub fn replayed(input: &[u8]) -> usize {
    let mut record = (input.len() as u64).to_le_bytes().to_vec();
    record.extend(checksum(input).to_le_bytes());
    record.extend(input);
    let _ = log::replay(&record);
    log::replay(input).2
}
