//! A channel's organisations and orderers, from its configuration.

use ledger::{ChannelConfig, Error};
use prost::Message as _;
use proto::common::OrdererAddresses;
use proto::discovery::{ConfigResult, Endpoint, Endpoints};
use proto::msp::{FabricMspConfig, MspConfig};

/// The type of Fabric's own MSPs.
const FABRIC_MSP: i32 = 0;

/// The definitions of all organisations, and where the orderers of each listen. As in Fabric, addresses of the channel count
/// only if no organisation states its own, and an address that cannot be read is left out. If an orderer's host listens at a port
/// that was chosen at its start (`reached_at`), that port takes the place of the stated one.
///
/// # Errors
/// If the configuration cannot be decoded, which it could before.
pub(super) fn config_result<'a>(
    config: &ChannelConfig,
    reached_at: impl Iterator<Item = &'a str>,
) -> Result<ConfigResult, Error> {
    let chosen: Vec<Endpoint> = reached_at.filter_map(endpoint).collect();
    let root = config.decode_root()?;
    let mut result = ConfigResult::default();
    for group in ["Orderer", "Application"].iter().filter_map(|name| root.groups.get(*name)) {
        for organization in group.groups.values() {
            let definition =
                organization.values.get("MSP").and_then(|value| MspConfig::decode(value.value.clone()).ok());
            let definition = definition.filter(|definition| definition.r#type == FABRIC_MSP);
            let definition = definition.and_then(|definition| FabricMspConfig::decode(definition.config).ok());
            if let Some(definition) = definition {
                result.msps.entry(definition.name.clone()).or_insert(definition);
            }
        }
    }
    let is_stated = config.orderers().iter().any(|organization| !organization.endpoints.is_empty());
    let of_channel = root.values.get("OrdererAddresses").filter(|_| !is_stated);
    let of_channel = of_channel.and_then(|value| OrdererAddresses::decode(value.value.clone()).ok());
    for organization in config.orderers() {
        let addresses = of_channel.as_ref().map_or(&organization.endpoints, |stated| &stated.addresses);
        let stated = addresses.iter().filter_map(|address| endpoint(address));
        let endpoints =
            stated.map(|stated| chosen.iter().find(|chosen| chosen.host == stated.host).cloned().unwrap_or(stated));
        result.orderers.insert(organization.msp_id.to_string(), Endpoints { endpoint: endpoints.collect() });
    }
    Ok(result)
}

fn endpoint(address: &str) -> Option<Endpoint> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some(Endpoint { host: host.to_owned(), port: u32::from(port.parse::<u16>().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_host_and_a_port() {
        let read = |address| endpoint(address).map(|endpoint| (endpoint.host, endpoint.port));
        assert_eq!(read("orderer.example.com:7050"), Some(("orderer.example.com".to_owned(), 7050)));
        assert_eq!(read("[::1]:7050"), Some(("::1".to_owned(), 7050)));
        assert_eq!([read("orderer.example.com"), read("host:"), read("host:70500")], [None, None, None]);
    }
}
