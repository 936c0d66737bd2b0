//! The files by which clients find the network: connection profiles, and a sample client.
//!
//! Profiles are Fabric's common connection profiles, one JSON and one YAML file per organisation. They contain ports,
//! so they are rewritten at every start of the network and whenever its orderers change.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::network::{Endpoint, EndpointRole, Network, NodeError, write};

const APP: &str = include_str!("client/app.js");
const PACKAGE: &str = include_str!("client/package.json");

/// Writes the files of the sample client that never change.
pub(crate) fn write_client(path: &Path) -> Result<(), NodeError> {
    write(&path.join("client/app.js"), APP.as_bytes())?;
    write(&path.join("client/package.json"), PACKAGE.as_bytes())
}

/// Writes the client files that contain ports.
pub(crate) fn write_profiles(network: &Network, endpoints: &[Endpoint]) -> Result<(), NodeError> {
    let folder = network.path().join("profiles");
    for organization in network.organizations() {
        let profile = profile(network, endpoints, &organization.name);
        let name = format!("connection-{}", organization.name.to_ascii_lowercase());
        let json = serde_json::to_string_pretty(&profile).expect("a profile is text and numbers");
        write(&folder.join(format!("{name}.json")), json.as_bytes())?;
        let mut yaml = String::from("---\n");
        put_yaml(&mut yaml, &profile, 0);
        write(&folder.join(format!("{name}.yaml")), yaml.as_bytes())?;
    }
    write_connection(network, endpoints)
}

/// Writes the settings of the sample client in `client/`: the first organisation's gateway and user.
fn write_connection(network: &Network, endpoints: &[Endpoint]) -> Result<(), NodeError> {
    let organization = &network.organizations()[0];
    let endpoint = endpoint_of(endpoints, &organization.msp_id);
    let user = organization.user_folder.strip_prefix(network.path()).unwrap_or(&organization.user_folder);
    let user = Path::new("..").join(user);
    let certificate =
        user.join("msp/signcerts").join(format!("{}-cert.pem", organization.user.certificate().common_name()));
    let mut settings = json!({
        "address": client_address(endpoint),
        "channel": network.config().network.channel,
        "mspId": organization.msp_id,
        "certificate": certificate,
        "privateKey": user.join("msp/keystore/priv_sk"),
    });
    if network.config().tls {
        settings["tlsCertificate"] = json!(user.join("tls/ca.crt"));
        settings["tlsName"] = json!(organization.host);
    }
    let json = serde_json::to_string_pretty(&settings).expect("settings are text");
    write(&network.path().join("client/connection.json"), json.as_bytes())
}

fn endpoint_of<'a>(endpoints: &'a [Endpoint], msp_id: &str) -> &'a Endpoint {
    let mut endpoints = endpoints.iter();
    endpoints.find(|endpoint| endpoint.msp_id == msp_id).expect("every organisation listens")
}

fn client_address(endpoint: &Endpoint) -> String {
    if endpoint.address.ip().is_loopback() || endpoint.address.ip().is_unspecified() {
        format!("localhost:{}", endpoint.address.port())
    } else {
        endpoint.address.to_string()
    }
}

fn profile(network: &Network, endpoints: &[Endpoint], organization: &str) -> Value {
    let config = network.config();
    let scheme = if config.tls { "grpcs" } else { "grpc" };
    let entry = |endpoint: &Endpoint, authority_pem: &[u8]| {
        let mut entry = json!({
            "url": format!("{scheme}://{}", client_address(endpoint)),
            "grpcOptions": {
                "ssl-target-name-override": endpoint.host,
                "hostnameOverride": endpoint.host,
            },
        });
        if config.tls {
            entry["tlsCACerts"] = json!({ "pem": String::from_utf8_lossy(authority_pem) });
        }
        entry
    };
    let mut organizations = Map::new();
    let mut peers = Map::new();
    let mut channel_peers = Map::new();
    for organization in network.organizations() {
        let endpoint = endpoint_of(endpoints, &organization.msp_id);
        peers.insert(endpoint.host.clone(), entry(endpoint, &organization.tls.authority_pem));
        let described = json!({ "mspid": organization.msp_id, "peers": [endpoint.host] });
        organizations.insert(organization.name.clone(), described);
        channel_peers.insert(
            endpoint.host.clone(),
            json!({ "endorsingPeer": true, "chaincodeQuery": true, "ledgerQuery": true, "eventSource": true }),
        );
    }
    let mut orderers = Map::new();
    let mut channel_orderers = Vec::new();
    for orderer in endpoints.iter().filter(|endpoint| endpoint.role == EndpointRole::Orderer) {
        orderers.insert(orderer.name.clone(), entry(orderer, &network.orderer().tls.authority_pem));
        channel_orderers.push(orderer.name.clone());
    }
    let mut channels = Map::new();
    channels.insert(config.network.channel.clone(), json!({ "orderers": channel_orderers, "peers": channel_peers }));
    json!({
        "name": format!("heddle-{}", organization.to_ascii_lowercase()),
        "version": "1.0.0",
        "client": {
            "organization": organization,
            "connection": { "timeout": { "peer": { "endorser": "300" }, "orderer": "300" } },
        },
        "channels": channels,
        "organizations": organizations,
        "orderers": orderers,
        "peers": peers,
    })
}

/// Writes a value as YAML: mappings and lists by indentation, certificates as blocks of lines.
fn put_yaml(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                out.push_str(&format!("{indent}{}:", quoted(key)));
                put_value(out, value, depth);
            }
        }
        Value::Array(items) => {
            for item in items {
                out.push_str(&format!("{indent}-"));
                put_value(out, item, depth);
            }
        }
        _ => put_value(out, value, depth),
    }
}

fn put_value(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            put_yaml(out, value, depth + 1);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            put_yaml(out, value, depth + 1);
        }
        Value::String(text) if text.ends_with('\n') => {
            out.push_str(" |\n");
            let indent = "  ".repeat(depth + 1);
            for line in text.lines() {
                out.push_str(&format!("{indent}{line}\n"));
            }
        }
        Value::String(text) => out.push_str(&format!(" {}\n", quoted(text))),
        other => out.push_str(&format!(" {other}\n")),
    }
}

/// A scalar in double quotes: JSON's quoting is valid YAML.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_says_what_json_says() {
        let value = json!({
            "a": { "b": ["x", "y: z"], "c": true },
            "pem": "-----BEGIN-----\nline\n-----END-----\n",
            "empty": {},
        });
        let mut yaml = String::new();
        put_yaml(&mut yaml, &value, 0);
        let expected = "\"a\":\n  \"b\":\n    - \"x\"\n    - \"y: z\"\n  \"c\": true\n\"empty\": {}\n\"pem\": |\n  \
                        -----BEGIN-----\n  line\n  -----END-----\n";
        assert_eq!(yaml, expected);
    }
}
