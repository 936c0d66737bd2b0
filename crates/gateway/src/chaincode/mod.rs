//! Streams between a peer and chaincodes outside of it, over gRPC.
//!
//! Either side may open the stream:
//! * [`ChaincodeDialer`]: the peer calls `protos.Chaincode/Connect` of a chaincode that listens. This is how Fabric's
//!   chaincode as a service works.
//! * [`ChaincodeListener`]: a chaincode calls `protos.ChaincodeSupport/Register` at a port of the peer.
//!
//! What the messages mean is the matter of `contract::shim`.

mod dial;
mod framing;
mod listen;

pub use dial::{ChaincodeDialer, DialConfig};
pub use listen::{ChaincodeListener, ChaincodeRegistrar, tls_for_chaincodes};
