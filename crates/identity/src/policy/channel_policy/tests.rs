use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use proto::common::msp_principal::Classification;
use proto::common::signature_policy::{NOutOf, Type};
use proto::common::{
    CombinedPrincipal, ConfigGroup, ConfigPolicy, MspIdentityAnonymity, MspPrincipal, OrganizationUnit,
    SignaturePolicy as WireRule, SignaturePolicyEnvelope,
};

use super::*;
use crate::issue::{CertificateTerms, IssuingOrganization};
use crate::policy::application::{ApplicationPolicy, channel_reference, of_signature};
use crate::policy::channel_policy::MetaRule;
use crate::policy::layout::{EndorsementLayout, LAYOUTS_MAX, LayoutBudget};
use crate::policy::limits::{DEPTH_MAX, RULES_MAX, SIGNATURES_MAX};
use crate::policy::text::{parse, print};
use crate::policy::tree::{PolicyTree, implicit_meta_to_wire, signature_to_wire};
use crate::principal::{MemberRole, Principal};
use crate::signer::Signer;
use crate::verifier::SignatureVerifier;

const MESSAGE: &[u8] = b"what all of them sign";

/// Organisations A to D, and signers such as `A.peer0`, `B.admin1`, `C.client0`.
struct World {
    members: MspManager,
    signers: BTreeMap<String, Signer>,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let mut signers = BTreeMap::new();
        let mut msps = Vec::new();
        for name in ["A", "B", "C", "D"] {
            let terms = CertificateTerms::seeded([name.as_bytes()[0]; 32]);
            let organization =
                IssuingOrganization::create(name, &format!("{name}.example.com"), &terms).expect("founded");
            msps.push(Arc::new(organization.membership().expect("valid")));
            for role in [MemberRole::Peer, MemberRole::Admin, MemberRole::Client, MemberRole::Orderer] {
                for number in 0..2 {
                    let short = format!("{}{number}", role.as_str());
                    let signer = organization.issue(role, &short).expect("issued");
                    signers.insert(format!("{name}.{short}"), signer);
                }
            }
        }
        World { members: MspManager::new(msps), signers }
    })
}

/// What these signers signed. `A.peer0!` is a wrong signature, `X.peer0` one of a stranger, `A.peer0'` the same holder
/// under other bytes.
fn signed(signers: &str) -> Vec<SignedData> {
    let one = |name: &str| {
        let plain = name.trim_end_matches(['!', '\'']);
        let signer = &world().signers[&plain.replace('X', "A")];
        let mut identity = signer.serialized().clone();
        let mut signature = signer.sign(MESSAGE);
        if plain.starts_with('X') {
            identity = crate::msp::encode_serialized("X", signer.certificate_pem());
        }
        if name.contains('\'') {
            let file = [&signer.certificate_pem()[..], b"\n"].concat();
            identity = crate::msp::encode_serialized(signer.msp_id(), &file);
        }
        if name.contains('!') {
            signature = signer.sign(b"something else");
        }
        SignedData { data: Bytes::from_static(MESSAGE).into(), identity, signature }
    };
    signers.split_whitespace().map(one).collect()
}

fn policy(text: &str) -> Policy {
    let wire = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    SignaturePolicy::compile(&wire).expect("what parses compiles").into()
}

#[test]
fn signature_policies_decide_as_fabric_does() {
    let cases = [
        // One principal, every role.
        ("'A.member'", "A.client0", true),
        ("'A.member'", "A.orderer1", true),
        ("'A.member'", "B.client0", false),
        ("'A.member'", "", false),
        ("'A.peer'", "A.peer0", true),
        ("'A.peer'", "A.client0", false),
        ("'A.admin'", "A.admin1", true),
        ("'A.admin'", "A.peer0", false),
        ("'A.client'", "A.client1", true),
        ("'A.orderer'", "A.orderer0", true),
        ("'A.orderer'", "A.admin0", false),
        // Gates.
        ("AND('A.peer', 'B.peer')", "A.peer0 B.peer0", true),
        ("AND('A.peer', 'B.peer')", "B.peer1 A.peer1", true),
        ("AND('A.peer', 'B.peer')", "A.peer0 A.peer1", false),
        ("OR('A.peer', 'B.peer')", "B.peer0", true),
        ("OR('A.peer', 'B.peer')", "C.peer0", false),
        ("OutOf(2, 'A.peer', 'B.peer', 'C.peer')", "A.peer0 C.peer0", true),
        ("OutOf(2, 'A.peer', 'B.peer', 'C.peer')", "A.peer0 D.peer0", false),
        ("OutOf(0, 'A.peer')", "", true),
        ("OutOf(2, 'A.peer')", "A.peer0 A.peer1", false),
        ("AND('A.peer', OR('B.peer', AND('C.peer', 'D.admin')))", "A.peer0 C.peer0 D.admin0", true),
        ("AND('A.peer', OR('B.peer', AND('C.peer', 'D.admin')))", "A.peer0 C.peer0 D.peer0", false),
        // Each signer once, each holder once.
        ("AND('A.peer', 'A.peer')", "A.peer0", false),
        ("AND('A.peer', 'A.peer')", "A.peer0 A.peer0", false),
        ("AND('A.peer', 'A.peer')", "A.peer0 A.peer0'", false),
        ("AND('A.peer', 'A.peer')", "A.peer0 A.peer1", true),
        // Wrong signatures and strangers do not count, and do not harm either.
        ("'A.peer'", "A.peer0!", false),
        ("'A.peer'", "X.peer0", false),
        ("'A.peer'", "X.peer0 B.peer0 A.peer1! A.peer0", true),
        ("'A.peer'", "A.peer0! A.peer0", true),
        ("AND('A.peer', 'A.peer')", "A.peer0! A.peer0' A.peer0", false),
        ("AND('A.peer', 'A.peer')", "A.peer0! A.peer1 A.peer0", true),
        // Greedy: the member takes the admin who would have been needed next.
        ("AND('A.member', 'A.admin')", "A.admin0 A.peer0", false),
        ("AND('A.member', 'A.admin')", "A.peer0 A.admin0", true),
        ("AND('A.admin', 'A.member')", "A.admin0 A.peer0", true),
        // A wrong signature of the admin leaves the member to the next.
        ("AND('A.member', 'A.admin')", "A.admin0! A.peer0 A.admin1", true),
        // A gate asks all its rules even after enough said yes, and what they took stays taken.
        ("AND(OR('A.peer', 'B.peer'), 'B.member')", "A.peer0 B.peer0", false),
        ("AND(OR('A.peer', 'B.peer'), 'B.member')", "A.peer0 B.peer0 B.peer1", true),
        ("AND('B.member', OR('A.peer', 'B.peer'))", "A.peer0 B.peer0", true),
        // A gate that fails gives back what its rules took.
        ("OR(AND('A.peer', 'C.peer'), 'A.member')", "A.peer0", true),
        ("AND(OutOf(1, AND('A.peer', 'C.peer'), 'B.peer'), 'A.peer')", "A.peer0 B.peer0", true),
    ];
    for (text, signers, holds) in cases {
        let expected = if holds { Ok(()) } else { Err(Error::PolicyUnsatisfied) };
        assert_eq!(policy(text).evaluate_signed(&signed(signers), &world().members), expected, "{text} | {signers}");
        if !signers.contains(['!', 'X']) {
            let identities: Vec<_> =
                signed(signers).iter().map(|s| world().members.identify(&s.identity).expect("a member")).collect();
            assert_eq!(policy(text).evaluate_identities(&identities), expected, "{text} | {signers}");
        }
    }
}

#[test]
fn a_signature_is_verified_only_when_wanted_and_once() {
    let signatures = signed("A.peer0 B.peer0 C.peer0 D.peer0");
    let set = SignatureSet::new(&signatures, &world().members).expect("few");
    assert_eq!(set.verified(), 0);
    assert_eq!(policy("OR('B.peer', 'C.peer')").evaluate(&set), Ok(()));
    assert_eq!(set.verified(), 1);
    assert_eq!(policy("AND('B.peer', 'C.peer')").evaluate(&set), Ok(()));
    assert_eq!(set.verified(), 2);
}

/// Who counts must not depend on which signatures somebody has verified before they were asked for.
#[test]
fn what_was_verified_ahead_counts_once_it_is_asked_for() {
    let signatures = signed("A.peer0 B.peer0! C.peer0 D.peer0");
    let set = SignatureSet::new(&signatures, &world().members).expect("few");
    let ahead: Vec<bool> = set.claims().map(|claim| SignatureVerifier::Library.verify(&claim).is_ok()).collect();
    assert_eq!(ahead, [true, false, true, true]);
    set.set_verdicts(ahead.into_iter().take(3));
    assert_eq!(set.verified(), 0);
    assert_eq!(set.claims().count(), 1, "the fourth is still open");
    assert_eq!(policy("OR('C.peer', 'D.peer')").evaluate(&set), Ok(()));
    assert_eq!(set.verified(), 1);
    assert_eq!(policy("AND('A.peer', 'D.peer')").evaluate(&set), Ok(()));
    assert_eq!(policy("'B.peer'").evaluate(&set), Err(Error::PolicyUnsatisfied));
    assert_eq!(set.verified(), 4);
    // A later set of the same signatures has nothing left to verify.
    let later = SignatureSet::new(&signatures, &world().members).expect("few");
    later.recall(set.known());
    assert_eq!((later.claims().count(), later.known()), (0, set.known()));
    assert_eq!(later.genuine_signers().len(), 3);
}

#[test]
fn large_sets_are_refused_whole() {
    let one = signed("A.peer0").remove(0);
    let many = vec![one; SIGNATURES_MAX + 1];
    let error = policy("'A.peer'").evaluate_signed(&many, &world().members).expect_err("refused");
    assert_eq!(error, Error::TooManySignatures(SIGNATURES_MAX + 1));
    assert!(policy("'A.peer'").evaluate_signed(&many[1..], &world().members).is_ok());
}

#[test]
fn principals_of_other_kinds_decide_too() {
    let peer = &world().signers["A.peer0"];
    let holder = world().members.identify(peer.serialized()).expect("a member");
    let wire = |classification: Classification, principal: Vec<u8>| MspPrincipal {
        principal_classification: classification as i32,
        principal: principal.into(),
    };
    let role = |msp, role| Principal::role_to_wire(msp, role);
    let combined = |principals: Vec<MspPrincipal>| {
        wire(Classification::Combined, CombinedPrincipal { principals }.encode_to_vec())
    };
    let identity = |name: &str| wire(Classification::Identity, world().signers[name].serialized().to_vec());
    let anonymity =
        |kind| wire(Classification::Anonymity, MspIdentityAnonymity { anonymity_type: kind }.encode_to_vec());
    let stranger = OrganizationUnit { msp_identifier: "A".to_owned(), ..OrganizationUnit::default() };
    let cases = [
        ("its own identity", identity("A.peer0"), true),
        ("another identity", identity("A.peer1"), false),
        ("identity that is none", wire(Classification::Identity, vec![1, 2, 3]), false),
        ("both roles it has", combined(vec![role("A", MemberRole::Peer), role("A", MemberRole::Member)]), true),
        ("a role it has not", combined(vec![role("A", MemberRole::Peer), role("A", MemberRole::Admin)]), false),
        ("nested", combined(vec![combined(vec![role("A", MemberRole::Peer)]), identity("A.peer0")]), true),
        ("all of nothing", combined(vec![]), false),
        ("anybody with a name", anonymity(0), true),
        ("the anonymous", anonymity(1), false),
        ("unit of no chain", wire(Classification::OrganizationUnit, stranger.encode_to_vec()), false),
        ("unknown role", wire(Classification::Role, vec![0x0a, 1, b'A', 0x10, 9]), false),
        ("unknown kind", MspPrincipal { principal_classification: 17, principal: Bytes::new() }, false),
    ];
    for (name, principal, satisfied) in cases {
        assert_eq!(holder.satisfies(&Principal::from_wire(&principal)), satisfied, "{name}");
    }
}

/// An organisation that replaces its root has two for a while. A request for a unit under one of them does not get the same
/// unit, of the same name, under the other.
#[test]
fn a_unit_under_one_root_of_an_organisation_is_not_the_same_unit_under_its_other_root() {
    let roots = [1, 2].map(|seed| {
        IssuingOrganization::create("A", "a.example.com", &CertificateTerms::seeded([seed; 32])).expect("founded")
    });
    let mut definition = roots[0].definition();
    definition.root_certs.push(roots[1].authority().certificate_pem().clone());
    let units = definition.fabric_node_ous.as_mut().expect("it marks its nodes");
    // Either root may vouch for a node.
    let marks = [
        &mut units.client_ou_identifier,
        &mut units.peer_ou_identifier,
        &mut units.admin_ou_identifier,
        &mut units.orderer_ou_identifier,
    ];
    marks.into_iter().flatten().for_each(|unit| unit.certificate = Bytes::new());
    let members = MspManager::new([Arc::new(crate::Msp::from_fabric(&definition).expect("valid"))]);
    let signed = roots.each_ref().map(|root| {
        let signer = root.issue(MemberRole::Peer, "peer0").expect("issued");
        let signature = signer.sign(MESSAGE);
        SignedData { data: Bytes::from_static(MESSAGE).into(), identity: signer.serialized().clone(), signature }
    });
    let unit_under = |roots: &[&IssuingOrganization]| {
        let principal = |root: &&IssuingOrganization| {
            let certifiers = crate::digest::sha256([&root.authority().certificate().der()[..]]);
            let unit = OrganizationUnit {
                msp_identifier: "A".to_owned(),
                organizational_unit_identifier: "peer".to_owned(),
                certifiers_identifier: Bytes::copy_from_slice(&certifiers),
            };
            MspPrincipal {
                principal_classification: Classification::OrganizationUnit as i32,
                principal: unit.encode_to_vec().into(),
            }
        };
        let by = |position: usize| WireRule { r#type: Some(Type::SignedBy(position as i32)) };
        let all = NOutOf { n: roots.len() as i32, rules: (0..roots.len()).map(by).collect() };
        let wire = SignaturePolicyEnvelope {
            version: 0,
            rule: Some(WireRule { r#type: Some(Type::NOutOf(all)) }),
            identities: roots.iter().map(principal).collect(),
        };
        Policy::from(SignaturePolicy::compile(&wire).expect("it compiles"))
    };
    for (own, other) in [(0, 1), (1, 0)] {
        let policy = unit_under(&[&roots[own]]);
        policy.evaluate_signed(&signed[own..=own], &members).expect("the unit under its root");
        let refused = policy.evaluate_signed(&signed[other..=other], &members);
        assert_eq!(refused, Err(Error::PolicyUnsatisfied), "the unit under the other root");
    }
    let both = unit_under(&[&roots[0], &roots[1]]);
    both.evaluate_signed(&signed, &members).expect("one of each");
    assert_eq!(both.evaluate_signed(&[signed[0].clone(), signed[0].clone()], &members), Err(Error::PolicyUnsatisfied));
    // Where a role is enough, either is one.
    for signed in signed.chunks(1) {
        policy("'A.peer'").evaluate_signed(signed, &members).expect("a peer of the organisation");
    }
}

#[test]
fn definitions_out_of_bounds_are_refused() {
    let leaf = |position| WireRule { r#type: Some(Type::SignedBy(position)) };
    let gate = |n, rules| WireRule { r#type: Some(Type::NOutOf(NOutOf { n, rules })) };
    let envelope = |rule: Option<WireRule>| SignaturePolicyEnvelope {
        version: 0,
        rule,
        identities: vec![Principal::role_to_wire("A", MemberRole::Peer)],
    };
    let deep = |depth| (0..depth).fold(leaf(0), |rule, _| gate(1, vec![rule]));
    let compile = |rule| SignaturePolicy::compile(&envelope(Some(rule)));
    assert!(compile(leaf(0)).is_ok());
    assert!(compile(leaf(1)).is_err());
    assert!(compile(leaf(-1)).is_err());
    assert!(compile(deep(DEPTH_MAX - 1)).is_ok());
    assert!(compile(deep(DEPTH_MAX)).is_err());
    assert!(compile(gate(1, vec![leaf(0); RULES_MAX - 1])).is_ok());
    assert!(compile(gate(1, vec![leaf(0); RULES_MAX])).is_err());
    assert!(compile(gate(1, vec![WireRule { r#type: None }])).is_err());
    assert!(SignaturePolicy::compile(&envelope(None)).is_err());
    assert!(SignaturePolicy::compile(&SignaturePolicyEnvelope { version: 1, ..envelope(Some(leaf(0))) }).is_err());
    // Numbers that make no sense are Fabric's to judge: below one always holds, too many never does.
    let empty = SignatureSet::of_verified(&[]).expect("few");
    for (n, holds) in [(i32::MIN, true), (0, true), (1, false), (i32::MAX, false)] {
        assert_eq!(compile(gate(n, vec![leaf(0)])).expect("compiles").is_satisfied(&empty), holds, "{n}");
    }
}

fn group(policies: &[(&str, proto::common::Policy)], groups: Vec<(&str, ConfigGroup)>) -> ConfigGroup {
    let policy =
        |policy: &proto::common::Policy| ConfigPolicy { policy: Some(policy.clone()), ..ConfigPolicy::default() };
    ConfigGroup {
        policies: policies.iter().map(|(name, wire)| ((*name).to_owned(), policy(wire))).collect(),
        groups: groups.into_iter().map(|(name, group)| (name.to_owned(), group)).collect(),
        ..ConfigGroup::default()
    }
}

fn channel_of(organizations: &[&str], rule: MetaRule) -> PolicyTree {
    fn of<'a>(name: &&'a str) -> (&'a str, ConfigGroup) {
        let endorsement = parse(&format!("'{name}.peer'")).expect("parses");
        (*name, group(&[("Endorsement", signature_to_wire(&endorsement))], vec![]))
    }
    // "Empty" has no endorsement policy but counts.
    let mut groups: Vec<_> = organizations.iter().filter(|name| **name != "Empty").map(of).collect();
    if organizations.contains(&"Empty") {
        groups.push(("Empty", ConfigGroup::default()));
    }
    let application = group(&[("Endorsement", implicit_meta_to_wire(rule, "Endorsement"))], groups);
    let channel =
        group(&[("Any", implicit_meta_to_wire(MetaRule::Any, "Endorsement"))], vec![("Application", application)]);
    PolicyTree::compile("Channel", &channel).expect("compiles")
}

#[test]
fn implicit_meta_policies_count_organisations() {
    let cases = [
        (MetaRule::Any, "A B C", "B.peer0", true),
        (MetaRule::Any, "A B C", "D.peer0", false),
        (MetaRule::All, "A B C", "A.peer0 B.peer0 C.peer0", true),
        (MetaRule::All, "A B C", "A.peer0 B.peer0", false),
        (MetaRule::Majority, "A B C", "A.peer0 C.peer0", true),
        (MetaRule::Majority, "A B C", "A.peer0 A.peer1", false),
        (MetaRule::Majority, "A B C D", "A.peer0 B.peer0", false),
        (MetaRule::Majority, "A B C D", "A.peer0 B.peer0 D.peer0", true),
        (MetaRule::Majority, "A B Empty", "A.peer0 B.peer0", true),
        (MetaRule::All, "A B Empty", "A.peer0 B.peer0", false),
        (MetaRule::Majority, "", "", true),
        (MetaRule::All, "", "", true),
        (MetaRule::Any, "", "", true),
    ];
    for (rule, organizations, signers, holds) in cases {
        let tree = channel_of(&organizations.split_whitespace().collect::<Vec<_>>(), rule);
        for path in ["/Channel/Application/Endorsement", "Application/Endorsement", "/Channel/Any"] {
            let verdict = tree.require(path).expect("defined").evaluate_signed(&signed(signers), &world().members);
            assert_eq!(verdict.is_ok(), holds, "{rule:?} of {organizations} by {signers} at {path}");
        }
    }
}

#[test]
fn paths_lead_to_policies_or_to_one_that_nobody_satisfies() {
    let tree = channel_of(&["A"], MetaRule::Any);
    let paths: Vec<_> = tree.iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["Any", "Application/A/Endorsement", "Application/Endorsement"]);
    for path in
        ["", "/", "/Channel", "/Channel/", "/Canal/Any", "//Any", "Channel/Any", "/Channel/Application", "Nothing"]
    {
        assert!(matches!(tree.get(path), Policy::Missing), "{path:?}");
        assert_eq!(tree.require(path).expect_err("missing"), Error::UnknownPolicy(path.to_owned()));
    }
    assert_eq!(
        tree.get("Nothing").evaluate_signed(&signed("A.peer0"), &world().members),
        Err(Error::PolicyUnsatisfied)
    );
}

#[test]
fn contracts_carry_their_own_policy_or_a_path() {
    let tree = channel_of(&["A", "B"], MetaRule::Majority);
    let own = of_signature(parse("'C.peer'").expect("parses")).encode_to_vec();
    let own = ApplicationPolicy::decode(&own.into()).expect("decodes").resolve(&tree);
    let path = channel_reference("/Channel/Application/Endorsement").encode_to_vec();
    let path = ApplicationPolicy::decode(&path.into()).expect("decodes").resolve(&tree);
    for (signers, own_holds, path_holds) in [("C.peer0", true, false), ("A.peer0 B.peer1", false, true)] {
        assert_eq!(own.evaluate_signed(&signed(signers), &world().members).is_ok(), own_holds);
        assert_eq!(path.evaluate_signed(&signed(signers), &world().members).is_ok(), path_holds);
    }
    assert!(ApplicationPolicy::decode(&Bytes::new()).is_err());
    assert!(ApplicationPolicy::decode(&Bytes::from_static(b"\xff\xff")).is_err());
}

#[test]
fn texts_that_are_no_policy_are_refused() {
    let bad = [
        "",
        "A",
        "'A'",
        "'A.chief'",
        "'.peer'",
        "'A.peer",
        "AND()",
        "AND('A.peer'",
        "AND('A.peer',)",
        "XOR('A.peer')",
        "OutOf('A.peer', 1)",
        "OutOf(1)",
        "OutOf(3, 'A.peer')",
        "OutOf(-1, 'A.peer')",
        "'A.peer' 'B.peer'",
        "'A B.peer'",
        "AND('A.peer'))",
        "OutOf(99999999999, 'A.peer')",
    ];
    for text in bad {
        assert!(parse(text).is_err(), "{text}");
    }
    assert!(parse(&"AND(".repeat(10_000)).is_err());
    for (text, printed) in [
        ("and( 'A.peer' ,\"B-1.org.admin\")", "AND('A.peer', 'B-1.org.admin')"),
        ("Or('A.peer')", "OR('A.peer')"),
        ("OUTOF('2','A.peer','B.client','C.orderer')", "OutOf(2, 'A.peer', 'B.client', 'C.orderer')"),
        ("'A.member'", "'A.member'"),
    ] {
        assert_eq!(SignaturePolicy::compile(&parse(text).expect(text)).expect("compiles").to_string(), printed);
    }
}

fn layouts_of(policy: &Policy) -> Vec<String> {
    let text = |layout: EndorsementLayout| {
        layout.iter().map(|(msp, count)| format!("{msp}{count}")).collect::<Vec<_>>().join(" ")
    };
    policy.layouts().into_iter().map(text).collect()
}

#[test]
fn layouts_are_the_smallest_choices_of_organisations() {
    for (text, layouts) in [
        ("'A.peer'", vec!["A1"]),
        ("'A.admin'", vec![]),
        ("OR('A.peer', 'A.admin', 'A.member')", vec!["A1"]),
        ("AND('A.peer', 'B.peer')", vec!["A1 B1"]),
        ("AND('A.peer', 'A.peer')", vec!["A2"]),
        ("OR('A.peer', AND('A.peer', 'B.peer'))", vec!["A1"]),
        ("OR('A.peer', AND('B.peer', 'C.peer'))", vec!["A1", "B1 C1"]),
        ("OutOf(2, 'A.peer', 'B.peer', 'C.peer')", vec!["A1 B1", "A1 C1", "B1 C1"]),
        ("OutOf(2, 'A.peer', 'B.client', 'C.peer')", vec!["A1 C1"]),
        ("OutOf(2, 'A.peer')", vec![]),
        ("OutOf(0, 'A.peer')", vec![""]),
    ] {
        assert_eq!(layouts_of(&policy(text)), layouts, "{text}");
    }
    let tree = channel_of(&["A", "B", "C"], MetaRule::Majority);
    assert_eq!(layouts_of(&tree.get("Application/Endorsement")), ["A1 B1", "A1 C1", "B1 C1"]);
    assert!(tree.get("Nothing").layouts().is_empty());
}

#[test]
fn layouts_of_huge_policies_stay_few_and_cheap() {
    let principals: Vec<_> = (0..60).map(|i| format!("'Org{i}.peer'")).collect();
    let majority = format!("OutOf(31, {})", principals.join(", "));
    let layouts = policy(&majority).layouts();
    assert_eq!(layouts.len(), LAYOUTS_MAX);
    assert!(layouts.iter().all(|layout| layout.len() == 31));
    let wide =
        format!("AND({})", principals.iter().map(|p| format!("OR({p}, 'X.peer')")).collect::<Vec<_>>().join(", "));
    assert!(policy(&wide).layouts().len() <= LAYOUTS_MAX);
    // Many such policies take no longer than one.
    let mut budget = LayoutBudget::default();
    let searches = (0..20).filter(|_| !policy(&majority).layouts_within(&mut budget).is_empty()).count();
    assert!((1..20).contains(&searches), "{searches} searches found layouts");
    assert!(policy("'A.peer'").layouts_within(&mut LayoutBudget::default()).len() == 1);
}

/// Fabric's algorithm as it is written there: all signatures first, then the tree, with no shortcut.
fn fabric_decides(policy: &SignaturePolicy, signatures: &[SignedData]) -> bool {
    use super::super::signature::SignatureRule;
    fn ask(policy: &SignaturePolicy, rule: &SignatureRule, signers: &[Arc<Identity>], used: &mut Vec<bool>) -> bool {
        match rule {
            SignatureRule::SignedBy(principal) => {
                let principal = &policy.principals()[*principal];
                let found = (0..signers.len()).find(|i| !used[*i] && signers[*i].satisfies(principal));
                found.inspect(|i| used[*i] = true).is_some()
            }
            SignatureRule::OutOf(n, rules) => {
                let mut held = 0;
                for rule in rules {
                    let mut attempt = used.clone();
                    if ask(policy, rule, signers, &mut attempt) {
                        held += 1;
                        *used = attempt;
                    }
                }
                held >= *n
            }
        }
    }
    let mut signers: Vec<Arc<Identity>> = Vec::new();
    for signed in signatures {
        let Ok(identity) = world().members.identify(&signed.identity) else { continue };
        let known = signers.iter().any(|signer| signer.is_same_holder(&identity));
        if !known && identity.verify(MESSAGE, &signed.signature).is_ok() {
            signers.push(identity);
        }
    }
    let mut used = vec![false; signers.len()];
    ask(policy, policy.rule(), &signers, &mut used)
}

fn any_policy() -> impl Strategy<Value = String> {
    let principal = (prop::sample::select(vec!["A", "B"]), prop::sample::select(vec!["member", "peer", "admin"]))
        .prop_map(|(msp, role)| format!("'{msp}.{role}'"));
    principal.prop_recursive(4, 24, 4, |below| {
        prop::collection::vec(below, 1..5)
            .prop_flat_map(|rules| (0..=rules.len() + 1, Just(rules)))
            .prop_map(|(n, rules)| format!("OutOf({n}, {})", rules.join(", ")))
    })
}

fn any_signers() -> impl Strategy<Value = String> {
    let one = (
        prop::sample::select(vec!["A", "B", "X"]),
        prop::sample::select(vec!["peer0", "peer1", "admin0", "client0"]),
        prop::sample::select(vec!["", "", "!", "'", "'!"]),
    );
    prop::collection::vec(one.prop_map(|(msp, name, mark)| format!("{msp}.{name}{mark}")), 0..8)
        .prop_map(|signers| signers.join(" "))
}

proptest! {
    #[test]
    fn lazy_evaluation_decides_as_fabric_does(text in any_policy(), signers in any_signers()) {
        let compiled = SignaturePolicy::compile(&parse(&text).expect("generated")).expect("compiles");
        let signatures = signed(&signers);
        let expected = fabric_decides(&compiled, &signatures);
        let verdict = Policy::from(compiled).evaluate_signed(&signatures, &world().members);
        prop_assert_eq!(verdict.is_ok(), expected, "{} | {}", text, signers);
    }

    #[test]
    fn printed_policies_parse_to_the_same_policy(text in any_policy()) {
        let compiled = SignaturePolicy::compile(&parse(&text).expect("generated")).expect("compiles");
        let again = SignaturePolicy::compile(&parse(&print(&compiled)).expect("printed")).expect("compiles");
        prop_assert_eq!(again, compiled);
    }

    #[test]
    fn parsers_survive_random_input(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&text);
        let bytes = Bytes::from(bytes);
        let _ = SignaturePolicy::decode(&bytes);
        let _ = ApplicationPolicy::decode(&bytes);
        if let Ok(wire) = MspPrincipal::decode(bytes.clone()) {
            let _ = Principal::from_wire(&wire);
        }
        if let Ok(group) = ConfigGroup::decode(bytes) {
            let _ = PolicyTree::compile("Channel", &group);
        }
    }

    #[test]
    fn parsers_survive_random_tokens(tokens in prop::collection::vec(prop::sample::select(
        vec!["AND", "OR", "OutOf", "(", ")", ",", "'A.peer'", "\"B.admin\"", "2", "'", " "]), 0..40)) {
        if let Ok(wire) = parse(&tokens.concat()) {
            prop_assert!(SignaturePolicy::compile(&wire).is_ok());
        }
    }
}
