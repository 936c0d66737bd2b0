//! Changes of a channel's configuration: which of them are permitted, and which configuration they lead to.
//!
//! A member proposes a change as an envelope of type CONFIG_UPDATE, which lists the elements that it relies on (its read
//! set), the elements that it writes, and signatures. An orderer computes the configuration that the update leads to and
//! orders it, with the update, as an envelope of type CONFIG ([`ChannelConfig::propose_update`]). Each peer repeats the
//! computation and requires the same result ([`ChannelConfig::successor`]). The steps are Fabric's (`common/configtx`):
//!
//! 1. The update names this channel. Its size, its depth and the memory that it takes are bounded before it is decoded.
//! 2. Each element of the read set exists, at the version that the read set gives. Contents are not compared.
//! 3. The **changes** are the elements of the write set that the read set does not list at the same version. There is at
//!    least one.
//! 4. A changed element that exists has the next version, and the signatures satisfy the modification policy that the
//!    *current* configuration gives the element. A new element has version 0. Its own policy is not checked: adding an
//!    element changes its group, and the signatures must satisfy the group's policy.
//! 5. The result: each group, from the root, with the members that its newest version lists. A member that was changed is
//!    taken from the write set, any other from the current configuration. So a changed group deletes the members that
//!    it does not list, and an unchanged group has no new ones.
//! 6. Each element of the write set is in the result.
//! 7. The sequence number grows by one. The result can be compiled, and no organisation changes the name of its MSP.
//!
//! A path such as `Application/Org1MSP` names an element below the root. A modification policy that begins with `/` is a
//! path from the root. Any other one is resolved in the group that holds the value or policy; for a group, in the group
//! itself.
//!
//! Invariants:
//! 1. The result depends only on the current configuration and the update: all peers and orderers compute the same one.
//! 2. Elements are compared by value, never by their encoding, since the encoding of a map has no fixed order.
//! 3. Each policy is evaluated at most once for an update, and each signature verified at most once, however many elements
//!    the update changes.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use base::Bytes;
use identity::policy::{SignatureSet, SignedData};
use prost::Message as _;
use proto::common::{
    Config, ConfigEnvelope, ConfigGroup, ConfigPolicy, ConfigUpdate, ConfigUpdateEnvelope, ConfigValue, HeaderType,
    SignatureHeader,
};

use super::ChannelConfig;
use super::channel_config::read_config_envelope;
use super::group::{ROOT, decode};
use super::organization::ChannelOrganization;
use crate::error::Error;
use crate::transaction::Transaction;

/// The path at which errors in an update as a whole are reported.
const UPDATE: &str = "configuration update";
/// What separates the names in a path.
const SEPARATOR: char = '/';
/// The longest name of a group, value or policy, in bytes.
const ELEMENT_NAME_BYTES_MAX: usize = 249;

impl ChannelConfig {
    /// The configuration that an envelope of type CONFIG_UPDATE leads to, with that envelope, as an orderer orders it.
    /// The envelope's own creator and signature are not looked at.
    ///
    /// # Errors
    /// [`Error::Config`] if the update is not permitted or its result cannot be used; otherwise what is malformed.
    pub fn propose_update(&self, envelope: &Bytes) -> Result<ConfigEnvelope, Error> {
        let config = self.updated(envelope)?;
        self.check_successor(&config)?;
        Ok(ConfigEnvelope { config: Some(config), last_update: Some(decode(UPDATE, envelope)?) })
    }

    /// The configuration in an envelope of type CONFIG, if an update of this configuration leads to it. Who signed the
    /// envelope is not looked at.
    ///
    /// # Errors
    /// As [`ChannelConfig::propose_update`]; also if the update leads to another configuration.
    pub fn successor(&self, envelope: &Bytes) -> Result<ChannelConfig, Error> {
        let (transaction, claimed) = read_config_envelope(envelope)?;
        let channel = transaction.header().channel();
        if channel != self.channel().as_str() {
            return Err(Error::config(ROOT, format!("it is the configuration of the channel {channel:?}")));
        }
        let next = self.next_sequence()?;
        let config = claimed.config.ok_or(Error::Missing { what: "the configuration in its envelope" })?;
        if config.sequence != next {
            let reason = format!("its sequence number is {}, and the next one is {next}", config.sequence);
            return Err(Error::config(ROOT, reason));
        }
        let update =
            claimed.last_update.ok_or(Error::Missing { what: "the update in the configuration's envelope" })?;
        if self.updated(&update.encode_to_vec().into())? != config {
            return Err(Error::config(ROOT, "it differs from the configuration that its update leads to"));
        }
        drop(config);
        let next = ChannelConfig::from_envelope(envelope)?;
        self.check_organizations(&next)?;
        Ok(next)
    }

    /// The most memory that [`ChannelConfig::propose_update`] may take at once for this envelope, in bytes, beside the memory
    /// that it takes for the smallest update, unless it rejects the envelope because of its weight. Fuzz tests of decoders
    /// check this bound.
    ///
    /// # Errors
    /// If the envelope is rejected before the bound is known.
    pub fn most_memory_of_update(envelope: &Bytes) -> Result<usize, Error> {
        let transaction =
            Transaction::decode(envelope).map_err(|invalid| Error::config(UPDATE, invalid.to_string()))?;
        let data = transaction.data();
        super::weight::update::check_update_envelope(&data)?;
        let envelope: ConfigUpdateEnvelope = decode(UPDATE, &data)?;
        super::weight::update::most_memory_of_update(&envelope.config_update)
    }

    /// Steps 1 to 6 for an envelope of type CONFIG_UPDATE.
    fn updated(&self, envelope: &Bytes) -> Result<Config, Error> {
        let (update, signed) = read_update(envelope)?;
        if update.channel_id != self.channel().as_str() {
            let reason =
                format!("it is for the channel {:?}, not for {:?}", update.channel_id, self.channel().as_str());
            return Err(Error::config(UPDATE, reason));
        }
        let root = self.decode_root()?;
        let current = Elements::of(&root)?;
        let read = update.read_set.as_ref().map(Elements::of).transpose()?.unwrap_or_default();
        let written = update.write_set.as_ref().map(Elements::of).transpose()?.unwrap_or_default();

        for (path, element) in read.iter() {
            match current.get(path).map(Element::version) {
                Some(version) if version == element.version() => {}
                Some(version) => {
                    let reason = format!("the update read its version {}, but it is at {version}", element.version());
                    return Err(path.error(reason));
                }
                None => return Err(path.error("the update read it, but it does not exist")),
            }
        }
        let is_unchanged = |(path, element): &(&ElementPath, Element<'_>)| {
            read.get(path).is_some_and(|read| read.version() == element.version())
        };
        let changes =
            Elements(written.iter().filter(|entry| !is_unchanged(entry)).map(|(p, e)| (p.clone(), e)).collect());
        if changes.0.is_empty() {
            return Err(Error::config(UPDATE, "it changes nothing"));
        }
        self.authorize(&current, &changes, &signed)?;

        let root = ElementPath::root();
        let group = merge(&root, &current, &changes)?;
        let result = Elements::of(&group)?;
        if let Some((path, _)) = written.iter().find(|(path, _)| result.get(path).is_none()) {
            return Err(path.error("the update writes it, but its group does not list it or is not changed"));
        }
        Ok(Config { sequence: self.next_sequence()?, channel_group: Some(group) })
    }

    /// Step 4.
    fn authorize(&self, current: &Elements<'_>, changes: &Elements<'_>, signed: &[SignedData]) -> Result<(), Error> {
        let signatures = SignatureSet::new(signed, self.msps())
            .map_err(|cause| Error::config(UPDATE, format!("its signatures: {cause}")))?;
        let verdicts = RefCell::new(BTreeMap::<String, bool>::new());
        let is_satisfied = |path: &str| {
            let known = verdicts.borrow().get(path).copied();
            known.unwrap_or_else(|| {
                let verdict = self.policy(path).evaluate(&signatures).is_ok();
                verdicts.borrow_mut().insert(path.to_owned(), verdict);
                verdict
            })
        };
        for (path, change) in changes.iter() {
            check_policy_name(path, change.mod_policy())?;
            let Some(existing) = current.get(path) else {
                if change.version() != 0 {
                    return Err(path.error(format!("it is new, and its version is {}, not 0", change.version())));
                }
                continue;
            };
            if existing.version().checked_add(1) != Some(change.version()) {
                let reason =
                    format!("the update sets version {}, but it is at {}", change.version(), existing.version());
                return Err(path.error(reason));
            }
            let Some(policy) = path.policy_path(existing.mod_policy()) else {
                return Err(path.error("it has no modification policy and cannot be changed"));
            };
            if !is_satisfied(&policy) {
                let reason = format!("the signatures do not satisfy its modification policy {policy}");
                return Err(path.error(reason));
            }
        }
        Ok(())
    }

    fn next_sequence(&self) -> Result<u64, Error> {
        let overflow = || Error::config(ROOT, "its sequence number cannot grow");
        self.sequence().checked_add(1).ok_or_else(overflow)
    }

    /// Step 7, for a configuration that this process has computed.
    fn check_successor(&self, config: &Config) -> Result<(), Error> {
        let encoded = ConfigEnvelope { config: Some(config.clone()), last_update: None }.encode_to_vec();
        super::weight::check(&encoded)?;
        self.check_organizations(&ChannelConfig::from_config(self.channel().as_str(), config)?)
    }

    /// Organisations keep the names of their MSPs.
    fn check_organizations(&self, next: &ChannelConfig) -> Result<(), Error> {
        let groups = [(self.application(), next.application()), (self.orderers(), next.orderers())];
        for (current, next) in groups {
            let by_name: BTreeMap<&str, &ChannelOrganization> =
                next.iter().map(|one| (one.name.as_str(), one)).collect();
            let changed = current
                .iter()
                .find(|one| by_name.get(one.name.as_str()).is_some_and(|successor| successor.msp_id != one.msp_id));
            if let Some(organization) = changed {
                let reason = format!("the organisation {} changes the name of its MSP", organization.name);
                return Err(Error::config(ROOT, reason));
            }
        }
        Ok(())
    }
}

/// Step 1: the update in an envelope, and its signatures.
fn read_update(envelope: &Bytes) -> Result<(ConfigUpdate, Vec<SignedData>), Error> {
    let transaction = Transaction::decode(envelope).map_err(|invalid| Error::config(UPDATE, invalid.to_string()))?;
    if transaction.header().kind() != HeaderType::ConfigUpdate as i32 {
        let reason = format!("its envelope is of type {}, not CONFIG_UPDATE", transaction.header().kind());
        return Err(Error::config(UPDATE, reason));
    }
    let data = transaction.data();
    super::weight::update::check_update_envelope(&data)?;
    let envelope: ConfigUpdateEnvelope = decode(UPDATE, &data)?;
    super::weight::update::check_update(&envelope.config_update)?;
    let update = decode(UPDATE, &envelope.config_update)?;
    let signed = envelope.signatures.into_iter().map(|signature| {
        let header: SignatureHeader =
            decode("a signature's header in the configuration update", &signature.signature_header)?;
        Ok(SignedData {
            data: [signature.signature_header, envelope.config_update.clone()].into(),
            identity: header.creator,
            signature: signature.signature,
        })
    });
    Ok((update, signed.collect::<Result<_, Error>>()?))
}

/// A modification policy is named by itself or by its path, whose parts are names of elements.
fn check_policy_name(path: &ElementPath, policy: &str) -> Result<(), Error> {
    let relative = policy.strip_prefix(SEPARATOR).unwrap_or(policy);
    match relative.split(SEPARATOR).all(is_element_name) {
        true => Ok(()),
        false => Err(path.error(format!("{policy:?} is no name of a modification policy"))),
    }
}

/// Fabric's rule for the names of groups, values and policies.
fn is_element_name(name: &str) -> bool {
    let is_allowed = |byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-');
    !matches!(name, "" | "." | "..") && name.len() <= ELEMENT_NAME_BYTES_MAX && name.bytes().all(is_allowed)
}

/// Step 5: the newest version of the group at `path`, with its members.
fn merge(path: &ElementPath, current: &Elements<'_>, changes: &Elements<'_>) -> Result<ConfigGroup, Error> {
    let newest = |path: &ElementPath| {
        let found = changes.get(path).or_else(|| current.get(path));
        found.ok_or_else(|| path.error("its group lists it, but it does not exist"))
    };
    let Element::Group(group) = newest(path)? else { unreachable!("a group's path leads to a group") };
    let mut merged =
        ConfigGroup { version: group.version, mod_policy: group.mod_policy.clone(), ..ConfigGroup::default() };
    for name in group.groups.keys() {
        merged.groups.insert(name.clone(), merge(&path.member(ElementKind::Group, name), current, changes)?);
    }
    for name in group.values.keys() {
        let Element::Value(value) = newest(&path.member(ElementKind::Value, name))? else {
            unreachable!("a value's path leads to a value")
        };
        merged.values.insert(name.clone(), value.clone());
    }
    for name in group.policies.keys() {
        let Element::Policy(policy) = newest(&path.member(ElementKind::Policy, name))? else {
            unreachable!("a policy's path leads to a policy")
        };
        merged.policies.insert(name.clone(), policy.clone());
    }
    Ok(merged)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ElementKind {
    Group,
    Value,
    Policy,
}

/// Where an element is: a group, a value and a policy may share a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct ElementPath {
    /// The path of the group that holds it, from the root's members; for members of the root and the root itself empty.
    group: String,
    /// Its name; that of the root is empty.
    name: String,
    kind: ElementKind,
}

impl ElementPath {
    fn root() -> ElementPath {
        ElementPath { group: String::new(), name: String::new(), kind: ElementKind::Group }
    }

    /// A member of the group at this path.
    fn member(&self, kind: ElementKind, name: &str) -> ElementPath {
        ElementPath { group: self.own(), name: name.to_owned(), kind }
    }

    /// The names from the root's members to this element.
    fn own(&self) -> String {
        join(&self.group, &self.name)
    }

    /// The absolute path of this element's modification policy; `None` if it has none.
    fn policy_path(&self, mod_policy: &str) -> Option<String> {
        match mod_policy {
            "" => None,
            absolute if absolute.starts_with(SEPARATOR) => Some(absolute.to_owned()),
            relative => {
                let resolved_in = if self.kind == ElementKind::Group { self.own() } else { self.group.clone() };
                Some(format!("{ROOT}{SEPARATOR}{}", join(&resolved_in, relative)))
            }
        }
    }

    fn error(&self, reason: impl Into<String>) -> Error {
        Error::config(self.to_string(), reason)
    }
}

impl fmt::Display for ElementPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ElementKind::Group => "group",
            ElementKind::Value => "value",
            ElementKind::Policy => "policy",
        };
        let own = self.own();
        let separator = if own.is_empty() { "" } else { "/" };
        write!(f, "{kind} {ROOT}{separator}{own}")
    }
}

fn join(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{group}{SEPARATOR}{name}") }
}

/// A node of the configuration tree.
#[derive(Clone, Copy, Debug)]
enum Element<'a> {
    Group(&'a ConfigGroup),
    Value(&'a ConfigValue),
    Policy(&'a ConfigPolicy),
}

impl<'a> Element<'a> {
    fn version(self) -> u64 {
        match self {
            Element::Group(group) => group.version,
            Element::Value(value) => value.version,
            Element::Policy(policy) => policy.version,
        }
    }

    fn mod_policy(self) -> &'a str {
        match self {
            Element::Group(group) => &group.mod_policy,
            Element::Value(value) => &value.mod_policy,
            Element::Policy(policy) => &policy.mod_policy,
        }
    }
}

/// The memory of an entry of [`Elements`].
#[cfg(test)]
pub(super) const ELEMENT_BYTES: usize = size_of::<(ElementPath, Element<'_>)>();

/// All elements of a tree, by path.
#[derive(Default, Debug)]
struct Elements<'a>(BTreeMap<ElementPath, Element<'a>>);

impl<'a> Elements<'a> {
    /// The elements of the tree below this root. Its depth is bounded where it is decoded.
    ///
    /// # Errors
    /// If a name is none that an element may have.
    fn of(root: &'a ConfigGroup) -> Result<Elements<'a>, Error> {
        let mut elements = Elements::default();
        elements.insert(ElementPath::root(), root)?;
        Ok(elements)
    }

    fn insert(&mut self, path: ElementPath, group: &'a ConfigGroup) -> Result<(), Error> {
        for (name, member) in &group.groups {
            self.insert(member_path(&path, ElementKind::Group, name)?, member)?;
        }
        for (name, value) in &group.values {
            self.0.insert(member_path(&path, ElementKind::Value, name)?, Element::Value(value));
        }
        for (name, policy) in &group.policies {
            self.0.insert(member_path(&path, ElementKind::Policy, name)?, Element::Policy(policy));
        }
        self.0.insert(path, Element::Group(group));
        Ok(())
    }

    fn get(&self, path: &ElementPath) -> Option<Element<'a>> {
        self.0.get(path).copied()
    }

    fn iter(&self) -> impl Iterator<Item = (&ElementPath, Element<'a>)> {
        self.0.iter().map(|(path, element)| (path, *element))
    }
}

fn member_path(group: &ElementPath, kind: ElementKind, name: &str) -> Result<ElementPath, Error> {
    match is_element_name(name) {
        true => Ok(group.member(kind, name)),
        false => Err(group.error(format!("{name:?} is no name of a group, value or policy"))),
    }
}

#[cfg(test)]
mod tests;
