//! The smallbank contract.

use base::Bytes;

use crate::{Contract, ContractError, Response, Stub, async_trait};

/// The smallbank contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct SmallBank;

#[async_trait]
impl Contract for SmallBank {
    fn name(&self) -> &str {
        "smallbank"
    }

    async fn invoke(&self, _tx: &mut dyn Stub, function: &str, _args: &[Bytes]) -> Result<Response, ContractError> {
        Err(ContractError::application(format!("contract smallbank has no function {function}")))
    }
}
