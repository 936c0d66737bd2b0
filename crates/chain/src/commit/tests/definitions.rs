//! Tests of definitions on the ledger: who may change them, from which block on they count, and what collides with a change.

use prost::Message as _;
use proto::lifecycle::chaincode_source::Unavailable;
use proto::lifecycle::{
    ApproveChaincodeDefinitionForMyOrgArgs, ChaincodeSource, CheckCommitReadinessArgs, CheckCommitReadinessResult,
    CommitChaincodeDefinitionArgs, QueryApprovedChaincodeDefinitionArgs, QueryApprovedChaincodeDefinitionResult,
    QueryApprovedChaincodeDefinitionsArgs, QueryApprovedChaincodeDefinitionsResult, QueryChaincodeDefinitionArgs,
    QueryChaincodeDefinitionResult, chaincode_source,
};

use super::*;
use crate::support::{SignedTestProposal, encode, submit_proposal};

/// Two organisations; one endorsement is enough unless a definition says otherwise.
struct Net {
    consortium: Consortium,
    peers: [Arc<Peer>; 2],
    orderer: Arc<Orderer>,
    admins: [Client; 2],
    client: Client,
}

async fn net(root: &Directory) -> Net {
    let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::Any));
    let orderer = orderer(&consortium, root).await;
    let peers = [peer(&consortium, root, 0).await, peer(&consortium, root, 1).await];
    let admin = |index: usize| Client { signer: consortium.admin(&consortium.organizations[index]) };
    Net { admins: [admin(0), admin(1)], client: consortium.client(), consortium, peers, orderer }
}

/// A policy that both organisations must satisfy.
fn both() -> Bytes {
    let policy = identity::policy::parse("AND('Org1MSP.peer', 'Org2MSP.peer')").expect("a policy");
    encode(&identity::policy::of_signature(policy))
}

fn approval(sequence: i64, policy: &Bytes) -> ApproveChaincodeDefinitionForMyOrgArgs {
    let source = ChaincodeSource { r#type: Some(chaincode_source::Type::Unavailable(Unavailable {})) };
    ApproveChaincodeDefinitionForMyOrgArgs {
        sequence,
        name: "basic".to_owned(),
        version: format!("{sequence}.0"),
        validation_parameter: policy.clone(),
        source: Some(source),
        ..Default::default()
    }
}

fn commit(sequence: i64, policy: &Bytes) -> CommitChaincodeDefinitionArgs {
    let ApproveChaincodeDefinitionForMyOrgArgs { name, version, .. } = approval(sequence, policy);
    CommitChaincodeDefinitionArgs {
        sequence,
        name,
        version,
        validation_parameter: policy.clone(),
        ..Default::default()
    }
}

impl Net {
    /// The code that a transaction gets at both peers.
    async fn code(&self, client: &Client, peers: &[usize], proposal: SignedTestProposal) -> Code {
        let endorsers: Vec<&Arc<Peer>> = peers.iter().map(|index| &self.peers[*index]).collect();
        let tx_id = submit_proposal(client, &endorsers, &self.orderer, proposal).await;
        let mut codes = Vec::new();
        for peer in &self.peers {
            let channel = peer.channel(CHANNEL).expect("joined");
            codes.push(channel.wait_committed(&tx_id).await.expect("the channel runs").code);
        }
        assert_eq!(codes[0], codes[1]);
        codes[0]
    }

    /// The answer of an organisation's peer, status and message.
    async fn answer(&self, peer: usize, proposal: SignedTestProposal) -> (i32, Bytes, String) {
        let response = self.peers[peer].process(proposal.bytes).await.expect("an answer");
        let response = response.response.expect("an answer");
        (response.status, response.payload, response.message)
    }

    async fn approve(&self, organization: usize, sequence: i64, policy: &Bytes) -> Code {
        let admin = &self.admins[organization];
        let proposal = admin.lifecycle("ApproveChaincodeDefinitionForMyOrg", &approval(sequence, policy));
        self.code(admin, &[organization], proposal).await
    }

    async fn commit(&self, sequence: i64, policy: &Bytes) -> Code {
        let proposal = self.admins[0].lifecycle("CommitChaincodeDefinition", &commit(sequence, policy));
        self.code(&self.admins[0], &[0, 1], proposal).await
    }

    fn write(&self, asset: &str) -> SignedTestProposal {
        self.client.proposal("basic", "CreateAsset", &[asset, "red", "5", "me", "100"])
    }
}

#[test]
fn a_definition_counts_from_the_block_after_its_own_on() {
    let run = Simulation::new(1).run(|_| async {
        let root = Directory::open("root").await.expect("it is made");
        let net = net(&root).await;
        let policy = both();
        assert_eq!(net.code(&net.client, &[0], net.write("one")).await, Code::VALID, "one endorsement is enough");
        // A gateway learns that an approval needs its own organisation alone.
        let proposal = net.admins[0].lifecycle("ApproveChaincodeDefinitionForMyOrg", &approval(1, &policy));
        let endorsed = net.peers[0].process(proposal.bytes).await.expect("it is endorsed");
        let interest = endorsed.interest.expect("every endorsement states one");
        let named = |call: &proto::protos::ChaincodeCall| (call.name.clone(), call.collection_names.clone());
        let expected = ("_lifecycle".to_owned(), vec!["_implicit_org_Org1MSP".to_owned()]);
        assert_eq!(interest.chaincodes.iter().map(named).collect::<Vec<_>>(), [expected]);
        assert_eq!(net.approve(0, 1, &policy).await, Code::VALID);

        // The second organisation has not approved: its peer endorses no commit, and one endorsement is no majority.
        let ready = CheckCommitReadinessArgs {
            sequence: 1,
            name: "basic".to_owned(),
            version: "1.0".to_owned(),
            validation_parameter: policy.clone(),
            ..Default::default()
        };
        let (status, payload, message) = net.answer(0, net.client.lifecycle("CheckCommitReadiness", &ready)).await;
        assert_eq!(status, 200, "{message}");
        let readiness = CheckCommitReadinessResult::decode(payload).expect("a result");
        assert_eq!(readiness.approvals, [("Org1MSP".to_owned(), true), ("Org2MSP".to_owned(), false)].into());
        assert_eq!(readiness.mismatches["Org2MSP"].items, ["ChaincodeParameters"]);
        let early = || net.admins[0].lifecycle("CommitChaincodeDefinition", &commit(1, &policy));
        let (status, _, message) = net.answer(1, early()).await;
        assert!(status == 500 && message.contains("not agreed to by this org (Org2MSP)"), "{message}");
        assert_eq!(net.code(&net.admins[0], &[0], early()).await, Code::ENDORSEMENT_POLICY_FAILURE);

        assert_eq!(net.approve(1, 1, &policy).await, Code::VALID);
        assert_eq!(net.commit(1, &policy).await, Code::VALID);
        assert_eq!(net.code(&net.client, &[0], net.write("two")).await, Code::ENDORSEMENT_POLICY_FAILURE);
        assert_eq!(net.code(&net.client, &[0, 1], net.write("two")).await, Code::VALID);

        // A transaction that ran under one definition collides with the next, even if its endorsements suffice.
        let stale = net.write("three");
        let mut responses = Vec::new();
        for peer in &net.peers {
            responses.push(peer.process(stale.bytes.clone()).await.expect("in order"));
        }
        let channel_policy = rules::definitions::channel_policy();
        assert_eq!(net.approve(0, 2, &channel_policy).await, Code::VALID);
        assert_eq!(net.approve(1, 2, &channel_policy).await, Code::VALID);
        assert_eq!(net.commit(2, &channel_policy).await, Code::VALID);
        net.orderer.broadcast(CHANNEL, net.client.envelope(&stale, &responses)).await.expect("taken");
        let channel = net.peers[0].channel(CHANNEL).expect("joined");
        let status = channel.wait_committed(&stale.tx_id).await.expect("the channel runs");
        assert_eq!(status.code, Code::MVCC_READ_CONFLICT);
        assert_eq!(
            net.code(&net.client, &[1], net.write("three")).await,
            Code::VALID,
            "one endorsement is enough again"
        );

        let asked = QueryChaincodeDefinitionArgs { name: "basic".to_owned() };
        let (_, payload, message) = net.answer(0, net.client.lifecycle("QueryChaincodeDefinition", &asked)).await;
        let defined = QueryChaincodeDefinitionResult::decode(payload).expect("a result");
        assert_eq!((defined.sequence, defined.version.as_str()), (2, "2.0"), "{message}");
        assert_eq!(defined.approvals, [("Org1MSP".to_owned(), true), ("Org2MSP".to_owned(), true)].into());
        let (digests, policies): (Vec<_>, Vec<_>) = net
            .peers
            .iter()
            .map(|peer| peer.channel(CHANNEL).expect("joined"))
            .map(|channel| (channel.height(), channel.policies().digest().to_vec()))
            .unzip();
        assert_eq!((&digests[0], &policies[0]), (&digests[1], &policies[1]));

        // A peer that starts again finds the definitions in its state.
        net.peers[0].stop().await.expect("the peer stops");
        let again = peer(&net.consortium, &root, 0).await;
        let channel = again.channel(CHANNEL).expect("joined");
        assert_eq!(channel.policies().definitions()["basic"].sequence, 2);
        again.stop().await.expect("the peer stops");
        net.peers[1].stop().await.expect("the peer stops");
        net.orderer.stop().await;
    });
    run.expect("the run succeeds");
}

#[test]
fn who_may_not_change_definitions_gets_an_error_that_says_so() {
    let run = Simulation::new(1).run(|_| async {
        let root = Directory::open("root").await.expect("it is made");
        let net = net(&root).await;
        let policy = both();
        let approve = |client: &Client, args: &ApproveChaincodeDefinitionForMyOrgArgs| {
            client.lifecycle("ApproveChaincodeDefinitionForMyOrg", args)
        };
        let right = approval(1, &policy);
        let named = |name: &str| ApproveChaincodeDefinitionForMyOrgArgs { name: name.to_owned(), ..right.clone() };
        let cases = [
            ("a client", approve(&net.client, &right), "The identity does not contain OU [ADMIN], MSP: [Org1MSP]]"),
            (
                "another organisation's administrator",
                approve(&net.admins[1], &right),
                "[expected MSP ID Org1MSP, received Org2MSP]",
            ),
            ("a later sequence", approve(&net.admins[0], &approval(2, &policy)), "next available sequence number 1"),
            ("no sequence", approve(&net.admins[0], &approval(0, &policy)), "first definable sequence number is 1"),
            ("a name", approve(&net.admins[0], &named("a/b")), "invalid chaincode name"),
            ("a long name", approve(&net.admins[0], &named(&"a".repeat(256))), "names of at most 255"),
            ("a system contract", approve(&net.admins[0], &named("qscc")), "is the name of a system chaincode"),
            (
                "no arguments",
                net.admins[0].proposal("_lifecycle", "CommitChaincodeDefinition", &[]),
                "exactly two arguments",
            ),
            (
                "an unknown function",
                net.client.lifecycle("Nonsense", &right),
                "failed ACL check: Unmapped policy for _lifecycle/Nonsense",
            ),
            (
                "a commit ahead",
                net.admins[0].lifecycle("CommitChaincodeDefinition", &commit(2, &policy)),
                "must be sequence 1",
            ),
        ];
        for (what, proposal, expected) in cases {
            let (status, _, message) = net.answer(0, proposal).await;
            assert!(status == 500 && message.contains(expected), "{what}: {status} {message}");
        }
        assert_eq!(net.approve(0, 1, &policy).await, Code::VALID);
        let (_, _, message) = net.answer(0, approve(&net.admins[0], &right)).await;
        assert!(message.contains("with unchanged content"), "{message}");
        let asked = QueryChaincodeDefinitionArgs { name: "absent".to_owned() };
        let (status, ..) = net.answer(0, net.client.lifecycle("QueryChaincodeDefinition", &asked)).await;
        assert_eq!(status, 404);
        for peer in &net.peers {
            peer.stop().await.expect("the peer stops");
        }
        net.orderer.stop().await;
    });
    run.expect("the run succeeds");
}

/// A contract whose definition asks for it must be initialised under each version, and once.
#[test]
fn a_contract_that_needs_it_is_initialized_once_for_each_version() {
    let run = Simulation::new(1).run(|_| async {
        let root = Directory::open("root").await.expect("it is made");
        let net = net(&root).await;
        let policy = rules::definitions::channel_policy();
        let define = async |sequence: i64, version: &str| {
            for (index, admin) in net.admins.iter().enumerate() {
                let right = approval(sequence, &policy);
                let args = ApproveChaincodeDefinitionForMyOrgArgs {
                    version: version.to_owned(),
                    init_required: true,
                    ..right
                };
                let proposal = admin.lifecycle("ApproveChaincodeDefinitionForMyOrg", &args);
                assert_eq!(net.code(admin, &[index], proposal).await, Code::VALID);
            }
            let right = commit(sequence, &policy);
            let args = CommitChaincodeDefinitionArgs { version: version.to_owned(), init_required: true, ..right };
            let proposal = net.admins[0].lifecycle("CommitChaincodeDefinition", &args);
            assert_eq!(net.code(&net.admins[0], &[0, 1], proposal).await, Code::VALID);
        };
        let refused = async |proposal: SignedTestProposal, expected: &str| {
            let error = net.peers[0].process(proposal.bytes).await.expect_err("the definition does not allow it");
            // As in Fabric, the answer carries nothing of the simulation.
            let answer = error.response().expect("the call itself succeeds");
            let response = answer.response.expect("an answer");
            assert!(response.status == 500 && response.message.ends_with(expected), "{response:?}");
            assert!(response.message.starts_with("error in simulation: failed to execute transaction "));
            assert!(answer.payload.is_empty() && answer.endorsement.is_none());
        };
        let init = || net.client.initialization("basic", "InitLedger");
        refused(init(), "chaincode 'basic' does not require initialization but called as init").await;
        define(1, "1.0").await;
        refused(net.write("one"), "must call as init first").await;
        assert_eq!(net.code(&net.client, &[0], init()).await, Code::VALID);
        assert_eq!(net.code(&net.client, &[0], net.write("one")).await, Code::VALID);
        refused(init(), "chaincode 'basic' is already initialized but called as init").await;
        // The same version needs no new initialisation, another one does.
        define(2, "1.0").await;
        assert_eq!(net.code(&net.client, &[0], net.write("two")).await, Code::VALID);
        define(3, "2.0").await;
        refused(net.write("three"), "must call as init first").await;
        for peer in &net.peers {
            peer.stop().await.expect("the peer stops");
        }
        net.orderer.stop().await;
    });
    run.expect("the run succeeds");
}

/// As in Fabric, a peer runs a contract only under a definition that its organisation has approved, and shows its administrators what
/// they have approved.
#[test]
fn a_peer_runs_what_its_own_organisation_has_approved() {
    let run = Simulation::new(1).run(|_| async {
        let root = Directory::open("root").await.expect("it is made");
        let net = net(&root).await;
        let either = identity::policy::parse("OR('Org1MSP.peer', 'Org2MSP.peer')").expect("a policy");
        let either = encode(&identity::policy::of_signature(either));
        let ask = |sequence| QueryApprovedChaincodeDefinitionArgs { name: "basic".to_owned(), sequence };
        let approved = async |peer: usize, sequence: i64| {
            let question = net.admins[peer].lifecycle("QueryApprovedChaincodeDefinition", &ask(sequence));
            let (status, payload, message) = net.answer(peer, question).await;
            match status {
                200 => Ok(QueryApprovedChaincodeDefinitionResult::decode(payload).expect("a result").sequence),
                _ => Err(message),
            }
        };
        net.approve(0, 1, &either).await;
        assert_eq!(approved(0, 0).await, Ok(1), "the next one");
        let refused = approved(1, 0).await.expect_err("it has approved nothing");
        assert!(refused.ends_with("(name: 'basic', sequence: '0') on channel 'ch'"), "{refused}");
        net.approve(1, 1, &either).await;
        assert_eq!(net.commit(1, &either).await, Code::VALID);
        assert_eq!(net.approve(0, 2, &both()).await, Code::VALID);
        assert_eq!(approved(0, 0).await, Ok(2));
        assert_eq!(approved(0, 1).await, Ok(1));
        assert_eq!(approved(1, 0).await, Ok(1), "the committed one");
        let all =
            net.admins[0].lifecycle("QueryApprovedChaincodeDefinitions", &QueryApprovedChaincodeDefinitionsArgs {});
        let (status, payload, message) = net.answer(0, all).await;
        assert_eq!(status, 200, "{message}");
        let all = QueryApprovedChaincodeDefinitionsResult::decode(payload).expect("a result");
        let all = all.approved_chaincode_definitions.into_iter().map(|found| (found.name, found.sequence));
        assert_eq!(all.collect::<Vec<_>>(), [("basic".to_owned(), 1), ("basic".to_owned(), 2)]);
        let (status, _, message) =
            net.answer(0, net.admins[1].lifecycle("QueryApprovedChaincodeDefinition", &ask(1))).await;
        assert!(status == 500 && message.contains("failed ACL check"), "{message}");

        net.approve(1, 2, &both()).await;
        assert_eq!(net.commit(2, &both()).await, Code::VALID);
        assert_eq!(net.code(&net.client, &[0, 1], net.write("approved")).await, Code::VALID);
    });
    run.expect("the run succeeds");
}

/// A majority defines a contract; the peer of an organisation that has not approved it does not run it until the organisation does.
#[test]
fn an_organisation_that_has_not_approved_a_definition_runs_it_once_it_does() {
    let run = Simulation::new(1).run(|_| async {
        let root = Directory::open("root").await.expect("it is made");
        let consortium = Consortium::create(ConsortiumConfig::seeded(3, EndorsementRule::Any));
        let orderer = orderer(&consortium, &root).await;
        let mut peers = Vec::new();
        for index in 0..3 {
            peers.push(peer(&consortium, &root, index).await);
        }
        let any = identity::policy::parse("OR('Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')").expect("a policy");
        let any = encode(&identity::policy::of_signature(any));
        let admin = |index: usize| Client { signer: consortium.admin(&consortium.organizations[index]) };
        let submitted = async |client: &Client, endorsers: &[usize], proposal: SignedTestProposal| {
            let endorsers: Vec<&Arc<Peer>> = endorsers.iter().map(|index| &peers[*index]).collect();
            let tx_id = submit_proposal(client, &endorsers, &orderer, proposal).await;
            for peer in &peers {
                let channel = peer.channel(CHANNEL).expect("joined");
                assert_eq!(channel.wait_committed(&tx_id).await.expect("the channel runs").code, Code::VALID);
            }
        };
        let approve = async |index: usize| {
            let proposal = admin(index).lifecycle("ApproveChaincodeDefinitionForMyOrg", &approval(1, &any));
            submitted(&admin(index), &[index], proposal).await;
        };
        approve(0).await;
        approve(1).await;
        submitted(&admin(0), &[0, 1], admin(0).lifecycle("CommitChaincodeDefinition", &commit(1, &any))).await;
        let client = consortium.client();
        let write = |asset: &str| client.proposal("basic", "CreateAsset", &[asset, "red", "5", "me", "100"]);
        submitted(&client, &[0], write("one")).await;
        let refused = peers[2].process(write("two").bytes).await.expect_err("its organisation has not approved it");
        let expected = "make sure the chaincode basic has been successfully defined on channel ch and try again: chaincode definition \
                        for 'basic' at sequence 1 on channel 'ch' has not yet been approved by this org";
        assert_eq!(refused.to_string(), expected);
        approve(2).await;
        submitted(&client, &[2], write("two")).await;
    });
    run.expect("the run succeeds");
}
