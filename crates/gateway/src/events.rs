//! The metrics of the gateway.

base::events! {
    /// TCP connections accepted at gRPC ports.
    counter ConnectionsAccepted("heddle_grpc_connections_accepted_total");
    /// Connections whose TLS handshake failed or took too long.
    counter HandshakesFailed("heddle_grpc_handshakes_failed_total");
    /// Connections that did not end with an orderly close.
    counter ConnectionsBroken("heddle_grpc_connections_broken_total");
    /// gRPC connections open now.
    gauge ConnectionsOpen("heddle_grpc_connections_open");
    /// Calls in progress that have one answer.
    gauge CallsInFlight("heddle_grpc_calls_in_flight");
    /// Calls in progress that stream blocks, events or envelopes.
    gauge StreamsOpen("heddle_grpc_streams_open");
    /// Connections closed (GOAWAY) because they had made no call for long, or had proved no identity.
    counter ConnectionsIdle("heddle_grpc_connections_idle_total");
    /// Answered calls whose client has not ended its side yet.
    gauge CallsLingering("heddle_grpc_calls_lingering");
    /// Answered calls that were reset because their client did not end its side.
    counter CallsReset("heddle_grpc_calls_reset_total");
    /// Calls that were reset because their client took nothing of the answer.
    counter SendsStalled("heddle_grpc_sends_stalled_total");
    /// Calls refused because the limit on calls in progress was reached.
    counter CallsRejected("heddle_grpc_calls_rejected_total");
    /// Transactions evaluated.
    counter Evaluated("heddle_gateway_evaluated_total");
    /// Transactions endorsed by all the organisations that were asked.
    counter Endorsed("heddle_gateway_endorsed_total");
    /// Transactions submitted to the orderer.
    counter Submitted("heddle_gateway_submitted_total");
    /// Transactions that were not sent to the orderer, because a key that they read had been written since.
    counter AbortedEarly("heddle_gateway_aborted_early_total");
    /// Commit statuses answered.
    counter StatusesAnswered("heddle_gateway_commit_statuses_total");
    /// Calls to the gateway that ended in an error.
    counter CallsFailed("heddle_gateway_calls_failed_total");
    /// Proposals that were moved to another compute node of the same peer, because one could not run them.
    counter ProposalsMoved("heddle_gateway_proposals_moved_total");
    /// Compute nodes of peers that this gateway was told of and was not configured with.
    counter NodesLearned("heddle_gateway_nodes_learned_total");
    /// Times that a compute node could not answer and was put into cool-down.
    counter NodesPassedOver("heddle_gateway_nodes_passed_over_total");
    /// Blocks sent to clients, filtered ones included.
    counter BlocksDelivered("heddle_deliver_blocks_total");
    /// Time from a proposal's arrival to its endorsements.
    histogram EndorseTime("heddle_gateway_endorse_seconds", seconds);
    /// Time from an envelope's arrival to the orderer's acknowledgement.
    histogram SubmitTime("heddle_gateway_submit_seconds", seconds);
    /// Time that callers waited for a commit.
    histogram CommitWaitTime("heddle_gateway_commit_wait_seconds", seconds);
}
