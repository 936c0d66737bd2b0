//! Revocation: the fence on verbs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{BytesMut, rt};

use super::rejections::{RejectionCheck, VERBS, VerbKind};
use super::{EndpointPair, Fixture, REGION_BYTES, TestRegion, ensure, read_word, while_doing, word};
use crate::{Error, IncomingEvent, Rights};

type Checked = Result<Option<&'static str>, String>;

/// Bytes of a write that is long enough for a revocation to interrupt.
const LONG_BYTES: usize = 1 << 20;

pub(super) async fn a_revoked_capability_is_refused_for_every_verb(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut refused = RejectionCheck::new(fixture).await?;
    for used_before in [false, true] {
        let stale = region.grant(Rights::ALL)?;
        if used_before {
            for verb in [VerbKind::Read(16), VerbKind::Read(0)] {
                verb.post(refused.endpoint(), &stale, 0).await.map_err(while_doing("reading before the revocation"))?;
            }
        }
        region.host.revoke(&stale).await.map_err(while_doing("revoking"))?;
        for verb in VERBS {
            refused.verb(verb, &stale, 0, |error| *error == Error::Revoked).await?;
        }
        region.host.revoke(&stale).await.map_err(while_doing("revoking again"))?;
        refused.verb(VerbKind::Write(16), &stale, 0, |error| *error == Error::Revoked).await?;
    }
    let contents = region.contents(refused.endpoint()).await?;
    ensure!(contents.iter().all(|byte| *byte == 0), "a verb under a revoked capability took effect");
    // No immediate data either: the next arrival is the message behind them.
    let pair = EndpointPair::new(fixture).await?;
    if pair.connected.profile().immediate && fixture.features().refusals_keep_connections {
        let stale = region.grant(Rights::ALL)?;
        region.host.revoke(&stale).await.map_err(while_doing("revoking"))?;
        let outcome = pair.connected.write_with_immediate(&stale, 0, &[word(1)], 1).await;
        ensure!(outcome == Err(Error::Revoked), "a write with immediate data came to {outcome:?}");
        pair.connected.send(&[word(2)]).await.map_err(while_doing("sending"))?;
        let incoming = pair.accepted.receive().await.map_err(while_doing("receiving"))?;
        ensure!(incoming == IncomingEvent::Message(word(2)), "{incoming:?} arrived under a revoked capability");
    }
    region.end().await
}

pub(super) async fn nothing_lands_after_a_revocation(fixture: &dyn Fixture) -> Checked {
    let rounds = fixture.features().rounds.div_ceil(10);
    let region = TestRegion::new(fixture, LONG_BYTES as u64).await?;
    let observer = EndpointPair::new(fixture).await?;
    for round in 0..rounds {
        // Long writes, which a revocation interrupts, or single words.
        let length = if round % 2 == 0 { LONG_BYTES } else { 4096 };
        let (stale, writer) = (region.grant(Rights::ALL)?, EndpointPair::new(fixture).await?);
        let revoked = Arc::new(AtomicBool::new(false));
        let writing = rt::spawn({
            let (endpoint, revoked) = (writer.connected.clone(), Arc::clone(&revoked));
            async move {
                let bytes = base::Bytes::from(vec![0x11; length]);
                loop {
                    let after = revoked.load(Ordering::SeqCst);
                    let posted: Vec<_> = (0..3)
                        .map(|_| {
                            let write = endpoint.write(&stale, 0, std::slice::from_ref(&bytes));
                            let swap = endpoint.compare_swap(&stale, 8, 0x2222_2222_2222_2222, 0x11);
                            (write, swap)
                        })
                        .collect();
                    endpoint.flush();
                    for (write, swap) in posted {
                        let outcomes = [write.await, swap.await.map(drop)];
                        for outcome in outcomes {
                            match outcome {
                                Ok(()) if !after => {}
                                Err(Error::Revoked) => {}
                                // The verb was cut off in the middle, or its connection was.
                                Err(Error::Ambiguous(_)) if !after => {}
                                Err(Error::Closed) => {}
                                outcome => return Err(format!("a verb of a stale writer came to {outcome:?}")),
                            }
                        }
                    }
                    if after {
                        return Ok(());
                    }
                    rt::yield_now().await;
                }
            }
        });
        for _ in 0..round % 7 {
            // Takes some time, so that the writer makes progress.
            observer.connected.fetch_add(&region.all, 0, 1).await.map_err(while_doing("adding"))?;
            rt::yield_now().await;
        }
        region.host.revoke(&stale).await.map_err(while_doing("revoking"))?;
        let mark = base::Bytes::from(vec![0x22; LONG_BYTES]);
        observer.connected.write(&region.all, 0, &[mark]).await.map_err(while_doing("writing under another grant"))?;
        revoked.store(true, Ordering::SeqCst);
        writing.await.map_err(while_doing("writing"))??;
        let contents = region.contents(&observer.connected).await?;
        let landed = contents.iter().position(|byte| *byte != 0x22);
        ensure!(landed.is_none(), "in round {round} byte {landed:?} landed after the revocation had returned");
    }
    region.end().await
}

/// A capability is valid on every connection of its holder's name until it is revoked; after that on none, old or new.
pub(super) async fn a_capability_that_was_revoked_is_refused_on_a_later_connection(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let kept = region.grant(Rights::ALL)?;
    let first = EndpointPair::new(fixture).await?;
    first.connected.fetch_add(&kept, 0, 1).await.map_err(while_doing("adding on the first connection"))?;
    first.connected.close();
    drop(first);
    let second = EndpointPair::new(fixture).await?;
    let before = second.connected.fetch_add(&kept, 0, 1).await;
    ensure!(before == Ok(1), "on a second connection of the same name it came to {before:?}");
    region.host.revoke(&kept).await.map_err(while_doing("revoking"))?;
    drop(second);
    let mut refused = RejectionCheck::new(fixture).await?;
    for verb in VERBS {
        refused.verb(verb, &kept, 0, |error| *error == Error::Revoked).await?;
    }
    let word = read_word(refused.endpoint(), &region.all, 0).await?;
    ensure!(word == 2, "a replayed verb took effect: the word is {word}");
    region.end().await
}

pub(super) async fn one_grant_survives_the_revocation_of_another(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let other = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    let mut kept = vec![region.all, region.grant(Rights::ALL)?, other.all];
    for round in 0..20u64 {
        let stale = region.grant(Rights::ALL)?;
        pair.connected.fetch_add(&stale, 0, 0).await.map_err(while_doing("adding under a new grant"))?;
        region.host.revoke(&stale).await.map_err(while_doing("revoking"))?;
        for (place, capability) in kept.iter().enumerate() {
            let before = pair.connected.fetch_add(capability, 8 + place as u64 * 8, 1).await;
            let before = before.map_err(while_doing("adding under a grant that was not revoked"))?;
            let expected = if place < 3 { round } else { round - (place as u64 - 2) };
            ensure!(before == expected, "grant {place} found {before} instead of {expected}");
        }
        kept.push(region.grant(Rights::ALL)?);
    }
    other.end().await?;
    region.end().await
}

pub(super) async fn a_deregistered_region_is_gone(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut refused = RejectionCheck::new(fixture).await?;
    let (second, never_used) = (region.grant(Rights::ALL)?, region.grant(Rights::ALL)?);
    for capability in [&region.all, &second] {
        refused.endpoint().fetch_add(capability, 0, 1).await.map_err(while_doing("adding"))?;
    }
    let (host, id, all) = (fixture.host(), region.id, region.all);
    region.end().await?;
    let gone = |error: &Error| matches!(error, Error::Unknown | Error::Revoked);
    for verb in VERBS {
        for capability in [&all, &second, &never_used] {
            refused.verb(verb, capability, 0, gone).await?;
        }
    }
    // The capabilities of the old region do not reach a later one.
    let next = TestRegion::new(fixture, REGION_BYTES).await?;
    for verb in VERBS {
        refused.verb(verb, &all, 0, gone).await?;
    }
    let contents =
        refused.endpoint().read(&next.all, 0, 4096, BytesMut::new()).await.map_err(while_doing("reading"))?;
    ensure!(contents.iter().all(|byte| *byte == 0), "a stale capability reached the next region");
    ensure!(host.grant(id, Rights::ALL, &fixture.credential().name).is_err(), "a deregistered region was granted");
    next.end().await
}
