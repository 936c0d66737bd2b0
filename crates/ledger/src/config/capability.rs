//! Capabilities: named sets of rules that every node of a channel must implement, so that all nodes compute the same
//! results.
//!
//! Each of the configuration groups Channel, Orderer and Application lists capabilities by name. A node that does not
//! know a listed name would compute other results, so it must reject the channel. Heddle implements Fabric's V2 and V3
//! capabilities. It also rejects a channel in which one of the groups requires V1 rules only.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeSet;

use proto::common::ConfigGroup;

use super::{APPLICATION, ORDERER, ROOT, value};
use crate::error::Error;

/// The capabilities that a channel requires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Those of the whole channel.
    pub channel: BTreeSet<String>,
    /// Those of the orderers.
    pub orderer: BTreeSet<String>,
    /// Those of the peers.
    pub application: BTreeSet<String>,
}

/// Names that Fabric knows; each includes the rules of those before it.
struct KnownCapabilities {
    path: &'static str,
    /// Rules that ours include.
    outdated: &'static [&'static str],
    /// Sets of rules that we have; a channel must require one of them at least.
    current: &'static [&'static str],
}

const CHANNEL_KNOWN: KnownCapabilities =
    KnownCapabilities { path: ROOT, outdated: &["V1_1", "V1_3", "V1_4_2", "V1_4_3"], current: &["V2_0", "V3_0"] };
const ORDERER_KNOWN: KnownCapabilities =
    KnownCapabilities { path: ORDERER, outdated: &["V1_1", "V1_4_2"], current: &["V2_0"] };
const APPLICATION_KNOWN: KnownCapabilities =
    KnownCapabilities { path: APPLICATION, outdated: &["V1_1", "V1_2", "V1_3", "V1_4_2"], current: &["V2_0", "V2_5"] };

impl Capabilities {
    /// Whether contracts may purge private data: from `V2_5` on.
    pub fn purges_private_data(&self) -> bool {
        self.application.contains("V2_5")
    }

    /// Those of a new channel: the newest of each group.
    pub fn newest() -> Capabilities {
        let newest =
            |known: &KnownCapabilities| known.current.last().map(|name| (*name).to_owned()).into_iter().collect();
        Capabilities {
            channel: newest(&CHANNEL_KNOWN),
            orderer: newest(&ORDERER_KNOWN),
            application: newest(&APPLICATION_KNOWN),
        }
    }

    pub(super) fn read(
        root: &ConfigGroup,
        orderer: &ConfigGroup,
        application: &ConfigGroup,
    ) -> Result<Capabilities, Error> {
        Ok(Capabilities {
            channel: CHANNEL_KNOWN.read(root)?,
            orderer: ORDERER_KNOWN.read(orderer)?,
            application: APPLICATION_KNOWN.read(application)?,
        })
    }
}

impl KnownCapabilities {
    fn read(&self, group: &ConfigGroup) -> Result<BTreeSet<String>, Error> {
        let required = value::<proto::common::Capabilities>(self.path, group, "Capabilities")?.unwrap_or_default();
        let required: BTreeSet<String> = required.capabilities.into_keys().collect();
        let is_one_of = |names: &[&str], name: &String| names.contains(&name.as_str());
        if let Some(name) =
            required.iter().find(|name| !is_one_of(self.current, name) && !is_one_of(self.outdated, name))
        {
            return Err(Error::Capability { path: self.path, name: name.clone() });
        }
        if !required.iter().any(|name| is_one_of(self.current, name)) {
            let reason = format!("the channel requires none of {:?}; older rules are not supported", self.current);
            return Err(Error::config(format!("{}/Capabilities", self.path), reason));
        }
        Ok(required)
    }
}
