//! The memory that both sides share.

#![allow(unsafe_code)]

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::limits::{MEMORY_PAGES_MIN, VERSION};
use crate::ring::{Positions, RING_BYTES, Ring, Shape};

/// Functions that run at the same time, at most.
pub const CONTEXTS_MAX: u32 = 16;

/// The head of the area.
#[repr(C, align(128))]
struct Head {
    version: AtomicU32,
    /// A [`ExecutorState`].
    state: AtomicU32,
    /// How many functions run at the same time.
    contexts: AtomicU32,
    /// Where the executor failed to begin: the number of an error.
    error: AtomicU32,
    /// Where the caller has the first page of the vdso's data; 0 if it has none.
    vdso: AtomicU64,
    /// The link, for measurements: a [`Shape`].
    latency_cycles: AtomicU64,
    mebibyte_cycles: AtomicU64,
    /// Pages that the executor keeps in memory; 0 is without a bound, and without a file.
    memory_pages: AtomicU64,
    /// Functions that run at this moment.
    running: AtomicU32,
    /// Calls that wait for their turn at this moment.
    waiting: AtomicU32,
    /// How long calls have waited for their turn, in nanoseconds, all together.
    queued_ns: AtomicU64,
    /// Functions that have begun.
    begun: AtomicU64,
    /// How calls have ended, by [`CallEnd`].
    ended: [AtomicU64; CallEnd::COUNT],
    executor: Attention,
    caller: Attention,
    to_executor: Positions,
    to_caller: Positions,
}

/// Who would notice a message.
#[repr(C, align(128))]
pub(crate) struct Attention {
    /// Threads that look for messages.
    pub(crate) attending: AtomicU32,
    /// Threads that wait for what a message brings, and sleep on `turn`.
    pub(crate) sleepers: AtomicU32,
    /// Grows whenever they have to look again.
    pub(crate) turn: AtomicU32,
    /// Whether the side's own thread sleeps, and wants to be woken.
    pub(crate) sleeps: AtomicU32,
}

/// Bytes of the head, with which the area begins.
pub const AREA_HEAD_BYTES: usize = size_of::<Head>();

/// Where the numbers lie that [`ExecutorLoad`](crate::ExecutorLoad) has, in bytes from the start of the head.
pub(crate) struct HeadOffsets;

impl HeadOffsets {
    pub(crate) const VERSION: usize = offset_of!(Head, version);
    pub(crate) const STATE: usize = offset_of!(Head, state);
    pub(crate) const ERROR: usize = offset_of!(Head, error);
    pub(crate) const CONTEXTS: usize = offset_of!(Head, contexts);
    pub(crate) const RUNNING: usize = offset_of!(Head, running);
    pub(crate) const WAITING: usize = offset_of!(Head, waiting);
    pub(crate) const QUEUED_NS: usize = offset_of!(Head, queued_ns);
    pub(crate) const BEGUN: usize = offset_of!(Head, begun);
    pub(crate) const ENDED: usize = offset_of!(Head, ended);
    pub(crate) const TO_EXECUTOR: usize = offset_of!(Head, to_executor);
    pub(crate) const TO_CALLER: usize = offset_of!(Head, to_caller);
}

const TO_EXECUTOR: usize = size_of::<Head>().next_multiple_of(bare::PAGE_BYTES);
const TO_CALLER: usize = TO_EXECUTOR + RING_BYTES;

/// Bytes of the area.
pub const AREA_BYTES: usize = TO_CALLER + RING_BYTES;

/// How a call has ended at the executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEnd {
    /// Its function returned, or has called `exit`.
    Returned,
    /// A signal ended its function.
    Signalled,
    /// Its limit ended its function.
    Killed,
    /// It was cancelled before its function began.
    Cancelled,
    /// It was refused, since too many others waited.
    Busy,
}

impl CallEnd {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All of them, in the order of their numbers.
    pub const ALL: [CallEnd; CallEnd::COUNT] =
        [CallEnd::Returned, CallEnd::Signalled, CallEnd::Killed, CallEnd::Cancelled, CallEnd::Busy];
}

/// What an executor says of its calls at one moment, unchecked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallLoad {
    /// Functions that run.
    pub running: u32,
    /// Calls that wait for their turn.
    pub waiting: u32,
    /// For how many nanoseconds calls have waited, all together.
    pub queued_ns: u64,
    /// Functions that have begun.
    pub begun: u64,
    /// How calls have ended, by [`CallEnd`].
    pub ended: [u64; CallEnd::COUNT],
}

/// How far the executor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutorState {
    /// It has not begun.
    Starting,
    /// It can be called.
    Ready,
    /// It could not begin, for the reason of this error number, at this step.
    Failed {
        /// The number of the error.
        error: u32,
        /// Which step of the executor's beginning.
        step: u32,
    },
}

impl ExecutorState {
    /// From the two numbers of the head.
    pub(crate) fn of(state: u32, error: u32) -> ExecutorState {
        match state {
            0 => ExecutorState::Starting,
            1 => ExecutorState::Ready,
            step => ExecutorState::Failed { error, step },
        }
    }
}

/// The mapped area.
#[derive(Clone, Copy)]
pub struct Area {
    address: usize,
}

impl Area {
    /// An area at an address.
    ///
    /// # Safety
    /// [`AREA_BYTES`] are mapped there, shared and writable, and stay so.
    pub unsafe fn at(address: usize) -> Area {
        Area { address }
    }

    fn head(&self) -> &'static Head {
        // SAFETY: as `at` was promised; the head is atomic numbers.
        unsafe { &*(self.address as *const Head) }
    }

    /// Writes what the executor has to know. The memory is zero before. With `memory_pages` the executor keeps no more pages in memory, and has a
    /// file for others ([`STORAGE_FILE`](crate::STORAGE_FILE)).
    pub fn prepare(&self, contexts: u32, vdso: u64, shape: Shape, memory_pages: Option<u64>) {
        let head = self.head();
        head.latency_cycles.store(shape.latency_cycles, Ordering::Relaxed);
        head.mebibyte_cycles.store(shape.mebibyte_cycles, Ordering::Relaxed);
        head.contexts.store(contexts.clamp(1, CONTEXTS_MAX), Ordering::Relaxed);
        head.vdso.store(vdso, Ordering::Relaxed);
        let memory_pages = memory_pages.map_or(0, |pages| pages.max(MEMORY_PAGES_MIN));
        head.memory_pages.store(memory_pages, Ordering::Relaxed);
        head.version.store(VERSION, Ordering::Release);
    }

    /// Whether both sides have the same version.
    pub fn is_of_this_version(&self) -> bool {
        self.head().version.load(Ordering::Acquire) == VERSION
    }

    /// How many functions run at the same time.
    pub fn contexts(&self) -> u32 {
        self.head().contexts.load(Ordering::Relaxed).clamp(1, CONTEXTS_MAX)
    }

    /// Where the caller has the vdso's data; 0 if it has none.
    pub fn vdso(&self) -> u64 {
        self.head().vdso.load(Ordering::Relaxed)
    }

    /// How many pages the executor keeps in memory; `None`: all, and there is no file for others.
    pub fn memory_pages(&self) -> Option<u64> {
        Some(self.head().memory_pages.load(Ordering::Relaxed)).filter(|pages| *pages > 0)
    }

    /// How far the executor is.
    pub fn state(&self) -> ExecutorState {
        let error = self.head().error.load(Ordering::Acquire);
        ExecutorState::of(self.head().state.load(Ordering::Acquire), error)
    }

    /// Says how far the executor is.
    pub fn set_state(&self, state: ExecutorState) {
        let (error, state) = match state {
            ExecutorState::Starting => (0, 0),
            ExecutorState::Ready => (0, 1),
            ExecutorState::Failed { error, step } => (error, step.max(2)),
        };
        self.head().error.store(error, Ordering::Release);
        self.head().state.store(state, Ordering::Release);
    }

    /// Says how many functions run. For the executor.
    pub fn set_running(&self, functions: u32) {
        self.head().running.store(functions, Ordering::Relaxed);
    }

    /// Says how many calls wait for their turn. For the executor.
    pub fn set_waiting(&self, calls: u32) {
        self.head().waiting.store(calls, Ordering::Relaxed);
    }

    /// A function has begun. For the executor.
    pub fn count_begin(&self) {
        self.head().begun.fetch_add(1, Ordering::Relaxed);
    }

    /// A call has ended. For the executor.
    pub fn count_end(&self, end: CallEnd) {
        self.head().ended[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the time that a call has waited for its turn. For the executor.
    pub fn add_queued(&self, time: Duration) {
        self.head().queued_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What the executor says of its calls. For a relay, at the executor's host.
    pub fn call_load(&self) -> CallLoad {
        let head = self.head();
        CallLoad {
            running: head.running.load(Ordering::Relaxed),
            waiting: head.waiting.load(Ordering::Relaxed),
            queued_ns: head.queued_ns.load(Ordering::Relaxed),
            begun: head.begun.load(Ordering::Relaxed),
            ended: std::array::from_fn(|end| head.ended[end].load(Ordering::Relaxed)),
        }
    }

    /// Sets what an executor on another host says of its calls. For a relay, at the program's host.
    pub fn set_call_load(&self, load: &CallLoad) {
        let head = self.head();
        head.running.store(load.running, Ordering::Relaxed);
        head.waiting.store(load.waiting, Ordering::Relaxed);
        head.queued_ns.store(load.queued_ns, Ordering::Relaxed);
        head.begun.store(load.begun, Ordering::Relaxed);
        for (here, there) in head.ended.iter().zip(load.ended) {
            here.store(there, Ordering::Relaxed);
        }
    }

    /// How many functions run, and for how many nanoseconds calls have waited for their turn, as the executor says.
    pub fn load(&self) -> (u32, u64) {
        (self.head().running.load(Ordering::Relaxed), self.head().queued_ns.load(Ordering::Relaxed))
    }

    /// The link that is imitated.
    pub fn shape(&self) -> Shape {
        Shape {
            latency_cycles: self.head().latency_cycles.load(Ordering::Relaxed),
            mebibyte_cycles: self.head().mebibyte_cycles.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn attention(&self, of_caller: bool) -> &'static Attention {
        if of_caller { &self.head().caller } else { &self.head().executor }
    }

    pub(crate) fn ring(&self, to_caller: bool, shape: Shape) -> Ring {
        let (positions, data) = match to_caller {
            true => (offset_of!(Head, to_caller), TO_CALLER),
            false => (offset_of!(Head, to_executor), TO_EXECUTOR),
        };
        // SAFETY: both lie in the area, which stays mapped.
        unsafe { Ring::new((self.address + positions) as *const Positions, (self.address + data) as *mut u8, shape) }
    }
}
