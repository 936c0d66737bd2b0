//! The certificates and identities of planned processes, and the authorities that they trust.

use identity::MemberRole as CertificateRole;
use identity::issue::{IssuingOrganization as Issuer, TlsIdentity};

use super::planned::{Placement, PlannedProcess};
use super::planner::Planner;
use crate::network::{NodeError, write};
use crate::process::file::{GENESIS, TRUST};

impl Planner<'_> {
    /// Writes the TLS files of a process that only uses TLS below remote memory access, as it has no links to other
    /// organisations.
    pub(super) fn identify_inner(&self, process: &PlannedProcess, issuer: &Issuer) -> Result<(), NodeError> {
        match self.placement {
            Placement::OneHost { .. } => Ok(()),
            Placement::Hosts { .. } => self.identify(process, issuer, CertificateRole::Peer, process.role.name(), None),
        }
    }

    /// Writes a process's certificates and identity, and the authorities that it trusts.
    pub(super) fn identify(
        &self,
        process: &PlannedProcess,
        issuer: &Issuer,
        role: CertificateRole,
        name: &str,
        signer: Option<&identity::Signer>,
    ) -> Result<(), NodeError> {
        let folder = process.folder.as_path();
        let host = process.host.to_string();
        let listen = self.network.config().ports.host.to_string();
        let mut hosts = vec!["localhost", "127.0.0.1", "::1"];
        for host in [&host, &listen] {
            if !hosts.contains(&host.as_str()) && host != "0.0.0.0" && host != "::" {
                hosts.push(host);
            }
        }
        let tls: TlsIdentity = issuer.issue_tls(role, name, &hosts)?;
        tls.write(folder, CertificateRole::Peer)?;
        if let Some(signer) = signer {
            issuer.write_identity(folder, signer)?;
            write(&folder.join(GENESIS), &self.network.genesis().to_bytes())?;
        }
        let members = self.network.organizations().iter().map(|member| (&member.msp_id, &member.tls));
        for (msp_id, tls) in members.chain([(&self.network.orderer().msp_id, &self.network.orderer().tls)]) {
            write(&folder.join(TRUST).join(format!("{msp_id}.pem")), &tls.authority_pem)?;
        }
        Ok(())
    }
}
