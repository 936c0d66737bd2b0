//! Tests of configuration updates: which of them an orderer accepts, and how they change what it does.

use base::BlockNumber;
use futures_util::future::join;
use identity::Signer;
use ledger::ChannelConfig;
use ledger::config::BatchLimits;
use prost::Message as _;
use proto::common::ConfigGroup;
use proto::orderer::consensus_type::State;
use proto::orderer::{BatchSize, ConsensusType};

use super::*;
use crate::support::{orderer_value, peer, set_messages_max};

fn config(orderer: &Orderer) -> Arc<ChannelConfig> {
    orderer.channel(CHANNEL).expect("joined").policies().config().clone()
}

/// Waits until an update is in force, which may be later than its block can be read, and returns the configuration.
async fn in_force(orderer: &Orderer, sequence: u64) -> Arc<ChannelConfig> {
    let found = async {
        while config(orderer).sequence() < sequence {
            rt::sleep(Duration::from_millis(1)).await;
        }
    };
    rt::timeout(Duration::from_secs(60), found).await.expect("the update comes into force");
    config(orderer)
}

fn block(orderer: &Orderer, number: u64) -> Block {
    let block = orderer.channel(CHANNEL).expect("joined").block(number).expect("the log reads");
    Block::parse(&block.expect("it is durable")).expect("the orderer wrote it")
}

fn durable() -> BroadcastConfig {
    BroadcastConfig { acknowledge: AcknowledgeMode::Durable, ..BroadcastConfig::default() }
}

fn set_bytes_max(root: &mut ConfigGroup, bytes_max: u32) {
    let value = orderer_value(root, "BatchSize");
    let size = BatchSize::decode(value.value.clone()).expect("it was read before");
    value.value = encode(&BatchSize { absolute_max_bytes: bytes_max, preferred_max_bytes: bytes_max, ..size });
}

fn set_state(root: &mut ConfigGroup, state: State) {
    let value = orderer_value(root, "ConsensusType");
    let consensus = ConsensusType::decode(value.value.clone()).expect("it was read before");
    value.value = encode(&ConsensusType { state: state as i32, ..consensus });
}

#[test]
fn an_update_takes_effect_behind_its_block_at_orderer_and_peer() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        // No time-out cuts a block, however slow the machine is.
        let limits = BatchLimits { timeout: Duration::from_secs(600), ..batch(3) };
        let terms = ConsortiumConfig::seeded(1, EndorsementRule::Any);
        let consortium = Consortium::create(ConsortiumConfig { batch: limits, ..terms });
        let root = root(&scratch).await;
        let client = consortium.client();
        let orderer = orderer_with(
            &consortium,
            &root,
            BroadcastConfig { cutting: CuttingMode::Limits, ..BroadcastConfig::default() },
        )
        .await;
        orderer.serve(&orderer_address(&root)).await.expect("the address is free");
        let peer = peer(&consortium, &root, 0).await;
        orderer.broadcast(CHANNEL, plain(&client, "before")).await.expect("taken");
        let update = consortium.config_update(&config(&orderer), |root| set_messages_max(root, 2));
        orderer.broadcast(CHANNEL, update.clone()).await.expect("permitted");
        for text in ["a", "b", "c", "d"] {
            orderer.broadcast(CHANNEL, plain(&client, text)).await.expect("taken");
        }
        at_height(&orderer, 5).await;
        assert_eq!(in_force(&orderer, 1).await.batch().messages_max, 2);
        // The update ended the block before it; after it, two messages make a block.
        let sizes: Vec<usize> = (1..5).map(|number| block(&orderer, number).len()).collect();
        assert_eq!(sizes, [1, 1, 2, 2]);
        let last_configs: Vec<u64> =
            (0..5).map(|number| block(&orderer, number).orderer_metadata().expect("signed").last_config).collect();
        assert_eq!(last_configs, [0, 0, 2, 2, 2]);
        let ordered = Transaction::decode(&block(&orderer, 2).envelope(0)).expect("made here");
        assert_eq!((ordered.header().kind(), ordered.header().tx_id()), (HeaderType::Config as i32, ""));
        assert_eq!(ordered.header().creator(), *consortium.orderer.serialized());
        let content = proto::common::ConfigEnvelope::decode(ordered.data()).expect("made here");
        assert_eq!(encode(&content.last_update.expect("there is one")), update);

        let channel = peer.channel(CHANNEL).expect("joined");
        let mut committed = channel.committed();
        let all = committed.wait_for(|committed| *committed >= 5);
        rt::timeout(Duration::from_secs(20), all).await.expect("blocks are committed").expect("the channel runs");
        assert_eq!((channel.config().sequence(), channel.config().batch().messages_max), (1, 2));
        peer.stop().await.expect("the peer stops");
        orderer.stop().await;

        let orderer = crate::support::orderer(&consortium, &root).await;
        let current = in_force(&orderer, 1).await;
        assert_eq!((current.sequence(), current.batch().messages_max), (1, 2));
        let next = consortium.config_update(&config(&orderer), |root| set_messages_max(root, 7));
        orderer.broadcast(CHANNEL, next).await.expect("permitted");
        at_height(&orderer, 6).await;
        assert_eq!(block(&orderer, 5).orderer_metadata().expect("signed").last_config, 5);
        orderer.stop().await;
    });
}

#[test]
fn updates_that_are_not_permitted_are_refused_with_fabrics_status() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        let orderer = orderer_with(&consortium, &root(&scratch).await, durable()).await;
        let first = config(&orderer);
        let admin = consortium.admin(&consortium.orderer_organization);
        let peer_admin = consortium.admin(&consortium.organizations[0]);
        let update =
            |change: &dyn Fn(&mut ConfigGroup), signers: &[&Signer]| consortium.signed_update(&first, change, signers);
        let larger = |root: &mut ConfigGroup| set_messages_max(root, 2);
        let stranger = IssuingOrganization::create("Org1MSP", "org1.example.com", &CertificateTerms::seeded([1; 32]))
            .and_then(|stranger| stranger.issue(MemberRole::Admin, "Admin"))
            .expect("fine names");
        let oversized = |root: &mut ConfigGroup| {
            let mut policy = root.groups["Application"].policies["Admins"].clone();
            policy.mod_policy = "x".repeat(2 << 20);
            root.groups.get_mut("Application").expect("there").policies.insert("Large".to_owned(), policy);
        };
        let type_changed = |root: &mut ConfigGroup| {
            let value = orderer_value(root, "ConsensusType");
            let consensus = ConsensusType::decode(value.value.clone()).expect("it was read before");
            value.value = encode(&ConsensusType { r#type: "BFT".to_owned(), ..consensus });
        };
        let maintained = |root: &mut ConfigGroup| {
            set_state(root, State::Maintenance);
            set_messages_max(root, 2);
        };
        let orderers_replaced = |root: &mut ConfigGroup| {
            let organization = root.groups["Application"].groups.values().next().expect("there is one").clone();
            let orderers = &mut root.groups.get_mut("Orderer").expect("there").groups;
            orderers.clear();
            orderers.insert("Org1".to_owned(), organization);
        };
        let both = [&admin, &peer_admin];
        for (what, envelope, status, reason) in [
            ("a peer's admin", update(&larger, &[&peer_admin]), Status::BadRequest, "modification policy"),
            ("a stranger", update(&larger, &[&stranger]), Status::Forbidden, "no member"),
            ("a large one", update(&oversized, &both), Status::BadRequest, "exceeds maximum allowed"),
            ("another type", update(&type_changed, &both), Status::BadRequest, "cannot be changed to BFT"),
            ("two things at once", update(&maintained, &both), Status::BadRequest, "changes nothing else"),
            ("other orderers", update(&orderers_replaced, &both), Status::BadRequest, "could not sign blocks"),
        ] {
            let refused = orderer.broadcast(CHANNEL, envelope).await.expect_err(what);
            assert_eq!((refused.status(), refused.kind()), (status, ErrorKind::Rejected), "{what}: {refused}");
            assert!(refused.to_string().contains(reason), "{what}: {refused}");
        }
        let (once, again) = (update(&larger, &both), update(&|root| set_messages_max(root, 5), &both));
        orderer.broadcast(CHANNEL, once).await.expect("permitted");
        let stale = orderer.broadcast(CHANNEL, again).await.expect_err("it relies on a version that is gone");
        assert_eq!(stale.status(), Status::BadRequest);
        assert_eq!(orderer.channel(CHANNEL).expect("joined").height(), 2, "nothing else was ordered");
        orderer.stop().await;
    });
}

/// Checked under the old configuration, and in the queue behind a change of it.
#[test]
fn envelopes_behind_a_change_are_checked_again() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    // One thread, so that both envelopes are queued before the cutting task runs.
    let runtime = production::Runtime::current_thread().expect("a runtime");
    runtime.block_on(async {
        let consortium = consortium();
        let orderer = orderer_with(&consortium, &root(&scratch).await, durable()).await;
        let client = consortium.client();
        let large = plain(&client, &"x".repeat(40_000));
        let smaller = consortium.config_update(&config(&orderer), |root| set_bytes_max(root, 30_000));
        let (changed, refused) = join(orderer.broadcast(CHANNEL, smaller), orderer.broadcast(CHANNEL, large)).await;
        changed.expect("permitted");
        let refused = refused.expect_err("it is too large now");
        assert!(refused.to_string().contains("exceeds maximum allowed 30000 bytes"), "{refused}");

        let current = config(&orderer);
        let one = consortium.config_update(&current, |root| set_messages_max(root, 2));
        let other = consortium.config_update(&current, |root| set_messages_max(root, 4));
        let small = plain(&client, "small");
        let both = join(orderer.broadcast(CHANNEL, one), orderer.broadcast(CHANNEL, other));
        let ((first, second), third) = join(both, orderer.broadcast(CHANNEL, small)).await;
        first.expect("permitted");
        let second = second.expect_err("the first one has changed what it relies on");
        assert_eq!((second.status(), second.kind()), (Status::BadRequest, ErrorKind::Rejected), "{second}");
        third.expect("permitted under both");
        assert_eq!((config(&orderer).batch().messages_max, config(&orderer).sequence()), (2, 2));
        let last = orderer.channel(CHANNEL).expect("joined").height() - 1;
        assert_eq!((last, block(&orderer, last).number()), (3, BlockNumber(3)));
        orderer.stop().await;
    });
}

#[test]
fn in_maintenance_mode_only_orderers_change_the_configuration() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        let orderer = orderer_with(&consortium, &root(&scratch).await, durable()).await;
        let client = consortium.client();
        let (admin, peer_admin) =
            (consortium.admin(&consortium.orderer_organization), consortium.admin(&consortium.organizations[0]));
        let enter = |root: &mut ConfigGroup| set_state(root, State::Maintenance);
        let leave = |root: &mut ConfigGroup| set_state(root, State::Normal);
        let update = |change: &dyn Fn(&mut ConfigGroup), signers: &[&Signer]| {
            consortium.signed_update(&config(&orderer), change, signers)
        };
        orderer.broadcast(CHANNEL, update(&enter, &[&admin])).await.expect("permitted");
        let refused = orderer.broadcast(CHANNEL, plain(&client, "x")).await.expect_err("in maintenance");
        assert_eq!((refused.status(), refused.kind()), (Status::ServiceUnavailable, ErrorKind::Retry), "{refused}");
        let sent_by_a_peer = update(&leave, &[&peer_admin, &admin]);
        let refused = orderer.broadcast(CHANNEL, sent_by_a_peer).await.expect_err("it is no orderer's");
        assert_eq!(refused.status(), Status::Forbidden, "{refused}");
        orderer.broadcast(CHANNEL, update(&leave, &[&admin])).await.expect("permitted");
        orderer.broadcast(CHANNEL, plain(&client, "x")).await.expect("it is over");
        orderer.stop().await;
    });
}
