use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use chain::endorse::Endorse;
use identity::issue::{CertificateTerms, IssuingOrganization};
use ledger::config::{
    BatchLimits, Capabilities, ChannelConfig, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec,
};
use prost::Message as _;
use proto::protos::{ChaincodeCall, Response};
use rules::definitions::{ContractDefinitions, by_channel_policy};

use super::*;
use crate::service::assemble::ProposalParts;
use crate::service::evaluate;

/// An endorser with a fixed behaviour.
#[derive(Clone)]
enum Does {
    /// Endorses, and states that the contract's policy applies.
    Endorse,
    /// Endorses, and states this interest.
    EndorseInterest(ChaincodeInterest),
    Refuse,
    Fail(EndorseError),
}

type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, EndorseError>> + Send + 'a>>;

/// Written out as the trait's macro would expand it.
impl Endorse for Does {
    fn process<'a, 'b>(&'a self, _: Bytes) -> Answering<'b, ProposalResponse>
    where
        'a: 'b,
    {
        Box::pin(async move {
            let interest = match self {
                Does::EndorseInterest(interest) => interest.clone(),
                _ => ChaincodeInterest { chaincodes: vec![contract_call()] },
            };
            Ok(ProposalResponse {
                endorsement: (!matches!(self, Does::Refuse)).then(Endorsement::default),
                interest: Some(interest),
                response: Some(self.evaluate(Bytes::new()).await?),
                ..ProposalResponse::default()
            })
        })
    }

    fn describe<'a, 'b, 'c>(&'a self, _: &'b str) -> Answering<'c, proto::discovery::Peer>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async { Err(EndorseError::Stopped) })
    }

    fn evaluate<'a, 'b>(&'a self, _: Bytes) -> Answering<'b, Response>
    where
        'a: 'b,
    {
        Box::pin(async move {
            match self {
                Does::Endorse | Does::EndorseInterest(_) => Ok(Response { status: 200, ..Response::default() }),
                Does::Refuse => Ok(Response { status: 500, message: "no".into(), ..Response::default() }),
                Does::Fail(error) => Err(error.clone()),
            }
        })
    }
}

const NAMES: [&str; 3] = ["Org1MSP", "Org2MSP", "Org3MSP"];

fn endorsers(does: [Does; 3]) -> [Endorser; 3] {
    let mut names = NAMES.into_iter();
    does.map(|does| {
        let name = names.next().expect("as many names");
        Endorser { msp_id: name.into(), address: name.into(), endorse: Arc::new(does) }
    })
}

fn rules(policy: &str) -> ChannelPolicies {
    let terms = CertificateTerms::seeded([7; 32]);
    let spec = |msp_id: &str| {
        let organization = IssuingOrganization::create(msp_id, "example.com", &terms).expect("names are fine");
        OrganizationSpec {
            name: msp_id.to_owned(),
            msp_id: msp_id.to_owned(),
            msp: organization.definition().encode_to_vec().into(),
            anchor_peers: vec![],
            endpoints: vec!["orderer.example.com:7050".to_owned()],
        }
    };
    let genesis = GenesisSpec {
        channel: "ch".into(),
        application: NAMES.iter().map(|name| spec(name)).collect(),
        orderers: vec![spec("OrdererMSP")],
        endorsement: EndorsementRule::Policy(policy.to_owned()),
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
    let definitions = ContractDefinitions::from([("basic".to_owned(), by_channel_policy("1.0"))]);
    ChannelPolicies::new(Arc::new(config), definitions).expect("the policy is well formed")
}

/// The code that `Endorse` answers, by policy or for the named organisations.
async fn endorse_at(rules: &ChannelPolicies, turn: usize, does: [Does; 3], organizations: &[&str]) -> GrpcCode {
    endorse_with(rules, turn, does, organizations).await.map_or_else(|status| status.code, |_| GrpcCode::Ok)
}

async fn endorse_with(
    rules: &ChannelPolicies,
    turn: usize,
    does: [Does; 3],
    organizations: &[&str],
) -> Result<Bytes, GrpcStatus> {
    endorse_proposal(rules, turn, does, organizations, false).await
}

async fn endorse_proposal(
    rules: &ChannelPolicies,
    turn: usize,
    does: [Does; 3],
    organizations: &[&str],
    has_transient_data: bool,
) -> Result<Bytes, GrpcStatus> {
    let endorsers = endorsers(does);
    let plans = EndorsementPlanCache::default();
    let from = EndorserSet { local: &endorsers[LOCAL], others: &endorsers[1..], plans: &plans };
    let request = ProposalRequest {
        signed_proposal: Bytes::new(),
        has_transient_data,
        organizations: organizations.iter().map(|name| (*name).to_owned()).collect(),
        channel: "ch".into(),
        contract: "basic".to_owned(),
        parts: ProposalParts::default(),
    };
    EndorsementRound::new(from, turn, rules, &request).run().await
}

/// The code and message of a failure, and the organisations in its details.
async fn failure(rules: &ChannelPolicies, does: [Does; 3], organizations: &[&str]) -> (GrpcCode, String, Vec<String>) {
    let status = endorse_with(rules, 0, does, organizations).await.expect_err("endorsements are missing");
    let details = status.details.iter().map(|detail| detail.msp_id.clone()).collect();
    (status.code, status.message, details)
}

/// The story: of several organisations that a client had named, only the first that failed was in the details of the error.
#[tokio::test]
async fn the_details_of_a_failure_name_every_organisation_that_failed() {
    let rules = rules("OutOf(2, 'Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')");
    let named = failure(&rules, [Does::Refuse, Does::Endorse, Does::Refuse], &NAMES).await;
    let message = "failed to collect enough transaction endorsements, see attached details for more info";
    let details = vec!["Org1MSP".to_owned(), "Org3MSP".to_owned()];
    assert_eq!(named, (GrpcCode::Aborted, message.to_owned(), details));
    let first = failure(&rules, [Does::Refuse, Does::Endorse, Does::Endorse], &[]).await;
    let message = "failed to endorse transaction, see attached details for more info";
    assert_eq!(first, (GrpcCode::Aborted, message.to_owned(), vec!["Org1MSP".to_owned()]));
    let slow = || Does::Fail(EndorseError::State { kind: base::ErrorKind::Retry, message: "slow".into() });
    let (code, message, details) = failure(&rules, [Does::Endorse, slow(), slow()], &[]).await;
    assert_eq!((code, details), (GrpcCode::Aborted, vec!["Org2MSP".to_owned(), "Org3MSP".to_owned()]));
    assert!(message.starts_with("failed to collect enough"), "{message}");
}

/// As in Fabric, an organisation that has not approved a contract is left out where the policy allows it.
#[tokio::test]
async fn an_organisation_that_has_not_approved_is_left_out() {
    let not = || {
        let (contract, channel) = ("basic".to_owned(), "ch".to_owned());
        Does::Fail(EndorseError::NotApproved { contract, sequence: 2, channel })
    };
    let two = rules("OutOf(2, 'Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')");
    for turn in 0..3 {
        assert_eq!(endorse_at(&two, turn, [not(), Does::Endorse, Does::Endorse], &[]).await, GrpcCode::Ok);
        assert_eq!(endorse_at(&two, turn, [Does::Endorse, not(), Does::Endorse], &[]).await, GrpcCode::Ok);
        let code = endorse_at(&two, turn, [not(), not(), Does::Endorse], &[]).await;
        assert_eq!(code, GrpcCode::FailedPrecondition);
    }
}

fn failures() -> [(EndorseError, GrpcCode); 7] {
    [
        (EndorseError::Overloaded, GrpcCode::ResourceExhausted),
        (EndorseError::TimedOut(Duration::from_secs(30)), GrpcCode::DeadlineExceeded),
        (EndorseError::Stopped, GrpcCode::Unavailable),
        (EndorseError::ChannelStopped { channel: "ch".into(), cause: "no disk".into() }, GrpcCode::Unavailable),
        (EndorseError::UnknownChannel("ch".into()), GrpcCode::FailedPrecondition),
        (EndorseError::UnknownChaincode { name: "basic".into(), channel: "ch".into() }, GrpcCode::FailedPrecondition),
        (EndorseError::State { kind: base::ErrorKind::Retry, message: "slow".into() }, GrpcCode::Aborted),
    ]
}

/// The story: the policy wanted two of three organisations. One that was overloaded or stopping failed every call whose
/// turn named it, although the third was ready.
#[tokio::test]
async fn another_layout_is_tried_where_another_organisation_fails() {
    let rules = rules("OutOf(2, 'Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')");
    for (error, code) in failures() {
        let fail = || Does::Fail(error.clone());
        for turn in 0..2 {
            for does in [[Does::Endorse, fail(), Does::Endorse], [Does::Endorse, Does::Endorse, fail()]] {
                assert_eq!(endorse_at(&rules, turn, does, &[]).await, GrpcCode::Ok, "{error}");
            }
            // No layout is left: the last failure gives the reason.
            assert_eq!(endorse_at(&rules, turn, [Does::Endorse, fail(), fail()], &[]).await, code, "{error}");
        }
    }
}

/// The story: of two layouts without the local organisation, the second was asked after the first had failed, and its
/// answer was then ignored.
#[tokio::test]
async fn the_answer_of_a_second_first_endorser_counts() {
    let rules = rules("OR('Org2MSP.peer', 'Org3MSP.peer')");
    for (error, _) in failures() {
        let fail = || Does::Fail(error.clone());
        for turn in 0..2 {
            for does in [[fail(), fail(), Does::Endorse], [fail(), Does::Endorse, fail()]] {
                assert_eq!(endorse_at(&rules, turn, does, &[]).await, GrpcCode::Ok, "{error}");
            }
        }
    }
}

#[tokio::test]
async fn the_local_endorser_and_refusals_decide_at_once() {
    let rules = rules("OutOf(1, 'Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')");
    for (error, code) in failures().into_iter().take(5) {
        let does = [Does::Fail(error.clone()), Does::Endorse, Does::Endorse];
        assert_eq!(endorse_at(&rules, 0, does, &[]).await, code, "{error}");
    }
    let named = ["Org2MSP", "Org3MSP"];
    let malformed = Does::Fail(EndorseError::Malformed("nonsense".into()));
    for (does, code) in [(malformed, GrpcCode::InvalidArgument), (Does::Refuse, GrpcCode::Aborted)] {
        let does = [Does::Endorse, does, Does::Endorse];
        assert_eq!(endorse_at(&rules, 0, does, &named).await, code);
    }
    let all = [Does::Endorse, Does::Endorse, Does::Endorse];
    assert_eq!(endorse_at(&rules, 0, all, &named).await, GrpcCode::Ok);
}

/// The story: an evaluation at ["Unknown", "Org2MSP"] was refused, because only the first name was considered; and one at
/// two organisations failed with the first, although the second was ready.
#[tokio::test]
async fn an_evaluation_is_tried_at_all_organisations_that_are_named() {
    let evaluate_at = async |does: [Does; 3], names: &[&str]| {
        let endorsers = endorsers(does);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let named: Vec<Endorser> =
            evaluate::named(&endorsers[LOCAL], &endorsers[1..], &names).into_iter().cloned().collect();
        let asked = named.len();
        let answer =
            if asked == 0 { Ok(Response::default()) } else { evaluate::ask(&named, &Bytes::new(), true).await };
        (asked, answer.map_or_else(|status| status.code, |_| GrpcCode::Ok))
    };
    let overloaded = || Does::Fail(EndorseError::Overloaded);
    let expired = || Does::Fail(EndorseError::Expired("long ago".into()));
    let names = ["Unknown", "Org3MSP", "Org2MSP"];
    for (second, third, code) in [
        (Does::Endorse, overloaded(), GrpcCode::Ok),
        (overloaded(), Does::Endorse, GrpcCode::Ok),
        (overloaded(), overloaded(), GrpcCode::ResourceExhausted),
        // Every endorser would answer these the same.
        (Does::Refuse, Does::Endorse, GrpcCode::Unknown),
        (expired(), Does::Endorse, GrpcCode::Unavailable),
    ] {
        assert_eq!(evaluate_at([Does::Refuse, second, third], &names).await, (2, code));
    }
    assert_eq!(evaluate_at([Does::Endorse, Does::Endorse, Does::Endorse], &["Unknown"]).await.0, 0);
}

/// Without named organisations, the peer of another one answers only if the local one's has not approved the contract.
#[tokio::test]
async fn an_evaluation_goes_to_a_peer_that_has_the_contract() {
    let not = || {
        let (contract, channel) = ("basic".to_owned(), "ch".to_owned());
        Does::Fail(EndorseError::NotApproved { contract, sequence: 2, channel })
    };
    let overloaded = || Does::Fail(EndorseError::Overloaded);
    let invalid = || Does::Fail(EndorseError::InvalidInvocation("called as init".into()));
    for (does, expected) in [
        ([not(), not(), Does::Endorse], (GrpcCode::Ok, 0)),
        ([not(), not(), not()], (GrpcCode::FailedPrecondition, 3)),
        ([not(), Does::Refuse, Does::Endorse], (GrpcCode::Unknown, 2)),
        ([overloaded(), Does::Endorse, Does::Endorse], (GrpcCode::ResourceExhausted, 1)),
        ([invalid(), Does::Endorse, Does::Endorse], (GrpcCode::Aborted, 1)),
    ] {
        let answer = evaluate::ask(&endorsers(does), &Bytes::new(), false).await;
        let found = answer.map_or_else(|status| (status.code, status.details.len()), |_| (GrpcCode::Ok, 0));
        assert_eq!(found, expected);
    }
}

/// Regression: the layouts of a contract were kept for the life of the process. After a configuration block had changed the
/// policy, the gateway went on asking the endorsers of the old one.
#[test]
fn layouts_follow_the_policies_of_the_channel() {
    let endorsers = NAMES.map(MspId::from);
    let plans = EndorsementPlanCache::default();
    let layouts = |rules: &ChannelPolicies| {
        let plan = plans.get(rules, "basic", "", &endorsers.each_ref()).expect("it is defined");
        plan.in_turn(0).map(<[usize]>::to_vec).collect::<Vec<_>>()
    };
    let (one, two) = (rules("OR('Org2MSP.peer')"), rules("AND('Org2MSP.peer', 'Org3MSP.peer')"));
    assert_eq!(layouts(&one), [[1]]);
    assert_eq!(layouts(&two), [[1, 2]]);
    assert_eq!(layouts(&one), [[1]]);
}

fn key_policy(text: &str) -> proto::common::SignaturePolicyEnvelope {
    identity::policy::parse(text).expect("a policy")
}

/// A call that writes only keys with these policies.
fn keys_call(policies: &[&str]) -> ChaincodeCall {
    ChaincodeCall {
        name: "basic".to_owned(),
        key_policies: policies.iter().map(|text| key_policy(text)).collect(),
        disregard_namespace_policy: true,
        ..ChaincodeCall::default()
    }
}

/// A call that writes keys without policies of their own.
fn contract_call() -> ChaincodeCall {
    ChaincodeCall { name: "basic".to_owned(), ..ChaincodeCall::default() }
}

fn collection_call(collection: &str, no_private_reads: bool) -> ChaincodeCall {
    ChaincodeCall {
        name: "basic".to_owned(),
        collection_names: vec![collection.to_owned()],
        no_private_reads,
        ..ChaincodeCall::default()
    }
}

/// The organisations that endorsed under an interest, whose first endorser states it, and the others fail unless they are
/// among these.
async fn endorse_under(
    rules: &ChannelPolicies,
    calls: &[ChaincodeCall],
    ready: &[&str],
    has_transient_data: bool,
) -> Result<usize, GrpcStatus> {
    let interest = ChaincodeInterest { chaincodes: calls.to_vec() };
    let does = NAMES.map(|name| match ready.contains(&name) {
        true => Does::EndorseInterest(interest.clone()),
        false => Does::Fail(EndorseError::Overloaded),
    });
    let answer = endorse_proposal(rules, 0, does, &[], has_transient_data).await?;
    let message = crate::grpc::message::decode::<proto::gateway::EndorseResponse>(
        answer.slice(crate::grpc::message::PREFIX_BYTES..),
    );
    let envelope = message.expect("an answer").prepared_transaction.expect("a transaction");
    let payload = proto::common::Payload::decode(envelope.payload).expect("a payload");
    let transaction = proto::protos::Transaction::decode(payload.data).expect("a transaction");
    let action = &transaction.actions[0].payload;
    let action = proto::protos::ChaincodeActionPayload::decode(action.clone()).expect("an action");
    Ok(action.action.expect("an action").endorsements.len())
}

/// Keys with policies of their own decide who endorses, without the client naming anybody; and what else is written needs the
/// policies of contract and collections as well.
#[tokio::test]
async fn policies_of_keys_decide_who_endorses() {
    let any = rules("OR('Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')");
    let all = "AND('Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')";
    assert_eq!(endorse_under(&any, &[keys_call(&[all])], &NAMES, false).await, Ok(3));
    let two = ["AND('Org1MSP.peer', 'Org2MSP.peer')", "OR('Org2MSP.peer', 'Org3MSP.peer')"];
    assert_eq!(endorse_under(&any, &[keys_call(&two)], &NAMES, false).await, Ok(2));
    // Another layout of the second policy, if the first fails.
    let either = ["OR('Org2MSP.peer', 'Org3MSP.peer')"];
    assert_eq!(endorse_under(&any, &[keys_call(&either)], &["Org1MSP", "Org3MSP"], false).await, Ok(1));
    // The contract's policy is disregarded, unless keys without a policy are written as well.
    let most = rules("OutOf(2, 'Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')");
    let own = ["'Org3MSP.peer'"];
    assert_eq!(endorse_under(&most, &[keys_call(&own)], &NAMES, false).await, Ok(1));
    let both = ChaincodeCall { disregard_namespace_policy: false, ..keys_call(&own) };
    assert_eq!(endorse_under(&most, &[both], &NAMES, false).await, Ok(2));

    let failed = endorse_under(&any, &[keys_call(&[all])], &["Org1MSP", "Org3MSP"], false).await;
    let failed = failed.expect_err("an organisation is missing");
    assert_eq!((failed.code, failed.details[0].msp_id.as_str()), (GrpcCode::ResourceExhausted, "Org2MSP"));
    // Nobody satisfies these, so nobody else is asked.
    let mut broken = keys_call(&[all]);
    broken.key_policies[0].rule = None;
    for calls in [keys_call(&["'Org9MSP.peer'"]), broken] {
        let failed = endorse_under(&any, &[calls], &NAMES, false).await.expect_err("nobody satisfies it");
        assert_eq!((failed.code, failed.details.len()), (GrpcCode::FailedPrecondition, 0));
        assert!(failed.message.starts_with("no combination of peers can be derived"), "{failed}");
    }
    // Too many, and more than an endorser lists.
    for calls in [vec![keys_call(&[all; POLICIES_MAX + 1])], vec![]] {
        let failed = endorse_under(&any, &calls, &NAMES, false).await.expect_err("too many");
        assert_eq!(failed.code, GrpcCode::FailedPrecondition);
        assert!(failed.message.ends_with("name the endorsing organizations"), "{failed}");
    }
}

/// Who is no member of a collection cannot read it, and must not see the transient data of a proposal that writes to it.
#[tokio::test]
async fn only_members_of_collections_are_asked_to_read_them() {
    let most = rules("OutOf(2, 'Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')");
    let own = contract_call();
    let writes = || [own.clone(), collection_call("_implicit_org_Org1MSP", true)];
    let reads = || [own.clone(), collection_call("_implicit_org_Org1MSP", false)];
    assert_eq!(endorse_under(&most, &writes(), &NAMES, false).await, Ok(2));
    let failed = endorse_under(&most, &reads(), &NAMES, false).await.expect_err("one member is not enough");
    assert_eq!(failed.code, GrpcCode::FailedPrecondition);
    let failed = endorse_under(&most, &writes(), &NAMES, true).await.expect_err("others would see the data");
    assert_eq!(failed.code, GrpcCode::FailedPrecondition);
    assert!(
        failed.message.contains("not in the distribution policy") && failed.message.contains("_implicit_org_Org1MSP")
    );
    let failed = endorse_under(&most, &reads(), &NAMES, true).await.expect_err("one member is not enough");
    assert!(failed.message.starts_with("no combination of peers"), "{failed}");
    let alone = [collection_call("_implicit_org_Org1MSP", false)];
    assert_eq!(endorse_under(&most, &alone, &NAMES, true).await, Ok(1));
    // A key's policy may name organisations that are not members, but they do not get transient data.
    let all = keys_call(&["AND('Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')"]);
    let of_key =
        ChaincodeCall { key_policies: all.key_policies, disregard_namespace_policy: true, ..writes()[1].clone() };
    assert_eq!(endorse_under(&most, std::slice::from_ref(&of_key), &NAMES, false).await, Ok(3));
    let failed = endorse_under(&most, &[of_key], &NAMES, true).await.expect_err("others would see the data");
    assert!(failed.message.contains("not in the distribution policy"), "{failed}");
    // Transient data go to the local endorser first, and nowhere else if it fails.
    let other = rules("'Org2MSP.peer'");
    assert_eq!(endorse_under(&other, std::slice::from_ref(&own), &NAMES, true).await, Ok(1));
    let failed = endorse_under(&other, &[own], &["Org2MSP", "Org3MSP"], true).await.expect_err("the local one fails");
    assert_eq!((failed.code, failed.details.len()), (GrpcCode::ResourceExhausted, 1));
    let unknown = endorse_under(&most, &[collection_call("nothing", true)], &NAMES, false).await;
    assert_eq!(unknown.expect_err("there is no such collection").code, GrpcCode::FailedPrecondition);
}

/// A write to the collection of one organisation needs that organisation alone, whatever the contract's policy is.
#[test]
fn the_plan_of_a_collection_follows_the_policy_of_the_collection() {
    let endorsers = NAMES.map(MspId::from);
    let rules = rules("AND('Org2MSP.peer', 'Org3MSP.peer')");
    let plans = EndorsementPlanCache::default();
    let layouts = |collection: &str| {
        let plan = plans.get(&rules, "basic", collection, &endorsers.each_ref())?;
        Some((0..2).map(|turn| plan.first(turn, &BTreeSet::new()).unwrap_or_default()).collect::<Vec<_>>())
    };
    assert_eq!(layouts(""), Some(vec![vec![1, 2], vec![1, 2]]));
    assert_eq!(layouts("_implicit_org_Org1MSP"), Some(vec![vec![0], vec![0]]));
    assert_eq!(layouts("unknown"), None);
}

/// Regression: the gateway asked for the endorsements of the contract's policy, whatever was written. A write to the
/// collection of one organisation then failed if another organisation did not endorse it, as it need not.
#[tokio::test]
async fn a_write_to_a_collection_asks_those_whom_the_collection_needs() {
    let rules = rules("AND('Org2MSP.peer', 'Org3MSP.peer')");
    let at_two = async |calls: &[ChaincodeCall]| endorse_under(&rules, calls, &["Org1MSP", "Org2MSP"], false).await;
    let of_one = collection_call("_implicit_org_Org1MSP", true);
    assert_eq!(at_two(std::slice::from_ref(&of_one)).await, Ok(1));
    at_two(&[contract_call(), of_one]).await.expect_err("the contract's policy applies as well");
    at_two(&[collection_call("_implicit_org_Org3MSP", true)]).await.expect_err("that organisation does not endorse");
}
