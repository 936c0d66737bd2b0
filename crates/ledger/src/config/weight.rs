//! Computes how much memory a configuration will take, before it is decoded.
//!
//! The first block of a channel comes from a peer, so the memory that a node allocates for it must be bounded by the
//! block's size. Decoding alone does not keep such a bound: the protobuf library makes a tree node, or a list element,
//! of each part of a message, up to 1,500 bytes for a part of twelve bytes. Compilation multiplies further, since each
//! policy is kept under its whole path and refers to one policy of each group below. Therefore:
//!
//! 1. One walk over the received bytes, which allocates nothing, adds up three amounts of memory: that of the decoded
//!    **tree**, that of the result **compiled** from it, and the memory that is needed **in passing** while one value
//!    is compiled.
//! 2. If the sum is above [`TIMES_MAX`] times the size of the configuration plus [`FREE_BYTES`], the configuration is
//!    rejected. Configurations that tools write stay below, since most of their bytes are certificates. An organisation
//!    with a certificate for each kind of node takes three times its size. One with a single certificate takes ten
//!    times its size, and a channel may have a hundred and fifty of these.
//! 3. The configuration is also rejected if a text is longer than [`TEXT_BYTES_MAX`], since errors and paths repeat texts,
//!    or if a field that may occur once occurs twice.
//!
//! Invariants: the sums depend only on the bytes, not on the machine or the compiler, so that all peers reject the same
//! configurations; tests compare the sums with the memory that is allocated. The walk reads everything that the decoder
//! reads, to the same depth.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use identity::policy::DEPTH_MAX;
use proto::common::msp_principal::Classification;
use proto::common::policy::PolicyType;

pub(super) mod update;

use super::ROOT;
use crate::error::Error;
use crate::wire::{FieldValue, Fields, Span, WireError, set_once};

/// How many times its size a configuration may take.
pub(super) const TIMES_MAX: usize = 4;
/// The memory that a configuration may take whatever its size.
pub(super) const FREE_BYTES: usize = 1 << 20;
/// The longest name, address or path in a configuration. Fabric's names have at most 249 bytes.
pub(super) const TEXT_BYTES_MAX: usize = 1024;

/// How deep groups may nest, the same as where their policies are compiled.
const GROUP_DEPTH_MAX: usize = 16;
/// How deep combined principals are decoded.
const COMBINED_DEPTH_MAX: usize = 9;

/// Bytes of the entries of maps, key and value, and of the elements of lists.
mod of {
    pub(super) const TEXT: usize = 24;
    pub(super) const BYTES: usize = 32;
    pub(super) const GROUP: usize = TEXT + 104;
    pub(super) const VALUE: usize = TEXT + 64;
    pub(super) const POLICY: usize = TEXT + 72;
    pub(super) const TEXT_BY_TEXT: usize = 2 * TEXT;
    pub(super) const COMPILED_POLICY: usize = 16;
    pub(super) const POLICY_BY_PATH: usize = TEXT + COMPILED_POLICY;
    pub(super) const POLICIES_BY_GROUP: usize = 40;
    /// A gate or a leaf, on the wire and compiled.
    pub(super) const RULE: usize = 32;
    pub(super) const WIRE_PRINCIPAL: usize = 40;
    pub(super) const PRINCIPAL: usize = 80;
    /// The counters of references to a name, and the header of copied bytes.
    pub(super) const REFERENCES: usize = 32;
    /// A compiled policy without its rules and principals.
    pub(super) const POLICY_FRAME: usize = 96;
    pub(super) const CONSENTER: usize = 152;
    pub(super) const CONSENTER_BY_NUMBER: usize = 40;
    pub(super) const ENDPOINT: usize = 32;
    pub(super) const UNIT: usize = 56;
    pub(super) const UNIT_WITH_CERTIFIERS: usize = UNIT + 64;
    /// An organisation in its lists and maps, and its MSP without certificates and units.
    pub(super) const ORGANIZATION: usize = 1536;
    /// A certificate that is kept, besides the memory that its own bytes account for.
    pub(super) const CERTIFICATE: usize = 768;
    pub(super) const REVOCATION_LIST: usize = 640;
    pub(super) const CERTIFICATE_ID: usize = 32;
    /// A position in a list of an authority's issuers.
    pub(super) const POSITION: usize = 8;
    /// An element of the tree and its path.
    pub(super) const ELEMENT: usize = 2 * TEXT + 8 + 16;
}

/// Rejects the data of a configuration envelope, a `ConfigEnvelope`, that would take too much memory.
///
/// # Errors
/// [`Error::Malformed`] if it is no message or repeats a field that may occur once; [`Error::Config`] if something in
/// it is too long or too deep, or if it takes too much memory.
pub(super) fn check(data: &[u8]) -> Result<(), Error> {
    within_limit(data.len(), most_memory(data)?)
}

fn within_limit(bytes: usize, found: usize) -> Result<(), Error> {
    let most = limit(bytes);
    if found > most {
        let reason = format!(
            "its {bytes} bytes would take {found} bytes of memory, above {most}: it has far more small parts than configurations have"
        );
        return Err(Error::config(ROOT, reason));
    }
    Ok(())
}

/// The most memory that reading the data of a configuration envelope takes.
pub(super) fn most_memory(data: &[u8]) -> Result<usize, Error> {
    Ok(MemorySums::of(data)?.peak(data.len()))
}

/// The most memory that a configuration of this many bytes may take.
pub(super) fn limit(bytes: usize) -> usize {
    bytes.saturating_mul(TIMES_MAX).saturating_add(FREE_BYTES)
}

/// The memory that a configuration takes, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct MemorySums {
    /// For the decoded messages.
    tree: usize,
    /// For the result that is compiled from them.
    compiled: usize,
    /// For a map of all elements of the tree by path, which a change needs.
    elements: usize,
    /// For the current value, until that is compiled.
    passing: usize,
    passing_max: usize,
}

impl MemorySums {
    pub(super) fn of(data: &[u8]) -> Result<MemorySums, Error> {
        let mut walk = ConfigWalk { source: data, sums: MemorySums::default() };
        walk.envelope(Span::whole(data).map_err(malformed)?)?;
        Ok(walk.sums)
    }

    /// The peak: before anything is compiled the tree is encoded again for its digest, in which a number may have twice
    /// its bytes.
    pub(super) fn peak(&self, bytes: usize) -> usize {
        let digest = bytes.saturating_mul(2);
        self.tree.saturating_add(digest.max(self.compiled.saturating_add(self.passing_max)))
    }
}

fn malformed(cause: WireError) -> Error {
    Error::Malformed { what: "configuration", cause }
}

/// The most memory that a list takes which grew element by element: twice its elements, plus the old elements while it
/// moves.
fn list(each_bytes: usize, count: usize) -> usize {
    let places = match count {
        0 => 0,
        1..=4 => 4,
        _ => count.saturating_mul(3),
    };
    each_bytes.saturating_mul(places)
}

/// The most memory that a B-tree of this many entries takes: nodes have eleven slots, of which at least five are in
/// use.
fn map(entry_bytes: usize, count: usize) -> usize {
    const PLACES: usize = 11;
    /// The memory of a node besides its entries.
    const NODE_BYTES: usize = 112;
    let nodes = match count {
        0 => 0,
        1..=PLACES => 1,
        _ => (count / 4).saturating_add(1),
    };
    entry_bytes.saturating_mul(PLACES).saturating_add(NODE_BYTES).saturating_mul(nodes)
}

/// The memory that an entry adds to a map that has others.
fn another_entry(entry_bytes: usize) -> usize {
    map(entry_bytes, 12) / 12
}

/// The heap memory of a text or of copied bytes.
fn text(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.max(8) }
}

fn add(sum: &mut usize, bytes: usize) {
    *sum = sum.saturating_add(bytes);
}

struct ConfigWalk<'a> {
    source: &'a [u8],
    sums: MemorySums,
}

/// The fields of one message.
struct MessageFields<'a> {
    fields: Fields<'a>,
    /// The fields that may occur once.
    once: &'static [u32],
    seen: u64,
}

impl MessageFields<'_> {
    /// The next field: its number, and its position if it holds bytes, text or a message.
    fn next(&mut self) -> Result<Option<(u32, Option<Span>)>, Error> {
        let Some(field) = self.fields.next().map_err(malformed)? else { return Ok(None) };
        if self.once.contains(&field.number) {
            let bit = 1_u64.checked_shl(field.number).unwrap_or(0);
            if self.seen & bit != 0 {
                return Err(malformed(WireError::Repeated));
            }
            self.seen |= bit;
        }
        let place = match field.value {
            FieldValue::Bytes(span) => Some(span),
            _ => None,
        };
        Ok(Some((field.number, place)))
    }
}

impl<'a> ConfigWalk<'a> {
    /// The fields of the message at `at`, of which those in `once` may occur once.
    fn message(&self, at: Span, once: &'static [u32]) -> MessageFields<'a> {
        MessageFields { fields: Fields::new(self.source, at), once, seen: 0 }
    }

    /// Both fields of a map's entry: its key, and its value.
    fn entry(&self, at: Span) -> Result<[Option<Span>; 2], Error> {
        self.fields(at, [1, 2])
    }

    /// The positions of these fields of a message, none of which may occur more than once.
    fn fields<const N: usize>(&self, at: Span, numbers: [u32; N]) -> Result<[Option<Span>; N], Error> {
        let mut found = [None; N];
        let mut message = self.message(at, &[]);
        while let Some((number, place)) = message.next()? {
            if let Some(index) = numbers.iter().position(|wanted| *wanted == number) {
                let place = place.ok_or_else(|| malformed(WireError::Mismatch))?;
                set_once(&mut found[index], place).map_err(malformed)?;
            }
        }
        Ok(found)
    }

    /// Of a policy or a principal: field 1, its kind, of which the last counts, and the position of field 2, its content.
    fn kind_and_content(&self, at: Span) -> Result<(i32, Option<Span>), Error> {
        let (mut kind, mut content) = (0, None);
        let mut fields = Fields::new(self.source, at);
        while let Some(field) = fields.next().map_err(malformed)? {
            match field.number {
                1 => kind = field.varint().map_err(malformed)? as i32,
                2 => set_once(&mut content, field.span().map_err(malformed)?).map_err(malformed)?,
                _ => {}
            }
        }
        Ok((kind, content))
    }

    /// The memory of a text at `at`.
    fn text(&self, at: Option<Span>) -> Result<usize, Error> {
        let bytes = at.map_or(0, |at| at.len());
        if bytes > TEXT_BYTES_MAX {
            return Err(Error::config(ROOT, format!("a text has {bytes} bytes, more than {TEXT_BYTES_MAX}")));
        }
        Ok(text(bytes))
    }

    fn passed(&mut self) {
        self.sums.passing_max = self.sums.passing_max.max(self.sums.passing);
        self.sums.passing = 0;
    }

    fn envelope(&mut self, at: Span) -> Result<(), Error> {
        // The last update stays as it is.
        let [config, _] = self.fields(at, [1, 2])?;
        let Some(config) = config else { return Ok(()) };
        let [group] = self.fields(config, [2])?;
        group.map_or(Ok(()), |group| self.group(group, 0, GROUP_DEPTH_MAX))
    }

    /// A group whose name, after the names of the groups around it, ends at `path_bytes` of its policies' paths.
    fn group(&mut self, at: Span, path_bytes: usize, depth: usize) -> Result<(), Error> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Error::config(ROOT, format!("groups nest more than {GROUP_DEPTH_MAX} deep")));
        };
        let (mut groups, mut values, mut policies, mut asking) = (0_usize, 0_usize, 0_usize, 0_usize);
        let mut message = self.message(at, &[5]);
        while let Some((number, place)) = message.next()? {
            match (number, place) {
                (2, Some(entry)) => {
                    add(&mut groups, 1);
                    let [name, group] = self.entry(entry)?;
                    let text = self.text(name)?;
                    add(&mut self.sums.tree, text);
                    add(&mut self.sums.elements, text);
                    let path_bytes = path_bytes.saturating_add(name.map_or(0, |name| name.len())).saturating_add(1);
                    if let Some(group) = group {
                        self.group(group, path_bytes, depth)?;
                    }
                }
                (3, Some(entry)) => {
                    add(&mut values, 1);
                    self.value(entry)?;
                }
                (4, Some(entry)) => {
                    add(&mut policies, 1);
                    add(&mut asking, usize::from(self.policy(entry, path_bytes)?));
                }
                (5, place) => {
                    let text = self.text(place)?;
                    add(&mut self.sums.tree, text);
                }
                _ => {}
            }
        }
        let members = groups.saturating_add(values).saturating_add(policies);
        let each = another_entry(of::ELEMENT).saturating_add(text(path_bytes)).saturating_add(8);
        add(&mut self.sums.elements, members.saturating_mul(each));
        let tree = [map(of::GROUP, groups), map(of::VALUE, values), map(of::POLICY, policies)];
        tree.into_iter().for_each(|bytes| add(&mut self.sums.tree, bytes));
        // Each policy that refers to those below keeps one of each group.
        let asked = of::COMPILED_POLICY.saturating_mul(groups.max(4)).saturating_mul(asking);
        let compiled = [map(of::POLICY_BY_PATH, policies), map(of::POLICIES_BY_GROUP, groups), asked];
        compiled.into_iter().for_each(|bytes| add(&mut self.sums.compiled, bytes));
        Ok(())
    }

    /// An entry of a group's policies. Returns whether it refers to the policies of the groups below.
    fn policy(&mut self, entry: Span, path_bytes: usize) -> Result<bool, Error> {
        let [name, policy] = self.entry(entry)?;
        let name_text = self.text(name)?;
        add(&mut self.sums.tree, name_text);
        add(&mut self.sums.elements, name_text);
        // Its path grows as it is assembled, and is a key of the map of all policies.
        let path = text(path_bytes.saturating_add(name.map_or(0, |name| name.len()))).saturating_mul(2);
        add(&mut self.sums.compiled, path.saturating_add(another_entry(of::POLICY_BY_PATH)));
        let Some(policy) = policy else { return Ok(false) };
        let [policy, modified_by] = self.fields(policy, [2, 3])?;
        let modified_by = self.text(modified_by)?;
        add(&mut self.sums.tree, modified_by);
        let Some(policy) = policy else { return Ok(false) };
        let (kind, content) = self.kind_and_content(policy)?;
        let Some(content) = content else { return Ok(false) };
        add(&mut self.sums.compiled, of::POLICY_FRAME);
        let asks = match PolicyType::try_from(kind) {
            Ok(PolicyType::Signature) => {
                self.signature_policy(content)?;
                false
            }
            Ok(PolicyType::ImplicitMeta) => {
                let [asked] = self.fields(content, [1])?;
                let asked = self.text(asked)?;
                add(&mut self.sums.passing, asked);
                true
            }
            _ => false,
        };
        self.passed();
        Ok(asks)
    }

    fn signature_policy(&mut self, at: Span) -> Result<(), Error> {
        let mut principals = 0_usize;
        let mut message = self.message(at, &[2]);
        while let Some((number, place)) = message.next()? {
            match (number, place) {
                (2, Some(rule)) => self.rule(rule, DEPTH_MAX)?,
                (3, Some(principal)) => {
                    add(&mut principals, 1);
                    self.principal(principal, COMBINED_DEPTH_MAX)?;
                }
                _ => {}
            }
        }
        add(&mut self.sums.passing, list(of::WIRE_PRINCIPAL, principals));
        add(&mut self.sums.compiled, of::PRINCIPAL.saturating_mul(principals));
        Ok(())
    }

    fn rule(&mut self, at: Span, depth: usize) -> Result<(), Error> {
        let [gate] = self.fields(at, [2])?;
        let Some(gate) = gate else { return Ok(()) };
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Error::config(ROOT, format!("a policy nests more than {DEPTH_MAX} deep")));
        };
        let mut rules = 0_usize;
        let mut message = self.message(gate, &[]);
        while let Some((number, place)) = message.next()? {
            if let (2, Some(rule)) = (number, place) {
                add(&mut rules, 1);
                self.rule(rule, depth)?;
            }
        }
        add(&mut self.sums.passing, list(of::RULE, rules));
        add(&mut self.sums.compiled, list(of::RULE, rules));
        Ok(())
    }

    /// A principal, besides its slot in a list.
    fn principal(&mut self, at: Span, depth: usize) -> Result<(), Error> {
        let (kind, content) = self.kind_and_content(at)?;
        let Some(content) = content else { return Ok(()) };
        // The name of its organisation is counted with its references; other text, and a certificate, once more while
        // it is decoded.
        add(&mut self.sums.passing, content.len().saturating_mul(2));
        if kind != Classification::Combined as i32 {
            add(&mut self.sums.compiled, text(content.len()).saturating_add(of::REFERENCES));
            return Ok(());
        }
        let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
        let mut parts = 0_usize;
        let mut message = self.message(content, &[]);
        while let Some((number, place)) = message.next()? {
            if let (1, Some(part)) = (number, place) {
                add(&mut parts, 1);
                self.principal(part, depth)?;
            }
        }
        add(&mut self.sums.passing, list(of::WIRE_PRINCIPAL, parts));
        add(&mut self.sums.compiled, list(of::PRINCIPAL, parts));
        Ok(())
    }

    /// An entry of a group's values: the name says what the value is.
    fn value(&mut self, entry: Span) -> Result<(), Error> {
        let [name, value] = self.entry(entry)?;
        let name_text = self.text(name)?;
        add(&mut self.sums.tree, name_text);
        add(&mut self.sums.elements, name_text);
        let Some(value) = value else { return Ok(()) };
        let [content, modified_by] = self.fields(value, [2, 3])?;
        let modified_by = self.text(modified_by)?;
        add(&mut self.sums.tree, modified_by);
        let Some(content) = content else { return Ok(()) };
        match name.map_or(&[][..], |name| name.of(self.source)) {
            b"MSP" => {
                let [definition] = self.fields(content, [2])?;
                definition.map_or(Ok(()), |definition| self.msp(definition))?;
            }
            b"OrdererAddresses" | b"Endpoints" => {
                // A channel's own list consists of those of its organisations.
                let (count, texts) = self.elements(content, |walk, address| walk.text(Some(address)))?;
                add(&mut self.sums.compiled, list(of::TEXT, count).saturating_add(texts).saturating_mul(2));
            }
            b"AnchorPeers" => {
                let (count, texts) = self.elements(content, |walk, peer| {
                    let [host] = walk.fields(peer, [1])?;
                    walk.text(host)
                })?;
                add(&mut self.sums.passing, list(of::ENDPOINT, count));
                add(&mut self.sums.compiled, list(of::ENDPOINT, count).saturating_add(texts));
            }
            b"Orderers" => self.consenters(content)?,
            b"ACLs" => {
                let (count, texts) = self.elements(content, |walk, entry| {
                    let [resource, rule] = walk.entry(entry)?;
                    let [policy] = rule.map_or(Ok([None]), |rule| walk.fields(rule, [1]))?;
                    Ok(walk.text(resource)?.saturating_add(walk.text(policy)?))
                })?;
                // A policy's name becomes a path, which grows as it is put together.
                const PATH_BYTES: usize = 2 * "/Channel/Application/".len();
                let made = list(of::TEXT_BY_TEXT, count).saturating_add(map(of::TEXT_BY_TEXT, count));
                let paths = texts.saturating_mul(2).saturating_add(PATH_BYTES.saturating_mul(count));
                add(&mut self.sums.passing, map(of::TEXT_BY_TEXT, count).saturating_add(texts));
                add(&mut self.sums.compiled, made.saturating_add(paths));
            }
            b"Capabilities" => {
                let (count, texts) = self.elements(content, |walk, entry| {
                    let [name, _] = walk.entry(entry)?;
                    walk.text(name)
                })?;
                add(&mut self.sums.passing, map(of::TEXT, count));
                add(&mut self.sums.compiled, map(of::TEXT, count).saturating_add(list(of::TEXT, count)));
                add(&mut self.sums.compiled, texts);
            }
            b"HashingAlgorithm" | b"BatchTimeout" | b"ConsensusType" => {
                let [text] = self.fields(content, [1])?;
                let text = self.text(text)?;
                add(&mut self.sums.compiled, text);
            }
            // Nothing is decoded of other values, or only numbers.
            _ => {}
        }
        self.passed();
        Ok(())
    }

    /// The number of elements of the list or map in field 1, and the sum of what `each` returns for them.
    fn elements(&self, at: Span, each: impl Fn(&Self, Span) -> Result<usize, Error>) -> Result<(usize, usize), Error> {
        let (mut count, mut sum) = (0_usize, 0_usize);
        let mut message = self.message(at, &[]);
        while let Some((number, place)) = message.next()? {
            if let (1, Some(element)) = (number, place) {
                add(&mut count, 1);
                add(&mut sum, each(self, element)?);
            }
        }
        Ok((count, sum))
    }

    fn consenters(&mut self, at: Span) -> Result<(), Error> {
        let mut identities = 0_usize;
        let (count, texts) = {
            let mut sizes = (0_usize, 0_usize);
            let mut message = self.message(at, &[]);
            while let Some((number, place)) = message.next()? {
                if let (1, Some(consenter)) = (number, place) {
                    let [host, msp, identity] = self.fields(consenter, [2, 4, 5])?;
                    let (host, msp) = (self.text(host)?, self.text(msp)?);
                    add(&mut sizes.0, 1);
                    add(&mut sizes.1, host.saturating_add(msp));
                    // The identity is encoded again, with its organisation's name.
                    add(&mut identities, identity.map_or(0, |at| at.len()).saturating_add(msp).saturating_add(16));
                }
            }
            sizes
        };
        add(&mut self.sums.passing, list(of::CONSENTER, count).saturating_add(texts));
        add(&mut self.sums.compiled, map(of::CONSENTER_BY_NUMBER, count).saturating_add(identities));
        Ok(())
    }

    /// An organisation's definition, a `FabricMSPConfig`.
    fn msp(&mut self, at: Span) -> Result<(), Error> {
        let (mut authorities, mut admins, mut units, mut pems) = (0_usize, 0_usize, 0_usize, 0_usize);
        let mut largest = 0_usize;
        add(&mut self.sums.compiled, of::ORGANIZATION);
        let mut message = self.message(at, &[1, 6, 8, 11]);
        while let Some((number, place)) = message.next()? {
            let Some(place) = place else { continue };
            let bytes = place.len();
            if matches!(number, 2..=5 | 9 | 10) {
                add(&mut pems, 1);
                largest = largest.max(bytes);
            }
            match number {
                1 => {
                    let name = self.text(Some(place))?;
                    add(&mut self.sums.passing, name);
                    add(&mut self.sums.compiled, name.saturating_add(of::REFERENCES));
                }
                // Authorities are read again for a while if there are revocation lists.
                2 | 3 => {
                    add(&mut authorities, 1);
                    add(&mut self.sums.passing, certificate(bytes));
                    add(&mut self.sums.compiled, certificate(bytes));
                }
                9 | 10 => add(&mut self.sums.passing, certificate(bytes)),
                4 => add(&mut admins, 1),
                // It is kept twice: for identities, and for certificates of TLS.
                5 => {
                    let kept = bytes.saturating_mul(7) / 2;
                    add(&mut self.sums.compiled, kept.saturating_add(of::REVOCATION_LIST));
                }
                7 => {
                    add(&mut units, 1);
                    self.unit(place, &mut largest)?;
                }
                11 => {
                    let kinds: [Option<Span>; 4] = self.fields(place, [2, 3, 4, 5])?;
                    for unit in kinds.into_iter().flatten() {
                        self.unit(unit, &mut largest)?;
                    }
                }
                6 | 8 => add(&mut self.sums.passing, bytes),
                _ => {}
            }
        }
        let lists =
            list(of::BYTES, pems).saturating_add(list(of::UNIT, units)).saturating_add(largest.saturating_mul(3));
        add(&mut self.sums.passing, lists);
        let issuers = authorities.saturating_mul(list(of::POSITION, authorities));
        let own = [map(of::CERTIFICATE_ID, admins), list(of::UNIT, units), of::BYTES.saturating_mul(pems), issuers];
        own.into_iter().for_each(|bytes| add(&mut self.sums.compiled, bytes));
        Ok(())
    }

    /// An organisational unit and the certificate of its authority.
    fn unit(&mut self, at: Span, largest: &mut usize) -> Result<(), Error> {
        let [certificate, name] = self.fields(at, [1, 2])?;
        *largest = certificate.map_or(0, |at| at.len()).max(*largest);
        let name = self.text(name)?;
        add(&mut self.sums.passing, name);
        add(&mut self.sums.compiled, name.saturating_add(of::UNIT_WITH_CERTIFIERS));
        Ok(())
    }
}

/// The memory of a certificate of this many bytes of PEM: its DER, and the names in it as texts.
fn certificate(pem_bytes: usize) -> usize {
    (pem_bytes.saturating_mul(12) / 5).saturating_add(of::CERTIFICATE)
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;
    use crate::fixture::TestNetwork;
    use crate::golden::{self, BFT_V3, GENESIS, RAFT_V3};

    #[test]
    fn the_sizes_are_at_least_those_of_the_types() {
        let sizes = [
            (of::GROUP, size_of::<(String, proto::common::ConfigGroup)>()),
            (of::VALUE, size_of::<(String, proto::common::ConfigValue)>()),
            (of::POLICY, size_of::<(String, proto::common::ConfigPolicy)>()),
            (of::BYTES, size_of::<base::Bytes>()),
            (of::COMPILED_POLICY, size_of::<identity::Policy>()),
            (of::RULE, size_of::<proto::common::SignaturePolicy>()),
            (of::WIRE_PRINCIPAL, size_of::<proto::common::MspPrincipal>()),
            (of::PRINCIPAL, size_of::<identity::Principal>()),
            (of::CONSENTER, size_of::<proto::common::Consenter>()),
            (of::ELEMENT, super::super::update::ELEMENT_BYTES),
            (of::ENDPOINT, size_of::<proto::protos::AnchorPeer>()),
            (of::ENDPOINT, size_of::<(String, u16)>()),
            (of::UNIT, size_of::<proto::msp::FabricOuIdentifier>()),
        ];
        for (position, (assumed, size)) in sizes.into_iter().enumerate() {
            assert!(assumed >= size, "size {position}: {size} bytes, {assumed} assumed");
        }
    }

    #[test]
    fn configurations_that_tools_write_stay_far_below_the_limit() {
        let ours = TestNetwork::new().spec().build().expect("usable");
        let blocks = [golden::block(GENESIS), golden::block(RAFT_V3), golden::block(BFT_V3), ours];
        for block in blocks {
            let transaction = crate::Transaction::decode(&block.envelope(0)).expect("golden");
            let bytes = transaction.data().len();
            let sums = MemorySums::of(&transaction.data()).expect("golden");
            assert!(sums.peak(bytes) <= TIMES_MAX * bytes + (64 << 10), "{bytes} bytes: {sums:?}");
        }
    }

    #[test]
    fn a_field_that_may_stand_once_does_not_stand_twice() {
        let group = [0x12, 2, 0x22, 0];
        assert!(check(&[&[0x0a, 4][..], &group].concat()).is_ok());
        let twice = check(&[&[0x0a, 8][..], &group, &group].concat());
        assert_eq!(twice, Err(Error::Malformed { what: "configuration", cause: WireError::Repeated }));
    }
}
