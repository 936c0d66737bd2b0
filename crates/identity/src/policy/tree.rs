//! All policies of a channel's configuration, by path, with the implicit meta policies among them.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;
use proto::common::implicit_meta_policy::Rule;
use proto::common::policy::PolicyType;
use proto::common::{ConfigGroup, ImplicitMetaPolicy, Policy as WirePolicy, SignaturePolicyEnvelope};

use super::channel_policy::{ImplicitMeta, MetaRule};
use super::{Policy, SignaturePolicy, decode, malformed};
use crate::error::Error;

/// How deep groups may nest.
const GROUP_DEPTH_MAX: usize = 16;
/// What separates the names in a path, and begins an absolute one.
const SEPARATOR: char = '/';

/// All policies of a configuration. Paths are absolute (`/Channel/Application/Writers`) or relative to the root group
/// (`Application/Writers`).
#[derive(Clone, Default, Debug)]
pub struct PolicyTree {
    root: String,
    policies: BTreeMap<String, Policy>,
}

impl PolicyTree {
    /// Compiles the policies of a configuration whose root group has this name (`Channel`).
    ///
    /// # Errors
    /// [`Error::MalformedPolicy`] when any of them does not compile or groups nest too deep.
    pub fn compile(root: &str, group: &ConfigGroup) -> Result<PolicyTree, Error> {
        Ok(PolicyTree { root: root.to_owned(), policies: compile(group, GROUP_DEPTH_MAX)? })
    }

    /// The policy at this path, or [`Policy::Missing`].
    pub fn get(&self, path: &str) -> Policy {
        self.find(path).cloned().unwrap_or(Policy::Missing)
    }

    /// The policy at this path.
    ///
    /// # Errors
    /// [`Error::UnknownPolicy`].
    pub fn require(&self, path: &str) -> Result<&Policy, Error> {
        self.find(path).ok_or_else(|| Error::UnknownPolicy(path.to_owned()))
    }

    /// All policies with their paths relative to the root, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Policy)> {
        self.policies.iter().map(|(path, policy)| (path.as_str(), policy))
    }

    fn find(&self, path: &str) -> Option<&Policy> {
        match path.strip_prefix(SEPARATOR) {
            None => self.policies.get(path),
            Some(absolute) => {
                let (root, relative) = absolute.split_once(SEPARATOR)?;
                if root == self.root { self.policies.get(relative) } else { None }
            }
        }
    }
}

/// The policies of a group and of all groups below it, by path relative to the group.
fn compile(group: &ConfigGroup, depth: usize) -> Result<BTreeMap<String, Policy>, Error> {
    let Some(depth) = depth.checked_sub(1) else { return malformed("configuration groups nest too deep") };
    let mut below = BTreeMap::new();
    for (name, child) in &group.groups {
        below.insert(name.as_str(), compile(child, depth)?);
    }
    let mut policies = BTreeMap::new();
    for (name, policy) in &group.policies {
        let Some(policy) = &policy.policy else { return malformed(format!("policy {name} is empty")) };
        policies.insert(name.clone(), compile_one(name, policy, &below)?);
    }
    for (group, child) in below {
        policies.extend(child.into_iter().map(|(path, policy)| (format!("{group}{SEPARATOR}{path}"), policy)));
    }
    Ok(policies)
}

fn compile_one(
    name: &str,
    policy: &WirePolicy,
    below: &BTreeMap<&str, BTreeMap<String, Policy>>,
) -> Result<Policy, Error> {
    match PolicyType::try_from(policy.r#type) {
        Ok(PolicyType::Signature) => Ok(SignaturePolicy::decode(&policy.value)?.into()),
        Ok(PolicyType::ImplicitMeta) => {
            let meta: ImplicitMetaPolicy = decode(&policy.value, "ImplicitMetaPolicy")?;
            let rule = match Rule::try_from(meta.rule) {
                Ok(Rule::Any) => MetaRule::Any,
                Ok(Rule::All) => MetaRule::All,
                Ok(Rule::Majority) => MetaRule::Majority,
                Err(_) => return malformed(format!("policy {name} has an unknown rule")),
            };
            let asked = below.values().map(|group| group.get(&meta.sub_policy).cloned().unwrap_or(Policy::Missing));
            Ok(Policy::ImplicitMeta(Arc::new(ImplicitMeta::new(rule, asked.collect()))))
        }
        _ => malformed(format!("policy {name} is of an unknown type")),
    }
}

/// A signature policy as a configuration holds it.
pub fn signature_to_wire(policy: &SignaturePolicyEnvelope) -> WirePolicy {
    WirePolicy { r#type: PolicyType::Signature as i32, value: policy.encode_to_vec().into() }
}

/// An implicit meta policy as a configuration holds it.
pub fn implicit_meta_to_wire(rule: MetaRule, sub_policy: &str) -> WirePolicy {
    let rule = match rule {
        MetaRule::Any => Rule::Any,
        MetaRule::All => Rule::All,
        MetaRule::Majority => Rule::Majority,
    };
    let policy = ImplicitMetaPolicy { sub_policy: sub_policy.to_owned(), rule: rule as i32 };
    WirePolicy { r#type: PolicyType::ImplicitMeta as i32, value: policy.encode_to_vec().into() }
}
