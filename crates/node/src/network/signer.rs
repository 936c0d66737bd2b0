//! The signer of an orderer.

use identity::{MemberRole, Signer};

use super::NodeError;
use super::material::{ORDERER_NAME, orderer_issuer};

/// The identity with which an orderer signs, counted from 0. Every orderer but the first gets a new one at each start.
pub(crate) fn orderer_signer(network: &super::Network, place: usize) -> Result<Signer, NodeError> {
    if place == 0 {
        return Ok(network.orderer().orderer.clone());
    }
    Ok(orderer_issuer(network.path())?.issue(MemberRole::Orderer, &format!("{ORDERER_NAME}{}", place + 1))?)
}
