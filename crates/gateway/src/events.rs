//! What the gateway counts.

base::events! {
    /// TCP connections accepted at gRPC ports.
    counter ConnectionsAccepted("heddle_grpc_connections_accepted_total");
    /// TCP connections closed at once because the port had as many as it may.
    counter ConnectionsRefused("heddle_grpc_connections_refused_total");
    /// Connections whose TLS handshake failed or took too long.
    counter HandshakesFailed("heddle_grpc_handshakes_failed_total");
    /// Connections that ended other than by an orderly close.
    counter ConnectionsBroken("heddle_grpc_connections_broken_total");
    /// gRPC connections open now.
    gauge ConnectionsOpen("heddle_grpc_connections_open");
    /// Calls in progress that have one answer.
    gauge CallsInFlight("heddle_grpc_calls_in_flight");
    /// Calls in progress that stream blocks, events or envelopes.
    gauge StreamsOpen("heddle_grpc_streams_open");
    /// Calls refused because as many were in progress as may be.
    counter CallsRefused("heddle_grpc_calls_refused_total");
    /// Transactions evaluated.
    counter Evaluated("heddle_gateway_evaluated_total");
    /// Transactions endorsed by all the organisations that were asked.
    counter Endorsed("heddle_gateway_endorsed_total");
    /// Transactions submitted to the orderer.
    counter Submitted("heddle_gateway_submitted_total");
    /// Commit statuses answered.
    counter StatusesAnswered("heddle_gateway_commit_statuses_total");
    /// Calls to the gateway that ended in an error.
    counter CallsFailed("heddle_gateway_calls_failed_total");
    /// Proposals that another compute node of the same peer was asked to run, because one could not.
    counter ProposalsMoved("heddle_gateway_proposals_moved_total");
    /// Times that a compute node could not answer and was passed over for a while.
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
