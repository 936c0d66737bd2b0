//! The [`Contract`] trait, which every contract runtime implements. The module also splits the arguments of a proposal
//! into a function name and the function's arguments.

use async_trait::async_trait;
use base::Bytes;

use super::response::ContractResponse;
use crate::{ContractError, ContractStub};

/// Application code that runs on a peer.
///
/// An implementation is shared by every channel and every concurrent transaction; it keeps no state of its own and does
/// nothing that two endorsers could see differently.
#[async_trait]
pub trait Contract: Send + Sync + 'static {
    /// The name it is usually deployed under. A registry may hold it under others.
    fn name(&self) -> &str;

    /// The version that a peer puts into the `ChaincodeID` of its proposal responses.
    fn version(&self) -> &str {
        "1.0"
    }

    /// Runs one function. `args` are the proposal's arguments after the function name, as untrusted bytes.
    ///
    /// Dropping the future abandons the transaction: everything it did is in the stub.
    ///
    /// # Errors
    /// See [`ContractError`]. A contract never panics on its arguments or on what the state holds.
    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        function: &str,
        args: &[Bytes],
    ) -> Result<ContractResponse, ContractError>;
}

/// Splits a proposal's arguments as Fabric does: the first names the function, the rest are its arguments. No arguments
/// at all name the empty function, which a contract refuses.
///
/// # Errors
/// An application error when the function name is not UTF-8.
pub fn split_input(input: &[Bytes]) -> Result<(&str, &[Bytes]), ContractError> {
    match input.split_first() {
        None => Ok(("", &[])),
        Some((function, args)) => match std::str::from_utf8(function) {
            Ok(function) => Ok((function, args)),
            Err(_) => Err(ContractError::application("the function name is not valid UTF-8")),
        },
    }
}
