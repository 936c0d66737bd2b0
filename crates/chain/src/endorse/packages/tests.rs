use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base::rt::production;
use contract::Contract;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, Signer};
use proto::lifecycle::{InstallChaincodeArgs, InstallChaincodeResult};

use super::*;
use crate::endorse::channels::EndorsingChannel;

/// Packages in memory.
#[derive(Default)]
struct Packages(Mutex<Vec<(InstalledPackage, Bytes)>>);

#[async_trait]
impl ContractServices for Packages {
    fn by_name(&self, _name: &str) -> Option<Arc<dyn Contract>> {
        None
    }

    fn by_package(&self, _package_id: &str) -> Option<Arc<dyn Contract>> {
        None
    }

    async fn install(&self, package: Bytes) -> Result<InstalledPackage, PackageError> {
        if package.is_empty() {
            return Err(PackageError::Rejected("it is empty".into()));
        }
        let installed = InstalledPackage { id: format!("assets:{}", package.len()), label: "assets".into() };
        self.0.lock().expect("no holder panics").push((installed.clone(), package));
        Ok(installed)
    }

    fn installed(&self) -> Vec<InstalledPackage> {
        self.0.lock().expect("no holder panics").iter().map(|(installed, _)| installed.clone()).collect()
    }

    async fn package(&self, package_id: &str) -> Result<Option<Bytes>, PackageError> {
        let packages = self.0.lock().expect("no holder panics");
        Ok(packages.iter().find(|(installed, _)| installed.id == package_id).map(|(_, bytes)| bytes.clone()))
    }
}

/// A peer that has joined no channel.
struct NoChannels;

impl EndorsingChannels for NoChannels {
    fn channel(&self, _name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        None
    }

    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>> {
        Vec::new()
    }
}

/// An organisation, with its identities as the members of a channel see them.
struct Organization(IssuingOrganization);

impl Organization {
    fn new(msp_id: &str) -> Organization {
        let terms = CertificateTerms::starting_now(KeyKind::P256);
        Organization(IssuingOrganization::create(msp_id, "example.com", &terms).expect("keys"))
    }

    fn member(&self, role: MemberRole) -> Identity {
        let signer: Signer = self.0.issue(role, "someone").expect("a certificate");
        self.0.membership().expect("an MSP").identify(signer.serialized()).expect("its member")
    }
}

async fn answer(services: Option<&Packages>, creator: &Identity, args: &[Bytes]) -> ContractResponse {
    let own = MspId::new("Org1MSP");
    let services = services.map(|packages| packages as &dyn ContractServices);
    let approvals = OwnApprovals::default();
    PackageCall { services, creator, own: &own, channels: &NoChannels, approvals: &approvals }.answer(args).await
}

fn args(function: &'static str, args: impl Message) -> [Bytes; 2] {
    [Bytes::from_static(function.as_bytes()), args.encode_to_vec().into()]
}

#[test]
fn only_administrators_of_the_peers_organisation_reach_its_packages() {
    production::run(async {
        let (own, other) = (Organization::new("Org1MSP"), Organization::new("Org2MSP"));
        let packages = Packages::default();
        let install = InstallChaincodeArgs { chaincode_install_package: Bytes::from_static(b"package") };
        let calls = [
            args("InstallChaincode", install),
            args("QueryInstalledChaincodes", QueryInstalledChaincodesArgs {}),
            args("QueryInstalledChaincode", QueryInstalledChaincodeArgs { package_id: "assets:7".into() }),
            args("GetInstalledChaincodePackage", GetInstalledChaincodePackageArgs { package_id: "assets:7".into() }),
        ];
        let strangers = [MemberRole::Client, MemberRole::Peer, MemberRole::Orderer]
            .map(|role| own.member(role))
            .into_iter()
            .chain([other.member(MemberRole::Admin)]);
        for stranger in strangers {
            for call in &calls {
                let refused = answer(Some(&packages), &stranger, call).await;
                assert_eq!(refused.status, ContractResponse::ERROR);
                assert!(refused.message.contains("failed ACL check"), "{}", refused.message);
            }
        }
        assert!(packages.installed().is_empty(), "nobody has installed anything");
        let admin = own.member(MemberRole::Admin);
        for call in &calls {
            let served = answer(Some(&packages), &admin, call).await;
            assert_eq!(served.status, ContractResponse::OK, "{}", served.message);
        }
        let back = answer(Some(&packages), &admin, &calls[3]).await;
        let back = GetInstalledChaincodePackageResult::decode(back.payload).expect("its result");
        assert_eq!(back.chaincode_install_package, "package");
    });
}

#[test]
fn calls_that_are_wrong_say_why() {
    production::run(async {
        let admin = Organization::new("Org1MSP").member(MemberRole::Admin);
        let packages = Packages::default();
        let unknown = GetInstalledChaincodePackageArgs { package_id: "assets:9".into() };
        let one = QueryInstalledChaincodeArgs { package_id: "assets:9".into() };
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let cases: [(&[Bytes], i32, &str); 6] = [
            (&[bytes("InstallChaincode")], 500, "exactly two arguments but received 1"),
            (&args("InstallChaincode", InstallChaincodeArgs::default()), 500, "it is empty"),
            (&[bytes("InstallChaincode"), bytes("\u{ff}")], 500, "failed to decode input arg"),
            (&args("GetInstalledChaincodePackage", unknown), 404, "'assets:9' not found"),
            (&args("QueryInstalledChaincode", one), 500, "could not find chaincode with package id 'assets:9'"),
            (&args("CommitChaincodeDefinition", InstallChaincodeResult::default()), 500, "must name a channel"),
        ];
        for (args, status, problem) in cases {
            let refused = answer(Some(&packages), &admin, args).await;
            assert!(refused.status == status && refused.message.contains(problem), "{problem}: {refused:?}");
        }
        let none = answer(None, &admin, &args("QueryInstalledChaincodes", QueryInstalledChaincodesArgs {})).await;
        assert!(none.message.contains("runs no chaincode"), "{}", none.message);
    });
}
