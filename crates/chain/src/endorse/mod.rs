//! Runs proposals and signs their results.
//!
//! The steps of [`Endorser::process`], which are those of Fabric's endorser:
//!
//! 1. Read the proposal's headers ([`ledger::proposal`]) and find its channel.
//! 2. Check its timestamp, its format, and the membership, certificate expiry and signature of its creator. Up to here the
//!    endorser neither waits nor keeps state, so an outsider costs only computation.
//! 3. Take a permit from the quota of the creator's organisation ([`quota`]); if there is none, reject the proposal
//!    ([`EndorseError::Overloaded`]). Check that its transaction is not on the ledger and that the creator may propose, and
//!    read the invocation.
//! 4. Wait for a [turn](turns), for [`EndorserConfig::wait_max`] at most. Organisations get turns in rotation.
//! 5. Run the contract against one snapshot of the state ([`simulate`]), for [`EndorserConfig::execution_max`] at most.
//!    Fabric's system contracts answer from the ledger instead ([`system`], [`lifecycle`]), without a turn.
//! 6. Encode the read-write set, the response, the event and the proposal's hash as one message, and sign it. A response
//!    with a status of 400 or more is returned unsigned.
//!
//! Invariants: a proposal changes no ledger and no state, here or at any other node. For equal states and equal proposals all
//! endorsers sign equal bytes. The peer verifies the creator's signature itself, once per proposal.

pub mod approval;
mod channels;
mod describe;
mod endorser;
mod error;
pub mod lifecycle;
pub mod packages;
mod quota;
pub mod simulate;
pub mod system;
mod turns;

pub use channels::{EndorsingChannel, EndorsingChannels, HostsChannels};
pub use endorser::{Endorse, Endorser, EndorserConfig};
pub use error::EndorseError;
