//! The numbers that admission control holds.

use std::time::Duration;

/// What one listener spends on strangers, and on each organisation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdmissionLimits {
    /// Connections open at once, of strangers and members together.
    pub connections_max: usize,
    /// Connections of strangers at once; less than `connections_max`, so that members always find places.
    pub strangers_max: usize,
    /// Connections of strangers from one address at once; 0 where a proxy stands before the listener and all clients have
    /// its address.
    pub strangers_per_address_max: usize,
    /// Connections of one organisation at once.
    pub connections_per_organization_max: usize,
    /// Connections of one identity at once.
    pub connections_per_identity_max: usize,
    /// From accepting a connection to the end of its handshake. The listener enforces it.
    pub handshake_time_max: Duration,
    /// Bytes buffered for all strangers.
    pub stranger_bytes_max: u64,
    /// Bytes buffered for the strangers of one address.
    pub stranger_bytes_per_address_max: u64,
    /// Bytes buffered for the members of one organisation.
    pub bytes_per_organization_max: u64,
}

impl AdmissionLimits {
    /// Limits for a listener of `connections_max` connections and `bytes_max` buffered bytes, shared by `organizations`
    /// organisations, in the usual proportions:
    ///
    /// * strangers: half of the connections, an eighth of the connections from one address, an eighth of the bytes, and of
    ///   those a quarter from one address;
    /// * an organisation: an equal share, but half of the connections and a quarter of the bytes at least;
    /// * an identity: a quarter of the connections.
    pub fn in_proportion(connections_max: usize, bytes_max: u64, organizations: usize) -> AdmissionLimits {
        let organizations = organizations.max(1);
        AdmissionLimits {
            connections_max,
            strangers_max: (connections_max / 2).max(1),
            strangers_per_address_max: (connections_max / 8).max(1),
            connections_per_organization_max: (connections_max / organizations).max(connections_max / 2).max(1),
            connections_per_identity_max: (connections_max / 4).max(1),
            handshake_time_max: Duration::from_secs(5),
            stranger_bytes_max: bytes_max / 8,
            stranger_bytes_per_address_max: bytes_max / 32,
            bytes_per_organization_max: (bytes_max / organizations as u64).max(bytes_max / 4),
        }
    }

    pub(super) fn check(&self) {
        assert!(self.connections_max > 0 && self.strangers_max > 0, "a listener that admits nobody is a mistake");
        assert!(self.strangers_max <= self.connections_max, "strangers are connections");
        assert!(
            self.connections_per_organization_max > 0 && self.connections_per_identity_max > 0,
            "as for the listener"
        );
    }
}
