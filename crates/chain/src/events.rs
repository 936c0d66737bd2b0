//! What the chain counts.

base::events! {
    /// Proposals that were endorsed.
    counter ProposalsEndorsed("heddle_chain_proposals_endorsed_total");
    /// Proposals whose contract answered with an error, unsigned.
    counter ProposalsFailed("heddle_chain_proposals_failed_total");
    /// Proposals that were refused before a contract ran.
    counter ProposalsRefused("heddle_chain_proposals_refused_total");
    /// Proposals that were turned away because too many were running and waiting, or because they had waited for too long.
    counter ProposalsOverloaded("heddle_chain_proposals_overloaded_total");
    /// Proposals that wait until fewer contracts run.
    gauge ProposalsWaiting("heddle_chain_proposals_waiting");
    /// Time to run a proposal's contract, from snapshot to encoded read-write set.
    histogram SimulationTime("heddle_chain_simulation_seconds", seconds);

    /// Messages that an orderer accepted.
    counter MessagesOrdered("heddle_chain_messages_ordered_total");
    /// Messages that an orderer refused.
    counter MessagesRefused("heddle_chain_messages_refused_total");
    /// Messages that an orderer turned away because its queue was full.
    counter MessagesOverloaded("heddle_chain_messages_overloaded_total");
    /// Blocks that orderers made durable; each is counted by every orderer of a group.
    counter BlocksOrdered("heddle_chain_blocks_ordered_total");
    /// Time from cutting a block to its being durable at the orderer.
    histogram OrderTime("heddle_chain_order_seconds", seconds);
    /// Orderers of this process that lead their group now; one that orders alone leads.
    gauge OrderersLeading("heddle_chain_orderers_leading");
    /// Times that an orderer of this process began to lead.
    counter LeadsBegun("heddle_chain_leads_begun_total");
    /// Blocks that an orderer sent to peers.
    counter BlocksServed("heddle_chain_blocks_served_total");

    /// Blocks that peers received and refused: wrong number, hash, signature or bytes.
    counter BlocksRefused("heddle_chain_blocks_refused_total");
    /// Other organisations' peers whose commit hash of a block differs from that of this organisation's peer.
    counter CommitHashesParted("heddle_chain_commit_hashes_parted_total");
    /// Connections that peers made to orderers.
    counter DeliverConnections("heddle_chain_deliver_connections_total");
    /// Blocks committed.
    counter BlocksCommitted("heddle_chain_blocks_committed_total");
    /// Blocks applied again at start, from the state's savepoint on.
    counter BlocksReplayed("heddle_chain_blocks_replayed_total");
    /// Transactions committed as valid.
    counter TransactionsValid("heddle_chain_transactions_valid_total");
    /// Transactions invalidated because a key they read had changed.
    counter TransactionsConflicted("heddle_chain_transactions_conflicted_total");
    /// Transactions invalidated because a range they scanned had changed.
    counter TransactionsPhantom("heddle_chain_transactions_phantom_total");
    /// Transactions invalidated because their endorsements do not satisfy a policy.
    counter TransactionsUnendorsed("heddle_chain_transactions_unendorsed_total");
    /// Transactions invalidated because their id was there before.
    counter TransactionsDuplicate("heddle_chain_transactions_duplicate_total");
    /// Transactions invalidated for any other reason.
    counter TransactionsMalformed("heddle_chain_transactions_malformed_total");
    /// Time from receiving a block to the end of its signature and policy checks.
    histogram ExamineTime("heddle_chain_examine_seconds", seconds);
    /// Time of a block's conflict checks.
    histogram ResolveTime("heddle_chain_resolve_seconds", seconds);
    /// Time from a block's append to its being durable.
    histogram DurableTime("heddle_chain_durable_seconds", seconds);
    /// Time from a block's turn to be applied, and its being durable, to its being in the world state.
    histogram ApplyTime("heddle_chain_apply_seconds", seconds);
    /// Time from receiving a block to its commit.
    histogram CommitTime("heddle_chain_commit_seconds", seconds);
    /// Transactions whose signatures another compute node of the peer has verified.
    counter TransactionsBorrowed("heddle_chain_transactions_borrowed_total");
    /// Transactions that were given to another compute node of the peer, and whose signatures the primary has verified after all.
    counter TransactionsNotBorrowed("heddle_chain_transactions_not_borrowed_total");
    /// Transactions whose signatures another compute node of the peer had verified, and the primary verified again: by chance, or
    /// because the other called them wrong.
    counter TransactionsDoubted("heddle_chain_transactions_doubted_total");
    /// Compute nodes of a peer that were found to lie about signatures; each is asked nothing more.
    counter LiarsFound("heddle_chain_liars_found_total");
    /// Transactions whose signatures this compute node has verified for the primary of its peer.
    counter TransactionsLent("heddle_chain_transactions_lent_total");
    /// Times that a compute node of a peer became its primary, where there are several.
    counter Promotions("heddle_chain_promotions_total");
    /// Times that a compute node of a peer ceased to be its primary, or could not begin to be it.
    counter Demotions("heddle_chain_demotions_total");
    /// Compute nodes among several that are the primary of their peer now.
    gauge PrimaryNodes("heddle_chain_primary_nodes");
    /// Compute nodes that follow a primary now and may answer.
    gauge ReaderNodes("heddle_chain_reader_nodes");
    /// The height that the compute node of this process shows, where there are several; of all of a network in one process,
    /// the one that moved last.
    gauge ComputeHeight("heddle_chain_compute_height");
    /// Callers that wait for a transaction's commit.
    gauge CommitWaiters("heddle_chain_commit_waiters");
}
