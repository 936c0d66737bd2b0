//! How a process and the executor of its pushed-down functions work together (TELEPORT, section 3).
//!
//! A **caller** is a process that pushes functions down. Its **executor** is a process beside the pool that has the same memory at
//! the same addresses, and nothing else: it has no program of its own there, opens no file and makes no system call for a
//! function. [`page_coherence`] decides which side may use which page. This crate has what both sides share: the memory through
//! which they talk, the messages in it, and the rules. `pushdown_caller` is a library in the caller, `pushdown_executor` is a
//! program.
//!
//! # Steps
//!
//! 1. **Opening.** The caller maps an [`Area`], and starts the executor with it and one end of a pair of sockets; or it sends both to the role
//!    *executors* (`heddle-executors`), which starts the executor ([`RoleRequest`]). The executor
//!    unmaps all memory outside of [`PRIVATE`], its stack and the C library included, maps the vdso where the caller has it, and
//!    says that it is ready. From here on it is a guest of the caller's address space. An executor on another host has an area of its own there,
//!    and a relay (`heddle-executor-relay`) carries the messages between both areas. It gets no vdso, whose clock would be that of its own host.
//! 2. **A call.** The thread that calls switches to a stack that the executor never sees, with its signals blocked. It sends
//!    [`ToExecutor::Start`] with the function, its argument, the stack below its frame, its thread block and its limit, and the
//!    coherence protocol's call. Then it waits, and works for the function (steps 4 to 6).
//! 3. **Running.** A thread of the executor takes over stack pointer, thread block and floating-point control of the caller's thread, and calls
//!    the function. So it *is* that thread, as far as the program can see: its thread-local variables, `errno`, the owner of its
//!    locks.
//! 4. **Mappings.** The executor knows no mapping. An access to an address where it has none asks for it
//!    ([`ToCaller::MappingWanted`]). *Ordinary* memory (private, writable, or anonymous) is mapped empty, and its pages travel by the
//!    coherence protocol; the caller has the kernel report their faults from then on. *Constant* memory (text, relocated
//!    constants) is copied when it is needed ([`ToCaller::PagesWanted`]). Shared memory, and the private memory of
//!    either side, is refused: the access is an error of the function.
//! 5. **Faults.** An access to a page that is not there, or that is protected, is a fault in the sense of the coherence protocol.
//! 6. **System calls** of the function are stopped by the kernel (Syscall User Dispatch) and made by the caller's waiting thread
//!    ([`ToCaller::SystemCall`]). Files, futexes, allocations are therefore those of the caller. What changes the address space is made
//!    on both sides. What would change the executor, or makes no sense there, is refused with an error number. In the weaker modes of
//!    coherence a system call is a synchronisation point of both sides, since the kernel works on the caller's copies of pages.
//! 7. **Ending.** When the function returns, or a signal that its own instruction caused ends it, the executor sends
//!    [`ToCaller::Ended`] and the coherence protocol's reply. The pages stay where they are.
//! 8. **Cancelling.** When a call's time-out has passed, or another thread asks for it, the caller sends the coherence protocol's cancel. A call that
//!    waits for its turn is removed from the queue. One whose function runs is not, and its thread waits on.
//! 9. **Limits.** The executor's service thread ends a function that has run for longer than its limit, by a signal to its thread, and the reply
//!    says *killed* and lists the pages that may be torn. A function that computes ends between two instructions. One that waits for a mapping or
//!    a page ends at once, and the caller answers in vain. One that waits for a system call ends at once too, except in `mprotect`, which
//!    the executor has to follow; the caller's thread notices when the system call has returned, and tells nobody what. The signal never ends a thread
//!    within the executor's own program, so no lock of it is left held. Locks of the program are.
//! 10. **Liveness.** While calls are open or pages are awaited, the caller sends [`ToExecutor::Ping`] twice a second, which the executor's
//!     service thread answers ([`ToCaller::Pong`]). An executor that does not answer for too long, or leaves the ring full for so long, is lost as in
//!     step 11, and is killed, by the caller or by the role that has started it. While nothing is expected, nothing is sent.
//! 11. **A side is lost** when its end of the socket is. The executor ends. The caller's memory has lost the pages that the executor
//!     had: threads that need one end the process, and calls report the loss.
//!
//! | message | direction | sent | what the receiver does |
//! |---|---|---|---|
//! | coherence | both | as [`page_coherence`] says | as it says |
//! | start | to executor | before a call | notes with what the function begins, and its limit |
//! | mapping, pages | to executor | after a question | maps memory, or constant pages |
//! | returned | to executor | a system call has returned | the function goes on; nothing, if it was ended |
//! | unmapped, protected | to executor | the program changes its memory | follows |
//! | ping | to executor | twice a second, while something is expected | the service thread answers |
//! | mapping wanted, pages wanted | to caller | a function needs them | answers |
//! | system call | to caller | a function makes one | the thread that called makes it |
//! | ended | to caller | a function has ended | notes how and when, for the reply that follows |
//! | pong | to caller | after a ping | notes that the executor is there |
//!
//! # Rules
//!
//! 1. The runtime of each side keeps its state in memory that the other side never gets, makes its own system calls, and uses
//!    neither the C library nor thread-local variables nor a page of the program. Otherwise it would wait for itself.
//! 2. Messages are handled in their order, each to its end, under one lock a side, by whichever thread is there: one that
//!    waits, or the side's own thread. Only the caller may put a request for a page off, and a question for a mapping, while the program changes
//!    that memory or forks; it handles the messages behind it meanwhile ([`page_coherence`], step 8).
//! 3. A thread that waits looks for messages for a while before it sleeps ([`Link::attend`]); the sender then need not wake anybody. If it
//!    sleeps, the sender wakes it, rather than the side's own thread, which would wake it in turn.
//! 4. Each side checks what the other sends. A side that breaks the protocol is lost.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![deny(missing_docs)]

mod area;
mod area_file;
#[doc(hidden)]
pub mod fuzz;
mod history;
mod limits;
mod link;
mod load;
mod message;
mod processor;
mod ring;
mod role_messages;

pub use area::{AREA_BYTES, AREA_HEAD_BYTES, Area, CONTEXTS_MAX, CallEnd, CallLoad, ExecutorState};
pub use area_file::area_file;
pub use history::{History, Runner};
pub use limits::{
    AREA_ADDRESS, AREA_FILE, BeginStep, CALLER_PRIVATE, CONSTANT_PAGES_MAX, CONTEXTS_ARGUMENT, DEVICE_ARGUMENT,
    DEVICE_FILE, MEMORY_PAGES_ARGUMENT, MEMORY_PAGES_MIN, NAMESPACES_ARGUMENT, PRIVATE, SOCKET, STORAGE_FAILED_STATUS,
    STORAGE_FILE, STORAGE_FULL_STATUS, STORAGE_PAGES_ARGUMENT, VERSION,
};
pub use link::{Attending, Link, Side};
pub use load::ExecutorLoad;
pub use message::{EXIT_CALL, EXITS, Ended, MappingKind, Registers, SYNCHRONISE_CALL, Stamps, ToCaller, ToExecutor};
pub use processor::ProcessorFeatures;
pub use ring::{FRAME_BYTES_MAX, Frame, NO_KIND, RingError, Shape, cycles};
pub use role_messages::{
    ELSEWHERE_NAME_BYTES_MAX, NOTICE_BYTES_MAX, ProgramElsewhere, RELEASE, REQUEST_BYTES_MAX, ROLE_VERSION, RoleHello,
    RoleNotice, RoleRequest,
};
