//! The limits that admission control enforces.

use std::time::Duration;

/// The bounds on what one listener spends on strangers, and on each organisation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdmissionLimits {
    /// Open connections, strangers and members together.
    pub connections_max: usize,
    /// Connections of strangers; less than `connections_max`, so that members always get in.
    pub unauthenticated_max: usize,
    /// Connections of strangers from one address; 0 turns the limit off, for a listener behind a proxy, where all clients have
    /// the proxy's address.
    pub unauthenticated_per_address_max: usize,
    /// Connections of one organisation.
    pub connections_per_organization_max: usize,
    /// Connections of one identity.
    pub connections_per_identity_max: usize,
    /// Time from accepting a connection to the end of its handshake. The listener enforces it.
    pub handshake_time_max: Duration,
    /// Bytes buffered for all strangers.
    pub unauthenticated_bytes_max: u64,
    /// Bytes buffered for the strangers of one address.
    pub unauthenticated_bytes_per_address_max: u64,
    /// Bytes buffered for the members of one organisation.
    pub bytes_per_organization_max: u64,
}

impl AdmissionLimits {
    /// Limits for a listener of `connections_max` connections and `bytes_max` buffered bytes, shared by `organizations`
    /// organisations, in the usual proportions:
    ///
    /// * strangers: half of the connections, an eighth of the connections from one address, an eighth of the bytes, and a
    ///   quarter of those bytes from one address;
    /// * an organisation: an equal part, but at least half of the connections and a quarter of the bytes;
    /// * an identity: a quarter of the connections.
    pub fn in_proportion(connections_max: usize, bytes_max: u64, organizations: usize) -> AdmissionLimits {
        let organizations = organizations.max(1);
        AdmissionLimits {
            connections_max,
            unauthenticated_max: (connections_max / 2).max(1),
            unauthenticated_per_address_max: (connections_max / 8).max(1),
            connections_per_organization_max: (connections_max / organizations).max(connections_max / 2).max(1),
            connections_per_identity_max: (connections_max / 4).max(1),
            handshake_time_max: Duration::from_secs(5),
            unauthenticated_bytes_max: bytes_max / 8,
            unauthenticated_bytes_per_address_max: bytes_max / 32,
            bytes_per_organization_max: (bytes_max / organizations as u64).max(bytes_max / 4),
        }
    }

    pub(super) fn check(&self) {
        assert!(self.connections_max > 0 && self.unauthenticated_max > 0, "a listener that admits nobody is a mistake");
        assert!(self.unauthenticated_max <= self.connections_max, "strangers are connections");
        assert!(
            self.connections_per_organization_max > 0 && self.connections_per_identity_max > 0,
            "as for the listener"
        );
    }
}
