//! The ycsb contract.

use base::Bytes;

use crate::{Contract, ContractError, Response, Stub, async_trait};

/// The ycsb contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ycsb;

#[async_trait]
impl Contract for Ycsb {
    fn name(&self) -> &str {
        "ycsb"
    }

    async fn invoke(&self, _tx: &mut dyn Stub, function: &str, _args: &[Bytes]) -> Result<Response, ContractError> {
        Err(ContractError::application(format!("contract ycsb has no function {function}")))
    }
}
