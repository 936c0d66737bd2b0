use std::time::Duration;

use base::{BlockNumber, Bytes, ErrorKind};
use identity::policy::{SignedData, SignedMessage as Signed};
use proptest::prelude::*;
use prost::Message;
use proto::common::{Config, ConfigEnvelope, ConfigGroup, ConfigValue, Envelope, Payload};
use proto::msp::MspConfig;
use proto::orderer::{BatchSize, BatchTimeout};

use super::*;
use crate::block::{BlockMetadata, OrdererMetadata};
use crate::config::batch::{format_duration, parse_duration};
use crate::config::genesis::{EndorsementRule, GenesisSpec, OrganizationSpec};
use crate::fixture::TestNetwork;
use crate::golden;
use crate::golden::{BFT_V3, BLOCK_1, BLOCK_8, BLOCK_9, GENESIS, RAFT_V3};

fn golden_config() -> Config {
    let envelope = Envelope::decode(golden::block(GENESIS).envelope(0)).expect("golden");
    let payload = Payload::decode(envelope.payload).expect("golden");
    ConfigEnvelope::decode(payload.data).expect("golden").config.expect("golden")
}

fn read(config: &Config) -> Result<ChannelConfig, Error> {
    ChannelConfig::from_config("mychannel", config)
}

/// What reading the golden configuration says after a change.
fn refusal(change: impl FnOnce(&mut ConfigGroup)) -> Error {
    let mut config = golden_config();
    change(config.channel_group.as_mut().expect("golden"));
    read(&config).map(|_| ()).expect_err("refused")
}

fn group_mut<'a>(root: &'a mut ConfigGroup, path: &[&str]) -> &'a mut ConfigGroup {
    path.iter().fold(root, |group, name| group.groups.get_mut(*name).expect("golden"))
}

fn put(group: &mut ConfigGroup, name: &str, value: &impl Message) {
    group.values.insert(name.into(), ConfigValue { value: value.encode_to_vec().into(), ..ConfigValue::default() });
}

fn msp_of(config: &Config, group: &str, organization: &str) -> Bytes {
    let root = config.channel_group.as_ref().expect("golden");
    let value = &root.groups[group].groups[organization].values["MSP"];
    MspConfig::decode(value.value.clone()).expect("golden").config
}

/// A specification with the golden organisations.
fn spec() -> GenesisSpec {
    let config = golden_config();
    let organization = |group, name: &str, msp_id: &str| OrganizationSpec {
        name: name.into(),
        msp_id: msp_id.into(),
        msp: msp_of(&config, group, name),
        anchor_peers: Vec::new(),
        endpoints: Vec::new(),
    };
    let mut application =
        vec![organization("Application", "Org1MSP", "Org1MSP"), organization("Application", "Org2MSP", "Org2MSP")];
    application[0].anchor_peers.push(("127.0.0.1".into(), 7051));
    let mut orderers = vec![organization("Orderer", "OrdererOrg", "OrdererMSP")];
    orderers[0].endpoints.push("127.0.0.1:7050".into());
    GenesisSpec {
        channel: "mychannel".into(),
        application,
        orderers,
        endorsement: EndorsementRule::Majority,
        batch: BatchLimits::default(),
        consensus: ConsensusConfig { kind: "solo".into(), metadata: Bytes::new(), maintenance: false },
        capabilities: Capabilities::newest(),
    }
}

#[test]
fn fabrics_genesis_block_is_accepted() {
    let config = ChannelConfig::from_block(&golden::block(GENESIS)).expect("golden");
    assert_eq!(config.channel().as_str(), "mychannel");
    assert_eq!(config.sequence(), 0);
    let names = |organizations: &[ChannelOrganization]| -> Vec<(String, String)> {
        organizations.iter().map(|org| (org.name.clone(), org.msp_id.to_string())).collect()
    };
    assert_eq!(
        names(config.application()),
        [("Org1MSP".into(), "Org1MSP".into()), ("Org2MSP".into(), "Org2MSP".into())]
    );
    assert_eq!(names(config.orderers()), [("OrdererOrg".into(), "OrdererMSP".into())]);
    assert_eq!(config.application()[0].anchor_peers, [("127.0.0.1".into(), 17051)]);
    assert_eq!(config.application()[0].msp().id().as_str(), "Org1MSP");
    assert_eq!(config.orderer_addresses(), ["127.0.0.1:6050", "127.0.0.1:6051", "127.0.0.1:6052", "127.0.0.1:6053"]);
    assert_eq!(config.msps().msps().count(), 3);
    assert_eq!(
        *config.batch(),
        BatchLimits {
            messages_max: 10,
            absolute_bytes_max: 103_809_024,
            preferred_bytes_max: 524_288,
            timeout: Duration::from_secs(2),
        }
    );
    assert_eq!(config.consensus().kind, "etcdraft");
    let raft = proto::etcdraft::ConfigMetadata::decode(config.consensus().metadata.clone()).expect("golden");
    assert_eq!(raft.consenters.len(), 3);
    assert!(config.capabilities().application.contains("V2_5"));
    for path in [
        "/Channel/Admins",
        "/Channel/Application/Writers",
        "/Channel/Application/LifecycleEndorsement",
        "/Channel/Application/Org1MSP/Endorsement",
        "/Channel/Orderer/OrdererOrg/Writers",
        ENDORSEMENT,
        BLOCK_VALIDATION,
    ] {
        assert!(!matches!(config.policy(path), Policy::Missing), "{path}");
    }
    assert!(matches!(config.policy("/Channel/Application/Other"), Policy::Missing));
}

#[test]
fn genesis_blocks_with_capabilities_of_the_third_generation_are_accepted() {
    for (bytes, kind, consenters) in [(RAFT_V3, "etcdraft", 0), (BFT_V3, "BFT", 4)] {
        let block = golden::block(bytes);
        block.check_data_hash().expect("golden");
        let config = ChannelConfig::from_block(&block).expect("golden");
        assert_eq!(config.channel().as_str(), "threeorgs");
        assert_eq!(config.consensus().kind, kind);
        assert_eq!(config.msps().msps().count(), 4);
        assert_eq!(config.application().len(), 3);
        assert_eq!(config.orderer_addresses().len(), 4);
        assert_eq!(config.batch().timeout, Duration::from_millis(1500));
        assert_eq!(config.capabilities().channel, ["V3_0".to_owned()].into());
        assert_eq!(config.capabilities().application, ["V2_0".to_owned(), "V2_5".to_owned()].into());
        assert_eq!(config.acl("qscc/GetChainInfo"), "/Channel/Application/Admins");
        assert_eq!(config.acl("peer/Propose"), "/Channel/Application/Readers");
        assert_eq!((1..=9).filter(|number| config.consenter_identity(*number).is_some()).count(), consenters);
        for number in 1..=consenters as u32 {
            let identity = config.consenter_identity(number).expect("numbered");
            config.msps().identify(identity).expect("a member of the ordering organisation");
        }
        // MAJORITY of three organisations takes two.
        let layouts = config.endorsement_policy().layouts();
        assert!(layouts.iter().all(|layout| layout.len() == 2), "{layouts:?}");
    }
}

#[test]
fn numbered_consenters_sign_blocks() {
    let network = TestNetwork::new();
    let genesis = network.spec().build().expect("usable");
    let payload = Payload::decode(Envelope::decode(genesis.envelope(0)).expect("built").payload).expect("built");
    let mut config = ConfigEnvelope::decode(payload.data).expect("built").config.expect("built");
    let consenter = |id, pem: &Bytes| proto::common::Consenter {
        id,
        msp_id: "OrdererMSP".into(),
        identity: pem.clone(),
        ..Default::default()
    };
    let mapping = vec![consenter(7, network.orderer.certificate_pem())];
    let orderer = group_mut(config.channel_group.as_mut().expect("built"), &["Orderer"]);
    put(orderer, "Orderers", &Orderers { consenter_mapping: mapping });
    let config = read(&config).expect("usable");

    let block = Block::build(BlockNumber(1), Some(genesis.hash()), &[Bytes::from_static(b"envelope")]);
    let signed_as = |number| {
        let identifier: Bytes = proto::common::IdentifierHeader { identifier: number, nonce: Bytes::from_static(b"n") }
            .encode_to_vec()
            .into();
        let value = Bytes::from_static(&[0x0a, 0]);
        let signature = network.orderer.sign_parts(&[&value, &identifier, block.header().der().as_ref()]);
        let signature = proto::common::MetadataSignature {
            signature_header: Bytes::new(),
            signature,
            identifier_header: identifier,
        };
        let mut metadata = BlockMetadata::default();
        let slot = proto::common::Metadata { value, signatures: vec![signature] };
        metadata.set_signatures(slot.encode_to_vec().into());
        block.with_metadata(metadata).verify_signatures(&config)
    };
    signed_as(7).expect("consenter 7 signed");
    assert!(matches!(signed_as(8), Err(Error::OrdererSignatures { .. })));
}

#[test]
fn a_signed_block_carries_its_orderers_metadata() {
    let network = TestNetwork::new();
    let genesis = network.spec().build().expect("usable");
    let config = ChannelConfig::from_block(&genesis).expect("usable");
    let metadata = OrdererMetadata { last_config: 300, consenter: Bytes::from_static(b"raft") };
    let block = Block::build(BlockNumber(301), Some([1; 32]), &[]).sign(&network.orderer, &metadata);
    let block = Block::parse(&block.to_bytes()).expect("just built");
    block.verify_signatures(&config).expect("just signed");
    assert_eq!(block.orderer_metadata().expect("just built"), metadata);
    // Fabric's decoder reads the same.
    let slot = proto::common::Metadata::decode(block.metadata().signatures().clone()).expect("just built");
    let value = proto::common::OrdererBlockMetadata::decode(slot.value).expect("just built");
    assert_eq!(value.last_config.map(|last| last.index), Some(300));
    assert_eq!(value.consenter_metadata, "raft");
    let header = proto::common::SignatureHeader::decode(slot.signatures[0].signature_header.clone());
    assert_eq!(header.expect("just built").creator, *network.orderer.serialized());
}

#[test]
fn more_signatures_than_any_policy_takes_are_refused() {
    let network = TestNetwork::new();
    let genesis = network.spec().build().expect("usable");
    let config = ChannelConfig::from_block(&genesis).expect("usable");
    let block = Block::build(BlockNumber(1), Some(genesis.hash()), &[]);
    let block = block.sign(&network.orderer, &OrdererMetadata::default());
    let mut slot = proto::common::Metadata::decode(block.metadata().signatures().clone()).expect("just built");
    slot.signatures = vec![slot.signatures[0].clone(); 1000];
    let mut metadata = BlockMetadata::default();
    metadata.set_signatures(slot.encode_to_vec().into());
    let error = block.with_metadata(metadata).verify_signatures(&config).expect_err("too many");
    assert!(error.to_string().contains("more than the 256 allowed"), "{error}");
}

#[test]
fn golden_blocks_carry_the_signatures_that_the_channel_asks_for() {
    let config = ChannelConfig::from_block(&golden::block(GENESIS)).expect("golden");
    for bytes in [BLOCK_1, BLOCK_8, BLOCK_9] {
        let block = golden::block(bytes);
        block.verify_signatures(&config).expect("golden");
        let metadata = block.orderer_metadata().expect("golden");
        assert_eq!(metadata.last_config, 0);
        proto::etcdraft::BlockMetadata::decode(metadata.consenter).expect("golden");
    }
    // The signatures of one block are not those of another.
    let stolen = golden::block(BLOCK_9).with_metadata(golden::block(BLOCK_8).metadata().clone());
    assert!(matches!(stolen.verify_signatures(&config), Err(Error::OrdererSignatures { block: BlockNumber(9), .. })));
    assert!(matches!(
        golden::block(GENESIS).verify_signatures(&config),
        Err(Error::OrdererSignatures { block: BlockNumber(0), .. })
    ));
}

#[test]
fn golden_creators_and_endorsers_signed_and_satisfy_the_policies() {
    let config = ChannelConfig::from_block(&golden::block(GENESIS)).expect("golden");
    for bytes in [BLOCK_1, BLOCK_8, BLOCK_9] {
        for envelope in golden::block(bytes).envelopes() {
            let transaction = Transaction::parse(&envelope).expect("golden");
            let creator = config.msps().identify(&transaction.header().creator()).expect("golden");
            creator.verify(transaction.payload(), transaction.signature()).expect("golden");
            if !transaction.is_endorser_transaction() {
                continue;
            }
            config
                .policy("/Channel/Application/Writers")
                .evaluate_identities(std::slice::from_ref(&creator))
                .expect("golden");
            let action = transaction.action().expect("golden");
            let response = Bytes::copy_from_slice(action.response_payload());
            let signed: Vec<SignedData> = action
                .endorsements()
                .enumerate()
                .map(|(index, endorsement)| SignedData {
                    data: Signed::from([response.clone(), action.endorser(index)]),
                    identity: action.endorser(index),
                    signature: Bytes::copy_from_slice(endorsement.signature),
                })
                .collect();
            config.endorsement_policy().evaluate_signed(&signed, config.msps()).expect("golden");
            for (index, endorsement) in action.endorsements().enumerate() {
                let identity = config.msps().identify(&action.endorser(index)).expect("golden");
                identity.verify(&action.signed_message(index), endorsement.signature).expect("golden");
            }
            // Without endorsements nothing is satisfied.
            assert!(config.endorsement_policy().evaluate_signed(&[], config.msps()).is_err());
        }
    }
}

#[test]
fn a_specification_gives_the_configuration_it_asks_for() {
    let block = spec().build().expect("a usable specification");
    block.check_data_hash().expect("just built");
    block.check_follows(0, None).expect("just built");
    assert_eq!(block.orderer_metadata().expect("just built").last_config, 0);
    let config = ChannelConfig::from_block(&Block::parse(&block.to_bytes()).expect("just built")).expect("usable");
    assert_eq!(config.channel().as_str(), "mychannel");
    assert_eq!(*config.batch(), BatchLimits::default());
    assert_eq!(config.consensus().kind, "solo");
    assert_eq!(*config.capabilities(), Capabilities::newest());
    assert_eq!(config.orderer_addresses(), ["127.0.0.1:7050"]);
    assert_eq!(config.application()[0].anchor_peers, [("127.0.0.1".into(), 7051)]);
    assert!(config.application()[1].anchor_peers.is_empty());
}

#[test]
fn a_built_configuration_has_the_shape_of_fabrics() {
    /// Paths of groups, values and policies with their modification policies.
    fn shape(path: &str, group: &ConfigGroup, out: &mut Vec<String>) {
        out.push(format!("{path} by {}", group.mod_policy));
        for (name, value) in &group.values {
            out.push(format!("{path}/{name} value by {}", value.mod_policy));
        }
        for (name, policy) in &group.policies {
            let kind = policy.policy.as_ref().map(|policy| policy.r#type);
            out.push(format!("{path}/{name} policy {kind:?} by {}", policy.mod_policy));
        }
        for (name, group) in &group.groups {
            shape(&format!("{path}/{name}"), group, out);
        }
    }
    let built = spec().build().expect("usable");
    let payload = Payload::decode(Envelope::decode(built.envelope(0)).expect("built").payload).expect("built");
    let built = ConfigEnvelope::decode(payload.data).expect("built").config.expect("built");
    let (mut ours, mut fabrics) = (Vec::new(), Vec::new());
    shape("", built.channel_group.as_ref().expect("built"), &mut ours);
    shape("", golden_config().channel_group.as_ref().expect("golden"), &mut fabrics);
    // The golden channel has signature policies for endorsement where ours ask the organisations, and anchor peers
    // for both organisations.
    fabrics.retain(|line| !line.contains("/Application/Org2MSP/AnchorPeers"));
    let fabrics: Vec<String> = fabrics
        .into_iter()
        .map(|line| match &*line {
            "/Application/Endorsement policy Some(1) by Admins"
            | "/Application/LifecycleEndorsement policy Some(1) by Admins" => line.replace("Some(1)", "Some(3)"),
            _ => line,
        })
        .collect();
    assert_eq!(ours, fabrics);

    // What is the same by definition is the same by byte.
    let golden = golden_config();
    let root = |config: &Config| config.channel_group.clone().expect("has a root");
    for organization in ["Org1MSP", "Org2MSP"] {
        let of = |config: &Config| root(config).groups["Application"].groups[organization].policies.clone();
        assert_eq!(of(&built), of(&golden));
    }
    let of = |config: &Config| root(config).groups["Orderer"].clone();
    assert_eq!(of(&built).policies, of(&golden).policies);
    assert_eq!(of(&built).groups["OrdererOrg"].policies, of(&golden).groups["OrdererOrg"].policies);
    assert_eq!(root(&built).values["BlockDataHashingStructure"], root(&golden).values["BlockDataHashingStructure"]);
    assert_eq!(root(&built).values["HashingAlgorithm"], root(&golden).values["HashingAlgorithm"]);
}

#[test]
fn endorsement_rules_become_policies() {
    let endorsers = |config: &ChannelConfig| -> Vec<std::sync::Arc<identity::Identity>> {
        let block = golden::block(BLOCK_8);
        let action = Transaction::parse(&block.envelope(0)).expect("golden").action().expect("golden");
        (0..action.endorsements().len())
            .map(|index| config.msps().identify(&action.endorser(index)).expect("golden"))
            .collect()
    };
    // One peer of each of the two organisations.
    let verdicts = |endorsement: EndorsementRule| {
        let block = GenesisSpec { endorsement, ..spec() }.build().expect("usable");
        let config = ChannelConfig::from_block(&block).expect("usable");
        let endorsers = endorsers(&config);
        assert_eq!(endorsers.len(), 2);
        let holds = |signers: &[_]| config.endorsement_policy().evaluate_identities(signers).is_ok();
        (holds(&endorsers[..1]), holds(&endorsers[1..]), holds(&endorsers))
    };
    assert_eq!(verdicts(EndorsementRule::Any), (true, true, true));
    assert_eq!(verdicts(EndorsementRule::Majority), (false, false, true));
    assert_eq!(verdicts(EndorsementRule::All), (false, false, true));
    assert_eq!(verdicts(EndorsementRule::Policy("OR('Org1MSP.peer')".into())), (true, false, true));
    assert_eq!(verdicts(EndorsementRule::Policy("OR('Org1MSP.admin')".into())), (false, false, false));
}

#[test]
fn unusable_specifications_are_refused() {
    let refused = |change: &dyn Fn(&mut GenesisSpec)| {
        let mut spec = spec();
        change(&mut spec);
        let error = spec.build().map(|_| ()).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Rejected);
        error.to_string()
    };
    assert!(refused(&|spec| spec.channel = "My channel".into()).contains("not a name for a channel"));
    assert!(refused(&|spec| spec.batch.messages_max = 0).contains("max_message_count"));
    assert!(refused(&|spec| spec.batch.preferred_bytes_max = u32::MAX).contains("preferred_max_bytes"));
    assert!(refused(&|spec| spec.batch.timeout = Duration::ZERO).contains("BatchTimeout"));
    assert!(refused(&|spec| spec.endorsement = EndorsementRule::Policy("OR(".into())).contains("Endorsement"));
    assert!(refused(&|spec| spec.application.clear()).contains("no organisation"));
    assert!(refused(&|spec| spec.orderers.clear()).contains("no organisation"));
    assert!(refused(&|spec| spec.application[1].name = "Org1MSP".into()).contains("two organisations"));
    assert!(refused(&|spec| spec.application[1].name = "a/b".into()).contains("no name for an organisation"));
    assert!(refused(&|spec| spec.application[1].msp = Bytes::new()).contains("Org2MSP/MSP"));
    assert!(refused(&|spec| spec.capabilities.channel = ["V9".to_owned()].into()).contains("V9"));
}

#[test]
fn capabilities_that_are_not_known_are_refused() {
    let requiring = |path: &'static [&'static str], name: &str| {
        let name = name.to_owned();
        refusal(move |root| {
            let capabilities =
                proto::common::Capabilities { capabilities: [(name, proto::common::Capability {})].into() };
            put(group_mut(root, path), "Capabilities", &capabilities);
        })
    };
    assert_eq!(requiring(&[], "V4_0"), Error::Capability { path: "/Channel", name: "V4_0".into() });
    assert_eq!(requiring(&["Orderer"], "V3_0"), Error::Capability { path: "/Channel/Orderer", name: "V3_0".into() });
    assert_eq!(
        requiring(&["Application"], "V3_0"),
        Error::Capability { path: "/Channel/Application", name: "V3_0".into() }
    );
    assert!(requiring(&["Application"], "V1_4_2").to_string().contains("older rules"));
    assert!(refusal(|root| drop(root.values.remove("Capabilities"))).to_string().contains("older rules"));
}

#[test]
fn what_is_missing_or_out_of_bounds_is_named() {
    let says = |change: &dyn Fn(&mut ConfigGroup), expected: &str| {
        let error = refusal(|root| change(root));
        assert!(error.to_string().contains(expected), "{error} does not say {expected}");
    };
    says(&|root| drop(root.groups.remove("Application")), "/Channel/Application: the group is missing");
    says(&|root| drop(root.groups.remove("Orderer")), "/Channel/Orderer: the group is missing");
    says(&|root| drop(root.values.remove("HashingAlgorithm")), "HashingAlgorithm: the value is missing");
    says(
        &|root| put(root, "HashingAlgorithm", &HashingAlgorithm { name: "SHA3_256".into() }),
        "\"SHA3_256\" is not supported",
    );
    for name in ["BatchSize", "BatchTimeout", "ConsensusType"] {
        says(
            &|root| drop(group_mut(root, &["Orderer"]).values.remove(name)),
            &format!("/Channel/Orderer/{name}: the value is missing"),
        );
        says(
            &|root| {
                let value = ConfigValue { value: Bytes::from_static(b"\xff"), ..ConfigValue::default() };
                group_mut(root, &["Orderer"]).values.insert(name.into(), value);
            },
            &format!("/Channel/Orderer/{name}: "),
        );
    }
    says(
        &|root| {
            let size = BatchSize { max_message_count: 1, absolute_max_bytes: u32::MAX, preferred_max_bytes: 1 };
            put(group_mut(root, &["Orderer"]), "BatchSize", &size);
        },
        "absolute_max_bytes is 4294967295",
    );
    says(
        &|root| put(group_mut(root, &["Orderer"]), "BatchTimeout", &BatchTimeout { timeout: "soon".into() }),
        "\"soon\" is not a duration",
    );
    says(
        &|root| drop(group_mut(root, &["Application", "Org1MSP"]).values.remove("MSP")),
        "/Channel/Application/Org1MSP/MSP: the value is missing",
    );
    says(
        &|root| drop(group_mut(root, &["Orderer"]).policies.remove("BlockValidation")),
        "/Channel/Orderer/BlockValidation",
    );
    says(
        &|root| drop(group_mut(root, &["Application"]).policies.remove("Endorsement")),
        "/Channel/Application/Endorsement",
    );
    says(
        &|root| {
            let other = group_mut(root, &["Application", "Org2MSP"]).clone();
            group_mut(root, &["Orderer"]).groups.insert("Again".into(), other.clone());
            let mut config = MspConfig::decode(other.values["MSP"].value.clone()).expect("golden");
            let mut msp = proto::msp::FabricMspConfig::decode(config.config).expect("golden");
            msp.tls_root_certs.clear();
            config.config = msp.encode_to_vec().into();
            put(group_mut(root, &["Orderer", "Again"]), "MSP", &config);
        },
        "MSP Org2MSP: Org2MSP and Again define it differently",
    );
}

#[test]
fn an_organisation_may_endorse_and_order() {
    let mut config = golden_config();
    let root = config.channel_group.as_mut().expect("golden");
    let again = group_mut(root, &["Application", "Org2MSP"]).clone();
    group_mut(root, &["Orderer"]).groups.insert("Again".into(), again);
    let config = read(&config).expect("the same definition twice");
    assert_eq!(config.msps().msps().count(), 3);
    assert_eq!(config.orderers().len(), 2);
}

#[test]
fn blocks_without_a_configuration_are_refused() {
    let error = |block: &Block| ChannelConfig::from_block(block).map(|_| ()).expect_err("no configuration").to_string();
    assert!(error(&golden::block(BLOCK_8)).contains("of type 3, not a configuration"));
    assert!(error(&Block::build(BlockNumber(0), None, &[])).contains("has 0"));
    let junk = Block::build(BlockNumber(0), None, &[Bytes::from_static(b"\xff")]);
    assert!(error(&junk).contains("malformed"));
}

#[test]
fn resources_have_fabrics_policies_unless_the_channel_says_otherwise() {
    let mut config = golden_config();
    let acls = [("qscc/GetChainInfo", "Admins"), ("peer/Propose", "/Channel/Application/Org1MSP/Writers"), ("x/y", "")];
    let acls = proto::protos::AcLs {
        acls: acls
            .into_iter()
            .map(|(name, policy)| (name.to_owned(), proto::protos::ApiResource { policy_ref: policy.to_owned() }))
            .collect(),
    };
    assert_eq!(read(&config).expect("golden").acl("peer/Propose"), "/Channel/Application/Writers");
    put(group_mut(config.channel_group.as_mut().expect("golden"), &["Application"]), "ACLs", &acls);
    let config = read(&config).expect("usable");
    assert_eq!(config.acl("qscc/GetChainInfo"), "/Channel/Application/Admins");
    assert_eq!(config.acl("peer/Propose"), "/Channel/Application/Org1MSP/Writers");
    assert_eq!(config.acl("qscc/GetBlockByNumber"), "/Channel/Application/Readers");
    assert_eq!(config.acl("_lifecycle/CommitChaincodeDefinition"), "/Channel/Application/Writers");
    assert_eq!(config.acl("event/FilteredBlock"), "/Channel/Application/Readers");
    assert_eq!(config.acl("x/y"), "/Channel/Application/Readers");
}

#[test]
fn durations_are_read_as_go_writes_them() {
    for (text, nanos) in [
        ("2s", Some(2_000_000_000u64)),
        ("500ms", Some(500_000_000)),
        ("1m30s", Some(90_000_000_000)),
        ("1.5h", Some(5_400_000_000_000)),
        (".5s", Some(500_000_000)),
        ("1.s", Some(1_000_000_000)),
        ("1µs", Some(1_000)),
        ("+3ns", Some(3)),
        ("0", Some(0)),
        ("0s", Some(0)),
        ("", None),
        ("2", None),
        ("s", None),
        (".s", None),
        ("-2s", None),
        ("2 s", None),
        ("2d", None),
        ("99999999999h", None),
    ] {
        assert_eq!(parse_duration(text), nanos.map(Duration::from_nanos), "{text}");
    }
}

proptest! {
    #[test]
    fn durations_come_back(nanos in any::<u64>()) {
        let duration = Duration::from_nanos(nanos);
        prop_assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
    }

    #[test]
    fn any_text_is_read_without_panic(text in ".{0,40}") {
        let _ = parse_duration(&text);
        let _ = check_channel_name(&text);
    }

    #[test]
    fn flipped_bits_of_a_configuration_never_panic(at in 0usize..GENESIS.len(), bit in 0u8..8) {
        let mut bytes = GENESIS.to_vec();
        bytes[at] ^= 1 << bit;
        if let Ok(block) = Block::parse(&bytes.into()) {
            let _ = ChannelConfig::from_block(&block);
        }
    }

    #[test]
    fn flipped_bits_of_signatures_never_panic_and_never_verify(at in 0usize..900, bit in 0u8..8) {
        let config = ChannelConfig::from_block(&golden::block(GENESIS)).expect("golden");
        let golden = golden::block(BLOCK_9);
        let mut slot = golden.metadata().signatures().to_vec();
        let at = at % slot.len();
        slot[at] ^= 1 << bit;
        let mut metadata = golden.metadata().clone();
        metadata.set_signatures(slot.into());
        prop_assert!(golden.with_metadata(metadata).verify_signatures(&config).is_err());
    }
}
