//! The organisations of a channel, as the application or the orderer group of its configuration lists them.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Bytes, MspId};
use identity::Msp;
use proto::common::{ConfigGroup, OrdererAddresses};
use proto::msp::MspConfig;
use proto::protos::AnchorPeers;

use super::value;
use crate::error::Error;

/// The most organisations a group may have.
pub const ORGANIZATIONS_MAX: usize = 1024;

/// The most anchor peers or endpoints that one organisation may name.
pub const ENDPOINTS_MAX: usize = 1024;

/// An organisation of a channel.
#[derive(Clone, Debug)]
pub struct ChannelOrganization {
    /// The name of its group, which tools show.
    pub name: String,
    /// The name of its MSP, which identities and policies use.
    pub msp_id: MspId,
    /// The peers that other organisations' peers talk to first: host and port. Only in the application group.
    pub anchor_peers: Vec<(String, u16)>,
    /// Where its orderers listen, as host and port. Only in the orderer group.
    pub endpoints: Vec<String>,
    /// Its MSP as it was configured, to see whether two groups define it the same.
    definition: Bytes,
    msp: Arc<Msp>,
}

impl ChannelOrganization {
    /// Its MSP.
    pub fn msp(&self) -> &Arc<Msp> {
        &self.msp
    }
}

/// Reads the organisations of the group at `path`, in the order of their names.
pub(super) fn read(path: &str, group: &ConfigGroup) -> Result<Vec<ChannelOrganization>, Error> {
    if group.groups.len() > ORGANIZATIONS_MAX {
        return Err(Error::config(path, format!("there are more than {ORGANIZATIONS_MAX} organisations")));
    }
    group.groups.iter().map(|(name, group)| read_one(&format!("{path}/{name}"), name, group)).collect()
}

fn read_one(path: &str, name: &str, group: &ConfigGroup) -> Result<ChannelOrganization, Error> {
    let config: MspConfig =
        value(path, group, "MSP")?.ok_or_else(|| Error::config(format!("{path}/MSP"), "the value is missing"))?;
    let msp = Msp::from_msp_config(&config).map_err(|cause| Error::config(format!("{path}/MSP"), cause.to_string()))?;
    let too_many = |what| Error::config(path, format!("there are more than {ENDPOINTS_MAX} {what}"));
    let mut anchor_peers = Vec::new();
    for peer in value::<AnchorPeers>(path, group, "AnchorPeers")?.unwrap_or_default().anchor_peers {
        if anchor_peers.len() == ENDPOINTS_MAX {
            return Err(too_many("anchor peers"));
        }
        let port = u16::try_from(peer.port)
            .map_err(|_| Error::config(format!("{path}/AnchorPeers"), format!("{} is no port", peer.port)))?;
        anchor_peers.push((peer.host, port));
    }
    let endpoints = value::<OrdererAddresses>(path, group, "Endpoints")?.unwrap_or_default().addresses;
    if endpoints.len() > ENDPOINTS_MAX {
        return Err(too_many("endpoints"));
    }
    Ok(ChannelOrganization {
        name: name.to_owned(),
        msp_id: msp.id().clone(),
        anchor_peers,
        endpoints,
        definition: config.config,
        msp: Arc::new(msp),
    })
}

/// All MSPs, each once. An organisation may stand in both groups if both define its MSP the same.
pub(super) fn msps(groups: [&[ChannelOrganization]; 2]) -> Result<Vec<Arc<Msp>>, Error> {
    let mut by_id: BTreeMap<&MspId, &ChannelOrganization> = BTreeMap::new();
    for organization in groups.into_iter().flatten() {
        let first = by_id.entry(&organization.msp_id).or_insert(organization);
        if first.definition != organization.definition {
            let reason = format!("{} and {} define it differently", first.name, organization.name);
            return Err(Error::config(format!("MSP {}", organization.msp_id), reason));
        }
    }
    Ok(by_id.into_values().map(|organization| organization.msp.clone()).collect())
}
