//! Faults that simulations inject into the store: crashes between two steps, and planted mistakes that the checkers
//! must catch. The product has neither ([`base::rt::fault`]).

pub(crate) use base::rt::fault::crash_point;

base::mutants! {
    "consensus.kv" {
        /// A get is answered from the cache before a majority has the entry.
        AnswerUncommitted,
        /// A new coordinator serves without having written the log back.
        ServeUnwritten,
        /// A new coordinator ignores the log behind its cursor.
        ForgetLog,
        /// The cache evicts unapplied keys.
        EvictPending,
        /// A get trusts a chain that changed while it was walked.
        WalkUnguarded,
        /// A put reserves no blocks, as if its key had some already.
        AdmitUnreserved,
        /// The cursor passes entries before they are applied.
        CursorFirst,
        /// A chain is remembered as it was before it was changed.
        StaleChain,
        /// A coordinator posts entries without a seal of its own.
        NoSeal,
        /// A change counts as in the tables before they are synced.
        TellUnpersisted,
        /// Entries are applied, and their log space is reused, before the tables have them.
        ApplyUnpersisted,
        /// A coordinator gives up if its tables change while it writes its epoch into them.
        FenceOnce,
        /// A new coordinator serves while the lease of an earlier one may still stand.
        OpenAtOnce,
        /// The tables' epoch is the coordinator's term, whatever epochs they have seen.
        EpochOfTerm,
    }
}
