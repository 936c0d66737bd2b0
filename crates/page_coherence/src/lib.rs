//! Coherence of pages between a caller and the executor of its pushed-down functions (TELEPORT, section 4).
//!
//! A process runs on a compute node, and its memory lies in the pool. The compute node's own memory is a cache of pages: this is the
//! **caller**. A function that the process pushes down runs beside the pool, in a temporary context with the same addresses:
//! this is the **executor**. Both run at the same time. This crate decides which side may access which page, and what they send each
//! other, so that both see one memory. It is two state machines and their messages. They make no system call, hold no bytes of
//! pages, start no thread and have no clock: a shim maps pages, moves bytes, and tells them of faults, messages and time.
//!
//! ```
//! use std::time::Duration;
//! use page_coherence::{
//!     Access, CallId, CallerSide, CoherenceMode, CoherenceSettings, ExecutorSide, Output, PageNumber, Payload, Right, ToCaller,
//!     ToExecutor,
//! };
//!
//! let (page, now) = (PageNumber(7), Duration::ZERO);
//! let mut caller = CallerSide::new(CoherenceSettings::default());
//! let mut executor = ExecutorSide::new(CoherenceSettings::default());
//! let (mut to_executor, mut to_caller) = (Vec::new(), Vec::new());
//!
//! // A thread of the caller writes a page. Nobody else uses it, but its contents are in the pool, or in storage below.
//! caller.fault(page, Access::Write, &mut to_executor);
//! let fetch = ToExecutor::Fetch { page, access: Access::Write, holds: false };
//! assert_eq!(to_executor.drain(..).collect::<Vec<_>>(), [Output::Send(fetch.clone())]);
//! executor.receive(fetch, now, &mut to_caller).expect("the caller keeps to the protocol");
//! assert_eq!(to_caller.drain(..).collect::<Vec<_>>(), [Output::Load(page)]);
//! executor.loaded(page, &mut to_caller);
//! let grant = ToCaller::Grant { page, access: Access::Write, payload: Payload::Page };
//! assert_eq!(to_caller.drain(..).collect::<Vec<_>>(), [Output::Place(page), Output::Send(grant.clone()), Output::Wake(page)]);
//! caller.receive(grant, now, &mut to_executor).expect("the executor keeps to the protocol");
//! assert!(to_executor.drain(..).any(|output| output == Output::Map { page, writable: true }));
//!
//! // A call moves no page. The executor finds the page absent, and asks for it when its function needs it.
//! caller.call(CallId(1), CoherenceMode::Coherent, &mut to_executor).expect("no other call runs");
//! let Some(Output::Send(call)) = to_executor.pop() else { panic!("a call is one message") };
//! executor.receive(call, now, &mut to_caller).expect("the caller keeps to the protocol");
//! assert_eq!(to_caller.drain(..).collect::<Vec<_>>(), [Output::Start(CallId(1))]);
//! executor.fault(page, Access::Write, &mut to_caller);
//! let request = ToCaller::Request { page, access: Access::Write };
//! assert_eq!(to_caller.drain(..).collect::<Vec<_>>(), [Output::Send(request.clone())]);
//! caller.receive(request, now, &mut to_executor).expect("the executor keeps to the protocol");
//! let answer = ToExecutor::Answer { page, left: Right::None, payload: Payload::Page };
//! assert_eq!(
//!     to_executor.drain(..).collect::<Vec<_>>(),
//!     [Output::Protect(page), Output::Send(answer), Output::Unmap(page)],
//! );
//! ```
//!
//! # Protocol
//!
//! A side has a **right** to a page: none, to read, or to write. The executor's right is an entry of its temporary table; the full table
//! of the pool says only whether the page is in pool memory or in storage. The default mode is described;
//! [`CoherenceMode`] says what the weaker modes guarantee, and step 16 how.
//!
//! Outside of calls:
//! 1. The caller is alone. A fault on a page that is not resident fetches it from the pool, which loads it from storage if need
//!    be. The caller upgrades its own rights without a message, and evicts clean pages silently.
//!
//! Beginning a call:
//! 2. The request carries the caller's resident pages and its outstanding faults, with the right of each, run-length coded
//!    ([`PageList`]). No page moves. The executor makes its temporary table: what the caller may write is absent, what it may read is
//!    read-only, and all other pages may be written.
//! 3. A call that arrives while others run joins their context, and ends with it. Its list is compared with the table, which
//!    must agree: every message that changed the caller's rights came before the list. More calls than contexts wait in a bounded queue.
//!
//! Faults while calls run:
//! 4. The caller sends *fetch*. The executor first has the page in pool memory, then gives up its own right (to write), or
//!    downgrades it (to read), then sends *grant*, with the contents unless the caller holds them.
//! 5. The executor tells two faults apart by its own tables. If its right suffices and pool memory lacks the page, the fault is a true
//!    one: storage serves it. If its right does not suffice, it sends *request*. The caller unmaps the page (to write) or protects it
//!    (to read), and sends *answer* with the right that it keeps, and the contents if it has written them.
//! 6. Each side handles messages in the order of the connection, each to its end. A fetch that waits for storage is finished when storage
//!    answers; meanwhile the executor asks nothing about the page.
//! 7. If a request and a fetch of one page cross, each side sees it: the executor gets a fetch while its request is on the
//!    way, the caller gets a request while its fetch is. The pool side wins: the executor ignores the fetch, the caller obeys, waits for a
//!    pause, and fetches again. The pause doubles with each tie that a fault loses. [`Favour::Caller`] turns the roles around.
//! 8. The caller's shim may put a request off, and handle the messages behind it first: the executor keeps the request, and ignores fetches
//!    of the page, until it is answered, even if its context ends meanwhile. Not with [`Favour::Caller`], where a fetch ends the request.
//!
//! Contents:
//! 9. A page is mapped writable exactly if it is dirty: newer than at home (at the caller), or newer than in storage (at the executor). The
//!    first write to a clean page faults, and needs no message if the side has the right. A shim that expects writes may take this
//!    fault in advance.
//! 10. Evicting a dirty page at the caller sends it home, during a call as well. A clean page is dropped; during a call the
//!    executor is told, so that it need not ask. A page that waits for an answer is not evicted.
//! 11. Evicting a page from pool memory stores it if the temporary or the full table says that it is dirty. Rights stay as they are.
//!     A page that is taken from the executor, or shared, hands its dirty bit to the full table.
//! 12. `syncmem` sends dirty pages of a range home, and the caller keeps the right to read them.
//! 13. When the program drops pages (`munmap`, `MADV_DONTNEED`), the caller has them from then on, as zeros, and sends *discard*. The executor
//!     gives up its right, its copy and the contents in storage. It ends a load of such a page, and grants a fetch that waits for the
//!     load without contents. A fetch or a pull that the caller sent before the discard is **overtaken**: the caller ignores the contents that
//!     it brings, and a call does not list it. So is a pull by what the caller sends of the page afterwards; it is sent again.
//!
//! Ending:
//! 14. When a function ends, the executor sends *reply*. With the last call the temporary table ends, and its dirty bits are merged
//!     into the full table. Nothing else is sent, and no page moves.
//! 15. `try_cancel` removes a call from the queue; a running one is not cancelled. A killed function's reply lists the pages that it, or a
//!     function beside it, wrote, with those that the shim had left writable from an earlier context.
//!
//! Weaker modes:
//! 16. * Partial store order: a request or fetch to write downgrades the other side to read. Its copy is **stale** from then on; it is
//!       dropped at the side's next synchronisation point.
//!     * Weak ordering: a request or fetch takes no right away. The caller's first write to a page makes a **twin**; home go the bytes that
//!       differ ([`diff()`]). The executor writes pool memory itself and needs none. At its synchronisation points it sends the list of
//!       pages that it wrote, and the caller drops its copies of them at its own next one.
//!     * Off: as weak ordering, but `syncmem` of the executor says nothing, that of the caller sends ranges of bytes, and `pull` fetches
//!       them.
//!     * In both of these the executor asks for a page once, if only the caller has its contents: it wrote the page before
//!       the call, or dropped it. The list of a call names such pages as writable, and those that both sides have as readable.
//!     * A service (a system call, that the caller makes for a function) is a synchronisation point of both sides: the executor sends the list
//!       of written pages before it asks, the caller drops its copies of them, and sends differences home before it answers.
//!
//! Losses:
//! 17. A caller that loses its executor learns which pages may be torn, and which are good ([`Loss`]).
//! 18. An executor that loses its caller ends its functions and drops the context.
//!
//! Invariants, which `tests/coherence` checks after each step:
//! 1. One side has a page mapped writable and the other has it not mapped, or none has it mapped writable. With partial store
//!    order, at most one side has it mapped writable. While a discard is on its way, the executor may still access the old page.
//! 2. While calls run and nothing about a page is on its way, the rights of (caller, executor) are (none, any), (read, read) or (write,
//!    none). (Read, none) does not exist.
//! 3. A page is mapped only with the right to it, and writable only while it is dirty.
//! 4. A page that is clean in pool memory equals the page in storage.
//! 5. While calls run, only a page that both sides may read, or one that was evicted and asked for again, can be the object of a tie.
//! 6. Every fault is served: from each state all threads can go on, and a seeded scheduler makes them.
//! 7. Of a page that the list of a call which begins a context names as writable, pool memory's contents are not used again, unless
//!    something about the page is on its way: a shim need not keep them.
//!
//! | message | direction | sent | what the receiver does |
//! |---|---|---|---|
//! | call | to executor | a thread pushes a function down | makes or joins the context; starts or queues the function |
//! | cancel | to executor | a thread gives up | removes the call if it is queued; answers |
//! | fetch | to executor | a fault that the caller cannot serve | step 4 |
//! | home | to executor | an eviction, a `syncmem` | takes the contents, raises its right |
//! | answer | to executor | after a request | takes the contents, raises its right, wakes its threads |
//! | discard | to executor | the program drops pages | step 13 |
//! | push, pull | to executor | coherence is off | takes, or sends, the bytes of a range |
//! | grant | to caller | after a fetch | takes the contents, raises its right, wakes its threads |
//! | request | to caller | a fault on a page that the caller may have | step 5 |
//! | reply | to caller | a call has ended | drops old copies in weaker modes, wakes the thread |
//! | cancel answer | to caller | after a cancel | wakes the thread, or lets it wait |
//! | written | to caller | with shared writes: `syncmem` of the executor (weak ordering), a service, a reply that lacks room | notes which copies are old |
//! | pulled | to caller | after a pull | takes the bytes |
//!
//! ```text
//! caller                                            executor
//!    │── call: resident list ────────────────────────▶│ temporary table; the function starts
//!    │◀─ request: page 7, write ──────────────────────│ it writes page 7, which the caller has
//!    │── answer: page 7, nothing left, contents ─────▶│ it goes on
//!    │── fetch: page 9, write ──────╲ ╱───────────────│ both write page 9, which both may read
//!    │◀─ request: page 9, write ────╱ ╲──────────────▶│ ignored: its own request is on the way
//!    │── answer: page 9, nothing left ───────────────▶│ it goes on
//!    │   pause                                        │
//!    │── fetch: page 9, write ───────────────────────▶│
//!    │◀─ grant: page 9, contents ─────────────────────│
//!    │◀─ reply ───────────────────────────────────────│ dirty bits are merged
//! ```
//!
//! # Guarantees
//!
//! * What each mode guarantees is stated at [`CoherenceMode`].
//! * A call costs two messages, its own and the reply, beside those for pages that both sides use, whatever is resident. Making its list and its
//!   table takes time by runs of pages, not by pages.
//! * State is bounded by the fragmentation of resident and dirty pages, by threads, by pulls on their way, and by [`CoherenceSettings`].
//! * A message that the protocol does not allow is an error and changes nothing.
//!
//! # What it needs around it
//!
//! * A shim for each side that carries [`Output`]s out in order, reports each fault, and handles one message at a time.
//! * A connection that delivers messages in order, exactly once, until it is lost. Both sides have the same settings.
//! * Policies: which page to evict, what to prefetch, when a function is killed, how long a thread waits before it cancels.
//! * If pool memory is lost, memory is lost, and the process must stop. That is not decided here.

#![deny(missing_docs)]

mod caller;
mod context;
mod diff;
mod error;
mod executor;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod loss;
mod message;
mod mode;
mod output;
mod page;
mod page_list;
mod run_map;
mod word;

pub use caller::{CallerSide, SYNC_PAGES_MAX};
pub use diff::{DIFF_BYTES_MAX, Page, apply_diff, diff};
pub use error::CoherenceError;
pub use executor::ExecutorSide;
pub use loss::Loss;
pub use message::{CallOutcome, Payload, ToCaller, ToExecutor};
pub use mode::{CoherenceMode, CoherenceSettings, Favour};
pub use output::{CallerOutput, ExecutorOutput, Output};
pub use page::{Access, CallId, PAGE_BYTES, PAGE_NUMBERS, PageBytes, PageNumber, Right};
pub use page_list::{PageList, RUNS_MAX};
pub use run_map::RunMap;
pub use word::WordChange;
