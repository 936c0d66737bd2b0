//! The limits at which an orderer cuts a block.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::time::Duration;

use proto::common::ConfigGroup;
use proto::orderer::{BatchSize, BatchTimeout};

use super::{ORDERER, value};
use crate::error::Error;

/// The most bytes that a block's envelopes may have together. The largest message of Fabric's services has 100 MiB; the
/// difference is for the parts of a block around its envelopes.
pub const ABSOLUTE_BYTES_LIMIT: u32 = 99 * 1024 * 1024;
/// The most messages a block may hold.
pub const MESSAGES_LIMIT: u32 = 1 << 20;
/// The longest time that an orderer may wait for more messages.
pub const TIMEOUT_LIMIT: Duration = Duration::from_secs(3600);

/// The limits at which an orderer cuts a block: messages, bytes, and time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimits {
    /// The most messages in a block.
    pub messages_max: u32,
    /// The most bytes of envelopes in a block; a larger envelope is refused.
    pub absolute_bytes_max: u32,
    /// A block is cut before its envelopes grow beyond this many bytes, unless a single one does.
    pub preferred_bytes_max: u32,
    /// How long after the first message a block is cut.
    pub timeout: Duration,
}

impl Default for BatchLimits {
    /// What Fabric's sample configuration has.
    fn default() -> Self {
        BatchLimits {
            messages_max: 500,
            absolute_bytes_max: 10 * 1024 * 1024,
            preferred_bytes_max: 2 * 1024 * 1024,
            timeout: Duration::from_secs(2),
        }
    }
}

impl BatchLimits {
    /// Checks the limits against each other and against ours.
    ///
    /// # Errors
    /// [`Error::Config`], naming the limit.
    pub fn check(&self) -> Result<(), Error> {
        let size = |reason: String| Err(Error::config("/Channel/Orderer/BatchSize", reason));
        if self.messages_max == 0 || self.messages_max > MESSAGES_LIMIT {
            return size(format!("max_message_count is {}, not in 1..={MESSAGES_LIMIT}", self.messages_max));
        }
        if self.absolute_bytes_max == 0 || self.absolute_bytes_max > ABSOLUTE_BYTES_LIMIT {
            return size(format!(
                "absolute_max_bytes is {}, not in 1..={ABSOLUTE_BYTES_LIMIT}",
                self.absolute_bytes_max
            ));
        }
        if self.preferred_bytes_max == 0 || self.preferred_bytes_max > self.absolute_bytes_max {
            let (preferred, absolute) = (self.preferred_bytes_max, self.absolute_bytes_max);
            return size(format!("preferred_max_bytes is {preferred}, not in 1..={absolute} (absolute_max_bytes)"));
        }
        if self.timeout.is_zero() || self.timeout > TIMEOUT_LIMIT {
            let timeout = format_duration(self.timeout);
            let reason = format!("the timeout is {timeout}, not above 0 and up to {}", format_duration(TIMEOUT_LIMIT));
            return Err(Error::config("/Channel/Orderer/BatchTimeout", reason));
        }
        Ok(())
    }

    pub(super) fn read(orderer: &ConfigGroup) -> Result<BatchLimits, Error> {
        let missing = |name: &str| Error::config(format!("{ORDERER}/{name}"), "the value is missing");
        let size: BatchSize = value(ORDERER, orderer, "BatchSize")?.ok_or_else(|| missing("BatchSize"))?;
        let timeout: BatchTimeout = value(ORDERER, orderer, "BatchTimeout")?.ok_or_else(|| missing("BatchTimeout"))?;
        let limits = BatchLimits {
            messages_max: size.max_message_count,
            absolute_bytes_max: size.absolute_max_bytes,
            preferred_bytes_max: size.preferred_max_bytes,
            timeout: parse_duration(&timeout.timeout).ok_or_else(|| {
                Error::config("/Channel/Orderer/BatchTimeout", format!("{:?} is not a duration", timeout.timeout))
            })?,
        };
        limits.check()?;
        Ok(limits)
    }
}

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration as Go writes it: `2s`, `500ms`, `1m30s`, `1.5h`. Negative durations are none to us.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let nanos = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let mut part = whole.checked_mul(nanos)?;
        let mut scale = nanos;
        for digit in fraction.chars() {
            scale /= 10;
            part = part.checked_add(scale.checked_mul(u64::from(digit.to_digit(10)?))?)?;
        }
        total = total.checked_add(part)?;
        rest = after;
    }
    if text.is_empty() { None } else { Some(Duration::from_nanos(total)) }
}

/// Writes a duration as [`parse_duration`] and Go read it, in the largest unit that leaves no fraction.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units: [(&str, u128); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
    let (unit, size) =
        units.into_iter().find(|(_, size)| nanos.is_multiple_of(*size)).expect("everything is a number of nanoseconds");
    format!("{}{unit}", nanos / size)
}
