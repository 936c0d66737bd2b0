//! Measures how much memory a channel's configuration makes this process allocate.
//!
//! The first block of a channel comes from a peer, so the memory that it takes must be bounded by its size. Once it was
//! not: decoding took 200 times a configuration's size, and policies that combine many groups, or lie below a long
//! name, took the square of that size. Each case of the test fills one repeated field of a sound configuration with a
//! mebibyte of the smallest parts, and the allocator records the peak. Whether the configuration is accepted or
//! rejected, it may take at most four times its size and a mebibyte.

use std::sync::{Mutex, PoisonError};

use base::Bytes;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::policy::{MetaRule, implicit_meta_to_wire};
use ledger::config::{
    BatchLimits, Capabilities, ChannelConfig, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec,
};
use ledger::wire::put_bytes;
use peak_alloc::PeakAlloc;
use prost::Message as _;
use proto::common::{
    ChannelHeader, ConfigEnvelope, ConfigGroup, ConfigPolicy, ConfigValue, Envelope, Header, HeaderType, Payload,
    Policy, SignatureHeader,
};
use proto::msp::{FabricMspConfig, MspConfig};

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// The allocator counts for all threads, so tests run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

const TIMES_MAX: usize = 4;
/// What a configuration may take whatever its size.
const FREE_BYTES: usize = 1 << 20;
/// Memory that is allocated besides: error texts, a certificate while it is parsed.
const SMALL_BYTES: usize = 64 << 10;
/// Bytes of tiny parts: `LARGE_BYTES` are rejected, `FEW_BYTES` are read.
const LARGE_BYTES: usize = 1 << 20;
const FEW_BYTES: usize = LARGE_BYTES / FEWER;
const FEWER: usize = 256;

/// The result of `run`, and the peak of allocated memory while it ran, beyond the memory that was allocated before.
fn peak_of<T>(run: impl FnOnce() -> T) -> (T, usize) {
    PEAK.reset_peak_usage();
    let before = PEAK.current_usage();
    let result = run();
    (result, PEAK.peak_usage().saturating_sub(before))
}

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, number, content);
    bytes
}

/// The envelope of a configuration.
fn envelope(config: &ConfigEnvelope) -> Bytes {
    named("mychannel", config.encode_to_vec())
}

fn named(channel: &str, data: Vec<u8>) -> Bytes {
    let channel_header =
        ChannelHeader { r#type: HeaderType::Config as i32, channel_id: channel.to_owned(), ..ChannelHeader::default() };
    let signature_header = SignatureHeader { creator: Bytes::new(), nonce: Bytes::from_static(b"nonce") };
    let header = Header {
        channel_header: channel_header.encode_to_vec().into(),
        signature_header: signature_header.encode_to_vec().into(),
    };
    let payload = Payload { header: Some(header), data: data.into() };
    Envelope { payload: payload.encode_to_vec().into(), signature: Bytes::new() }.encode_to_vec().into()
}

fn config_of(envelope: &Bytes) -> ConfigEnvelope {
    let envelope = Envelope::decode(envelope.clone()).expect("an envelope");
    let payload = Payload::decode(envelope.payload).expect("a payload");
    ConfigEnvelope::decode(payload.data).expect("a configuration")
}

/// A network of so many organisations and one that orders. Definitions with few certificates have the least bytes that an
/// organisation can do with.
fn network(organizations: usize, few_certificates: bool) -> Bytes {
    let terms = CertificateTerms::seeded([7; 32]);
    let of = |number: usize| {
        let name = format!("Org{number}MSP");
        let organization =
            IssuingOrganization::create(name.as_str(), &format!("org{number}.example.com"), &terms).expect("founded");
        let mut definition = organization.definition();
        if few_certificates {
            definition.tls_root_certs.clear();
            let units = definition.fabric_node_ous.as_mut().expect("it has units");
            let units = [
                &mut units.client_ou_identifier,
                &mut units.peer_ou_identifier,
                &mut units.admin_ou_identifier,
                &mut units.orderer_ou_identifier,
            ];
            units.into_iter().flatten().for_each(|unit| unit.certificate = Bytes::new());
        }
        OrganizationSpec {
            name: name.clone(),
            msp_id: name,
            msp: definition.encode_to_vec().into(),
            anchor_peers: vec![(format!("peer0.org{number}.example.com"), 7051)],
            endpoints: vec![format!("orderer{number}.example.com:7050")],
        }
    };
    let spec = GenesisSpec {
        channel: "mychannel".into(),
        application: (0..organizations).map(of).collect(),
        orderers: vec![of(organizations)],
        endorsement: EndorsementRule::Majority,
        batch: BatchLimits::default(),
        consensus: ConsensusConfig { kind: "solo".into(), metadata: Bytes::new(), maintenance: false },
        capabilities: Capabilities::newest(),
    };
    spec.build().expect("usable").envelope(0)
}

fn root(config: &mut ConfigEnvelope) -> &mut ConfigGroup {
    let config = config.config.as_mut().expect("a configuration");
    config.channel_group.as_mut().expect("a group")
}

fn group<'a>(config: &'a mut ConfigEnvelope, path: &[&str]) -> &'a mut ConfigGroup {
    path.iter().fold(root(config), |group, name| group.groups.get_mut(*name).expect("the network has it"))
}

const ROOT: &[&str] = &[];
const APPLICATION: &[&str] = &["Application"];
const ORGANIZATION: &[&str] = &["Application", "Org0MSP"];
const ORDERER: &[&str] = &["Orderer"];

fn policy(policy: Policy) -> ConfigPolicy {
    ConfigPolicy { policy: Some(policy), ..ConfigPolicy::default() }
}

/// A sound configuration with about so many bytes more in it, in every place where it repeats something.
fn hostile(bytes: usize) -> Vec<(&'static str, Bytes)> {
    let sound = config_of(&network(1, true));
    let tiny = |part: &[u8]| -> Bytes { part.repeat(bytes / part.len()).into() };
    let fewer = |count: usize| (count * bytes).div_ceil(LARGE_BYTES);
    let changed = |change: &dyn Fn(&mut ConfigEnvelope)| {
        let mut config = sound.clone();
        change(&mut config);
        envelope(&config)
    };
    let value = |path: &'static [&'static str], name: &'static str, content: Bytes| {
        changed(&|config| {
            let value = ConfigValue { value: content.clone(), ..ConfigValue::default() };
            group(config, path).values.insert(name.to_owned(), value);
        })
    };
    let signature = |content: Bytes| {
        changed(&|config| {
            root(config).policies.insert("P".to_owned(), policy(Policy { r#type: 1, value: content.clone() }));
        })
    };
    let definition = |change: &dyn Fn(&mut FabricMspConfig)| {
        changed(&|config| {
            let value = group(config, ORGANIZATION).values.get_mut("MSP").expect("an organisation has one");
            let mut msp = MspConfig::decode(value.value.clone()).expect("an MSP");
            let mut definition = FabricMspConfig::decode(msp.config).expect("a definition");
            change(&mut definition);
            msp.config = definition.encode_to_vec().into();
            value.value = msp.encode_to_vec().into();
        })
    };
    let distinct = |count: usize, each: &dyn Fn(&[u8]) -> Vec<u8>| -> Bytes {
        (0..fewer(count)).flat_map(|number| each(format!("{number:x}").as_bytes())).collect::<Vec<u8>>().into()
    };
    let names = |count: usize| (0..fewer(count)).map(|number| format!("{number:x}"));
    let nothing = Bytes::new;
    let rules = |count| {
        field(
            2,
            &[field(2, &field(2, &[8, 0]).repeat(if bytes < LARGE_BYTES { 1 } else { count })), field(3, &[])].concat(),
        )
    };
    vec![
        (
            "groups",
            changed(&|config| root(config).groups.extend(names(100_000).map(|name| (name, ConfigGroup::default())))),
        ),
        (
            "groups with one of each",
            changed(&|config| {
                let one = ConfigGroup {
                    groups: [(String::new(), ConfigGroup::default())].into(),
                    values: [(String::new(), ConfigValue::default())].into(),
                    ..ConfigGroup::default()
                };
                root(config).groups.extend(names(50_000).map(|name| (name, one.clone())));
            }),
        ),
        (
            "values",
            changed(&|config| root(config).values.extend(names(100_000).map(|name| (name, ConfigValue::default())))),
        ),
        (
            "policies that ask many groups",
            changed(&|config| {
                root(config).groups.extend(names(5000).map(|name| (name, ConfigGroup::default())));
                let asking = || policy(implicit_meta_to_wire(MetaRule::Any, "Readers"));
                root(config).policies.extend(names(5000).map(|name| (name, asking())));
            }),
        ),
        (
            "policies below a long name",
            changed(&|config| {
                let asking = || policy(implicit_meta_to_wire(MetaRule::Any, "Readers"));
                let below =
                    ConfigGroup { policies: names(2000).map(|name| (name, asking())).collect(), ..Default::default() };
                root(config).groups.insert("x".repeat(fewer(100_000)), below);
            }),
        ),
        ("principals", signature([rules(1), tiny(&[0x1a, 0]).to_vec()].concat().into())),
        ("rules", signature([rules(4000), tiny(&[0x1a, 0]).to_vec()].concat().into())),
        ("rules alone", signature(field(2, &field(2, &tiny(&[0x12, 2, 8, 0]))).into())),
        ("gates", signature(field(2, &field(2, &tiny(&[0x12, 4, 0x12, 2, 0x12, 0]))).into())),
        (
            "combined principals",
            signature([rules(1), field(3, &[&[8, 4][..], &field(2, &tiny(&[0x0a, 0]))].concat())].concat().into()),
        ),
        ("consenters", value(ORDERER, "Orderers", tiny(&[0x0a, 0]))),
        ("numbered consenters", value(ORDERER, "Orderers", distinct(60_000, &|name| field(1, &field(4, name))))),
        ("addresses", value(ROOT, "OrdererAddresses", tiny(&[0x0a, 0]))),
        ("endpoints", value(ORGANIZATION, "Endpoints", tiny(&[0x0a, 0]))),
        ("anchor peers", value(ORGANIZATION, "AnchorPeers", tiny(&[0x0a, 0]))),
        ("access rules", value(APPLICATION, "ACLs", distinct(4000, &|name| field(1, &field(1, name))))),
        ("more access rules", value(APPLICATION, "ACLs", distinct(60_000, &|name| field(1, &field(1, name))))),
        ("capabilities", value(ROOT, "Capabilities", distinct(60_000, &|name| field(1, &field(1, name))))),
        ("a long name to print", value(ROOT, "HashingAlgorithm", field(1, &vec![1; bytes]).into())),
        ("the long name of a channel", named(&"\u{1}".repeat(bytes), sound.encode_to_vec())),
        ("authorities", definition(&|msp| msp.root_certs = vec![nothing(); fewer(500_000)])),
        ("authorities of TLS", definition(&|msp| msp.tls_root_certs = vec![nothing(); fewer(500_000)])),
        ("administrators", definition(&|msp| msp.admins = vec![nothing(); fewer(500_000)])),
        ("revocation lists", definition(&|msp| msp.revocation_list = vec![nothing(); fewer(500_000)])),
        ("units", definition(&|msp| msp.organizational_unit_identifiers = vec![Default::default(); fewer(500_000)])),
        ("the long name of an organisation", definition(&|msp| msp.name = "\u{1}".repeat(bytes))),
    ]
}

#[test]
fn no_configuration_takes_more_than_four_times_its_size() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (what, envelope) in hostile(LARGE_BYTES) {
        let (_, peak) = peak_of(|| ChannelConfig::from_envelope(&envelope).map(drop));
        let most = TIMES_MAX * envelope.len() + FREE_BYTES + SMALL_BYTES;
        assert!(peak <= most, "{what}, {} bytes: {peak} bytes, {most} allowed", envelope.len());
    }
    // The allocator sees what is allocated.
    assert!(peak_of(|| vec![1u8; LARGE_BYTES]).1 >= LARGE_BYTES);
}

/// What was refused above is worth that: with fewer parts, which are read, the estimate is above what they take.
#[test]
fn no_configuration_takes_more_than_was_estimated() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let networks = [(1, true), (20, true), (100, true), (1, false), (20, false)];
    let networks = networks.map(|(organizations, few)| network(organizations, few));
    for envelope in hostile(FEW_BYTES).into_iter().map(|(_, envelope)| envelope).chain(networks) {
        let (_, peak) = peak_of(|| ChannelConfig::from_envelope(&envelope).map(drop));
        let Ok(most) = ChannelConfig::most_memory(&envelope) else { continue };
        assert!(peak <= most + SMALL_BYTES, "{} bytes: {peak} bytes, {most} estimated", envelope.len());
    }
}

#[test]
fn configurations_of_few_and_of_many_organisations_are_read() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let golden = [
        &include_bytes!("../../proto/tests/golden/b0.block")[..],
        include_bytes!("golden/raft-v3.block"),
        include_bytes!("golden/bft-v3.block"),
    ];
    let golden =
        golden.map(|bytes| ledger::Block::parse(&Bytes::from_static(bytes)).expect("Fabric wrote it").envelope(0));
    let networks = [network(1, true), network(100, true), network(200, false)];
    for envelope in golden.iter().chain(&networks) {
        let config = ChannelConfig::from_envelope(envelope).expect("usable");
        assert!(!config.application().is_empty());
    }
}
