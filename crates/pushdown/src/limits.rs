//! Addresses, numbers and bounds that both sides must have in common.

use std::ops::Range;

/// Of the area and the messages.
pub const VERSION: u32 = 4;

/// Addresses of the executor's own program and memory, which no ordinary program uses: 64 GiB from 16 TiB.
pub const PRIVATE: Range<u64> = 0x1000_0000_0000..0x1010_0000_0000;

/// Addresses of the caller's library: 64 GiB behind them. The executor gets nothing from there.
pub const CALLER_PRIVATE: Range<u64> = PRIVATE.end..0x1020_0000_0000;

/// Where the executor maps the area.
pub const AREA_ADDRESS: u64 = PRIVATE.start + (32 << 30);

/// The executor's end of the socket: its standard input.
pub const SOCKET: i32 = 0;
/// The file of the area, in the executor until it has mapped it: its standard output.
pub const AREA_FILE: i32 = 1;
/// The executor's file for pages that its memory has no room for, if it has one.
pub const STORAGE_FILE: i32 = 100;
/// The executor's memory for pages is at least so large, if it is bounded: functions need some of them at the same time.
pub const MEMORY_PAGES_MIN: u64 = 256;
/// Most pages of constant memory that one message carries.
pub const CONSTANT_PAGES_MAX: u64 = 8;
