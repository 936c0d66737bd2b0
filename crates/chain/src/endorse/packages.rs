//! The functions of `_lifecycle` that concern the packages of one peer: InstallChaincode, QueryInstalledChaincode,
//! QueryInstalledChaincodes and GetInstalledChaincodePackage.
//!
//! A proposal for them names no channel. Only administrators of the peer's own organisation may call them. What they do is
//! recorded nowhere but at the peer.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, MspId};
use contract::{ContractResponse, ContractServices, PackageError};
use identity::{Identity, MemberRole};
use prost::Message;
use proto::lifecycle::{
    GetInstalledChaincodePackageArgs, GetInstalledChaincodePackageResult, InstallChaincodeArgs, InstallChaincodeResult,
    QueryInstalledChaincodeArgs, QueryInstalledChaincodeResult, QueryInstalledChaincodesArgs,
    QueryInstalledChaincodesResult, query_installed_chaincodes_result,
};

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
            "QueryInstalledChaincode" => query(services, args).map(|result| result.encode_to_vec()),
            "QueryInstalledChaincodes" => query_all(services, args).map(|result| result.encode_to_vec()),
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

async fn install(services: &dyn ContractServices, args: &Bytes) -> PackageAnswer<InstallChaincodeResult> {
    let InstallChaincodeArgs { chaincode_install_package } = decode(args)?;
    let installed = services.install(chaincode_install_package).await.map_err(failed)?;
    Ok(InstallChaincodeResult { package_id: installed.id, label: installed.label })
}

fn query(services: &dyn ContractServices, args: &Bytes) -> PackageAnswer<QueryInstalledChaincodeResult> {
    let QueryInstalledChaincodeArgs { package_id } = decode(args)?;
    let found = services.installed().into_iter().find(|package| package.id == package_id);
    let found = found.ok_or_else(|| {
        PackageFailure::Failed(format!(
            "could not find chaincode with package id '{}'",
            super::proposal::shown(&package_id)
        ))
    })?;
    Ok(QueryInstalledChaincodeResult {
        package_id: found.id,
        label: found.label,
        ..QueryInstalledChaincodeResult::default()
    })
}

fn query_all(services: &dyn ContractServices, args: &Bytes) -> PackageAnswer<QueryInstalledChaincodesResult> {
    let QueryInstalledChaincodesArgs {} = decode(args)?;
    let installed = services.installed().into_iter();
    let installed_chaincodes = installed
        .map(|package| query_installed_chaincodes_result::InstalledChaincode {
            package_id: package.id,
            label: package.label,
            ..query_installed_chaincodes_result::InstalledChaincode::default()
        })
        .collect();
    Ok(QueryInstalledChaincodesResult { installed_chaincodes })
}

async fn get(services: &dyn ContractServices, args: &Bytes) -> PackageAnswer<GetInstalledChaincodePackageResult> {
    let GetInstalledChaincodePackageArgs { package_id } = decode(args)?;
    match services.package(&package_id).await.map_err(failed)? {
        Some(package) => Ok(GetInstalledChaincodePackageResult { chaincode_install_package: package }),
        None => Err(PackageFailure::NotFound(format!(
            "could not load cc install package: chaincode install package '{}' not found",
            super::proposal::shown(&package_id)
        ))),
    }
}

fn failed(error: PackageError) -> PackageFailure {
    PackageFailure::Failed(error.to_string())
}

fn decode<M: Message + Default>(args: &Bytes) -> PackageAnswer<M> {
    M::decode(args.clone()).map_err(|error| PackageFailure::Failed(format!("failed to decode input arg: {error}")))
}
