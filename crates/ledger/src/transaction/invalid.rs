//! Why a transaction is invalid: its validation code and an explanation.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::ErrorKind;
use proto::protos::TxValidationCode;

use crate::wire::{Fields, Span, WireError, set_once};

/// Why a transaction is not valid: the code for the block's filter, and a reason for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason} ({})", self.code.as_str_name())]
pub struct InvalidTransaction {
    /// The code in the transactions filter.
    pub code: TxValidationCode,
    /// What is wrong.
    pub reason: &'static str,
}

impl InvalidTransaction {
    /// A transaction that gets `code` for `reason`.
    pub const fn new(code: TxValidationCode, reason: &'static str) -> InvalidTransaction {
        InvalidTransaction { code, reason }
    }

    /// The code as the byte in the transactions filter.
    pub fn code_byte(&self) -> u8 {
        code_byte(self.code)
    }

    /// The kind of the error: the same transaction will always be rejected.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Rejected
    }

    pub(super) fn of(code: TxValidationCode, reason: &'static str) -> impl Fn(WireError) -> InvalidTransaction {
        move |_| InvalidTransaction { code, reason }
    }
}

/// A validation code as a byte of the transactions filter.
pub fn code_byte(code: TxValidationCode) -> u8 {
    u8::try_from(code as i32).expect("validation codes fit a byte")
}

/// The fields 1 and 2 of a message whose others do not matter, both bytes. Unknown fields are skipped, as a protobuf
/// library does; a repeated one is rejected.
pub(super) fn fields_1_2(
    source: &[u8],
    message: Result<Span, WireError>,
) -> Result<(Option<Span>, Option<Span>), WireError> {
    let (mut first, mut second) = (None, None);
    let mut fields = Fields::new(source, message?);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut first, field.span()?)?,
            2 => set_once(&mut second, field.span()?)?,
            _ => {}
        }
    }
    Ok((first, second))
}
