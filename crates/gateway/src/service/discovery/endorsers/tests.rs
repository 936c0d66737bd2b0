use identity::policy::LayoutBudget;
use std::time::Duration;

use bytes::Bytes;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::policy::parse;
use identity::statement::{PeerStatement, RunnableContract};
use ledger::config::{
    BatchLimits, Capabilities, ChannelConfig, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec,
};
use ledger::lifecycle::ContractDefinition;
use prost::Message as _;
use proto::protos::collection_policy_config::Payload;
use proto::protos::{
    ApplicationPolicy, CollectionConfig, CollectionConfigPackage, CollectionPolicyConfig, StaticCollectionConfig,
};
use rules::definitions::{ContractDefinitions, by_channel_policy};

use super::super::config::config_result;
use super::*;

const NAMES: [&str; 3] = ["Org1MSP", "Org2MSP", "Org3MSP"];

/// A channel of three organisations, in which the peers of `able` run `assets` and all run `basic`.
struct TestChannel {
    policies: ChannelPolicies,
    peers: Vec<PeerDescription>,
}

fn collection(name: &str, members: &str, endorsement: Option<&str>) -> CollectionConfig {
    let signature = |text: &str| parse(text).expect("a policy");
    let endorsement_policy = endorsement.map(|text| ApplicationPolicy {
        r#type: Some(proto::protos::application_policy::Type::SignaturePolicy(signature(text))),
    });
    let members = CollectionPolicyConfig { payload: Some(Payload::SignaturePolicy(signature(members))) };
    let collection = StaticCollectionConfig {
        name: name.to_owned(),
        member_orgs_policy: Some(members),
        endorsement_policy,
        ..StaticCollectionConfig::default()
    };
    CollectionConfig { payload: Some(proto::protos::collection_config::Payload::StaticCollectionConfig(collection)) }
}

impl TestChannel {
    fn new(able: &[&str]) -> TestChannel {
        let organizations: Vec<IssuingOrganization> = NAMES
            .iter()
            .chain(&["OrdererMSP"])
            .enumerate()
            .map(|(index, name)| {
                let terms = CertificateTerms::seeded([index as u8 + 1; 32]);
                IssuingOrganization::create(*name, &format!("org{index}.example.com"), &terms).expect("an organisation")
            })
            .collect();
        let spec = |index: usize, name: &str| OrganizationSpec {
            name: name.to_owned(),
            msp_id: name.to_owned(),
            msp: organizations[index].definition().encode_to_vec().into(),
            anchor_peers: vec![],
            endpoints: vec!["orderer.example.com:7050".to_owned()],
        };
        let genesis = GenesisSpec {
            channel: "ch".into(),
            application: NAMES.iter().enumerate().map(|(index, name)| spec(index, name)).collect(),
            orderers: vec![spec(3, "OrdererMSP")],
            endorsement: EndorsementRule::Policy("OutOf(2, 'Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')".to_owned()),
            batch: BatchLimits {
                messages_max: 10,
                absolute_bytes_max: 1 << 20,
                preferred_bytes_max: 512 << 10,
                timeout: Duration::from_millis(50),
            },
            consensus: ConsensusConfig { kind: "solo".to_owned(), metadata: Bytes::new(), maintenance: false },
            capabilities: Capabilities::newest(),
        };
        let block = genesis.build().expect("the specification is usable");
        let config = ChannelConfig::from_block(&block).expect("what was just built");
        let assets = ContractDefinition {
            sequence: 2,
            collections: CollectionConfigPackage {
                config: vec![
                    collection("pair", "OR('Org1MSP.member', 'Org2MSP.member')", None),
                    collection("own", "OR('Org2MSP.member')", Some("OR('Org1MSP.peer', 'Org2MSP.peer')")),
                ],
            },
            ..by_channel_policy("1.0")
        };
        let definitions = [("assets".to_owned(), assets), ("basic".to_owned(), by_channel_policy("1.0"))];
        let policies = ChannelPolicies::new(Arc::new(config), ContractDefinitions::from(definitions));
        let policies = policies.expect("the policies are well formed");
        let peers = NAMES.iter().zip(&organizations).map(|(name, organization)| {
            let signer = organization.issue(identity::MemberRole::Peer, "peer0").expect("a peer");
            let statement = PeerStatement { signer: &signer, address: "host:7051", started_ns: 1, sequence: 1 };
            let runs = |name: &str, sequence| RunnableContract { name: name.to_owned(), sequence };
            let sequence = if able.contains(name) { 2 } else { 1 };
            let peer = statement.in_channel("ch", 5, vec![runs("assets", sequence), runs("basic", 1)]);
            PeerDescription::read(peer, "ch", policies.members()).expect("it is sound")
        });
        TestChannel { peers: peers.collect(), policies }
    }

    fn search(&self) -> EndorserSearch<'_> {
        EndorserSearch { policies: &self.policies, peers: &self.peers }
    }

    /// The organisations of each layout, such as `1+2 1+3`, or why there is none.
    fn layouts(&self, calls: &[ChaincodeCall]) -> String {
        let interest = ChaincodeInterest { chaincodes: calls.to_vec() };
        let descriptor = match self.search().descriptor(&interest, &mut LayoutBudget::default()) {
            Ok(descriptor) => descriptor,
            Err(reason) => return reason,
        };
        assert_eq!(descriptor.chaincode, calls[0].name);
        let organization = |group: &String| {
            let peers = &descriptor.endorsers_by_groups[group].peers;
            let place = |peer: &proto::discovery::Peer| {
                let known = self.peers.iter().position(|known| known.peer == *peer);
                (known.expect("one of the peers") + 1).to_string()
            };
            peers.iter().map(place).collect::<String>()
        };
        let mut layouts: Vec<String> = descriptor
            .layouts
            .iter()
            .map(|layout| {
                assert!(layout.quantities_by_group.values().all(|quantity| *quantity == 1));
                let mut chosen: Vec<String> = layout.quantities_by_group.keys().map(organization).collect();
                chosen.sort();
                chosen.join("+")
            })
            .collect();
        layouts.sort();
        layouts.join(" ")
    }
}

fn call(name: &str, collections: &[&str]) -> ChaincodeCall {
    ChaincodeCall {
        name: name.to_owned(),
        collection_names: collections.iter().map(|name| (*name).to_owned()).collect(),
        ..ChaincodeCall::default()
    }
}

#[test]
fn layouts_have_only_peers_that_run_the_definition_in_force() {
    let all = TestChannel::new(&NAMES);
    assert_eq!(all.layouts(&[call("assets", &[])]), "1+2 1+3 2+3");
    let two = TestChannel::new(&NAMES[..2]);
    assert_eq!(two.layouts(&[call("assets", &[])]), "1+2");
    assert_eq!(two.layouts(&[call("basic", &[])]), "1+2 1+3 2+3");
    assert_eq!(two.layouts(&[call("basic", &[]), call("assets", &[])]), "1+2");
    assert_eq!(two.layouts(&[call(LIFECYCLE, &[])]), "no peer combination can satisfy the endorsement policy");
    let one = TestChannel::new(&NAMES[..1]);
    assert_eq!(one.layouts(&[call("assets", &[])]), "no peer combination can satisfy the endorsement policy");
    assert_eq!(one.layouts(&[call("absent", &[])]), "No metadata was found for chaincode absent in channel ch");
}

#[test]
fn a_collection_brings_its_policy_and_leaves_out_those_who_do_not_keep_it() {
    let channel = TestChannel::new(&NAMES);
    assert_eq!(channel.layouts(&[call("assets", &["pair"])]), "1+2");
    // Its own policy accepts either, and only one of the two keeps it.
    assert_eq!(channel.layouts(&[call("assets", &["own"])]), "2");
    let blind = ChaincodeCall { no_private_reads: true, ..call("assets", &["own"]) };
    assert_eq!(channel.layouts(&[blind]), "1 2");
    assert_eq!(
        channel.layouts(&[call("assets", &["pair", "own"])]),
        "no peer combination can satisfy the endorsement policy"
    );
    assert_eq!(channel.layouts(&[call("assets", &["_implicit_org_Org3MSP"])]), "3");
    let unknown = "collection none doesn't exist in collection config for chaincode assets";
    assert_eq!(channel.layouts(&[call("assets", &["none"])]), unknown);
}

#[test]
fn policies_of_keys_are_joined_with_those_of_the_chaincode_or_stand_alone() {
    let channel = TestChannel::new(&NAMES);
    let key_policies = vec![parse("AND('Org3MSP.peer')").expect("a policy")];
    let with_keys = ChaincodeCall { key_policies, ..call("assets", &[]) };
    assert_eq!(channel.layouts(std::slice::from_ref(&with_keys)), "1+3 2+3");
    let alone = ChaincodeCall { disregard_namespace_policy: true, ..with_keys };
    assert_eq!(channel.layouts(&[alone]), "3");
    let nothing = ChaincodeCall { disregard_namespace_policy: true, ..call("assets", &[]) };
    assert_eq!(channel.layouts(&[nothing]), "no principal sets remained after filtering");
    let administrator = vec![parse("OR('Org1MSP.admin')").expect("a policy")];
    let of_no_peer = ChaincodeCall { key_policies: administrator, ..call("assets", &[]) };
    assert_eq!(channel.layouts(&[of_no_peer]), "no peer combination can satisfy the endorsement policy");
}

#[test]
fn a_filter_names_the_peers_that_run_all_of_its_chaincodes() {
    let channel = TestChannel::new(&NAMES[1..]);
    let count = |calls: Vec<ChaincodeCall>| {
        channel.search().able_peers(&ChaincodeInterest { chaincodes: calls }).map(|able| able.len())
    };
    assert_eq!(count(vec![]), Ok(3));
    assert_eq!(count(vec![call("basic", &[])]), Ok(3));
    assert_eq!(count(vec![call("basic", &[]), call("assets", &[])]), Ok(2));
    assert_eq!(count(vec![call("assets", &["pair"])]), Ok(1));
    assert!(count(vec![call("absent", &[])]).is_err());
}

#[test]
fn a_port_that_was_chosen_at_the_start_takes_the_place_of_the_stated_one() {
    let channel = TestChannel::new(&[]);
    let stated = |reached_at: &[&str]| {
        let result = config_result(channel.policies.config(), reached_at.iter().copied()).expect("it can be decoded");
        result.orderers["OrdererMSP"]
            .endpoint
            .iter()
            .map(|one| format!("{}:{}", one.host, one.port))
            .collect::<Vec<_>>()
    };
    assert_eq!(stated(&[]), ["orderer.example.com:7050"]);
    assert_eq!(stated(&["other.example.com:40001"]), ["orderer.example.com:7050"]);
    assert_eq!(stated(&["other.example.com:40001", "orderer.example.com:40000"]), ["orderer.example.com:40000"]);
}
