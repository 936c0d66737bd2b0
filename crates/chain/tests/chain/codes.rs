//! The base case is a transaction that is valid in every way. Each line of the table names one fault and the code that the
//! transaction then gets.

use std::sync::Arc;

use base::Bytes;
use base::rt::simulation::Simulation;
use identity::SignatureVerifier;
use ledger::ChannelConfig;
use ledger::config::EndorsementRule;
use ledger::hash::sha256_of;
use prost::Message;
use proto::common::{ChannelHeader, Envelope, Header, HeaderType, Payload, SignatureHeader};
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeEvent, ChaincodeHeaderExtension,
    ChaincodeId, ChaincodeProposalPayload, Endorsement, ProposalResponsePayload, Response, Transaction,
    TransactionAction,
};
use replica::offload::OffloadConfig;

use crate::support::{CHANNEL, Consortium, ConsortiumConfig, encode};
use chain::commit::recent::CommittedBlock;
use ledger::Code;
use ledger::lifecycle::ContractDefinition;
use ledger::rwset::{KEY_BYTES_MAX, ReadWriteSetRecorder};
use rules::access::ChannelPolicies;
use rules::definitions::{ContractDefinitions, by_channel_policy};
use validation::offload::{VerificationPart, verify_offloaded};
use validation::verify::{
    SignatureVerdict, VerifiedTransaction, genuine_endorsers, verify_transactions, verify_transactions_as,
    verify_with_verdict,
};

fn verify_transaction(envelope: &Bytes, policies: &ChannelPolicies) -> VerifiedTransaction {
    verify_transactions([envelope.clone()], policies).remove(0)
}

/// Crafts the transaction, one word of the notation at a time; see [`Craft::change`].
struct Craft<'a> {
    consortium: &'a Consortium,
    kind: i32,
    epoch: u64,
    channel: String,
    nonce: Bytes,
    tx_id: Option<String>,
    creator: Bytes,
    extension: Bytes,
    actions: usize,
    proposal_hash: Option<Bytes>,
    action_nonce: Bytes,
    response_payload: Option<Bytes>,
    results: Bytes,
    event_of: Option<String>,
    result_of: Option<ChaincodeId>,
    endorsers: Vec<String>,
    empty_endorsements: usize,
    spoil: Vec<String>,
}

fn id(name: &str, version: &str) -> ChaincodeId {
    ChaincodeId { name: name.to_owned(), version: version.to_owned(), ..ChaincodeId::default() }
}

fn extension_of(name: &str) -> Bytes {
    encode(&ChaincodeHeaderExtension { chaincode_id: Some(id(name, "")), ..Default::default() })
}

/// A read-write set that writes one key in each of these namespaces.
fn writes(namespaces: &[&str]) -> Bytes {
    let mut recorder = ReadWriteSetRecorder::new();
    for name in namespaces {
        recorder.write(&Arc::from(*name), "k", Bytes::from_static(b"v"));
    }
    recorder.encode()
}

impl<'a> Craft<'a> {
    fn right(consortium: &'a Consortium) -> Craft<'a> {
        Craft {
            consortium,
            kind: HeaderType::EndorserTransaction as i32,
            epoch: 0,
            channel: CHANNEL.to_owned(),
            nonce: Bytes::from_static(b"a nonce of twenty-four b"),
            tx_id: None,
            creator: consortium.clients[0].serialized().clone(),
            extension: extension_of("basic"),
            actions: 1,
            proposal_hash: None,
            action_nonce: Bytes::from_static(b"a nonce of twenty-four b"),
            response_payload: None,
            results: writes(&["basic"]),
            event_of: None,
            result_of: Some(id("basic", "1.0")),
            endorsers: vec!["peer0".to_owned(), "peer1".to_owned()],
            empty_endorsements: 0,
            spoil: Vec::new(),
        }
    }

    fn change(&mut self, word: &str) {
        let (what, value) = word.split_once('=').unwrap_or((word, ""));
        match what {
            "kind" => self.kind = value.parse().expect("a number"),
            "epoch" => self.epoch = value.parse().expect("a number"),
            "channel" => self.channel = value.to_owned(),
            "nonce" => (self.nonce, self.action_nonce) = (Bytes::copy_from_slice(value.as_bytes()), self.nonce.clone()),
            "action-nonce" => self.action_nonce = Bytes::copy_from_slice(value.as_bytes()),
            "txid" => self.tx_id = Some(value.to_owned()),
            "creator" => {
                self.creator = match value {
                    "" => Bytes::new(),
                    "stranger" => stranger().serialized().clone(),
                    "garbage" => Bytes::from_static(b"garbage"),
                    "other-client" => self.consortium.clients[1].serialized().clone(),
                    other => panic!("unknown creator {other}"),
                };
            }
            "extension" => {
                self.extension = match value {
                    "" => Bytes::new(),
                    "garbage" => Bytes::from_static(&[0x12, 9]),
                    name => extension_of(name),
                };
            }
            "actions" => self.actions = value.parse().expect("a number"),
            "hash" => self.proposal_hash = Some(Bytes::copy_from_slice(value.as_bytes())),
            "response" => self.response_payload = Some(Bytes::copy_from_slice(value.as_bytes())),
            "results" => self.results = Bytes::copy_from_slice(value.as_bytes()),
            "writes" => {
                let names: Vec<&str> = value.split('+').collect();
                self.results = writes(&names);
            }
            "writes-twice" => self.results = [writes(&[value]), writes(&[value])].concat().into(),
            "writes-metadata" => {
                let write = proto::kvrwset::KvMetadataWrite { key: "k".to_owned(), entries: vec![] };
                let set = proto::kvrwset::KvrwSet { metadata_writes: vec![write], ..Default::default() };
                self.results = namespace_set(value, &set);
            }
            "key-bytes" | "key-zeros" => {
                let mut recorder = ReadWriteSetRecorder::new();
                let byte = if what == "key-zeros" { "\0" } else { "k" };
                let key = byte.repeat(value.parse().expect("a number"));
                recorder.write(&Arc::from("basic"), &key, Bytes::from_static(b"v"));
                self.results = recorder.encode();
            }
            // Regression: an endorser made a set that reads in a namespace of 70 kB, which no policy names since
            // nothing is written there. Peers asked the state for it; its engine takes keys of at most 64 KiB and
            // panicked, again at each restart.
            "reads-in-namespace-bytes" => {
                let mut recorder = ReadWriteSetRecorder::new();
                let name = "x".repeat(value.parse().expect("a number"));
                recorder.read(&Arc::from(name.as_str()), "a", None);
                self.results = recorder.encode();
            }
            "namespaces" => {
                let mut recorder = ReadWriteSetRecorder::new();
                for number in 0..value.parse().expect("a number") {
                    let number: u32 = number;
                    recorder.read(&Arc::from(number.to_string().as_str()), "a", None);
                }
                self.results = recorder.encode();
            }
            "event-of" => self.event_of = Some(value.to_owned()),
            "result-of" => self.result_of = value.split_once(':').map(|(name, version)| id(name, version)),
            "endorsers" => {
                self.endorsers = value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
            }
            // An endorsement of two bytes on the wire.
            "empty-endorsements" => self.empty_endorsements = value.parse().expect("a number"),
            // What is changed after everything was signed.
            _ => self.spoil.push(word.to_owned()),
        }
    }

    fn build(&self) -> Bytes {
        let creator = self.creator.clone();
        let tx_id = hex::encode(sha256_of(&[&self.nonce, &creator]));
        let channel_header = encode(&ChannelHeader {
            r#type: self.kind,
            channel_id: self.channel.clone(),
            tx_id: self.tx_id.clone().unwrap_or(tx_id.clone()),
            epoch: self.epoch,
            extension: self.extension.clone(),
            ..ChannelHeader::default()
        });
        let signature_header = encode(&SignatureHeader { creator: creator.clone(), nonce: self.nonce.clone() });
        let action_header = encode(&SignatureHeader { creator, nonce: self.action_nonce.clone() });
        let proposal = encode(&ChaincodeProposalPayload { input: Bytes::from_static(b"input"), ..Default::default() });
        let hash = sha256_of(&[&channel_header, &action_header, &proposal]);
        let event = self.event_of.as_ref().map(|name| ChaincodeEvent {
            chaincode_id: name.clone(),
            tx_id,
            event_name: "happened".to_owned(),
            payload: Bytes::new(),
        });
        let action = ChaincodeAction {
            results: self.results.clone(),
            events: event.map(|event| encode(&event)).unwrap_or_default(),
            response: Some(Response { status: 200, ..Response::default() }),
            chaincode_id: self.result_of.clone(),
        };
        let response = encode(&ProposalResponsePayload {
            proposal_hash: self.proposal_hash.clone().unwrap_or_else(|| Bytes::copy_from_slice(&hash)),
            extension: self.response_payload.clone().unwrap_or_else(|| encode(&action)),
        });
        let mut endorsements: Vec<_> = self.endorsers.iter().map(|name| self.endorse(name, &response)).collect();
        endorsements.resize(endorsements.len() + self.empty_endorsements, Endorsement::default());
        let payload = ChaincodeActionPayload {
            chaincode_proposal_payload: if self.spoils("arguments") {
                encode(&ChaincodeProposalPayload { input: Bytes::from_static(b"other"), ..Default::default() })
            } else {
                proposal
            },
            action: Some(ChaincodeEndorsedAction {
                proposal_response_payload: if self.spoils("result") {
                    let action = ChaincodeAction { results: writes(&["basic", "basic2"]), ..action };
                    encode(&ProposalResponsePayload {
                        proposal_hash: Bytes::copy_from_slice(&hash),
                        extension: encode(&action),
                    })
                } else {
                    response
                },
                endorsements,
            }),
        };
        let one = TransactionAction { header: action_header, payload: encode(&payload) };
        let data = encode(&Transaction { actions: vec![one; self.actions] });
        let payload = if self.spoils("payload") {
            Bytes::from_static(&[0x0a, 0xff])
        } else if self.spoils("no-header") {
            encode(&Payload { header: None, data })
        } else {
            encode(&Payload { header: Some(Header { channel_header, signature_header }), data })
        };
        let mut signature = self.consortium.clients[0].sign(&payload).to_vec();
        if self.spoils("signature") {
            signature[7] ^= 1;
        }
        if self.spoils("unsigned") {
            signature.clear();
        }
        if self.spoils("envelope") {
            return Bytes::from_static(&[0x0a, 0xff]);
        }
        encode(&Envelope { payload, signature: signature.into() })
    }

    fn spoils(&self, what: &str) -> bool {
        self.spoil.iter().any(|word| word == what)
    }

    fn endorse(&self, name: &str, response: &Bytes) -> Endorsement {
        let (name, is_wrong) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
        let signer = match name {
            "peer0" => self.consortium.peers[0].clone(),
            "peer1" => self.consortium.peers[1].clone(),
            "client0" => self.consortium.clients[0].clone(),
            "client1" => self.consortium.clients[1].clone(),
            "stranger" => stranger(),
            other => panic!("unknown endorser {other}"),
        };
        let endorser = signer.serialized().clone();
        let signature = if is_wrong { signer.sign(b"other") } else { signer.sign_parts(&[response, &endorser]) };
        Endorsement { endorser, signature }
    }
}

fn namespace_set(name: &str, set: &proto::kvrwset::KvrwSet) -> Bytes {
    encode(&proto::rwset::TxReadWriteSet {
        ns_rwset: vec![proto::rwset::NsReadWriteSet {
            namespace: name.to_owned(),
            rwset: encode(set),
            ..Default::default()
        }],
        ..Default::default()
    })
}

/// A member of an organisation that claims the name of an organisation in the channel.
fn stranger() -> identity::Signer {
    let terms = identity::issue::CertificateTerms::seeded([99; 32]);
    let organization =
        identity::issue::IssuingOrganization::create("Org1MSP", "org1.example.com", &terms).expect("fine names");
    organization.issue(identity::MemberRole::Peer, "peer0").expect("fine names")
}

fn rules(consortium: &Consortium) -> ChannelPolicies {
    let config = ChannelConfig::from_block(&consortium.genesis).expect("a genesis block");
    let only_first = identity::policy::parse("OR('Org1MSP.peer')").expect("a policy");
    let only_first = identity::policy::of_signature(only_first);
    let definitions: ContractDefinitions = [
        ("basic".to_owned(), by_channel_policy("1.0")),
        ("basic2".to_owned(), by_channel_policy("1.0")),
        ("first".to_owned(), ContractDefinition::first("1.0", &only_first)),
    ]
    .into();
    ChannelPolicies::new(Arc::new(config), definitions).expect("the policies are in order")
}

/// What is wrong, and the code for it. If several things are wrong, the first in Fabric's order counts.
const TABLE: &str = "
    -> VALID
    envelope -> INVALID_OTHER_REASON
    payload -> BAD_PAYLOAD
    no-header -> BAD_COMMON_HEADER
    kind=0 -> BAD_COMMON_HEADER
    kind=99 -> BAD_COMMON_HEADER
    epoch=1 -> BAD_COMMON_HEADER
    nonce= -> BAD_COMMON_HEADER
    creator= -> BAD_COMMON_HEADER
    creator=garbage -> BAD_CREATOR_SIGNATURE
    creator=stranger -> BAD_CREATOR_SIGNATURE
    creator=other-client -> BAD_CREATOR_SIGNATURE
    signature -> BAD_CREATOR_SIGNATURE
    unsigned -> BAD_CREATOR_SIGNATURE
    kind=2 -> UNSUPPORTED_TX_PAYLOAD
    kind=1 -> VALID
    kind=1 channel=other -> TARGET_CHAIN_NOT_FOUND
    kind=1 txid= -> VALID
    txid=abc -> BAD_PROPOSAL_TXID
    txid= -> BAD_PROPOSAL_TXID
    actions=0 -> INVALID_ENDORSER_TRANSACTION
    actions=2 -> INVALID_ENDORSER_TRANSACTION
    hash=other -> INVALID_ENDORSER_TRANSACTION
    arguments -> INVALID_ENDORSER_TRANSACTION
    action-nonce= -> INVALID_ENDORSER_TRANSACTION
    channel=other -> TARGET_CHAIN_NOT_FOUND
    extension=garbage -> BAD_HEADER_EXTENSION
    response=\u{12}P -> BAD_RESPONSE_PAYLOAD
    results=\u{12}P -> BAD_RWSET
    extension= -> INVALID_OTHER_REASON
    result-of= -> INVALID_OTHER_REASON
    event-of=basic -> VALID
    event-of=basic2 -> INVALID_OTHER_REASON
    extension=basic2 -> INVALID_CHAINCODE
    result-of=basic2:1.0 -> INVALID_CHAINCODE
    result-of=basic: -> INVALID_CHAINCODE
    extension=nowhere result-of=nowhere:1.0 -> INVALID_CHAINCODE
    writes=basic+nowhere -> INVALID_CHAINCODE
    writes=basic+basic2 -> VALID
    writes-twice=basic -> ILLEGAL_WRITESET
    writes=_lifecycle -> VALID
    extension=first result-of=first:1.0 writes=_lifecycle endorsers=peer0 -> ENDORSEMENT_POLICY_FAILURE
    extension=_lifecycle result-of=_lifecycle:syscc writes=basic -> VALID
    writes=lscc -> INVALID_CHAINCODE
    writes= -> INVALID_CHAINCODE
    writes=basic$$m -> INVALID_CHAINCODE
    writes-metadata=basic -> VALID
    extension=first result-of=first:1.0 writes-metadata=basic endorsers=peer0 -> ENDORSEMENT_POLICY_FAILURE
    key-bytes=64000 -> VALID
    key-bytes=64001 -> INVALID_WRITESET
    key-zeros=32000 -> VALID
    key-zeros=32001 -> INVALID_WRITESET
    key-bytes=200000 -> INVALID_WRITESET
    key-bytes=0 -> VALID
    reads-in-namespace-bytes=697 -> VALID
    reads-in-namespace-bytes=698 -> INVALID_WRITESET
    reads-in-namespace-bytes=70000 -> INVALID_WRITESET
    namespaces=1024 -> VALID
    namespaces=1025 -> BAD_RWSET
    result -> ENDORSEMENT_POLICY_FAILURE
    endorsers= -> ENDORSEMENT_POLICY_FAILURE
    endorsers=peer0 -> ENDORSEMENT_POLICY_FAILURE
    endorsers=peer0,peer0 -> ENDORSEMENT_POLICY_FAILURE
    endorsers=peer0,peer1! -> ENDORSEMENT_POLICY_FAILURE
    endorsers=peer0,client1 -> ENDORSEMENT_POLICY_FAILURE
    endorsers=stranger,peer1 -> ENDORSEMENT_POLICY_FAILURE
    endorsers=peer1,peer0 -> VALID
    endorsers=stranger,peer0,peer1!,peer1 -> VALID
    extension=first result-of=first:1.0 writes=first endorsers=peer0 -> VALID
    extension=first result-of=first:1.0 writes=first endorsers=peer1 -> ENDORSEMENT_POLICY_FAILURE
    extension=first result-of=first:1.0 writes=first+basic endorsers=peer0 -> ENDORSEMENT_POLICY_FAILURE
    writes=first endorsers=peer0,peer1 -> VALID
    epoch=1 signature -> BAD_COMMON_HEADER
    txid=abc signature -> BAD_CREATOR_SIGNATURE
    actions=2 endorsers= -> INVALID_ENDORSER_TRANSACTION
    channel=other endorsers= -> TARGET_CHAIN_NOT_FOUND
    writes=lscc endorsers= -> ENDORSEMENT_POLICY_FAILURE
";

#[test]
fn every_fault_gets_fabrics_code() {
    let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
    let rules = rules(&consortium);
    for line in TABLE.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (words, expected) = line.split_once("-> ").expect("each line has an arrow");
        let mut craft = Craft::right(&consortium);
        for word in words.split(' ').filter(|word| !word.is_empty()) {
            craft.change(word);
        }
        let examined = verify_transaction(&craft.build(), &rules);
        let code = if examined.form == Code::VALID { examined.endorsement } else { examined.form };
        assert_eq!(code.name(), expected, "{line:?}");
        let writes = examined.set.namespaces.iter().any(|namespace| namespace.writes_anything());
        assert!(code.is_valid() || !writes || examined.endorsement == code, "{line:?}");
    }
}

/// All but which signatures were verified on the way.
fn shown(examined: VerifiedTransaction) -> String {
    format!("{:?}", VerifiedTransaction { known_endorsements: Default::default(), ..examined })
}

/// Every code of the table again, with the verdict of another node that has verified the same envelope.
#[test]
fn who_takes_a_word_for_signatures_comes_to_what_the_other_one_has_found() {
    let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
    let rules = rules(&consortium);
    let mut words = Vec::new();
    for line in TABLE.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (changes, _) = line.split_once("-> ").expect("each line has an arrow");
        let mut craft = Craft::right(&consortium);
        for word in changes.split(' ').filter(|word| !word.is_empty()) {
            craft.change(word);
        }
        let envelope = craft.build();
        let own = verify_transaction(&envelope, &rules);
        words.push(own.signature_verdict());
        let by_word = verify_with_verdict(&envelope, &rules, own.signature_verdict());
        assert_eq!(shown(by_word), shown(own), "{line:?}");
    }
    for word in [SignatureVerdict::Unsigned, SignatureVerdict::Unendorsed, SignatureVerdict::Valid] {
        assert!(words.contains(&word), "no line of the table leads to {word:?}");
    }
}

/// Policies of keys are checked after the contract's; endorsements that the contract's policy asked for are not verified again.
#[test]
fn an_endorsement_is_verified_once_for_all_policies() {
    let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
    let rules = rules(&consortium);
    let build = |endorsers: &str| {
        let mut craft = Craft::right(&consortium);
        craft.change(endorsers);
        craft.build()
    };
    let (right, wrong) = (build("endorsers=peer0,peer1"), build("endorsers=peer0,peer1!"));
    let [of_right, of_wrong] = [&right, &wrong].map(|envelope| verify_transaction(envelope, &rules));
    let genuine = |envelope, examined| genuine_endorsers(envelope, examined, &rules).expect("it can be read").len();
    assert_eq!([genuine(&right, &of_right), genuine(&wrong, &of_wrong)], [2, 1]);
    // Verdicts of another envelope are taken as they are, so nothing was verified.
    assert_eq!([genuine(&right, &of_wrong), genuine(&wrong, &of_right)], [1, 2]);
    // A word for signatures says nothing of each, so they are verified.
    let by_word = verify_with_verdict(&wrong, &rules, SignatureVerdict::Valid);
    assert_eq!(genuine(&wrong, &by_word), 1);
}

/// Every line of the table with P-256 keys: all envelopes together by tables, and each alone by the library.
#[test]
fn what_is_verified_together_by_tables_is_judged_as_by_the_library_alone() {
    let terms = identity::issue::CertificateTerms::starting_now(identity::KeyKind::P256);
    let consortium =
        Consortium::create(ConsortiumConfig { terms, ..ConsortiumConfig::seeded(2, EndorsementRule::All) });
    let by_library = rules(&consortium).verified_by(SignatureVerifier::Library);
    let by_tables = rules(&consortium).verified_by(SignatureVerifier::Tables);
    let build = |line: &str| {
        let mut craft = Craft::right(&consortium);
        line.split(' ').filter(|word| !word.is_empty()).for_each(|word| craft.change(word));
        craft.build()
    };
    let lines = TABLE.lines().map(str::trim).filter(|line| !line.is_empty());
    let changes: Vec<&str> = lines.map(|line| line.split_once("-> ").expect("each line has an arrow").0).collect();
    // Valid envelopes between the others: a verdict that is off by one position shows.
    let envelopes: Vec<Bytes> = changes.iter().flat_map(|changes| [build(changes), build("")]).collect();
    let alone: Vec<String> =
        envelopes.iter().map(|envelope| shown(verify_transaction(envelope, &by_library))).collect();
    // The first time without tables.
    for _ in 0..3 {
        for is_together in [true, false] {
            let examined = verify_transactions_as(envelopes.iter().cloned(), &by_tables, is_together);
            let examined: Vec<String> = examined.into_iter().map(shown).collect();
            assert_eq!(examined, alone, "together: {is_together}");
        }
    }
}

/// Regression: a follower in an attacker's hands decided which transactions were valid. Every verdict that it returned
/// for an offloaded chunk counted, so transactions that only one organisation had endorsed were committed against the
/// policy.
#[test]
fn a_reader_that_lies_is_found_out_in_both_directions() {
    const PIECES: usize = 200;
    let run = Simulation::new(7).run(|_| async {
        let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
        let rules = Arc::new(rules(&consortium));
        let right = Craft::right(&consortium).build();
        let mut forged = Craft::right(&consortium);
        forged.change("endorsers=peer0");
        let forged = forged.build();
        let reader: Arc<str> = "compute-org1-1".into();
        // One transaction of sixteen is forged, the others are valid.
        let chunk = |forged_at: usize| {
            let envelopes = (0..16).map(|index| if index == forged_at { forged.clone() } else { right.clone() });
            VerificationPart { policies_digest: *rules.digest(), block: 5, first: 0, envelopes: envelopes.collect() }
        };
        let honest = |forged_at: usize| {
            let mut words = vec![SignatureVerdict::Valid; 16];
            words[forged_at] = SignatureVerdict::Unendorsed;
            words
        };
        let verdicts =
            |examined: &[VerifiedTransaction]| examined.iter().map(|one| one.endorsement).collect::<Vec<_>>();
        let judged = async |borrowing: &OffloadConfig, at, words| {
            verify_offloaded(borrowing, &reader, &chunk(at), words, &rules).await
        };

        let borrowing = OffloadConfig::default();
        for piece in 0..PIECES {
            let examined = judged(&borrowing, piece % 16, honest(piece % 16)).await.expect("it says what is so");
            let own: Vec<_> = verify_transactions(chunk(piece % 16).envelopes, &rules);
            assert_eq!(verdicts(&examined), verdicts(&own));
        }
        assert!(borrowing.counts.liars().is_empty(), "an honest reader is no liar");
        let all = (16 * PIECES) as u64;
        let borrowed = borrowing.counts.offloaded();
        assert!(
            borrowed < all - 2 * PIECES as u64 + all / 64,
            "the wrong one and another of each piece are verified again"
        );
        assert!(borrowed > all / 4 * 3, "most of the work is borrowed");

        // The follower calls a valid transaction wrong, or the forged one valid.
        for (at, word) in
            [(3, SignatureVerdict::Unsigned), (3, SignatureVerdict::Unendorsed), (0, SignatureVerdict::Unsigned)]
        {
            let borrowing = OffloadConfig { spot_check_one_in: u32::MAX, ..OffloadConfig::default() };
            let mut words = honest(0);
            words[at] = word;
            assert!(judged(&borrowing, 0, words).await.is_none(), "a word that is not sound is never believed");
            assert_eq!(borrowing.counts.liars(), std::slice::from_ref(&reader));
            assert!(!borrowing.counts.trusts(&reader) && borrowing.counts.trusts("compute-org1-2"));
            assert_eq!(borrowing.counts.offloaded(), 0, "nor is any other word of that piece");
        }
        let strict = OffloadConfig { spot_check_one_in: 1, ..OffloadConfig::default() };
        assert!(judged(&strict, 9, vec![SignatureVerdict::Valid; 16]).await.is_none(), "nothing is believed");
        let usual = OffloadConfig::default();
        let mut slipped = 0;
        while slipped < PIECES && judged(&usual, slipped % 16, vec![SignatureVerdict::Valid; 16]).await.is_some() {
            slipped += 1;
        }
        assert!(slipped < PIECES, "one in sixteen pieces or more finds it out");
        assert_eq!(usual.counts.liars(), std::slice::from_ref(&reader));
    });
    run.expect("the run succeeds");
}

#[test]
fn equal_rules_have_one_digest_and_others_another() {
    let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
    let config = Arc::new(ChannelConfig::from_block(&consortium.genesis).expect("it is a genesis block"));
    let digest = |definitions: ContractDefinitions| {
        *ChannelPolicies::new(config.clone(), definitions).expect("well formed").digest()
    };
    let with = |name: &str, definition: ContractDefinition| ContractDefinitions::from([(name.to_owned(), definition)]);
    let one = digest(with("basic", by_channel_policy("1.0")));
    assert_eq!(one, digest(with("basic", by_channel_policy("1.0"))));
    let later = ContractDefinition { sequence: 2, ..by_channel_policy("1.0") };
    let other = by_channel_policy("1.1");
    let policy = identity::policy::channel_reference("/Channel/Application/Writers");
    let easier = ContractDefinition::first("1.0", &policy);
    let others =
        [with("basic", later), with("basic", other), with("basic", easier), with("other", by_channel_policy("1.0"))];
    for definitions in others {
        assert_ne!(one, digest(definitions.clone()), "{definitions:?}");
    }
    let three = Consortium::create(ConsortiumConfig::seeded(3, EndorsementRule::All));
    let config = ChannelConfig::from_block(&three.genesis).expect("it is a genesis block");
    let elsewhere =
        ChannelPolicies::new(Arc::new(config), with("basic", by_channel_policy("1.0"))).expect("well formed");
    assert_ne!(one, *elsewhere.digest());
}

/// Regression: filtered blocks named an invalid transaction while its block was among the newest. When the block was
/// read from the store later, it showed no id and type 0 if the headers were wrong, and a client that reconnected never
/// learnt of its failure.
#[test]
fn a_stored_block_names_its_transactions_as_the_fresh_one_did() {
    let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
    let rules = rules(&consortium);
    for line in TABLE.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (words, _) = line.split_once("-> ").expect("each line has an arrow");
        let mut craft = Craft::right(&consortium);
        for word in words.split(' ').filter(|word| !word.is_empty()) {
            craft.change(word);
        }
        let envelope = craft.build();
        let examined = verify_transaction(&envelope, &rules);
        let code = if examined.form == Code::VALID { examined.endorsement } else { examined.form };
        let block = ledger::Block::build(base::BlockNumber(1), Some([1; 32]), &[envelope]);
        let mut metadata = block.metadata().clone();
        metadata.set_filter(vec![code.0].into());
        let block = block.with_metadata(metadata);
        let fresh = CommittedBlock::of_verified(block.clone(), vec![examined], &[code]);
        let stored = CommittedBlock::of_stored(block).expect("its filter has one code");
        let shown = |block: &CommittedBlock| {
            let transaction = &block.transactions()[0];
            let event = transaction.event().map(|event| event.name.to_owned());
            (transaction.tx_id.clone(), transaction.kind, transaction.code, transaction.outcome.is_some(), event)
        };
        assert_eq!(shown(&stored), shown(&fresh), "{line:?}");
    }
}

#[test]
fn a_claimed_id_is_known_also_where_the_headers_are_wrong() {
    let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
    let rules = rules(&consortium);
    for (word, kind) in [("epoch=1", 3), ("kind=0", 0), ("kind=99", 99), ("signature", 3), ("channel=other", 3)] {
        let mut craft = Craft::right(&consortium);
        craft.change("txid=claimed");
        craft.change(word);
        let examined = verify_transaction(&craft.build(), &rules);
        assert_eq!(examined.tx_id.as_deref(), Some("claimed"), "{word}");
        assert_eq!(examined.kind, kind, "{word}");
    }
}

/// Regression: a client sent an envelope of 2 MiB: an invented result of 1 MiB and half a million empty endorsements.
/// The peers copied the result once per endorsement before they counted them, which took 500 GiB, again at every
/// restart.
#[test]
fn endorsements_beyond_the_limit_are_counted_without_copies_of_the_result() {
    let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
    let rules = rules(&consortium);
    let mut craft = Craft::right(&consortium);
    let mut recorder = ReadWriteSetRecorder::new();
    recorder.write(&Arc::from("basic"), "k", vec![7; 1 << 20].into());
    craft.results = recorder.encode();
    craft.change("empty-endorsements=300000");
    let envelope = craft.build();
    let within = |bytes: &Bytes| envelope.as_ptr_range().contains(&bytes.as_ptr());

    assert_eq!(verify_transaction(&envelope, &rules).endorsement, Code::ENDORSEMENT_POLICY_FAILURE);
    let action = ledger::Transaction::parse(&envelope).expect("its form is right").action().expect("one action");
    let endorsements = rules::access::endorsements(&action);
    assert_eq!(endorsements.len(), identity::policy::SIGNATURES_MAX + 1);
    assert!(endorsements.iter().all(|signed| within(&signed.identity) && within(&signed.signature)));
    assert!(action.signed_parts(0).iter().all(within));
}

#[test]
fn the_longest_key_is_the_documented_one() {
    assert_eq!(KEY_BYTES_MAX, 64_000);
}

proptest::proptest! {
    #[test]
    fn any_envelope_gets_a_code(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        use std::sync::OnceLock;
        static RULES: OnceLock<ChannelPolicies> = OnceLock::new();
        let rules = RULES.get_or_init(|| rules(&Consortium::create(ConsortiumConfig::seeded(1, EndorsementRule::Any))));
        let examined = verify_transaction(&bytes.into(), rules);
        proptest::prop_assert!(!examined.form.is_valid());
    }
}

#[test]
fn fabrics_names_stand_for_fabrics_numbers() {
    for number in 0..=255u8 {
        match proto::protos::TxValidationCode::try_from(i32::from(number)) {
            Ok(known) => assert_eq!(Code(number).name(), known.as_str_name()),
            Err(_) => assert_eq!(Code(number).name(), "UNKNOWN"),
        }
    }
    let _ = Payload::decode(Bytes::new()).expect("an empty payload is one");
}
