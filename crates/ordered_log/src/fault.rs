//! Faults that simulations inject into engines: crashes of a CPU node between two steps, and planted mistakes that the
//! checkers must catch. The product has neither ([`base::rt::fault`]).

pub(crate) use base::rt::fault::crash_point;

base::mutants! {
    "consensus.ordered" {
        /// An entry is delivered as soon as one disk has it.
        OneDisk,
        /// An acceptor acknowledges entries before its disk has them.
        AnswerUnsynced,
        /// A new leader continues from its own disk, whatever others have.
        OwnDisk,
        /// A new leader ignores the entries that the group's log has beyond the disks.
        ForgetLog,
        /// The last record of the group's log is trimmed like the others.
        TrimLast,
        /// A new leader continues from the longest log store, whichever term adopted it.
        LongestJournal,
        /// An acceptor does not record which term has adopted its log store.
        ForgetAdoption,
        /// The solo engine delivers entries that its disk does not have.
        ShowUnsynced,
        /// The log on Raft reports entries as deliverable before they are in the log store.
        SafeUnwritten,
        /// The log on Raft trims the engine's log before its log store has those entries on disk.
        SnapshotAhead,
        /// The log on Raft continues at the end of its log store when it starts to lead, whatever has been committed.
        LeadAtOnce,
        /// A CPU node gets a vote in the log on Raft, whatever entries it lacks.
        VoteBlank,
    }
}
