use std::path::{Path, PathBuf};

use base::ErrorKind;
use identity::policy::{MetaRule, implicit_meta_to_wire};
use proto::common::{ConfigSignature, Payload};
use proto::orderer::BatchSize;

use super::*;
use crate::block::Block;
use crate::fixture::{CHANNEL, TestNetwork};

fn recorded(name: &str) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fabric-channel").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// The recorded configurations, each with the number of its block and its envelope.
fn recorded_configs() -> Vec<(u64, Bytes, ChannelConfig)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fabric-channel/blocks");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("in the repository").map(|f| f.expect("readable").path()).collect();
    files.sort();
    let mut configs: Vec<(u64, Bytes, ChannelConfig)> = Vec::new();
    for file in files {
        let block = Block::parse(&std::fs::read(&file).expect("readable").into()).expect("recorded from Fabric");
        let envelope = block.envelope(0);
        if !crate::Transaction::decode(&envelope).is_ok_and(|transaction| transaction.is_config()) {
            continue;
        }
        let config = match configs.last() {
            None => ChannelConfig::from_block(&block).expect("recorded from Fabric"),
            Some((_, _, current)) => current.successor(&envelope).unwrap_or_else(|e| panic!("{}: {e}", file.display())),
        };
        configs.push((block.number().get(), envelope, config));
    }
    configs
}

#[test]
fn each_recorded_change_leads_from_one_configuration_to_the_next() {
    let configs = recorded_configs();
    assert_eq!(configs.len(), 16);
    for pair in configs.windows(2) {
        let [(_, _, current), (number, envelope, next)] = pair else { unreachable!("windows of two") };
        assert_eq!(next.sequence(), current.sequence() + 1);
        let (_, claimed) = read_config_envelope(envelope).expect("recorded from Fabric");
        let update = claimed.last_update.clone().expect("recorded from Fabric").encode_to_vec().into();
        assert_eq!(current.propose_update(&update).expect("permitted"), claimed, "block {number}");
        // It relies on versions that are gone.
        next.propose_update(&update).expect_err("the same update a second time");
    }
    let organizations = |config: &ChannelConfig| config.application().len();
    assert_eq!((organizations(&configs[0].2), organizations(&configs[15].2)), (2, 3));
}

#[test]
fn no_recorded_change_follows_another_configuration_than_its_own() {
    let configs = recorded_configs();
    for (number, _, current) in &configs {
        for (next, envelope, _) in &configs[1..] {
            let follows = configs.iter().map(|(n, _, _)| n).skip_while(|n| *n != number).nth(1) == Some(next);
            assert_eq!(current.successor(envelope).is_ok(), follows, "block {next} after block {number}");
        }
    }
}

#[test]
fn updates_that_fabrics_orderer_rejected_are_rejected() {
    let configs = recorded_configs();
    for (height, name, reason) in [
        (
            3,
            "batch-size-signed-by-a-peer-organisations-admin",
            "/Channel/Orderer/BatchSize: the signatures do not satisfy",
        ),
        (79, "a-transaction-called-CONFIG_UPDATE", "malformed"),
        (133, "ACL-signed-by-one-organisation", "/Channel/Application/ACLs: the signatures do not satisfy"),
        (134, "version-already-used", "/Channel/Orderer/BatchSize: the update sets version 2, but it is at 2"),
    ] {
        let update = recorded(&format!("refused-updates/at-{height}-{name}.envelope"));
        let (_, _, current) = configs.iter().rfind(|(number, _, _)| *number < height).expect("there is block 0");
        let error = current.propose_update(&update).expect_err(name).to_string();
        assert!(error.contains(reason), "{name}: {error}");
    }
}

/// What an update changes: each element of the write set that the read set does not have at the same version.
fn changes(update: &ConfigUpdate) -> Vec<(String, u64)> {
    let read = update.read_set.as_ref().map(Elements::of).transpose().expect("usable").unwrap_or_default();
    let written = update.write_set.as_ref().map(Elements::of).transpose().expect("usable").unwrap_or_default();
    let is_change = |(path, element): &(&ElementPath, Element<'_>)| {
        read.get(path).is_none_or(|read| read.version() != element.version())
    };
    written.iter().filter(is_change).map(|(path, element)| (path.to_string(), element.version())).collect()
}

#[test]
fn computed_updates_change_what_the_recorded_ones_change() {
    for pair in recorded_configs().windows(2) {
        let [(_, _, current), (number, envelope, next)] = pair else { unreachable!("windows of two") };
        let desired = next.decode_root().expect("usable");
        let computed = current.update_to(&desired).expect("usable").expect("it changes something");
        let (_, claimed) = read_config_envelope(envelope).expect("recorded from Fabric");
        let (recorded, _) =
            read_update(&claimed.last_update.expect("there is one").encode_to_vec().into()).expect("read");
        assert_eq!(changes(&computed), changes(&recorded), "block {number}");
        assert_eq!(next.update_to(&desired).expect("usable"), None);
    }
}

/// A channel of two organisations and the orderers' one, and the means to change it.
struct Changes {
    config: ChannelConfig,
    root: ConfigGroup,
    network: TestNetwork,
}

impl Changes {
    fn new() -> Changes {
        let network = TestNetwork::new();
        let genesis = network.spec().build().expect("usable");
        let config = ChannelConfig::from_block(&genesis).expect("usable");
        let root = config.decode_root().expect("usable");
        Changes { config, root, network }
    }

    /// The group at these names, as it is now, with its members but without their contents.
    fn group(&self, path: &[&str]) -> ConfigGroup {
        let group = path.iter().fold(&self.root, |group, name| &group.groups[*name]);
        ConfigGroup { version: group.version, mod_policy: group.mod_policy.clone(), ..ConfigGroup::default() }
    }

    /// A write set that changes nothing, down to the group at this path, which is `group`.
    fn write_set(&self, path: &[&str], group: ConfigGroup) -> ConfigGroup {
        (0..path.len()).rev().fold(group, |member, depth| {
            let mut holder = self.group(&path[..depth]);
            holder.groups.insert(path[depth].to_owned(), member);
            holder
        })
    }

    /// The orderers' batch size, at this version.
    fn batch_size(&self, messages: u32, version: u64) -> ConfigGroup {
        let mut orderer = self.group(&["Orderer"]);
        let mut value = self.root.groups["Orderer"].values["BatchSize"].clone();
        let size = BatchSize::decode(value.value.clone()).expect("usable");
        value.value = BatchSize { max_message_count: messages, ..size }.encode_to_vec().into();
        value.version = version;
        orderer.values.insert("BatchSize".to_owned(), value);
        self.write_set(&["Orderer"], orderer)
    }

    fn propose(&self, write_set: ConfigGroup, signers: &[usize]) -> Result<ConfigEnvelope, Error> {
        let read_set = self.write_set(&["Orderer"], self.group(&["Orderer"]));
        self.propose_with(Some(read_set), write_set, signers)
    }

    fn propose_with(
        &self,
        read_set: Option<ConfigGroup>,
        write_set: ConfigGroup,
        signers: &[usize],
    ) -> Result<ConfigEnvelope, Error> {
        let update = ConfigUpdate {
            channel_id: CHANNEL.to_owned(),
            read_set,
            write_set: Some(write_set),
            ..ConfigUpdate::default()
        };
        self.config.propose_update(&self.network.sign_update(&update, signers))
    }
}

fn rejection(outcome: Result<ConfigEnvelope, Error>) -> String {
    let error = outcome.expect_err("rejected");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    error.to_string()
}

const ORG1: usize = 0;
const ORG2: usize = 1;
const ORDERERS: usize = 2;

#[test]
fn a_value_changes_with_the_signatures_that_its_policy_asks_for() {
    let changes = Changes::new();
    let next = changes.propose(changes.batch_size(7, 1), &[ORDERERS]).expect("permitted");
    let config = next.config.expect("there is one");
    assert_eq!(config.sequence, 1);
    let next = ChannelConfig::from_config(CHANNEL, &config).expect("usable");
    assert_eq!(next.batch().messages_max, 7);
    let mut expected = changes.root.clone();
    let value = expected.groups.get_mut("Orderer").and_then(|group| group.values.get_mut("BatchSize")).expect("there");
    *value = changes.batch_size(7, 1).groups["Orderer"].values["BatchSize"].clone();
    assert_eq!(config.channel_group, Some(expected), "nothing else has changed");

    let unsigned = rejection(changes.propose(changes.batch_size(7, 1), &[ORG1, ORG2]));
    assert!(unsigned.contains("do not satisfy its modification policy /Channel/Orderer/Admins"), "{unsigned}");
    let update = changes.propose(changes.batch_size(7, 1), &[ORDERERS]).expect("permitted").last_update;
    let payload = Payload::decode(update.expect("there is one").payload).expect("made here");
    let mut signed = ConfigUpdateEnvelope::decode(payload.data).expect("made here");
    let mut signature = signed.signatures[0].signature.to_vec();
    signature[20] ^= 1;
    signed.signatures[0].signature = signature.into();
    let forged = changes.network.orderer_envelope(HeaderType::ConfigUpdate, signed.encode_to_vec().into());
    let forged = rejection(changes.config.propose_update(&forged));
    assert!(forged.contains("do not satisfy"), "{forged}");
}

#[test]
fn versions_grow_by_one() {
    let changes = Changes::new();
    for version in [2, u64::MAX] {
        let skipped = rejection(changes.propose(changes.batch_size(7, version), &[ORDERERS]));
        assert!(skipped.contains("BatchSize: the update sets version"), "{skipped}");
    }
    // Without a read set, an element at its present version counts as changed.
    let stale = rejection(changes.propose_with(None, changes.batch_size(7, 1), &[ORDERERS]));
    assert!(stale.contains("but it is at 0"), "{stale}");
    let nothing = rejection(changes.propose(changes.write_set(&["Orderer"], changes.group(&["Orderer"])), &[ORDERERS]));
    assert!(nothing.contains("it changes nothing"), "{nothing}");
}

#[test]
fn a_read_set_names_versions_that_exist() {
    let changes = Changes::new();
    let mut read = changes.batch_size(1, 3);
    let wrong = rejection(changes.propose_with(Some(read.clone()), changes.batch_size(7, 1), &[ORDERERS]));
    assert!(wrong.contains("read its version 3, but it is at 0"), "{wrong}");
    read.groups.insert("Elsewhere".to_owned(), ConfigGroup::default());
    let missing = rejection(changes.propose_with(Some(read), changes.batch_size(7, 1), &[ORDERERS]));
    assert!(missing.contains("/Channel/Elsewhere: the update read it, but it does not exist"), "{missing}");
}

/// The application group with a new policy.
fn with_a_new_policy(changes: &Changes, group_version: u64) -> ConfigGroup {
    let mut application = changes.group(&["Application"]);
    let current = &changes.root.groups["Application"];
    if group_version > current.version {
        // A changed group lists all its members.
        application = ConfigGroup { groups: current.groups.clone(), values: current.values.clone(), ..application };
        application.policies = current.policies.clone();
        application.version = group_version;
    }
    let policy = implicit_meta_to_wire(MetaRule::Any, "Readers");
    let policy = ConfigPolicy { version: 0, mod_policy: "Admins".to_owned(), policy: Some(policy) };
    application.policies.insert("New".to_owned(), policy);
    changes.write_set(&["Application"], application)
}

/// A read set with everything in the application group.
fn read_application(changes: &Changes) -> Option<ConfigGroup> {
    let mut application = changes.root.groups["Application"].clone();
    application.values.clear();
    Some(changes.write_set(
        &["Application"],
        ConfigGroup { values: changes.root.groups["Application"].values.clone(), ..application },
    ))
}

#[test]
fn a_new_element_needs_a_change_of_its_group() {
    let changes = Changes::new();
    let signers = [ORG1, ORG2];
    let unlisted =
        rejection(changes.propose_with(read_application(&changes), with_a_new_policy(&changes, 0), &signers));
    assert!(unlisted.contains("/Channel/Application/New: the update writes it, but its group"), "{unlisted}");

    let write_set = with_a_new_policy(&changes, 1);
    let next = changes.propose_with(read_application(&changes), write_set.clone(), &signers).expect("permitted");
    let next = ChannelConfig::from_config(CHANNEL, &next.config.expect("there is one")).expect("usable");
    assert!(next.policies().require("/Channel/Application/New").is_ok());
    let one = rejection(changes.propose_with(read_application(&changes), write_set.clone(), &signers[..1]));
    assert!(one.contains("group /Channel/Application: the signatures do not satisfy"), "{one}");

    let mut old = write_set;
    old.groups.get_mut("Application").and_then(|group| group.policies.get_mut("New")).expect("there").version = 1;
    let old = rejection(changes.propose_with(read_application(&changes), old, &signers));
    assert!(old.contains("it is new, and its version is 1, not 0"), "{old}");
}

#[test]
fn a_changed_group_deletes_members_that_it_does_not_list() {
    let changes = Changes::new();
    let mut write_set = with_a_new_policy(&changes, 1);
    let application = write_set.groups.get_mut("Application").expect("there");
    application.policies.remove("New");
    application.groups.remove("Org2MSP").expect("there");
    let next = changes.propose_with(read_application(&changes), write_set, &[ORG1, ORG2]).expect("permitted");
    let next = ChannelConfig::from_config(CHANNEL, &next.config.expect("there is one")).expect("usable");
    assert_eq!(next.application().iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["Org1MSP"]);
}

#[test]
fn a_computed_update_leads_to_the_desired_configuration() {
    let changes = Changes::new();
    let mut desired = changes.root.clone();
    let application = desired.groups.get_mut("Application").expect("there");
    let organization = application.groups.remove("Org2MSP").expect("there");
    application.groups.insert("Renamed".to_owned(), organization);
    application.policies.get_mut("Readers").expect("there").mod_policy = "Writers".to_owned();
    desired.groups.get_mut("Orderer").expect("there").mod_policy = "/Channel/Orderer/Writers".to_owned();
    let update = changes.config.update_to(&desired).expect("usable").expect("it changes something");
    let signed = changes.network.sign_update(&update, &[ORG1, ORG2, ORDERERS]);
    let next = changes.config.propose_update(&signed).expect("permitted").config.expect("there is one");
    fn without_versions(group: &ConfigGroup) -> ConfigGroup {
        let mut group = ConfigGroup { version: 0, ..group.clone() };
        group.values.values_mut().for_each(|value| value.version = 0);
        group.policies.values_mut().for_each(|policy| policy.version = 0);
        group.groups.values_mut().for_each(|member| *member = without_versions(member));
        group
    }
    assert_eq!(without_versions(&next.channel_group.expect("there is one")), without_versions(&desired));
}

#[test]
fn an_organisation_keeps_the_name_of_its_msp() {
    let changes = Changes::new();
    let mut organization = changes.group(&["Application", "Org1MSP"]);
    let mut definition = changes.root.groups["Application"].groups["Org2MSP"].values["MSP"].clone();
    definition.version = 1;
    organization.values.insert("MSP".to_owned(), definition);
    let write_set = changes.write_set(&["Application", "Org1MSP"], organization);
    let mut read = changes.group(&[]);
    read.groups.insert("Application".to_owned(), changes.group(&["Application"]));
    let read = Some(changes.write_set(&["Application", "Org1MSP"], changes.group(&["Application", "Org1MSP"])));
    let renamed = rejection(changes.propose_with(read, write_set, &[ORG1]));
    assert!(renamed.contains("changes the name of its MSP"), "{renamed}");
}

#[test]
fn an_element_without_a_policy_cannot_be_changed_and_names_are_checked() {
    let mut changes = Changes::new();
    let policy_named = |name: &str| {
        let mut write_set = changes.batch_size(7, 1);
        let orderer = write_set.groups.get_mut("Orderer").expect("there");
        orderer.values.get_mut("BatchSize").expect("there").mod_policy = name.to_owned();
        write_set
    };
    for name in ["", "/", "a/../b", "Ad_mins", "/Channel//Admins"] {
        let refused = rejection(changes.propose(policy_named(name), &[ORDERERS]));
        assert!(refused.contains("is no name of a modification policy"), "{name:?}: {refused}");
    }
    let mut write_set = changes.batch_size(7, 1);
    write_set.groups.insert("a_b".to_owned(), ConfigGroup::default());
    let refused = rejection(changes.propose(write_set, &[ORDERERS]));
    assert!(refused.contains("is no name of a group, value or policy"), "{refused}");

    let orderer = changes.root.groups.get_mut("Orderer").expect("there");
    orderer.values.get_mut("BatchSize").expect("there").mod_policy.clear();
    let config = Config { sequence: 0, channel_group: Some(changes.root.clone()) };
    let mut write_set = changes.batch_size(7, 1);
    let orderer = write_set.groups.get_mut("Orderer").expect("there");
    orderer.values.get_mut("BatchSize").expect("there").mod_policy = "Admins".to_owned();
    changes.config = ChannelConfig::from_config(CHANNEL, &config).expect("usable");
    let fixed = rejection(changes.propose(write_set, &[ORDERERS]));
    assert!(fixed.contains("no modification policy and cannot be changed"), "{fixed}");
}

#[test]
fn an_update_is_for_its_channel_and_of_its_type() {
    let changes = Changes::new();
    let update = ConfigUpdate {
        channel_id: "elsewhere".to_owned(),
        read_set: Some(changes.group(&[])),
        write_set: Some(changes.batch_size(7, 1)),
        ..ConfigUpdate::default()
    };
    let elsewhere = rejection(changes.config.propose_update(&changes.network.sign_update(&update, &[ORDERERS])));
    assert!(elsewhere.contains("for the channel \"elsewhere\""), "{elsewhere}");
    let of_type =
        rejection(changes.config.propose_update(&changes.network.orderer_envelope(HeaderType::Config, Bytes::new())));
    assert!(of_type.contains("not CONFIG_UPDATE"), "{of_type}");
}

#[test]
fn an_update_is_bounded_before_it_is_decoded() {
    let changes = Changes::new();
    let signature = ConfigSignature::default();
    let many = ConfigUpdateEnvelope { signatures: vec![signature; 257], config_update: Bytes::new() };
    let many = rejection(
        changes
            .config
            .propose_update(&changes.network.orderer_envelope(HeaderType::ConfigUpdate, many.encode_to_vec().into())),
    );
    assert!(many.contains("257 signatures"), "{many}");
    let mut parts = ConfigUpdate::default();
    let isolated = (0..40_000).map(|n| (format!("{n}"), Bytes::new()));
    parts.isolated_data.extend(isolated);
    let small = rejection(changes.config.propose_update(&changes.network.sign_update(&parts, &[])));
    assert!(small.contains("bytes of memory"), "{small}");
    let deep = (0..20).fold(ConfigGroup::default(), |group, _| {
        let mut holder = ConfigGroup::default();
        holder.groups.insert("g".to_owned(), group);
        holder
    });
    let deep = rejection(changes.propose(deep, &[]));
    assert!(deep.contains("deep"), "{deep}");
}

#[test]
fn a_successor_is_what_its_update_leads_to() {
    let changes = Changes::new();
    let proposed = changes.propose(changes.batch_size(7, 1), &[ORDERERS]).expect("permitted");
    let config_of = |content: ConfigEnvelope| changes.network.config_transaction(&content);
    let next = changes.config.successor(&config_of(proposed.clone())).expect("permitted");
    assert_eq!((next.sequence(), next.batch().messages_max), (1, 7));

    let mut other = proposed.clone();
    let root = other.config.as_mut().and_then(|config| config.channel_group.as_mut()).expect("there is one");
    root.policies.remove("Admins").expect("there");
    let other = changes.config.successor(&config_of(other)).expect_err("refused").to_string();
    assert!(other.contains("differs from the configuration that its update leads to"), "{other}");

    let mut late = proposed.clone();
    late.config.as_mut().expect("there is one").sequence = 2;
    let late = changes.config.successor(&config_of(late)).expect_err("refused").to_string();
    assert!(late.contains("the next one is 1"), "{late}");
    let without = ConfigEnvelope { last_update: None, ..proposed };
    let without = changes.config.successor(&config_of(without)).expect_err("refused").to_string();
    assert!(without.contains("missing"), "{without}");
}
