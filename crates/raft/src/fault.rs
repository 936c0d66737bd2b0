//! Faults that simulations inject into the engine: crashes between two steps, and planted mistakes that the checkers
//! must catch. The product has neither ([`base::rt::fault`]).

pub(crate) use base::rt::fault::crash_point;

base::mutants! {
    "consensus.raft" {
        /// A follower confirms entries to the leader before they are durable.
        ConfirmUnsynced,
        /// Term and vote are stored with the next entries, and not before the vote is sent.
        ForgetVote,
        /// A proposal is answered when the leader has its entry, before a majority has.
        AnswerUncommitted,
        /// A read is answered without a look at the lease.
        ReadWithoutLease,
        /// A torn record counts as complete.
        KeepTorn,
        /// A snapshot gets its name before it is durable.
        SnapshotUnsynced,
        /// A snapshot replaces the entries, and is not restored into the machine.
        SkipRestore,
        /// A snapshot from another node is written to disk before it is decoded.
        InstallUnread,
        /// Checksums of records are made without a key.
        Unkeyed,
        /// A node that stops leaves the task that makes its snapshot behind.
        LeaveSnapshot,
        /// A message reaches the crate, whatever it contains.
        TakeAnything,
        /// A node whose log was lost is accepted as the node that it was.
        BlankVotes,
        /// A change of members is answered when the leader has its entry, before a majority has.
        AnswerChange,
    }
}
