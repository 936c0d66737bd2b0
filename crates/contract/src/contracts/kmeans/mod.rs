//! The kmeans contract.

use base::Bytes;

use crate::{Contract, ContractError, Response, Stub, async_trait};

/// The kmeans contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct KMeans;

#[async_trait]
impl Contract for KMeans {
    fn name(&self) -> &str {
        "kmeans"
    }

    async fn invoke(&self, _tx: &mut dyn Stub, function: &str, _args: &[Bytes]) -> Result<Response, ContractError> {
        Err(ContractError::application(format!("contract kmeans has no function {function}")))
    }
}
