//! Compare-and-swap, fetch-and-add, and many verbs at once.

use base::rt;

use super::{EndpointPair, Fixture, REGION_BYTES, TestRegion, ensure, read_word, while_doing, word};
use crate::{Error, IN_FLIGHT_MAX};

type Checked = Result<Option<&'static str>, String>;

/// Endpoints that compete.
const ENDPOINTS: usize = 4;
/// Tasks on each of them.
const TASKS: usize = 2;

pub(super) async fn a_swap_happens_only_where_the_expected_word_stands(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let EndpointPair { connected, accepted: _accepted } = EndpointPair::new(fixture).await?;
    let last = region.bytes - 8;
    for offset in [0, 8, 4096, last] {
        let swap = async |expected, new| {
            connected.compare_swap(&region.all, offset, expected, new).await.map_err(while_doing("swapping"))
        };
        for (expected, new, before, after) in [
            (1, 2, 0, 0),
            (0, u64::MAX, 0, u64::MAX),
            (0, 7, u64::MAX, u64::MAX),
            (u64::MAX, 0x0102_0304_0506_0708, u64::MAX, 0x0102_0304_0506_0708),
        ] {
            let seen = swap(expected, new).await?;
            ensure!(seen == before, "a swap of {expected} for {new} gave {seen} where {before} stood");
            let seen = read_word(&connected, &region.all, offset).await?;
            ensure!(seen == after, "a swap of {expected} for {new} where {before} stood left {seen}");
        }
    }
    let neighbour = read_word(&connected, &region.all, 16).await?;
    ensure!(neighbour == 0, "a swap changed the word beside");
    region.end().await
}

pub(super) async fn additions_wrap_and_give_what_stood_there(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let EndpointPair { connected, accepted: _accepted } = EndpointPair::new(fixture).await?;
    let add = async |add| connected.fetch_add(&region.all, 8, add).await.map_err(while_doing("adding"));
    let mut expected = 0u64;
    for number in [1, 0, u64::MAX, 1 << 63, 1 << 63, u64::MAX, 5] {
        let before = add(number).await?;
        ensure!(before == expected, "an addition found {before} where {expected} stood");
        expected = expected.wrapping_add(number);
    }
    // The word to add to was written before.
    connected.write(&region.all, 8, &[word(41)]).await.map_err(while_doing("writing"))?;
    let before = add(1).await?;
    let after = read_word(&connected, &region.all, 8).await?;
    ensure!((before, after) == (41, 42), "an addition to 41 found {before} and left {after}");
    let beside = (read_word(&connected, &region.all, 0).await?, read_word(&connected, &region.all, 16).await?);
    ensure!(beside == (0, 0), "an addition carried into the words beside");
    region.end().await
}

pub(super) async fn swaps_under_contention_lose_nothing(fixture: &dyn Fixture) -> Checked {
    let rounds = fixture.features().rounds / 4;
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pairs = EndpointPair::several(fixture, ENDPOINTS).await?;
    let (capability, mut tasks) = (region.all, Vec::new());
    for pair in &pairs {
        for _ in 0..TASKS {
            let endpoint = pair.connected.clone();
            tasks.push(rt::spawn(async move {
                // A counter, and beside it one that is raised only by successful swaps.
                let mut expected = 0;
                for _ in 0..rounds {
                    loop {
                        let before = endpoint.compare_swap(&capability, 64, expected, expected + 1).await?;
                        let swapped = before == expected;
                        expected = if swapped { expected + 1 } else { before };
                        if swapped {
                            break;
                        }
                    }
                    endpoint.fetch_add(&capability, 72, 1).await?;
                }
                Ok::<(), Error>(())
            }));
        }
    }
    for task in tasks {
        task.await.map_err(while_doing("swapping"))?.map_err(while_doing("swapping"))?;
    }
    let (swapped, counted) = (
        read_word(&pairs[0].connected, &capability, 64).await?,
        read_word(&pairs[0].connected, &capability, 72).await?,
    );
    let expected = (ENDPOINTS * TASKS * rounds) as u64;
    ensure!(
        (swapped, counted) == (expected, expected),
        "{expected} swaps succeeded, the word is {swapped} ({counted})"
    );
    region.end().await
}

pub(super) async fn additions_under_contention_lose_nothing(fixture: &dyn Fixture) -> Checked {
    let rounds = fixture.features().rounds;
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pairs = EndpointPair::several(fixture, ENDPOINTS).await?;
    let (capability, mut tasks) = (region.all, Vec::new());
    for pair in &pairs {
        for _ in 0..TASKS {
            let endpoint = pair.connected.clone();
            tasks.push(rt::spawn(async move {
                let mut seen = Vec::new();
                for _ in 0..rounds.div_ceil(16) {
                    let posted: Vec<_> = (0..16).map(|_| endpoint.fetch_add(&capability, 64, 1)).collect();
                    endpoint.flush();
                    for add in posted {
                        seen.push(add.await?);
                    }
                }
                Ok::<Vec<u64>, Error>(seen)
            }));
        }
    }
    let mut all = Vec::new();
    for task in tasks {
        let seen = task.await.map_err(while_doing("adding"))?.map_err(while_doing("adding"))?;
        ensure!(seen.is_sorted(), "one task's additions found numbers that go down");
        all.extend(seen);
    }
    all.sort_unstable();
    let each_once = all.iter().enumerate().all(|(place, seen)| place as u64 == *seen);
    ensure!(each_once, "{} additions did not find each number once", all.len());
    let count = read_word(&pairs[0].connected, &capability, 64).await?;
    ensure!(count == all.len() as u64, "after {} additions the word is {count}", all.len());
    region.end().await
}

pub(super) async fn thousands_of_verbs_are_in_flight_in_order(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    for round in 0..3u64 {
        let count = IN_FLIGHT_MAX as u64;
        let posted: Vec<_> = (0..count).map(|_| pair.connected.fetch_add(&region.all, 0, 1)).collect();
        pair.connected.flush();
        for (place, add) in posted.into_iter().enumerate() {
            let before = add.await.map_err(while_doing("adding"))?;
            let expected = round * count + place as u64;
            ensure!(before == expected, "addition {place} of {count} in flight found {before} instead of {expected}");
        }
    }
    region.end().await
}

pub(super) async fn too_many_verbs_are_busy_and_without_effect(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    let posted: Vec<_> = (0..3 * IN_FLIGHT_MAX).map(|_| pair.connected.fetch_add(&region.all, 0, 1)).collect();
    pair.connected.flush();
    let mut done = 0;
    for add in posted {
        match add.await {
            Ok(_) => done += 1,
            Err(Error::Busy) => {}
            Err(error) => return Err(format!("one verb too many failed with {error}")),
        }
    }
    ensure!(done >= IN_FLIGHT_MAX as u64, "{done} verbs were taken, fewer than may be in flight");
    let count = read_word(&pair.connected, &region.all, 0).await?;
    ensure!(count == done, "{done} additions were taken, {count} took effect");
    region.end().await
}
