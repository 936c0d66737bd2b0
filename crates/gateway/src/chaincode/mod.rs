//! Streams between a peer and chaincodes outside of it, over gRPC.
//!
//! Either side may open the stream:
//! * [`ChaincodeDialer`]: the peer calls `protos.Chaincode/Connect` of a chaincode that listens. This is how Fabric's
//!   chaincode as a service works.
//! * [`ChaincodeListener`]: a chaincode calls `protos.ChaincodeSupport/Register` at a port of the peer.
//!
//! [`ChaincodeBridge`] joins a chaincode and a peer of which each connects to the other.
//!
//! What the messages mean is the matter of `contract::shim`.

mod bridge;
mod dial;
mod framing;
mod listen;
mod revocation;
mod socket_owner;

pub use bridge::ChaincodeBridge;
pub use dial::{ChaincodeDialer, DialConfig};
pub use listen::{ChaincodeListener, ChaincodeRegistrar, tls_for_chaincodes};
