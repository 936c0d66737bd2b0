//! Finds a transaction's read-write set and skips everything else.
//!
//! Materialising and replaying a stored block need only the read-write sets of its valid transactions. The block's
//! filter says which transactions are valid, and their signatures, hashes and headers were checked before the block was
//! stored. So this module only walks through the nested messages to the read-write set, at a hundredth of the cost of
//! validation.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use proto::common::HeaderType;

use crate::wire::{Fields, Span, WireError};

/// From an envelope to the encoded `TxReadWriteSet` in it: payload, data, action, its payload, endorsed action, response
/// payload, extension, results.
const WAY: [u32; 8] = [1, 2, 1, 2, 2, 1, 2, 1];
/// From an envelope to its channel header: payload, header, channel header.
const WAY_TO_HEADER: [u32; 3] = [1, 1, 1];

/// Where the read-write set of a valid transaction stands in its envelope; empty where there is none, `None` for a
/// configuration, which has no such thing.
///
/// # Errors
/// The bytes are no envelope. Of one that is not valid the answer is any place in it.
pub fn results_of_valid(envelope: &[u8]) -> Result<Option<Span>, WireError> {
    let header = follow(envelope, &WAY_TO_HEADER)?;
    let mut fields = Fields::new(envelope, header);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            if field.varint()? as i32 == HeaderType::Config as i32 {
                return Ok(None);
            }
            break;
        }
    }
    follow(envelope, &WAY).map(Some)
}

/// Where the data of a valid transaction's payload stand in its envelope: the content of a configuration.
///
/// # Errors
/// As [`results_of_valid`].
pub fn data_of_valid(envelope: &[u8]) -> Result<Span, WireError> {
    follow(envelope, &WAY[..2])
}

/// The field at the end of a way of field numbers, each the first of its message; empty where there is none.
fn follow(source: &[u8], way: &[u32]) -> Result<Span, WireError> {
    let mut at = Span::whole(source)?;
    for number in way {
        let mut fields = Fields::new(source, at);
        at = loop {
            match fields.next()? {
                Some(field) if field.number == *number => break field.span()?,
                Some(_) => {}
                None => break Span::default(),
            }
        };
    }
    Ok(at)
}
