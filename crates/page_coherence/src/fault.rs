//! Planted mistakes, each of which the simulation's checkers must find ([`base::rt::fault`]).

base::mutants! {
    "page_coherence" {
        /// The caller keeps a page readable although the executor may write it.
        KeepOnWrite,
        /// The caller shares a page and goes on writing it.
        ShareUnprotected,
        /// The caller evicts a dirty page as if it were clean.
        EvictClean,
        /// The list of resident pages lacks outstanding faults.
        OmitOutstanding,
        /// The caller never asks again after it has lost a tie.
        NeverRetry,
        /// The caller keeps old copies after the end of a call.
        KeepStale,
        /// A page that both sides wrote goes home whole.
        WholePage,
        /// The caller counts a page as good that it has given to the executor.
        TrustGivenPages,
        /// Pages that the caller may read stay writable in the executor's table.
        LeaveWritable,
        /// The executor serves the caller's request although it has one of its own on the way.
        ServeInTie,
        /// A page that is taken from the executor loses its dirty bit.
        DropDirty,
        /// The dirty bits of the executor's table are not merged when the call ends.
        ForgetMerge,
        /// A fault of the executor on a page of the caller counts as a fault that storage serves.
        LoadFromStorage,
        /// A request of the caller that waits for storage is forgotten.
        ForgetFetch,
        /// A reply does not say which pages the function wrote.
        ReplyUnnoticed,
        /// The executor keeps its right to pages that the program has dropped.
        KeepDiscarded,
        /// The caller installs the old contents of a page that the program has dropped meanwhile.
        InstallDiscarded,
        /// The list of resident pages has the right that was asked for before the program dropped the page.
        ListOvertaken,
        /// With shared writes the executor writes pages of which only the caller has the contents.
        TakeUnsent,
        /// With shared writes the caller lists pages that both sides have as its own.
        ListShared,
        /// The caller installs pulled bytes that are older than what it has sent since.
        InstallPulled,
        /// A page that both sides had stays the caller's alone after the last call.
        KeepShared,
        /// The executor has its caller serve a function without saying what the function wrote.
        ServeUnannounced,
        /// The caller serves a function, and keeps what it wrote for it.
        KeepServed,
        /// A running call is removed when the caller cancels it.
        CancelRunning,
    }
}
