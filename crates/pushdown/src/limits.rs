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
/// In an executor that the role has started, until it has begun: `/dev/userfaultfd`, which it could not open itself.
pub const DEVICE_FILE: i32 = 3;
/// The argument by which the role tells an executor that its namespaces are its own, so that it can leave the file system.
pub const NAMESPACES_ARGUMENT: &str = "--namespaces";
/// The argument by which the role tells an executor that it has [`DEVICE_FILE`].
pub const DEVICE_ARGUMENT: &str = "--device";
/// The beginning of the argument by which the role bounds the functions that run at the same time; the number follows.
pub const CONTEXTS_ARGUMENT: &str = "--contexts=";
/// The beginning of the argument by which the role says how many pages an executor keeps in memory, at most; the number follows. With it comes
/// [`STORAGE_PAGES_ARGUMENT`].
pub const MEMORY_PAGES_ARGUMENT: &str = "--memory-pages=";
/// The beginning of the argument by which the role says how many pages [`STORAGE_FILE`] may have; the number follows.
pub const STORAGE_PAGES_ARGUMENT: &str = "--storage-pages=";
/// With this status an executor of the role ends if its memory has no room for a page, and [`STORAGE_FILE`] has none either.
pub const STORAGE_FULL_STATUS: i32 = 3;
/// With this status an executor ends that cannot read a page of [`STORAGE_FILE`]; one of the role also if it cannot write one.
pub const STORAGE_FAILED_STATUS: i32 = 4;
/// Most pages of constant memory that one message carries.
pub const CONSTANT_PAGES_MAX: u64 = 8;

/// The steps of an executor's beginning that can fail, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeginStep {
    /// The area is of this release.
    Version = 2,
    /// The processor lets programs set their thread block.
    Processor,
    /// A stack at the executor's addresses.
    Stack,
    /// A descriptor for page faults.
    UserFaults,
    /// All memory outside of the executor's addresses is given up.
    Memory,
    /// Handlers of signals.
    Signals,
    /// The executor's state.
    State,
    /// Threads for functions.
    Threads,
    /// A filter of system calls.
    Filter,
    /// An empty file system.
    EmptyRoot,
}

impl BeginStep {
    const ALL: [(BeginStep, &str); 10] = [
        (BeginStep::Version, "comparing its release with the library's"),
        (BeginStep::Processor, "looking for FSGSBASE, which the processor or the kernel lacks"),
        (BeginStep::Stack, "mapping a stack"),
        (BeginStep::UserFaults, "opening /dev/userfaultfd"),
        (BeginStep::Memory, "giving up its own memory"),
        (BeginStep::Signals, "installing handlers of signals"),
        (BeginStep::State, "preparing its state"),
        (BeginStep::Threads, "starting threads"),
        (BeginStep::Filter, "filtering its system calls"),
        (BeginStep::EmptyRoot, "leaving the file system"),
    ];

    /// What the step with this number does.
    pub fn describe(number: u32) -> &'static str {
        let step = BeginStep::ALL.iter().find(|(step, _)| *step as u32 == number);
        step.map_or("an unknown step", |(_, what)| what)
    }
}
