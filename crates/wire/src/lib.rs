//! One reader, one writer, one error and one hello for all of Heddle's own binary formats, on links and on disk.
//!
//! ```
//! use bytes::Bytes;
//! use wire::{Malformed, Reader, Writer};
//!
//! // A message: kind u8 | 0 × 3 | number u32 | name (u16 length, UTF-8) | value (the rest)
//! let message = Writer::new().u8(7).zeros(3).u32(42).text("balance").put(b"100").done();
//!
//! fn read_message(message: Bytes) -> Result<(u32, String, Bytes), Malformed> {
//!     let mut reader = Reader::new(message);
//!     if reader.u8()? != 7 {
//!         return Err(reader.malformed("unknown kind of message"));
//!     }
//!     reader.zeros(3)?;
//!     // `value` shares the memory of the message.
//!     Ok((reader.u32()?, reader.text(64)?, reader.rest()))
//! }
//!
//! let decoded = read_message(message.clone()).expect("it was just encoded");
//! assert_eq!(decoded, (42, "balance".to_owned(), Bytes::from_static(b"100")));
//! let error = read_message(message.slice(..10)).expect_err("the name is cut off");
//! assert_eq!(error, Malformed { what: "the bytes end early", at: 10 });
//! ```
//!
//! 1. A [`Reader`] takes fields off the front of a message. Over `&[u8]` it borrows; over [`Bytes`](bytes::Bytes) the
//!    fields that it returns share the message's memory.
//! 2. A [`Writer`] appends fields to a buffer; [`array()`] fills an array of a fixed size.
//! 3. [`u16_at`], [`u32_at`] and [`u64_at`] read a number at a fixed place of a frame whose length the caller has
//!    checked.
//! 4. [`seal`] and [`unseal`] put a checksum after the fields of a frame, and check it.
//! 5. [`hello`] is how two ends agree on a version of their protocol.
//!
//! Integers are little-endian and of fixed width in all of our formats, so the reader and the writer offer no choice of
//! byte order or width. A format states its layout next to its decoder, and in `docs/formats`.
//!
//! # Guarantees
//!
//! * Any bytes decode into a value or into [`Malformed`], which says what is wrong and at which byte. Nothing here
//!   panics on bytes from outside, except the functions at a fixed place, whose callers have checked the length.
//! * A length or a count that the bytes claim is compared with the bytes that are there before anything of that size is
//!   allocated or sliced; no arithmetic on it can overflow.
//! * A field is read without a copy and without a change of a reference count; only [`Reader::bytes`], [`Reader::rest`]
//!   and their relatives over `Bytes` count a reference for the slice that they return.
//! * Two ends that share a version agree on the newest one; two that share none learn both ranges, and each knows which
//!   side has to be upgraded.
//!
//! # What it needs around it
//!
//! * This crate uses no other crate of Heddle. Every crate with a format of its own uses this one, and turns
//!   [`Malformed`] into its own error.
//! * Frames of fixed layout that every verb or record has (`rma::tcp::wire`, `rma::Capability`, the state's records)
//!   are written in place, and read by [`u64_at`] and its like: their length is checked once, and a reader would check
//!   it again at each field.
//! * `base` is in the same layer and cannot use this crate, so the frames of its calls over links have a reader of
//!   their own.
//! * Protobuf messages are decoded by the types of `proto`, DER by `identity`.
//! * What a decoder may allocate beyond the size of its message is bounded by `base::untrusted::AllocationBudget`.

#![deny(missing_docs)]

#[doc(hidden)]
pub mod fuzz;
pub mod hello;
mod reader;
mod seal;
mod writer;

pub use hello::VersionRange;
pub use reader::{Input, Malformed, Reader, u16_at, u32_at, u64_at};
pub use seal::{SEAL_BYTES, seal, unseal};
pub use writer::{Writer, array, beginning};
