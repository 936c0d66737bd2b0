//! What the shim around a state machine does, in the order of the outputs.

use std::ops::Range;

use crate::message::{CallOutcome, ToCaller, ToExecutor};
use crate::page::{CallId, PageNumber};

/// What one side's shim does next. `M` is the kind of message that the side sends.
///
/// The shim carries each output out before the next one. It calls the state machine again only when all are done.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Output<M> {
    /// Let the threads of this side read the page, and write it if so said.
    Map {
        /// The page.
        page: PageNumber,
        /// Whether they may write: the page is dirty from now on.
        writable: bool,
    },
    /// Let them no longer write the page: the next write faults.
    Protect(PageNumber),
    /// Let them no longer access the page. The caller's shim frees the copy and its twin; the executor's shim keeps the contents in
    /// pool memory.
    Unmap(PageNumber),
    /// Write the body of the message that is being handled into the page, before anybody maps it: a page, a difference, or
    /// the bytes of a range that were pulled. Those go into the page's twin as well, if it has one; bytes of the page that differ from the
    /// twin stay.
    Install(PageNumber),
    /// Copy the page: the copy is its twin.
    Twin(PageNumber),
    /// Free the page's twin.
    DropTwin(PageNumber),
    /// Send the message, with the contents that it names as they are now. A push carries what differs from the page's twin in its
    /// range, and the twin has exactly that from then on: threads may be writing the page meanwhile.
    Send(M),
    /// Let the threads that wait for the page try again.
    Wake(PageNumber),
    /// Fetch the page from storage, or fill it with zeros; then report [`loaded`](crate::ExecutorSide::loaded).
    Load(PageNumber),
    /// Place what [`Output::Load`] has fetched into pool memory.
    Place(PageNumber),
    /// As `Load` and `Place`, before going on: a range or a difference is about to change the page.
    Fill(PageNumber),
    /// Write the page to storage.
    Store(PageNumber),
    /// Free the page in pool memory.
    Free(PageNumber),
    /// Give these pages up: none is mapped any more, and pool memory and storage have nothing of them. They read as zeros until contents
    /// come. What [`Output::Load`] is fetching of them is thrown away, and not reported.
    Drop(Range<u64>),
    /// Run the function of a call.
    Start(CallId),
    /// End the function of a call, whose caller is lost.
    Stop(CallId),
    /// Remove the temporary table: no call is left.
    EndContext,
    /// A call has ended; the thread that made it goes on.
    Finished(CallId, CallOutcome),
    /// A call was not cancelled, since it runs; the thread that made it waits.
    CancelDeclined(CallId),
}

/// An output of the caller.
pub type CallerOutput = Output<ToExecutor>;

/// An output of the executor.
pub type ExecutorOutput = Output<ToCaller>;
