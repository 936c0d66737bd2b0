//! What runs behind an address space, one task a donor: connects, fences, sweeps, and begins again when the donor is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::ErrorKind;
use base::rt::channel::OneshotSender;
use base::rt::{self, AbortOnDrop};
use rma::Credential;

use super::link::Link;
use super::{ANSWER_MAX, LossReason, Place, Shared, lock};
use crate::Error;
use crate::events::{DonorsConnected, DonorsLost, SectionsSwept};
use crate::message::{PROTOCOL_VERSION, Refusal, Reply, Request};

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a donor may take to fence: its provider may have to wait for a holder that was paused, and to end it.
const FENCE_ANSWER_MAX: Duration = Duration::from_secs(30);
/// How often a fence that is not confirmed is asked for again on one connection.
const FENCE_ATTEMPTS_MAX: u32 = 5;
/// How often opening a space tries a donor whose connection is lost meanwhile; one that is silent, it tries once.
const OPEN_ATTEMPTS_MAX: u32 = 3;
/// Pauses between attempts double from one to the other.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Keeps one donor connected for as long as the space lives. `first` is told how that began.
pub(super) async fn keep(shared: Arc<Shared>, place: usize, first: OneshotSender<Result<(), Error>>) {
    let stop = shared.stop.clone();
    stop.or_stopped(keep_on(&shared, &shared.donors[place], first)).await;
    if let Some(link) = disconnect(&shared, &shared.donors[place]) {
        shared.lose(&link, LossReason::Disconnected);
    }
}

async fn keep_on(shared: &Arc<Shared>, place: &Place, first: OneshotSender<Result<(), Error>>) {
    let mut first = Some(first);
    let mut pause = PAUSE_MIN;
    let (mut attempts, start) = (0, rt::now());
    loop {
        attempts += 1;
        match connect(shared, place).await {
            Ok((link, receiving)) => {
                if let Some(before) = lock(&place.problem).take() {
                    tracing::info!(donor = %place.donor.address, before, "a memory node is back");
                }
                pause = PAUSE_MIN;
                if !link.endpoint.profile().synchronous {
                    shared.asynchronous.fetch_add(1, Ordering::Relaxed);
                }
                *lock(&place.link) = Some(Arc::clone(&link));
                DonorsConnected.add(1);
                if let Some(first) = first.take() {
                    // Whoever opened the space may have gone; then the space ends.
                    let _ = first.send(Ok(()));
                }
                attend(shared, &link).await;
                drop(receiving);
                disconnect(shared, place);
                shared.lose(&link, LossReason::Disconnected);
                *lock(&place.problem) = Some("the connection was lost".to_owned());
                tracing::warn!(donor = %link.address, owner = %shared.owner, "a memory node was lost");
                if let Some(newest) = link.fenced() {
                    shared.become_fenced(newest);
                    return;
                }
            }
            Err(error) => {
                let unreachable = matches!(&error, Error::Rma { error: rma::Error::Unreachable { .. }, .. });
                let enough = unreachable
                    || attempts >= OPEN_ATTEMPTS_MAX
                    || start.elapsed() >= ANSWER_MAX
                    || error.kind() == ErrorKind::Rejected;
                let text = error.to_string();
                let news = lock(&place.problem).replace(text.clone()).is_none_or(|before| before != text);
                if news {
                    tracing::warn!(donor = %place.donor.address, owner = %shared.owner, %error, "a memory node is not available");
                }
                if let Error::Fenced { newest, .. } = error {
                    shared.become_fenced(newest);
                    if let Some(first) = first.take() {
                        let _ = first.send(Err(error));
                    }
                    return;
                }
                if enough && let Some(first) = first.take() {
                    let _ = first.send(Err(error));
                }
            }
        }
        // Not all at once after a donor's restart.
        rt::sleep(pause + pause.mul_f64(rt::random_below(1000) as f64 / 1000.0)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Takes the link out of its place.
fn disconnect(shared: &Shared, place: &Place) -> Option<Arc<Link>> {
    let link = lock(&place.link).take()?;
    if !link.endpoint.profile().synchronous {
        shared.asynchronous.fetch_sub(1, Ordering::Relaxed);
    }
    DonorsLost.add(1);
    Some(link)
}

/// A new connection, fenced and swept.
async fn connect(shared: &Arc<Shared>, place: &Place) -> Result<(Arc<Link>, AbortOnDrop<()>), Error> {
    let address = &place.donor.address;
    let credential = Credential { name: shared.owner.clone(), token: place.donor.token.clone() };
    let connecting = rt::timeout(CONNECT_MAX, shared.fabric.connect(address, &credential)).await;
    let endpoint = match connecting {
        Ok(Ok(endpoint)) => endpoint,
        Ok(Err(rma::Error::Refused(reason))) => {
            let reason = format!("{reason}; register this owner and its token at the memory node");
            return Err(Error::Refused { address: address.clone(), owner: shared.owner.clone(), reason });
        }
        Ok(Err(rma::Error::Version { ours, theirs })) => {
            return Err(Error::Version { address: address.clone(), ours, theirs });
        }
        Ok(Err(error)) => {
            return Err(Error::Rma { doing: format!("connecting to the memory node at {address}"), error });
        }
        Err(rt::Elapsed) => {
            let reason = format!("no connection within {} s", CONNECT_MAX.as_secs());
            let error = rma::Error::Unreachable { address: address.clone(), reason };
            return Err(Error::Rma { doing: format!("connecting to the memory node at {address}"), error });
        }
    };
    let link = Arc::new(Link::new(endpoint, address.clone()));
    let receiver = Arc::clone(&link);
    let receiving = rt::spawn(async move { receiver.receive().await }).abort_on_drop();
    let ending = EndOnDrop(Some(&link));
    match introduce(shared, &link).await {
        Ok(()) => {
            ending.keep();
            Ok((link, receiving))
        }
        // The connection may have ended with the news.
        Err(error) => Err(match link.fenced() {
            Some(newest) => Error::Fenced { owner: shared.owner.clone(), ours: shared.epoch, newest },
            None => error,
        }),
    }
}

/// A link that did not come about ends.
struct EndOnDrop<'a>(Option<&'a Link>);

impl EndOnDrop<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            link.end();
        }
    }
}

async fn introduce(shared: &Shared, link: &Link) -> Result<(), Error> {
    let hello = Request::Hello { version: PROTOCOL_VERSION, section_bytes: shared.section_bytes };
    match link.turn(ANSWER_MAX).await?.ask(hello, ANSWER_MAX).await? {
        Reply::Welcome { version, .. } if version != PROTOCOL_VERSION => {
            return Err(Error::Version { address: link.address.clone(), ours: PROTOCOL_VERSION, theirs: version });
        }
        Reply::Welcome { section_bytes, .. } if section_bytes != shared.section_bytes => {
            return Err(Error::SectionSize {
                address: link.address.clone(),
                ours: shared.section_bytes,
                theirs: section_bytes,
            });
        }
        Reply::Welcome { .. } => {}
        reply => return Err(shared.unexpected(link, &reply)),
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        let fence = Request::Fence { epoch: shared.epoch, holder: shared.holder };
        match link.turn(ANSWER_MAX).await?.ask(fence, FENCE_ANSWER_MAX).await? {
            Reply::Fenced { .. } => break,
            Reply::Refused { refusal: Refusal::Unconfirmed, .. } if attempts < FENCE_ATTEMPTS_MAX => {
                rt::sleep(PAUSE_MIN * attempts).await;
            }
            Reply::Refused { refusal: Refusal::Unconfirmed, .. } => {
                return Err(Error::Unconfirmed(link.address.clone()));
            }
            reply => return Err(shared.unexpected(link, &reply)),
        }
    }
    // What an earlier connection of this holder had is lost to it.
    if !sweep(shared, link).await? {
        link.leave_unswept();
    }
    Ok(())
}

/// Gives back what the donor has of ours and we do not know; false when some of it is still there.
async fn sweep(shared: &Shared, link: &Link) -> Result<bool, Error> {
    let mut turn = link.turn(ANSWER_MAX).await?;
    let sections = match turn.ask(Request::List, ANSWER_MAX).await? {
        Reply::Listed { sections, .. } => sections,
        reply => return Err(shared.unexpected(link, &reply)),
    };
    let mut clean = true;
    for (section, _) in sections {
        if link.knows(section) {
            continue;
        }
        match turn.ask(Request::Release { section }, ANSWER_MAX).await? {
            Reply::Released { .. } => SectionsSwept.add(1),
            Reply::Refused { refusal: Refusal::UnknownSection, .. } => {}
            Reply::Refused { refusal: Refusal::Unconfirmed, .. } => clean = false,
            reply => return Err(shared.unexpected(link, &reply)),
        }
    }
    Ok(clean)
}

/// Sweeps whenever that is due, until the link ends.
async fn attend(shared: &Shared, link: &Link) {
    let mut pause = PAUSE_MIN;
    loop {
        if link.take_unswept() {
            match link.ended.or_stopped(sweep(shared, link)).await {
                Some(Ok(true)) => pause = PAUSE_MIN,
                Some(outcome) => {
                    if let Err(error) = outcome {
                        tracing::debug!(%error, donor = %link.address, "a sweep is tried again");
                    }
                    if link.ended.or_stopped(rt::sleep(pause)).await.is_none() {
                        return;
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                    link.leave_unswept();
                }
                None => return,
            }
        }
        if link.ended.or_stopped(link.sweep.notified()).await.is_none() {
            return;
        }
    }
}
