//! The metrics of this crate.

base::events! {
    /// Blocks that an orderer sent to peers.
    counter BlocksServed("heddle_chain_blocks_served_total");
    /// Blocks that peers received and rejected: wrong number, hash, signature or bytes.
    counter BlocksRejected("heddle_chain_blocks_rejected_total");
    /// Connections that peers made to orderers.
    counter DeliverConnections("heddle_chain_deliver_connections_total");
}
