//! Faults that simulations inject into a group: crashes of the coordinator's CPU node at named points, and planted
//! mistakes that the checkers must catch. The product has neither ([`base::rt::fault`]).

pub(crate) use base::rt::fault::crash_point;

base::mutants! {
    "consensus" {
        /// A pool takes groups over without a free CPU node.
        TakeOverUnprovisioned,
        /// A CPU node whose coordinator has ended does not return to its pool.
        KeepProcessor,
        /// A persistent node answers before its disk has the writes.
        AnswerUnsynced,
        /// A node that starts replays a torn record.
        ReplayTorn,
        /// Checksums of redo log records use no key.
        Unkeyed,
        /// A new redo log starts although the data file lacks writes of the previous one.
        FollowUnsynced,
        /// A redo log becomes the spare before its successor has its name.
        ReuseEarly,
        /// A memory node whose disk has failed does not report it.
        StayFailed,
        /// After a fence, a persistent node's memory stays ahead of its disk.
        KeepUnsynced,
        /// A takeover counts copies from before the group was reformatted.
        CountOldCopies,
        /// A coordinator counts a persistent node's verbs as soon as they have completed.
        CountUnsynced,
    }
}
