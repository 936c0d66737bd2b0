//! What a client needs to find and trust a network: connection profiles, and a program that is ready to run.
//!
//! The profile is Fabric's common connection profile in JSON. The program uses the unmodified Fabric gateway SDK.

use std::path::Path;

use serde_json::{Value, json};

/// One organisation's side of a connection profile.
pub struct Profile<'a> {
    pub channel: &'a str,
    pub organization: &'a str,
    pub msp_id: &'a str,
    /// `host:port` of the organisation's peer.
    pub peer_address: &'a str,
    /// The name in the peer's TLS certificate.
    pub peer_name: &'a str,
    pub orderer_address: &'a str,
    pub orderer_name: &'a str,
    pub tls_roots: Option<&'a str>,
    pub orderer_tls_roots: Option<&'a str>,
}

impl Profile<'_> {
    /// The profile as Fabric's tools read it.
    pub fn to_json(&self) -> Value {
        let scheme = if self.tls_roots.is_some() { "grpcs" } else { "grpc" };
        let endpoint = |address: &str, name: &str, roots: Option<&str>| {
            let mut endpoint = json!({
                "url": format!("{scheme}://{address}"),
                "grpcOptions": { "ssl-target-name-override": name, "hostnameOverride": name },
            });
            if let Some(roots) = roots {
                endpoint["tlsCACerts"] = json!({ "pem": roots });
            }
            endpoint
        };
        json!({
            "name": format!("heddle-{}", self.organization),
            "version": "1.0.0",
            "client": { "organization": self.organization },
            "organizations": {
                self.organization: { "mspid": self.msp_id, "peers": [self.peer_name] },
            },
            "peers": { self.peer_name: endpoint(self.peer_address, self.peer_name, self.tls_roots) },
            "orderers": {
                self.orderer_name: endpoint(self.orderer_address, self.orderer_name, self.orderer_tls_roots),
            },
            "channels": {
                self.channel: { "peers": { self.peer_name: {} }, "orderers": [self.orderer_name] },
            },
        })
    }
}

/// Writes the ready-to-run client into `folder`, for the first organisation's user.
///
/// # Errors
/// The folder cannot be written.
pub fn write_client(folder: &Path, channel: &str, address: &str, msp_id: &str, peer: &str, tls: bool) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("package.json"), include_str!("client/package.json"))?;
    let settings = json!({
        "channel": channel,
        "address": address,
        "mspId": msp_id,
        "peerName": peer,
        "tls": tls,
        "organization": "../organizations/peerOrganizations/org1.example.com",
    });
    std::fs::write(folder.join("network.json"), format!("{settings:#}\n"))?;
    std::fs::write(folder.join("app.js"), include_str!("client/app.js"))
}
