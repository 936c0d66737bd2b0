//! Connections: who may connect, messages, and how connections end.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use base::{Bytes, BytesMut, ErrorKind, rt};

use super::{
    EndpointPair, Fixture, REGION_BYTES, TestRegion, difference, ensure, pattern, read_word, while_doing, word,
};
use crate::{Credential, Endpoint, Error, IncomingEvent, TOKEN_BYTES, Token};

type Checked = Result<Option<&'static str>, String>;

async fn message(endpoint: &Endpoint) -> Result<Bytes, String> {
    match endpoint.receive().await.map_err(while_doing("receiving a message"))? {
        IncomingEvent::Message(bytes) => Ok(bytes),
        other => Err(format!("{other:?} arrived instead of a message")),
    }
}

/// Receives until the connection ends, which must be a clean end.
async fn drained(endpoint: &Endpoint) -> Result<Vec<IncomingEvent>, String> {
    let mut all = Vec::new();
    loop {
        match endpoint.receive().await {
            Ok(incoming) => all.push(incoming),
            Err(Error::Closed) => return Ok(all),
            Err(error) => return Err(format!("an endpoint whose connection ended failed with {error:?}")),
        }
    }
}

pub(super) async fn strangers_are_refused(fixture: &dyn Fixture) -> Checked {
    let good = fixture.credential();
    let mut token = *good.token.bytes();
    token[TOKEN_BYTES - 1] ^= 1;
    let wrong = [
        Credential { name: good.name.clone(), token: Token::new(token) },
        Credential { name: good.name.clone(), token: Token::new([0; TOKEN_BYTES]) },
        Credential { name: "nobody-of-this-name".to_owned(), token: good.token.clone() },
        Credential { name: String::new(), token: good.token.clone() },
    ];
    for credential in wrong {
        match fixture.connect(&credential).await {
            Err(Error::Rejected(_)) => {}
            Err(error) => return Err(format!("a stranger's connection failed with {error:?}")),
            Ok(_) => return Err(format!("{:?} was let in with a wrong token", credential.name)),
        }
    }
    // The next accepted connection is one that was admitted.
    let pair = EndpointPair::new(fixture).await?;
    pair.connected.send(&[word(5)]).await.map_err(while_doing("sending"))?;
    ensure!(message(&pair.accepted).await? == word(5), "another connection was accepted");
    Ok(None)
}

pub(super) async fn names_and_numbers_are_those_of_the_other_side(fixture: &dyn Fixture) -> Checked {
    let (pair, host) = (EndpointPair::new(fixture).await?, fixture.host());
    let (name, node) = (fixture.credential().name, host.node());
    ensure!(pair.accepted.name() == name, "the accepted endpoint's name is {:?}", pair.accepted.name());
    ensure!(pair.connected.node() == node, "the endpoint's node is {:?}", pair.connected.node());
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    ensure!(region.all.node == node, "a capability's node is {:?}", region.all.node);
    ensure!(region.all.region == region.id, "a capability's region is {:?}", region.all.region);
    region.end().await
}

pub(super) async fn messages_arrive_in_order_in_both_directions(fixture: &dyn Fixture) -> Checked {
    let rounds = fixture.features().rounds as u64 * 5;
    let pair = EndpointPair::new(fixture).await?;
    let length_of = |round: u64| (round * 131 % 900) as usize;
    let mut tasks = Vec::new();
    for endpoint in [&pair.connected, &pair.accepted] {
        let (sender, receiver) = (endpoint.clone(), endpoint.clone());
        tasks.push(rt::spawn(async move {
            let mut posted = Vec::new();
            for round in 0..rounds {
                posted.push(sender.send(&[word(round), pattern(round, length_of(round))]));
                if posted.len() == 32 || round + 1 == rounds {
                    sender.flush();
                    for send in posted.drain(..) {
                        send.await.map_err(while_doing("sending"))?;
                    }
                }
            }
            Ok(())
        }));
        tasks.push(rt::spawn(async move {
            for round in 0..rounds {
                let expected = [&word(round)[..], &pattern(round, length_of(round))].concat();
                let different = difference(&message(&receiver).await?, &expected);
                ensure!(different.is_none(), "message {round} was received as {different:?}");
            }
            Ok(())
        }));
    }
    for task in tasks {
        task.await.map_err(while_doing("passing messages"))??;
    }
    Ok(None)
}

pub(super) async fn messages_of_no_bytes_and_of_many_arrive(fixture: &dyn Fixture) -> Checked {
    let large = fixture.features().large_bytes;
    let pair = EndpointPair::new(fixture).await?;
    for (from, to) in [(&pair.connected, &pair.accepted), (&pair.accepted, &pair.connected)] {
        for length in [0, 1, 100_000, large, 0, 5] {
            let bytes = pattern(length as u64, length);
            let parts = [bytes.slice(..length / 3), Bytes::new(), bytes.slice(length / 3..)];
            let parts: &[Bytes] = if length == 0 { &[] } else { &parts };
            // A large message may be accepted only while it is received.
            let sent = from.send(parts);
            from.flush();
            let received = message(to).await?;
            sent.await.map_err(while_doing("sending"))?;
            let different = difference(&received, &bytes);
            ensure!(different.is_none(), "a message of {length} bytes was received as {different:?}");
        }
    }
    Ok(None)
}

pub(super) async fn a_message_arrives_behind_what_was_written_before_it(fixture: &dyn Fixture) -> Checked {
    const SLOT: u64 = 16 << 10;
    let rounds = fixture.features().rounds as u64;
    let region = TestRegion::new(fixture, SLOT).await?;
    let pairs = EndpointPair::several(fixture, 2).await?;
    for round in 1..=rounds {
        let write = pairs[0].connected.write(&region.all, 0, &[vec![round as u8; SLOT as usize].into()]);
        let send = pairs[0].connected.send(&[word(round)]);
        pairs[0].connected.flush();
        let received = message(&pairs[0].accepted).await?;
        ensure!(received == word(round), "another message arrived");
        let contents = region.contents(&pairs[1].connected).await?;
        let stale = contents.iter().position(|byte| *byte != round as u8);
        ensure!(stale.is_none(), "message {round} arrived before byte {stale:?} of the write before it");
        write.await.map_err(while_doing("writing"))?;
        send.await.map_err(while_doing("sending"))?;
    }
    region.end().await
}

pub(super) async fn giving_up_a_receive_loses_nothing(fixture: &dyn Fixture) -> Checked {
    let pair = EndpointPair::new(fixture).await?;
    for round in 0..fixture.features().rounds as u64 {
        // Polled and dropped, before the message is sent and while it is in transit.
        for _ in 0..3 {
            let mut receiving = pin!(pair.accepted.receive());
            let polled = std::future::poll_fn(|cx| Poll::Ready(receiving.as_mut().poll(cx))).await;
            ensure!(polled.is_pending(), "{polled:?} was received and nothing was sent");
        }
        pair.connected.send(&[word(round)]).await.map_err(while_doing("sending"))?;
        let received = loop {
            let mut receiving = pin!(pair.accepted.receive());
            match std::future::poll_fn(|cx| Poll::Ready(receiving.as_mut().poll(cx))).await {
                Poll::Ready(received) => break received.map_err(while_doing("receiving"))?,
                Poll::Pending if round % 2 == 0 => rt::yield_now().await,
                // This time the receiver sleeps until it is woken.
                Poll::Pending => break IncomingEvent::Message(message(&pair.accepted).await?),
            }
        };
        ensure!(
            received == IncomingEvent::Message(word(round)),
            "{received:?} was received instead of message {round}"
        );
    }
    Ok(None)
}

pub(super) async fn closing_ends_both_sides_and_delivers_what_was_sent(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    for connected_closes in [true, false] {
        let pair = EndpointPair::new(fixture).await?;
        let (closing, other) =
            if connected_closes { (&pair.connected, &pair.accepted) } else { (&pair.accepted, &pair.connected) };
        for round in 0..10 {
            closing.send(&[word(round)]).await.map_err(while_doing("sending"))?;
        }
        closing.close();
        closing.close();
        let received = drained(other).await?;
        let expected: Vec<IncomingEvent> = (0..10).map(|round| IncomingEvent::Message(word(round))).collect();
        ensure!(received == expected, "{} of 10 messages arrived that were sent before closing", received.len());
        for endpoint in [closing, other] {
            let nothing = drained(endpoint).await?;
            ensure!(nothing.is_empty(), "{nothing:?} was received behind the end");
            let outcome = endpoint.send(&[word(1)]).await;
            ensure!(outcome == Err(Error::Closed), "a message on a closed endpoint came to {outcome:?}");
        }
        let outcomes = [
            pair.connected.read(&region.all, 0, 8, BytesMut::new()).await.map(drop),
            pair.connected.write(&region.all, 0, &[word(1)]).await,
            pair.connected.compare_swap(&region.all, 0, 0, 1).await.map(drop),
            pair.connected.fetch_add(&region.all, 0, 1).await.map(drop),
        ];
        for outcome in outcomes {
            ensure!(outcome == Err(Error::Closed), "a verb on a closed endpoint came to {outcome:?}");
        }
    }
    let pair = EndpointPair::new(fixture).await?;
    let seen = read_word(&pair.connected, &region.all, 0).await?;
    ensure!(seen == 0, "a verb on a closed endpoint took effect");
    region.end().await
}

pub(super) async fn dropping_the_last_clone_closes(fixture: &dyn Fixture) -> Checked {
    let pair = EndpointPair::new(fixture).await?;
    let clone = pair.connected.clone();
    drop(pair.connected);
    clone.send(&[word(1)]).await.map_err(while_doing("sending on a clone"))?;
    ensure!(message(&pair.accepted).await? == word(1), "another message arrived");
    clone.send(&[word(2)]).await.map_err(while_doing("sending on a clone"))?;
    drop(clone);
    let received = drained(&pair.accepted).await?;
    ensure!(received == [IncomingEvent::Message(word(2))], "{received:?} was received before the end");
    let pair = EndpointPair::new(fixture).await?;
    drop(pair.accepted);
    let received = drained(&pair.connected).await?;
    ensure!(received.is_empty(), "{received:?} was received from an endpoint that was dropped");
    Ok(None)
}

pub(super) async fn verbs_in_flight_on_a_closed_endpoint_are_ambiguous(fixture: &dyn Fixture) -> Checked {
    const VERBS: usize = 100;
    let region = TestRegion::new(fixture, 1 << 20).await?;
    let pair = EndpointPair::new(fixture).await?;
    let bytes = pattern(1, 1 << 20);
    // The first verb under a capability may take longer, whatever the profile.
    pair.connected.fetch_add(&region.all, 0, 0).await.map_err(while_doing("adding"))?;
    let posted: Vec<_> =
        (0..VERBS).map(|_| pair.connected.write(&region.all, 0, std::slice::from_ref(&bytes))).collect();
    pair.connected.close();
    let mut done = 0;
    for write in posted {
        match write.await {
            Ok(()) => done += 1,
            Err(error) if error.kind() == ErrorKind::Ambiguous => {}
            Err(error) => return Err(format!("a write in flight on a closed endpoint failed with {error:?}")),
        }
    }
    if pair.connected.profile().synchronous {
        ensure!(done == VERBS, "{done} of {VERBS} verbs had completed while they were posted");
    }
    region.end().await
}

pub(super) async fn a_lost_connection_leaves_verbs_ambiguous_and_closes(fixture: &dyn Fixture) -> Checked {
    const ADDITIONS: u64 = 200;
    if !fixture.features().sever {
        return Ok(Some("the fixture cannot lose a connection"));
    }
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut offset = 0;
    for posted_before in [0, 1, ADDITIONS / 2, ADDITIONS] {
        offset += 8;
        let pair = EndpointPair::new(fixture).await?;
        pair.connected.fetch_add(&region.all, offset, 0).await.map_err(while_doing("adding"))?;
        let mut posted: Vec<_> = (0..posted_before).map(|_| pair.connected.fetch_add(&region.all, offset, 1)).collect();
        fixture.sever(&pair.connected, &pair.accepted).await;
        let sent = pair.accepted.send(&[word(1)]);
        posted.extend((posted_before..ADDITIONS).map(|_| pair.connected.fetch_add(&region.all, offset, 1)));
        pair.connected.flush();
        // A completed verb comes after all verbs posted before it, confirmed or not.
        let (mut done, mut possible) = (0, 0);
        for (place, add) in posted.into_iter().enumerate() {
            match add.await {
                Ok(before) => {
                    ensure!(before == place as u64, "addition {place} found {before}");
                    (done, possible) = (before + 1, before + 1);
                }
                Err(error) if error.kind() == ErrorKind::Ambiguous => possible += 1,
                // The loss was noticed before this one was posted.
                Err(Error::Closed) => {}
                Err(error) => return Err(format!("a verb on a lost connection failed with {error:?}")),
            }
        }
        // It is open whether the message was accepted before the loss was noticed.
        drop(sent.await);
        drained(&pair.connected).await?;
        drained(&pair.accepted).await?;
        for outcome in [
            pair.connected.fetch_add(&region.all, offset, 1).await.map(drop),
            pair.connected.send(&[word(1)]).await,
            pair.accepted.send(&[word(1)]).await,
        ] {
            ensure!(outcome == Err(Error::Closed), "a verb on a connection known to be lost came to {outcome:?}");
        }
        let again = EndpointPair::new(fixture).await?;
        let count = read_word(&again.connected, &region.all, offset).await?;
        let within = count >= done && count <= possible;
        ensure!(within, "at least {done} and at most {possible} additions took effect, the word is {count}");
    }
    region.end().await
}

pub(super) async fn a_closed_host_ends_its_connections(fixture: &dyn Fixture) -> Checked {
    let (host, region) = (fixture.host(), TestRegion::new(fixture, REGION_BYTES).await?);
    let pair = EndpointPair::new(fixture).await?;
    pair.connected.fetch_add(&region.all, 0, 1).await.map_err(while_doing("adding"))?;
    let accepting = rt::spawn({
        let host = fixture.host();
        async move { host.accept().await.map(drop) }
    });
    host.close().await;
    drained(&pair.connected).await?;
    drained(&pair.accepted).await?;
    let outcome = pair.connected.fetch_add(&region.all, 0, 1).await;
    ensure!(outcome == Err(Error::Closed), "a verb after the host's end came to {outcome:?}");
    let accepted = accepting.await.map_err(while_doing("accepting"))?;
    ensure!(accepted == Err(Error::Closed), "accepting at a closed host came to {accepted:?}");
    match fixture.connect(&fixture.credential()).await {
        Err(Error::Unreachable { .. }) => {}
        Err(error) => return Err(format!("connecting to a closed host failed with {error:?}")),
        Ok(_) => return Err("a closed host was connected to".to_owned()),
    }
    ensure!(host.register("conformance", 4096).await.is_err(), "a closed host registered a region");
    host.close().await;
    Ok(None)
}
