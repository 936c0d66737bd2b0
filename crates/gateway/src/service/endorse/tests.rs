use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use chain::endorse::Endorse;
use identity::issue::{CertificateTerms, IssuingOrganization};
use ledger::config::{
    BatchLimits, Capabilities, ChannelConfig, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec,
};
use prost::Message as _;
use proto::protos::Response;
use rules::definitions::{ContractDefinitions, by_channel_policy};

use super::*;
use crate::service::assemble::ProposalParts;
use crate::service::evaluate;

/// An endorser with a fixed behaviour.
#[derive(Clone)]
enum Does {
    Endorse,
    /// Endorses this result.
    EndorseResult(Bytes),
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
            Ok(ProposalResponse {
                endorsement: matches!(self, Does::Endorse | Does::EndorseResult(_)).then(Endorsement::default),
                payload: if let Does::EndorseResult(payload) = self { payload.clone() } else { Bytes::new() },
                response: Some(self.evaluate(Bytes::new()).await?),
                ..ProposalResponse::default()
            })
        })
    }

    fn evaluate<'a, 'b>(&'a self, _: Bytes) -> Answering<'b, Response>
    where
        'a: 'b,
    {
        Box::pin(async move {
            match self {
                Does::Endorse | Does::EndorseResult(_) => Ok(Response { status: 200, ..Response::default() }),
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
    let endorsers = endorsers(does);
    let plans = EndorsementPlanCache::default();
    let from = EndorserSet { local: &endorsers[LOCAL], others: &endorsers[1..], plans: &plans };
    let request = ProposalRequest {
        signed_proposal: Bytes::new(),
        has_transient_data: false,
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

/// A result that writes a public key and the values of collections.
fn payload(is_public: bool, collections: &[&str]) -> Bytes {
    let mut recorder = ledger::rwset::ReadWriteSetRecorder::default();
    if is_public {
        recorder.write(&"basic".into(), "key", Bytes::from_static(b"1"));
    }
    for collection in collections {
        recorder.private_write(&"basic".into(), collection, "key", Bytes::from_static(b"1"));
    }
    let action = proto::protos::ChaincodeAction { results: recorder.encode(), ..Default::default() };
    let payload =
        proto::protos::ProposalResponsePayload { extension: action.encode_to_vec().into(), ..Default::default() };
    payload.encode_to_vec().into()
}

/// Rules 2 and 3 of validation: only what is written counts, and the contract's own policy if nothing is.
#[test]
fn a_result_needs_the_policies_of_what_it_writes() {
    let needs = |is_public, collections: &[&str]| {
        let needs = needed_policies(&payload(is_public, collections), "basic");
        needs.into_iter().map(|(contract, collection)| format!("{contract}/{collection}")).collect::<Vec<_>>()
    };
    assert_eq!(needs(false, &[]), ["basic/"]);
    assert_eq!(needs(true, &[]), ["basic/"]);
    assert_eq!(needs(false, &["b", "a"]), ["basic/a", "basic/b"]);
    assert_eq!(needs(true, &["a"]), ["basic/", "basic/a"]);
    let other = needed_policies(&payload(true, &["a"]), "caller");
    assert_eq!(other.iter().map(|(contract, _)| contract.as_str()).collect::<Vec<_>>(), ["caller", "basic", "basic"]);
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
    let code = async |payload: Bytes| {
        let fails = Does::Fail(EndorseError::Stopped);
        let endorses = Does::EndorseResult(payload);
        endorse_at(&rules, 0, [endorses.clone(), endorses, fails], &[]).await
    };
    assert_eq!(code(payload(false, &["_implicit_org_Org1MSP"])).await, GrpcCode::Ok);
    assert_ne!(code(payload(true, &["_implicit_org_Org1MSP"])).await, GrpcCode::Ok);
    assert_ne!(code(payload(false, &["_implicit_org_Org3MSP"])).await, GrpcCode::Ok);
    assert_eq!(code(payload(false, &["unknown"])).await, GrpcCode::FailedPrecondition);
}
