//! The configuration of a channel, decoded and checked.
//!
//! A configuration block holds one envelope of type CONFIG with the whole configuration, as a tree of groups with
//! values and policies. [`ChannelConfig`] is that tree, checked and compiled once into what the other crates need: the
//! organisations' MSPs, the policies by path, the limits at which an orderer cuts a block.
//!
//! 1. The envelope's header names the channel. The memory that the configuration will take is computed from its bytes
//!    (module `weight`); only then is the configuration decoded.
//! 2. Capabilities are checked first, since they determine the meaning of everything else. A configuration with an
//!    unknown capability is rejected.
//! 3. Groups and values are read and checked against the bounds below.
//! 4. MSPs and policies are compiled.
//!
//! Invariants:
//! 1. A `ChannelConfig` is immutable, and every peer makes an equal one from equal bytes. An unusable configuration is
//!    rejected while it is read, so a `ChannelConfig` is always usable.
//! 2. Unknown values of a group are ignored, as in Fabric; a known value that is malformed is rejected.
//!
//! Module `update` decides which configuration may follow another one ([`ChannelConfig::propose_update`],
//! [`ChannelConfig::successor`]), and module `change` makes updates. Left to other crates: which ordering engine runs for which consensus type.
mod acl;
mod batch;
mod capability;
mod change;
mod channel_config;
pub mod genesis;
mod group;
mod organization;
mod update;
mod weight;

pub use batch::{BatchLimits, format_duration, parse_duration};
pub use capability::Capabilities;
pub use change::{sign_config, sign_update};
pub use channel_config::{
    CHANNEL_NAME_BYTES_MAX, CONFIG_KEY, CONFIG_NAMESPACE, CONSENTERS_MAX, ChannelConfig, ConsensusConfig, ENDORSEMENT,
    check_channel_name,
};
pub use genesis::{EndorsementRule, GenesisSpec, OrganizationSpec};
pub use group::BLOCK_VALIDATION;
pub use organization::{ChannelOrganization, ORGANIZATIONS_MAX};

use group::{APPLICATION, ORDERER, ROOT, value};
