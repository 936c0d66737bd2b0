//! The metrics of this crate.

base::events! {
    /// Proposals that were endorsed.
    counter ProposalsEndorsed("heddle_chain_proposals_endorsed_total");
    /// Proposals whose contract answered with an error, unsigned.
    counter ProposalsFailed("heddle_chain_proposals_failed_total");
    /// Proposals that were rejected before a contract ran.
    counter ProposalsRejected("heddle_chain_proposals_rejected_total");
    /// Proposals that were rejected because too many were running and waiting, or because they had waited too long.
    counter ProposalsOverloaded("heddle_chain_proposals_overloaded_total");
    /// Proposals that wait for a running contract to end.
    gauge ProposalsWaiting("heddle_chain_proposals_waiting");
    /// Time to run a proposal's contract, from snapshot to encoded read-write set.
    histogram SimulationTime("heddle_chain_simulation_seconds", seconds);

    /// Messages that an orderer accepted.
    counter MessagesOrdered("heddle_chain_messages_ordered_total");
    /// Messages that an orderer rejected.
    counter MessagesRejected("heddle_chain_messages_rejected_total");
    /// Messages that an orderer rejected because its queue was full.
    counter MessagesOverloaded("heddle_chain_messages_overloaded_total");
    /// Blocks whose transactions a leader put into another order than that of their arrival.
    counter BlocksReordered("heddle_chain_blocks_reordered_total");
    /// Transactions that such an order keeps from a conflict, as predicted.
    counter ConflictsAvoided("heddle_chain_conflicts_avoided_total");
    /// Blocks that orderers made durable; each is counted by every orderer of a group.
    counter BlocksOrdered("heddle_chain_blocks_ordered_total");
    /// Time from cutting a block to its being durable at the orderer.
    histogram OrderTime("heddle_chain_order_seconds", seconds);
    /// Orderers of this process that are leaders now; an orderer that orders alone is a leader.
    gauge OrderersLeading("heddle_chain_orderers_leading");
    /// Times that an orderer of this process became leader.
    counter LeadershipsStarted("heddle_chain_leaderships_started_total");

    /// Peers of other organisations whose commit hash of a block differs from that of this organisation's peer.
    counter CommitHashesDiverged("heddle_chain_commit_hashes_diverged_total");
    /// Blocks committed.
    counter BlocksCommitted("heddle_chain_blocks_committed_total");
    /// Blocks replayed at start, from the state's savepoint on.
    counter BlocksReplayed("heddle_chain_blocks_replayed_total");
    /// Blocks whose transactions were verified again, because an earlier block changed the definition of a contract.
    counter BlocksVerifiedAgain("heddle_chain_blocks_verified_again_total");
    /// Transactions committed as valid.
    counter TransactionsValid("heddle_chain_transactions_valid_total");
    /// Transactions invalidated because a key they read had changed.
    counter TransactionsConflicted("heddle_chain_transactions_conflicted_total");
    /// Transactions invalidated because a range they scanned had changed.
    counter TransactionsPhantom("heddle_chain_transactions_phantom_total");
    /// Transactions invalidated because their endorsements do not satisfy a policy.
    counter TransactionsUnendorsed("heddle_chain_transactions_unendorsed_total");
    /// Transactions invalidated because their id had been used before.
    counter TransactionsDuplicate("heddle_chain_transactions_duplicate_total");
    /// Transactions invalidated for any other reason.
    counter TransactionsMalformed("heddle_chain_transactions_malformed_total");
    /// Time from receiving a block to the end of its signature and policy checks.
    histogram VerifyTime("heddle_chain_verify_seconds", seconds);
    /// Time of a block's conflict checks.
    histogram ConflictCheckTime("heddle_chain_conflict_check_seconds", seconds);
    /// Time from a block's append to its being durable.
    histogram DurableTime("heddle_chain_durable_seconds", seconds);
    /// Time to apply a block to the world state, from its turn to be applied and its being durable, whichever is later.
    histogram ApplyTime("heddle_chain_apply_seconds", seconds);
    /// Time from receiving a block to its commit.
    histogram CommitTime("heddle_chain_commit_seconds", seconds);
    /// Callers that wait for a transaction's commit.
    gauge CommitWaiters("heddle_chain_commit_waiters");
}
