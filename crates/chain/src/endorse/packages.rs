//! The functions of `_lifecycle` that concern the packages of one peer: InstallChaincode, QueryInstalledChaincode,
//! QueryInstalledChaincodes and GetInstalledChaincodePackage.
//!
//! A proposal for them names no channel. Only administrators of the peer's own organisation may call them. What they do is
//! recorded nowhere but at the peer.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, MspId};
use contract::{ContractResponse, ContractServices, InstalledPackage, PackageError};
use identity::{Identity, MemberRole};
use prost::Message;
use proto::lifecycle::{
    GetInstalledChaincodePackageArgs, GetInstalledChaincodePackageResult, InstallChaincodeArgs, InstallChaincodeResult,
    QueryInstalledChaincodeArgs, QueryInstalledChaincodeResult, QueryInstalledChaincodesArgs,
    QueryInstalledChaincodesResult, query_installed_chaincode_result as found,
    query_installed_chaincodes_result as listed,
};

use super::approval::{OwnApprovals, PackageUses};
use super::channels::EndorsingChannels;

/// The status of a query for a package that is not installed.
const NOT_FOUND: i32 = 404;

enum PackageFailure {
    NotFound(String),
    Failed(String),
}

type PackageAnswer<M> = Result<M, PackageFailure>;

/// A call of one of the functions.
pub struct PackageCall<'a> {
    /// The packages; `None` at a peer that takes none.
    pub services: Option<&'a dyn ContractServices>,
    /// The client, whose signature was verified.
    pub creator: &'a Identity,
    /// The peer's organisation.
    pub own: &'a MspId,
    /// The peer's channels, whose definitions run the packages.
    pub channels: &'a dyn EndorsingChannels,
    /// What the organisation has approved.
    pub approvals: &'a OwnApprovals,
}

impl PackageCall<'_> {
    /// Answers, errors included.
    pub async fn answer(&self, args: &[Bytes]) -> ContractResponse {
        let refused = |reason: String| ContractResponse::failure(ContractResponse::ERROR, reason);
        let [function, args] = args else {
            return refused(format!(
                "lifecycle scc operations require exactly two arguments but received {}",
                args.len()
            ));
        };
        let Ok(function) = std::str::from_utf8(function) else {
            return refused("the function name is not text".to_owned());
        };
        if self.creator.msp_id() != self.own || !self.creator.has_role(MemberRole::Admin) {
            return refused(format!(
                "Failed to authorize invocation due to failed ACL check: access denied for [{function}]: it is for \
                 administrators of {}",
                self.own
            ));
        }
        let Some(services) = self.services else {
            return refused("this peer runs no chaincode outside of its process".to_owned());
        };
        let result = match function {
            "InstallChaincode" => install(services, args).await.map(|result| result.encode_to_vec()),
            "QueryInstalledChaincode" => self.query(services, args).await.map(|result| result.encode_to_vec()),
            "QueryInstalledChaincodes" => self.query_all(services, args).await.map(|result| result.encode_to_vec()),
            "GetInstalledChaincodePackage" => get(services, args).await.map(|result| result.encode_to_vec()),
            _ => Err(PackageFailure::Failed("a proposal for this function must name a channel".to_owned())),
        };
        match result {
            Ok(payload) => ContractResponse::success(payload),
            Err(PackageFailure::NotFound(reason)) => ContractResponse::failure(NOT_FOUND, reason),
            Err(PackageFailure::Failed(reason)) => {
                refused(format!("failed to invoke backing implementation of '{function}': {reason}"))
            }
        }
    }
}

impl PackageCall<'_> {
    async fn uses(&self) -> PackageAnswer<PackageUses> {
        let uses = self.approvals.uses(self.own, &self.channels.all()).await;
        uses.map_err(|error| PackageFailure::Failed(error.to_string()))
    }

    async fn query(
        &self,
        services: &dyn ContractServices,
        args: &Bytes,
    ) -> PackageAnswer<QueryInstalledChaincodeResult> {
        let QueryInstalledChaincodeArgs { package_id } = decode(args)?;
        let found = services.installed().into_iter().find(|package| package.id == package_id);
        let InstalledPackage { id, label } = found.ok_or_else(|| {
            PackageFailure::Failed(format!(
                "could not find chaincode with package id '{}'",
                ledger::proposal::shown(&package_id)
            ))
        })?;
        let uses = self.uses().await?.remove(&id).unwrap_or_default();
        let references = uses.into_iter().map(|(channel, chaincodes)| {
            let chaincodes = chaincodes.into_iter();
            let chaincodes = chaincodes.map(|(name, version)| found::Chaincode { name, version }).collect();
            (channel, found::References { chaincodes })
        });
        Ok(QueryInstalledChaincodeResult { package_id: id, label, references: references.collect() })
    }

    async fn query_all(
        &self,
        services: &dyn ContractServices,
        args: &Bytes,
    ) -> PackageAnswer<QueryInstalledChaincodesResult> {
        let QueryInstalledChaincodesArgs {} = decode(args)?;
        let mut uses = self.uses().await?;
        let installed = services.installed().into_iter().map(|InstalledPackage { id, label }| {
            let uses = uses.remove(&id).unwrap_or_default().into_iter();
            let references = uses.map(|(channel, chaincodes)| {
                let chaincodes = chaincodes.into_iter();
                let chaincodes = chaincodes.map(|(name, version)| listed::Chaincode { name, version }).collect();
                (channel, listed::References { chaincodes })
            });
            listed::InstalledChaincode { references: references.collect(), package_id: id, label }
        });
        Ok(QueryInstalledChaincodesResult { installed_chaincodes: installed.collect() })
    }
}

async fn install(services: &dyn ContractServices, args: &Bytes) -> PackageAnswer<InstallChaincodeResult> {
    let InstallChaincodeArgs { chaincode_install_package } = decode(args)?;
    let installed = services.install(chaincode_install_package).await.map_err(failed)?;
    Ok(InstallChaincodeResult { package_id: installed.id, label: installed.label })
}

async fn get(services: &dyn ContractServices, args: &Bytes) -> PackageAnswer<GetInstalledChaincodePackageResult> {
    let GetInstalledChaincodePackageArgs { package_id } = decode(args)?;
    match services.package(&package_id).await.map_err(failed)? {
        Some(package) => Ok(GetInstalledChaincodePackageResult { chaincode_install_package: package }),
        None => Err(PackageFailure::NotFound(format!(
            "could not load cc install package: chaincode install package '{}' not found",
            ledger::proposal::shown(&package_id)
        ))),
    }
}

fn failed(error: PackageError) -> PackageFailure {
    PackageFailure::Failed(error.to_string())
}

fn decode<M: Message + Default>(args: &Bytes) -> PackageAnswer<M> {
    M::decode(args.clone()).map_err(|error| PackageFailure::Failed(format!("failed to decode input arg: {error}")))
}

#[cfg(test)]
mod tests;
