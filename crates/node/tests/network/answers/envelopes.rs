//! Envelopes that are not what a client would send: those that Submit refuses, and those that are ordered and get a code.

use super::*;

pub(super) fn change_header(payload: &mut Payload, change: impl FnOnce(&mut ChannelHeader)) {
    let header = payload.header.as_mut().expect("a header");
    let mut channel_header = ChannelHeader::decode(header.channel_header.clone()).expect("a channel header");
    change(&mut channel_header);
    header.channel_header = channel_header.encode_to_vec().into();
}

fn change_signature_header(payload: &mut Payload, change: impl FnOnce(&mut SignatureHeader)) {
    let header = payload.header.as_mut().expect("a header");
    let mut signature_header = SignatureHeader::decode(header.signature_header.clone()).expect("a signature header");
    change(&mut signature_header);
    header.signature_header = signature_header.encode_to_vec().into();
}

fn change_transaction(payload: &mut Payload, change: impl FnOnce(&mut WireTransaction)) {
    let mut transaction = WireTransaction::decode(payload.data.clone()).expect("a transaction");
    change(&mut transaction);
    payload.data = transaction.encode_to_vec().into();
}

fn change_action(payload: &mut Payload, change: impl FnOnce(&mut ChaincodeActionPayload)) {
    change_transaction(payload, |transaction| {
        let mut action = ChaincodeActionPayload::decode(transaction.actions[0].payload.clone()).expect("an action");
        change(&mut action);
        transaction.actions[0].payload = action.encode_to_vec().into();
    });
}

fn change_endorsements(payload: &mut Payload, change: impl FnOnce(&mut Vec<Endorsement>)) {
    change_action(payload, |action| change(&mut action.action.as_mut().expect("an endorsed action").endorsements));
}

fn change_response(payload: &mut Payload, change: impl FnOnce(&mut ProposalResponsePayload)) {
    change_action(payload, |action| {
        let action = action.action.as_mut().expect("an endorsed action");
        let mut response =
            ProposalResponsePayload::decode(action.proposal_response_payload.clone()).expect("a response");
        change(&mut response);
        action.proposal_response_payload = response.encode_to_vec().into();
    });
}

fn change_result(payload: &mut Payload, change: impl FnOnce(&mut ChaincodeAction)) {
    change_response(payload, |response| {
        let mut result = ChaincodeAction::decode(response.extension.clone()).expect("a result");
        change(&mut result);
        response.extension = result.encode_to_vec().into();
    });
}

fn change_namespaces(payload: &mut Payload, change: impl FnOnce(&mut Vec<NsReadWriteSet>)) {
    change_result(payload, |result| {
        let mut set = TxReadWriteSet::decode(result.results.clone()).expect("a read-write set");
        change(&mut set.ns_rwset);
        result.results = set.encode_to_vec().into();
    });
}

/// Changes the reads and writes of the contract that was called.
fn change_keys(payload: &mut Payload, change: impl FnOnce(&mut KvrwSet)) {
    change_namespaces(payload, |namespaces| {
        let namespace = namespaces.iter_mut().find(|namespace| !namespace.namespace.starts_with('_'));
        let namespace = namespace.expect("the contract's namespace");
        let mut keys = KvrwSet::decode(namespace.rwset.clone()).expect("keys");
        change(&mut keys);
        namespace.rwset = keys.encode_to_vec().into();
    });
}

/// Replaces the endorsements: these peers endorse whatever the payload now holds.
fn endorse_again(payload: &mut Payload, endorsers: &[Signer]) {
    change_action(payload, |action| {
        let action = action.action.as_mut().expect("an endorsed action");
        let endorsement = |endorser: &Signer| {
            let endorser_bytes = endorser.serialized().clone();
            let signature = endorser.sign(&[&action.proposal_response_payload[..], &endorser_bytes[..]].concat());
            Endorsement { endorser: endorser_bytes, signature }
        };
        action.endorsements = endorsers.iter().map(endorsement).collect();
    });
}

pub(super) async fn refused_envelopes(network: &TestNetwork, differences: &mut Differences) {
    let client = network.client(0).await;
    let user = client.signer().clone();
    let transaction = endorsed(&client, "refused").await;
    let payload = transaction.payload();
    let good = signed(payload.clone(), &user);
    let of_type = |kind: HeaderType| {
        altered(payload, &user, |payload| change_header(payload, |header| header.r#type = kind as i32))
    };
    let by = |signer: &Signer| {
        let creator = signer.serialized().clone();
        altered(payload, signer, |payload| change_signature_header(payload, |header| header.creator = creator))
    };
    let too_long = Bytes::from(vec![7; ENVELOPE_BYTES_MAX + 1]);
    let table = [
        row(
            "submit: ABORTED OrdererMSP",
            [
                (
                    "an envelope with a signature over other bytes",
                    (CHANNEL, Envelope { signature: user.sign(b"other"), ..good.clone() }),
                ),
                (
                    "an envelope with a random signature",
                    (CHANNEL, Envelope { signature: Bytes::from_static(b"random"), ..good.clone() }),
                ),
                (
                    "an envelope with a high S",
                    (CHANNEL, Envelope { signature: high_s(&good.signature), ..good.clone() }),
                ),
                ("an envelope of a foreign authority", (CHANNEL, by(&network.foreign_user()))),
                ("an envelope of an expired certificate", (CHANNEL, by(&network.expired_user()))),
                ("an envelope of random bytes", (CHANNEL, signed(Bytes::from_static(b"\xff\xfe random"), &user))),
                ("a CONFIG envelope", (CHANNEL, of_type(HeaderType::Config))),
                ("a CONFIG_UPDATE envelope", (CHANNEL, of_type(HeaderType::ConfigUpdate))),
                (
                    "an envelope longer than a block",
                    (CHANNEL, altered(payload, &user, |payload| payload.data = too_long)),
                ),
            ],
        ),
        row(
            "submit: INVALID_ARGUMENT",
            [("an envelope without a signature", (CHANNEL, Envelope { signature: Bytes::new(), ..good.clone() }))],
        ),
        row("submit: FAILED_PRECONDITION", [("an envelope for an unknown channel", ("other", good.clone()))]),
    ];
    for Row { answers, inputs } in table {
        for (case, (channel, envelope)) in inputs {
            let submitted = client.submit_envelope(channel, "", envelope).await;
            differences.check(case, &format!("submit: {}", code(submitted)), answers);
        }
    }
}

/// How a transaction is spoiled.
struct Spoiled {
    contract: &'static str,
    change: Box<dyn Fn(&mut Payload)>,
    /// The signer of the envelope, if it is not the user.
    signer: Option<Signer>,
}

fn spoiled(contract: &'static str, change: impl Fn(&mut Payload) + 'static) -> Spoiled {
    Spoiled { contract, change: Box::new(change), signer: None }
}

/// A transaction of `basic`.
fn basic(change: impl Fn(&mut Payload) + 'static) -> Spoiled {
    spoiled("basic", change)
}

pub(super) async fn ordered_envelopes(network: &TestNetwork, differences: &mut Differences) {
    let client = network.client(0).await;
    let user = client.signer().clone();
    let admin = network.running.admin(0);
    let creator = admin.serialized().clone();
    let both = [network.endorser(1), network.endorser(2)];
    let one = both[..1].to_vec();
    let reendorsed = |endorsers: &[Signer], contract: &'static str, change: fn(&mut Payload)| {
        let endorsers = endorsers.to_vec();
        spoiled(contract, move |payload| {
            change(payload);
            endorse_again(payload, &endorsers);
        })
    };
    let writes_definitions: fn(&mut Payload) = |payload| {
        change_namespaces(payload, |namespaces| {
            namespaces.retain(|namespace| namespace.namespace != "_lifecycle");
            let write = KvWrite { key: "note".into(), value: Bytes::from_static(b"text"), is_delete: false };
            let keys = KvrwSet { writes: vec![write], ..Default::default() };
            namespaces.insert(
                0,
                NsReadWriteSet {
                    namespace: "_lifecycle".into(),
                    rwset: keys.encode_to_vec().into(),
                    ..Default::default()
                },
            );
        });
    };
    let table = [
        row(
            "submit: OK; block: 0 event CreateAsset; status: 0",
            [
                ("a transaction as it should be", basic(|_| {})),
                ("a transaction that is endorsed again", reendorsed(&both, "basic", |_| {})),
                ("a transaction that one endorsement is enough for", reendorsed(&one, "events", |_| {})),
                ("a write to _lifecycle that its policy allows", reendorsed(&both, "events", writes_definitions)),
            ],
        ),
        row(
            "submit: OK; block: 10 event CreateAsset; status: 10",
            [
                ("a write to _lifecycle that its policy forbids", reendorsed(&one, "events", writes_definitions)),
                ("no endorsement", spoiled("events", |payload| change_endorsements(payload, Vec::clear))),
                (
                    "an altered result",
                    basic(|payload| {
                        change_result(payload, |result| {
                            result.response.as_mut().expect("a response").payload = Bytes::from_static(b"other");
                        });
                    }),
                ),
                (
                    "an altered write",
                    basic(|payload| {
                        change_keys(payload, |keys| keys.writes[0].value = Bytes::from_static(b"other"));
                    }),
                ),
                (
                    "an altered version",
                    basic(|payload| {
                        change_keys(payload, |keys| keys.reads[0].version = Some(Version { block_num: 1, tx_num: 0 }));
                    }),
                ),
                (
                    "an altered endorsement",
                    basic(|payload| {
                        change_endorsements(payload, |endorsements| {
                            endorsements[0].signature = endorsements[1].signature.clone();
                        });
                    }),
                ),
                (
                    "too few endorsements",
                    basic(|payload| change_endorsements(payload, |endorsements| endorsements.truncate(1))),
                ),
                (
                    "one endorsement twice",
                    basic(|payload| {
                        change_endorsements(payload, |endorsements| endorsements[1] = endorsements[0].clone());
                    }),
                ),
            ],
        ),
        // Filtered blocks name the events of every endorser transaction, however many actions it has.
        row(
            "submit: OK; block: 5 event CreateAsset; status: 5",
            [
                (
                    "altered arguments",
                    basic(|payload| {
                        change_action(payload, |action| {
                            let input = Bytes::from_static(b"\x0a\x02\x12\x00");
                            let altered = ChaincodeProposalPayload { input, ..Default::default() };
                            action.chaincode_proposal_payload = altered.encode_to_vec().into();
                        });
                    }),
                ),
                (
                    "an altered proposal hash",
                    reendorsed(&both, "basic", |payload| {
                        change_response(payload, |response| response.proposal_hash = Bytes::from_static(&[7; 32]));
                    }),
                ),
            ],
        ),
        row(
            "submit: OK; block: 5; status: 5",
            [("no action", basic(|payload| change_transaction(payload, |transaction| transaction.actions.clear())))],
        ),
        row(
            "submit: OK; block: 5 event CreateAsset event CreateAsset; status: 5",
            [(
                "two actions",
                basic(|payload| {
                    change_transaction(payload, |transaction| {
                        transaction.actions.push(transaction.actions[0].clone());
                    });
                }),
            )],
        ),
        row(
            "submit: OK; block: 3 event CreateAsset; status: 3",
            [
                ("another epoch", basic(|payload| change_header(payload, |header| header.epoch = 7))),
                ("no nonce", basic(|payload| change_signature_header(payload, |header| header.nonce = Bytes::new()))),
            ],
        ),
        row(
            "submit: OK; block: 3; status: 3",
            [(
                "another header type",
                basic(|payload| change_header(payload, |header| header.r#type = HeaderType::Message as i32)),
            )],
        ),
        row(
            "submit: OK; block: 8 event CreateAsset; status: 8",
            [
                (
                    "another transaction id",
                    basic(|payload| change_header(payload, |header| header.tx_id = "0".repeat(64))),
                ),
                (
                    "another nonce",
                    basic(|payload| change_signature_header(payload, |header| header.nonce = Bytes::from(vec![7; 24]))),
                ),
                (
                    "another creator",
                    Spoiled {
                        signer: Some(admin),
                        ..basic(move |payload| {
                            change_signature_header(payload, |header| header.creator = creator.clone());
                        })
                    },
                ),
            ],
        ),
        row(
            "submit: OK; block: 22 event CreateAsset; status: 22",
            [(
                "a malformed read-write set",
                reendorsed(&both, "basic", |payload| {
                    change_result(payload, |result| result.results = Bytes::from_static(b"\x12\x7f"));
                }),
            )],
        ),
        row(
            "submit: OK; block: 23 event CreateAsset; status: 23",
            [(
                "a namespace listed twice",
                reendorsed(&both, "basic", |payload| {
                    change_namespaces(payload, |namespaces| {
                        let last = namespaces.last().expect("the contract's namespace").clone();
                        namespaces.push(last);
                    });
                }),
            )],
        ),
        row(
            "submit: OK; block: 255 event Forged; status: 255",
            [(
                "an event of another chaincode",
                reendorsed(&both, "basic", |payload| {
                    change_result(payload, |result| {
                        let event = ChaincodeEvent {
                            chaincode_id: "events".into(),
                            event_name: "Forged".into(),
                            ..Default::default()
                        };
                        result.events = event.encode_to_vec().into();
                    });
                }),
            )],
        ),
        row(
            "submit: OK; block: 25 event CreateAsset; status: 25",
            [(
                "another chaincode in the result",
                reendorsed(&both, "basic", |payload| {
                    change_result(payload, |result| {
                        result.chaincode_id.as_mut().expect("a chaincode").name = "events".into();
                    });
                }),
            )],
        ),
    ];
    let mut blocks = FilteredTransactions::from_next_block(network, &client).await;
    for Row { answers, inputs } in table {
        for (case, Spoiled { contract, change, signer }) in inputs {
            let proposal = client.proposal(CHANNEL, contract, "CreateAsset", &args(&[case, "blue", "5", "Ada", "300"]));
            let transaction = client.endorse(&proposal.sign()).await.expect(case);
            let mut tx_id = String::new();
            let envelope = altered(transaction.payload(), signer.as_ref().unwrap_or(&user), |payload| {
                change(payload);
                change_header(payload, |header| tx_id.clone_from(&header.tx_id));
            });
            let got = blocks.submit(&client, &tx_id, envelope).await;
            differences.check(case, &got, answers);
        }
    }
    let transaction = endorsed(&client, "replayed").await;
    let envelope = signed(transaction.payload().clone(), &user);
    let mut got = Vec::new();
    for _ in ["first", "again"] {
        got.push(blocks.submit(&client, transaction.tx_id(), envelope.clone()).await);
    }
    let expected =
        "submit: OK; block: 0 event CreateAsset; status: 0, then submit: OK; block: 9 event CreateAsset; status: 0";
    differences.check("an envelope submitted twice", &got.join(", then "), expected);
}

/// The transactions in blocks, in their order.
struct FilteredTransactions {
    blocks: gateway::client::BlockStream,
    read: Vec<FilteredTransaction>,
}

impl FilteredTransactions {
    async fn from_next_block(network: &TestNetwork, client: &GatewayClient) -> FilteredTransactions {
        let start = StartPosition::Block(height(network));
        let blocks = client.deliver(CHANNEL, start, None, BlockView::Filtered).await.expect("a stream");
        FilteredTransactions { blocks, read: Vec::new() }
    }

    /// Submits an envelope, waits for it in a block, and asks for the status of its transaction.
    async fn submit(&mut self, client: &GatewayClient, tx_id: &str, envelope: Envelope) -> String {
        let submitted = client.submit_envelope(CHANNEL, tx_id, envelope).await;
        if submitted.is_err() {
            return format!("submit: {}", code(submitted));
        }
        while self.read.is_empty() {
            let block = self.blocks.next().await.expect("a block");
            let Some(Type::FilteredBlock(block)) = block else { panic!("{block:?}") };
            self.read = block.filtered_transactions;
        }
        let transaction = self.read.remove(0);
        let mut event = String::new();
        if let Some(Data::TransactionActions(actions)) = &transaction.data {
            let events = actions.chaincode_actions.iter().filter_map(|action| action.chaincode_event.as_ref());
            event = events.map(|event| format!(" event {}", event.event_name)).collect();
        }
        let status = match client.commit_status(CHANNEL, tx_id).await {
            Ok(commit) => commit.code.to_string(),
            Err(status) => code::<()>(Err(status)),
        };
        format!("submit: OK; block: {}{event}; status: {status}", transaction.tx_validation_code)
    }
}
