//! Reads and writes.

use base::{Bytes, BytesMut, rt};

use super::{
    EndpointPair, Fixture, REGION_BYTES, TestRegion, difference, ensure, number, pattern, read_word, while_doing, word,
};
use crate::{Error, IncomingEvent, PARTS_MAX, RegionId, VerbOrdering};

type Checked = Result<Option<&'static str>, String>;

pub(super) async fn what_was_written_is_read_by_all(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pairs = EndpointPair::several(fixture, 2).await?;
    let (writer, reader) = (&pairs[0].connected, &pairs[1].connected);
    let lengths = [1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 1024, 4095, 4096, 4097, 10_240];
    for (round, length) in lengths.into_iter().enumerate() {
        for offset in [0, 1, 5, 8, 4093] {
            let bytes = pattern(round as u64 + offset, length);
            writer.write(&region.all, offset, std::slice::from_ref(&bytes)).await.map_err(while_doing("writing"))?;
            for endpoint in [reader, writer] {
                let read = endpoint.read(&region.all, offset, length, BytesMut::new()).await;
                let read = read.map_err(while_doing("reading"))?;
                let different = difference(&read, &bytes);
                ensure!(different.is_none(), "{length} bytes at {offset} were read as {different:?}");
            }
        }
    }
    // The bytes around a write stay untouched.
    writer.write(&region.all, 8192, &[pattern(1, 64)]).await.map_err(while_doing("writing"))?;
    writer.write(&region.all, 8203, &[pattern(2, 10)]).await.map_err(while_doing("writing"))?;
    let read = reader.read(&region.all, 8192, 64, BytesMut::new()).await.map_err(while_doing("reading"))?;
    let mut expected = pattern(1, 64).to_vec();
    expected[11..21].copy_from_slice(&pattern(2, 10));
    let different = difference(&read, &expected);
    ensure!(different.is_none(), "a write of 10 bytes within 64 gave {different:?}");
    region.end().await
}

pub(super) async fn regions_begin_as_zeros(fixture: &dyn Fixture) -> Checked {
    let pair = EndpointPair::new(fixture).await?;
    let mut before = None;
    for round in 0..5 {
        // The memory may be that of an earlier region.
        let region = TestRegion::new(fixture, REGION_BYTES).await?;
        ensure!(before.replace(region.id) != Some(region.id), "two regions have the number {:?}", region.id);
        let contents = region.contents(&pair.connected).await?;
        ensure!(contents.iter().all(|byte| *byte == 0), "region {round} does not begin as zeros");
        let bytes = pattern(round, REGION_BYTES as usize);
        pair.connected.write(&region.all, 0, &[bytes]).await.map_err(while_doing("writing"))?;
        region.end().await?;
    }
    Ok(None)
}

pub(super) async fn owners_reach_their_memory(fixture: &dyn Fixture) -> Checked {
    let host = fixture.host();
    if let Err(Error::Rejected(_)) = host.load(RegionId(u32::MAX), 0, 8) {
        return Ok(Some("its owners do not reach their memory"));
    }
    let (region, pair) = (TestRegion::new(fixture, REGION_BYTES).await?, EndpointPair::new(fixture).await?);
    for (round, offset, length) in [(0, 0, 64), (1, 5, 300), (2, REGION_BYTES - 4096, 4096)] {
        let bytes = pattern(round, length);
        pair.connected
            .write(&region.all, offset, std::slice::from_ref(&bytes))
            .await
            .map_err(while_doing("writing"))?;
        let loaded = host.load(region.id, offset, length).map_err(while_doing("loading"))?;
        ensure!(loaded[..] == bytes[..], "{length} bytes at {offset} were loaded as others");
        let bytes = pattern(100 + round, length);
        host.store(region.id, offset, &bytes).map_err(while_doing("storing"))?;
        let read = pair.connected.read(&region.all, offset, length, BytesMut::new()).await;
        ensure!(
            read.map_err(while_doing("reading"))?[..] == bytes[..],
            "{length} bytes at {offset} were stored otherwise"
        );
    }
    for (offset, length) in [(REGION_BYTES, 1), (REGION_BYTES - 8, 16), (u64::MAX, 8)] {
        let (loaded, stored) = (host.load(region.id, offset, length), host.store(region.id, offset, &vec![1; length]));
        let is_refused = |error: Option<Error>| matches!(error, Some(Error::OutOfBounds { .. }));
        ensure!(is_refused(loaded.err()) && is_refused(stored.err()), "{length} bytes at {offset} are not there");
    }
    let id = region.id;
    region.end().await?;
    ensure!(host.load(id, 0, 8).is_err() && host.store(id, 0, &[0; 8]).is_err(), "a region that is gone is reached");
    Ok(None)
}

pub(super) async fn reads_append_to_what_is_there(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    let bytes = pattern(1, 1000);
    pair.connected.write(&region.all, 0, std::slice::from_ref(&bytes)).await.map_err(while_doing("writing"))?;
    let mut into = BytesMut::from(&b"before"[..]);
    for (offset, length) in [(0, 10), (10, 300), (310, 690)] {
        into = pair.connected.read(&region.all, offset, length, into).await.map_err(while_doing("reading"))?;
    }
    let different = difference(&into, &[b"before", &bytes[..]].concat());
    ensure!(different.is_none(), "three reads into one buffer gave {different:?}");
    region.end().await
}

pub(super) async fn parts_are_written_one_behind_the_other(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    for count in 0..=PARTS_MAX {
        // Some parts are empty.
        let parts: Vec<Bytes> = (0..count).map(|part| pattern(part as u64, part * 13 % 64)).collect();
        pair.connected.write(&region.all, 3, &parts).await.map_err(while_doing("writing parts"))?;
        let expected = parts.concat();
        let read = pair.connected.read(&region.all, 3, expected.len(), BytesMut::new()).await;
        let different = difference(&read.map_err(while_doing("reading"))?, &expected);
        ensure!(different.is_none(), "{count} parts were read as {different:?}");
    }
    region.end().await
}

pub(super) async fn transfers_of_no_bytes_pass(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    for offset in [0, 5, region.bytes] {
        let read = pair.connected.read(&region.all, offset, 0, BytesMut::from(&b"kept"[..])).await;
        let read = read.map_err(while_doing("reading no bytes"))?;
        ensure!(read[..] == b"kept"[..], "a read of no bytes gave {} bytes", read.len());
        for parts in [&[][..], &[Bytes::new()], &[Bytes::new(), Bytes::new()]] {
            pair.connected.write(&region.all, offset, parts).await.map_err(while_doing("writing no bytes"))?;
        }
    }
    let contents = region.contents(&pair.connected).await?;
    ensure!(contents.iter().all(|byte| *byte == 0), "a write of no bytes wrote something");
    region.end().await
}

pub(super) async fn large_transfers_arrive_whole(fixture: &dyn Fixture) -> Checked {
    let large = fixture.features().large_bytes;
    let bytes = (large as u64 + 4096).next_multiple_of(4096);
    let region = TestRegion::new(fixture, bytes).await?;
    let pairs = EndpointPair::several(fixture, 2).await?;
    let content = pattern(1, large);
    let (one, other) = (content.slice(..large / 3), content.slice(large / 3..));
    pairs[0].connected.write(&region.all, 5, &[one, other]).await.map_err(while_doing("writing"))?;
    let read = pairs[1].connected.read(&region.all, 5, large, BytesMut::new()).await.map_err(while_doing("reading"))?;
    let different = difference(&read, &content);
    ensure!(different.is_none(), "{large} bytes were read as {different:?}");
    region.end().await
}

pub(super) async fn words_are_never_torn(fixture: &dyn Fixture) -> Checked {
    const WORDS: usize = 64;
    let rounds = fixture.features().rounds;
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pairs = EndpointPair::several(fixture, 3).await?;
    let (capability, mut writers) = (region.all, Vec::new());
    for (number, pair) in pairs[..2].iter().enumerate() {
        let endpoint = pair.connected.clone();
        writers.push(rt::spawn(async move {
            for round in 0..rounds {
                let byte = (2 * round + number) as u8;
                endpoint.write(&capability, 8, &[vec![byte; WORDS * 8].into()]).await?;
            }
            Ok::<(), crate::Error>(())
        }));
    }
    let mut seen = Ok(());
    while seen.is_ok() && !writers.iter().all(rt::Task::is_finished) {
        let read = pairs[2].connected.read(&capability, 8, WORDS * 8, BytesMut::new()).await;
        let read = read.map_err(while_doing("reading"))?;
        let torn = read.chunks(8).find(|word| word.iter().any(|byte| *byte != word[0]));
        seen = torn.map_or(Ok(()), |word| Err(format!("a word of two writes was read: {word:?}")));
        rt::yield_now().await;
    }
    for writer in writers {
        writer.await.map_err(while_doing("writing"))?.map_err(while_doing("writing"))?;
    }
    seen?;
    region.end().await
}

pub(super) async fn verbs_of_one_endpoint_take_effect_in_order(fixture: &dyn Fixture) -> Checked {
    let rounds = fixture.features().rounds as u64;
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    let mut posted = Vec::new();
    for round in 1..=rounds {
        // The same words each time: each read must see the write before it and none behind it.
        let length = 8 + (round as usize * 40) % 2048 / 8 * 8;
        let write = pair.connected.write(&region.all, 16, &[vec![round as u8; length].into()]);
        let read = pair.connected.read(&region.all, 16, length, BytesMut::new());
        let add = pair.connected.fetch_add(&region.all, 0, 1);
        let count = pair.connected.read(&region.all, 0, 8, BytesMut::new());
        posted.push((round, write, read, add, count));
        if posted.len() == 200 || round == rounds {
            pair.connected.flush();
            for (round, write, read, add, count) in posted.drain(..) {
                write.await.map_err(while_doing("writing"))?;
                let read = read.await.map_err(while_doing("reading"))?;
                let stray = read.iter().find(|byte| **byte != round as u8);
                ensure!(stray.is_none(), "a read behind write {} saw write {stray:?}", round as u8);
                let before = add.await.map_err(while_doing("adding"))?;
                let after = number(&count.await.map_err(while_doing("reading"))?)?;
                ensure!(before == round - 1, "addition {round} found {before}");
                ensure!(after == round, "a read behind addition {round} saw {after}");
            }
        }
    }
    region.end().await
}

pub(super) async fn data_written_before_a_flag_are_there_with_the_flag(fixture: &dyn Fixture) -> Checked {
    const DATA: usize = 1024;
    let rounds = fixture.features().rounds as u64;
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pairs = EndpointPair::several(fixture, 2).await?;
    let (capability, writer) = (region.all, pairs[0].connected.clone());
    let writing = rt::spawn(async move {
        for round in 1..=rounds {
            let data: Vec<u8> = round.to_le_bytes().repeat(DATA / 8);
            let data = writer.write(&capability, 4096, &[data.into()]);
            let flag = writer.write(&capability, 0, &[word(round)]);
            data.await?;
            flag.await?;
        }
        Ok::<(), crate::Error>(())
    });
    let (reader, mut seen) = (&pairs[1].connected, 0);
    loop {
        let finished = writing.is_finished();
        let flag = reader.read(&capability, 0, 8, BytesMut::new());
        let data = reader.read(&capability, 4096, DATA, BytesMut::new());
        let flag = number(&flag.await.map_err(while_doing("reading"))?)?;
        let data = data.await.map_err(while_doing("reading"))?;
        ensure!(flag >= seen, "the flag went back from {seen} to {flag}");
        seen = flag;
        for word in data.chunks(8) {
            let word = number(word)?;
            ensure!(word >= flag, "the flag is {flag}, and of the data a word is still of write {word}");
        }
        if finished {
            break;
        }
        rt::yield_now().await;
    }
    writing.await.map_err(while_doing("writing"))?.map_err(while_doing("writing"))?;
    ensure!(seen == rounds, "the last flag is {seen} instead of {rounds}");
    region.end().await
}

pub(super) async fn verbs_take_effect_though_nobody_awaits_them(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    for round in 0..100 {
        drop(pair.connected.fetch_add(&region.all, 0, 1));
        drop(pair.connected.write(&region.all, 8 + round * 8, &[word(round)]));
    }
    pair.connected.flush();
    let count = read_word(&pair.connected, &region.all, 0).await?;
    ensure!(count == 100, "{count} of 100 additions took effect");
    for round in 0..100 {
        let seen = read_word(&pair.connected, &region.all, 8 + round * 8).await?;
        ensure!(seen == round, "write {round} did not take effect");
    }
    region.end().await
}

pub(super) async fn immediate_data_arrive_behind_their_bytes(fixture: &dyn Fixture) -> Checked {
    const SLOT: u64 = 4096;
    let rounds = fixture.features().rounds as u32;
    let pairs = EndpointPair::several(fixture, 2).await?;
    if !pairs[0].connected.profile().immediate {
        return Ok(Some("the profile has no immediate data"));
    }
    let region = TestRegion::new(fixture, SLOT * u64::from(rounds)).await?;
    let length_of = |round: u32| (round as usize * 97) % SLOT as usize;
    let (capability, writer) = (region.all, pairs[0].connected.clone());
    let writing = rt::spawn(async move {
        let mut posted = Vec::new();
        for round in 0..rounds {
            let (offset, bytes) = (u64::from(round) * SLOT, pattern(u64::from(round), length_of(round)));
            let (one, other) = (bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..));
            posted.push(writer.write_with_immediate(&capability, offset, &[one, other], round ^ 0x8000_0000));
            if round % 64 == 63 {
                writer.flush();
                rt::yield_now().await;
            }
        }
        writer.flush();
        for write in posted {
            write.await?;
        }
        Ok::<(), crate::Error>(())
    });
    let observer = &pairs[1].connected;
    for round in 0..rounds {
        let incoming = pairs[0].accepted.receive().await.map_err(while_doing("receiving immediate data"))?;
        let (offset, length) = (u64::from(round) * SLOT, length_of(round));
        let expected = IncomingEvent::Immediate {
            immediate: round ^ 0x8000_0000,
            region: region.id,
            offset,
            length: length as u64,
        };
        ensure!(incoming == expected, "{incoming:?} arrived instead of {expected:?}");
        let read = observer.read(&region.all, offset, length, BytesMut::new()).await.map_err(while_doing("reading"))?;
        let different = difference(&read, &pattern(u64::from(round), length));
        ensure!(different.is_none(), "with the immediate data the bytes were read as {different:?}");
    }
    writing.await.map_err(while_doing("writing"))?.map_err(while_doing("writing"))?;
    let ordering = pairs[0].connected.profile().ordering;
    ensure!(ordering >= VerbOrdering::Verbs, "a provider keeps verbs in order at least");
    region.end().await
}
