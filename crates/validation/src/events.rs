//! The metrics of this crate. Their names begin as those of `chain`, of which validation is a phase.

base::events! {
    /// Transactions whose signatures another compute node of the peer has verified.
    counter TransactionsOffloaded("heddle_chain_transactions_offloaded_total");
    /// Transactions that were offloaded to another compute node of the peer, and whose signatures the primary has
    /// verified after all.
    counter TransactionsOffloadFailed("heddle_chain_transactions_offload_failed_total");
    /// Transactions whose signatures another compute node of the peer had verified, and that the primary verified
    /// again: as a random sample, or because the other node had called them wrong.
    counter TransactionsReverified("heddle_chain_transactions_reverified_total");
    /// Transactions whose signatures this compute node has verified for the primary of its peer.
    counter TransactionsVerifiedForPrimary("heddle_chain_transactions_verified_for_primary_total");
}
