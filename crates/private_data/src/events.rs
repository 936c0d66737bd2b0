//! The metrics of private data.

base::events! {
    /// Private sets of transactions that another organisation's peer did not acknowledge to an endorser.
    counter PrivateSetsUnacknowledged("heddle_private_sets_unacknowledged_total");
    /// Private sets that this peer should have had when it committed their transactions, and lacked.
    counter PrivateSetsMissing("heddle_private_sets_missing_total");
    /// Missing private sets that this peer got later from another organisation's peer.
    counter PrivateSetsReconciled("heddle_private_sets_reconciled_total");
}
