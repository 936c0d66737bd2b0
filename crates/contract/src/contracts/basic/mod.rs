//! The basic contract.

use base::Bytes;

use crate::{Contract, ContractError, Response, Stub, async_trait};

/// The basic contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct Basic;

#[async_trait]
impl Contract for Basic {
    fn name(&self) -> &str {
        "basic"
    }

    async fn invoke(&self, _tx: &mut dyn Stub, function: &str, _args: &[Bytes]) -> Result<Response, ContractError> {
        Err(ContractError::application(format!("contract basic has no function {function}")))
    }
}
