//! The endorsement policy of a contract: a signature policy of its own, or the path of a policy of the channel.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use bytes::Bytes;
use proto::common::SignaturePolicyEnvelope;
use proto::protos::ApplicationPolicy as Wire;
use proto::protos::application_policy::Type;

use super::tree::PolicyTree;
use super::{Policy, SignaturePolicy, decode, malformed};
use crate::error::Error;

/// A contract's policy: its own, or one of the channel's by path.
#[derive(Clone, Debug)]
pub enum ApplicationPolicy {
    /// Its own signature policy.
    Signature(Arc<SignaturePolicy>),
    /// The path of a policy in the channel's configuration, looked up whenever the policy is evaluated.
    Channel(String),
}

impl ApplicationPolicy {
    /// Reads an encoded `ApplicationPolicy`.
    ///
    /// # Errors
    /// [`Error::MalformedPolicy`].
    pub fn decode(bytes: &Bytes) -> Result<ApplicationPolicy, Error> {
        ApplicationPolicy::from_wire(&decode(bytes, "ApplicationPolicy")?)
    }

    /// Compiles a contract's policy.
    ///
    /// # Errors
    /// [`Error::MalformedPolicy`].
    pub fn from_wire(wire: &Wire) -> Result<ApplicationPolicy, Error> {
        match &wire.r#type {
            Some(Type::SignaturePolicy(policy)) => {
                Ok(ApplicationPolicy::Signature(Arc::new(SignaturePolicy::compile(policy)?)))
            }
            Some(Type::ChannelConfigPolicyReference(path)) => Ok(ApplicationPolicy::Channel(path.clone())),
            None => malformed("an application policy is empty"),
        }
    }

    /// The policy to evaluate under this configuration. A path that does not exist is [`Policy::Missing`].
    pub fn resolve(&self, tree: &PolicyTree) -> Policy {
        match self {
            ApplicationPolicy::Signature(policy) => Policy::Signature(policy.clone()),
            ApplicationPolicy::Channel(path) => tree.get(path),
        }
    }
}

/// The application policy that refers to a policy of the channel.
pub fn channel_reference(path: &str) -> Wire {
    Wire { r#type: Some(Type::ChannelConfigPolicyReference(path.to_owned())) }
}

/// The application policy that is a signature policy.
pub fn of_signature(policy: SignaturePolicyEnvelope) -> Wire {
    Wire { r#type: Some(Type::SignaturePolicy(policy)) }
}
