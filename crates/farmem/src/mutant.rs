//! Planted mistakes, each of which the simulations' checkers must find ([`base::rt::fault`]).

base::mutants! {
    "farmem" {
        /// A dirty page is evicted as if the store had its bytes.
        DropDirty,
        /// A page that is being written back is filled from the store at once.
        FillWhileLeaving,
        /// The first write to a clean page is let through, and the page stays clean.
        MissFirstWrite,
        /// A page whose write-back failed is evicted all the same.
        ForgetFailedWrite,
        /// A clean page is evicted although the store has lost its copy.
        DropUnheld,
        /// A lost page reads as zeros.
        LostIsZero,
        /// A page is filled although the budget is used up.
        FillBeyondBudget,
        /// Pages that a prefetch has in flight are evicted.
        EvictFilling,
        /// A page that is being filled or evicted is discarded meanwhile.
        DiscardInFlight,
        /// A page that was discarded is read from the store.
        DiscardedIsRemote,
        /// No page survives a pass of the clock, however soon it came back before.
        NoSecondChance,
        /// A page that was written to the pool counts as if storage had it.
        WrittenIsClean,
        /// A group gives up its frame before its dirty pages are in storage.
        DropDirtyFrame,
        /// A page is written to a frame that another store shares.
        WriteSharedFrame,
        /// A page is written to a slot over a version that another store needs.
        WriteSharedSlot,
        /// A store that is forked off holds pages that were lost before.
        ForkForgetsLost,
        /// A frame is free as soon as one of the stores that share it needs it no more.
        FreeSharedFrame,
        /// When a group gets a new slot, the pages that storage alone has are not copied to it.
        LeaveStoredPages,
    }
}
