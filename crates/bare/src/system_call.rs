//! System calls without the C library.
//!
//! The wrappers of the C library write `errno`, which lies in the thread block. The agent has none of its own: it runs on that
//! of the thread that started it. Other callers run inside `malloc` and `mmap`, which promise to leave `errno` alone when they
//! succeed.

#![allow(unsafe_code)]

use std::arch::asm;
use std::sync::atomic::AtomicU32;

/// The number of an error, as `errno` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(
    /// The number.
    pub i32,
);

/// What a system call returned.
pub type Outcome = Result<usize, Errno>;

/// Executes a system call; the arguments that are not given are 0.
///
/// # Errors
/// Of the call.
///
/// # Safety
/// That of the call: pointers lead to what the kernel expects there, and memory that it changes belongs to the caller.
#[inline]
pub unsafe fn system_call<const N: usize>(number: libc::c_long, arguments: [usize; N]) -> Outcome {
    const { assert!(N <= 6, "a system call has at most six arguments") };
    let argument = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let result: isize;
    // SAFETY: the kernel changes these registers and what the caller answers for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") argument(0),
            in("rsi") argument(1),
            in("rdx") argument(2),
            in("r10") argument(3),
            in("r8") argument(4),
            in("r9") argument(5),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// Sets `errno` of the calling thread.
pub fn set_errno(error: Errno) {
    // SAFETY: the C library returns the address of a number of the calling thread.
    unsafe { *libc::__errno_location() = error.0 };
}

/// Ends the process.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: the call has no memory argument.
        let _ = unsafe { system_call(libc::SYS_exit_group, [status as usize]) };
    }
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: the call has no argument.
    unsafe { system_call(libc::SYS_gettid, []) }.unwrap_or(0) as u32
}

/// Sleeps.
pub fn pause(microseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: microseconds * 1000 };
    // SAFETY: the kernel reads the time, and has nowhere to write the rest.
    let _ = unsafe { system_call(libc::SYS_nanosleep, [&raw const time as usize, 0]) };
}

/// Lets another thread have the processor.
pub fn yield_processor() {
    // SAFETY: the call has no memory argument.
    let _ = unsafe { system_call(libc::SYS_sched_yield, []) };
}

/// Sleeps until the word is woken, unless it is not `expected`. Returns early now and then.
pub fn wait_for_word(word: &AtomicU32, expected: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word, for as long as the call lasts.
    let _ = unsafe { system_call(libc::SYS_futex, [word.as_ptr() as usize, operation as usize, expected as usize, 0]) };
}

/// Wakes a thread that waits for the word.
pub fn wake_word(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address alone.
    let _ = unsafe { system_call(libc::SYS_futex, [word.as_ptr() as usize, operation as usize, 1]) };
}

/// Maps private anonymous memory, at an address that the kernel chooses.
///
/// # Errors
/// Of the operating system.
pub fn map_anonymous(bytes: usize) -> Outcome {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice changes no memory that exists.
    unsafe { system_call(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, usize::MAX, 0]) }
}

/// Maps private anonymous memory at an address where nothing is mapped.
///
/// # Errors
/// Of the operating system: `EEXIST` if something is.
pub fn map_anonymous_at(address: usize, bytes: usize) -> Outcome {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel refuses to replace a mapping.
    unsafe { system_call(libc::SYS_mmap, [address, bytes, protection as usize, flags as usize, usize::MAX, 0]) }
}

/// Unmaps memory.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// Nothing uses the memory any more.
pub unsafe fn unmap(address: usize, bytes: usize) -> Outcome {
    // SAFETY: the caller answers for the memory.
    unsafe { system_call(libc::SYS_munmap, [address, bytes]) }
}

/// Calls `madvise`.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// The owner of the memory expects what the advice does to it.
pub unsafe fn advise(address: usize, bytes: usize, advice: i32) -> Outcome {
    // SAFETY: the caller answers for the memory.
    unsafe { system_call(libc::SYS_madvise, [address, bytes, advice as usize]) }
}

/// All signals of the calling thread are blocked while this exists; threads that are started meanwhile keep them blocked.
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks them.
    pub fn new() -> SignalsBlocked {
        let mut before = 0;
        set_signals(u64::MAX, &mut before);
        SignalsBlocked { before }
    }

    /// Takes over for a `SignalsBlocked` of the same thread that was forgotten.
    pub fn resume(before: u64) -> SignalsBlocked {
        SignalsBlocked { before }
    }

    /// The signals that were blocked before.
    pub fn before(&self) -> u64 {
        self.before
    }
}

impl Default for SignalsBlocked {
    fn default() -> SignalsBlocked {
        SignalsBlocked::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_signals(self.before, &mut 0);
    }
}

fn set_signals(set: u64, before: &mut u64) {
    let (set, before) = (&raw const set as usize, &raw mut *before as usize);
    // SAFETY: the kernel reads one set of eight bytes, and writes another.
    let _ =
        unsafe { system_call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, set, before, size_of::<u64>()]) };
}
