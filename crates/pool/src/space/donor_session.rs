//! The background tasks of an address space, one per donor:
//!
//! 1. The task connects to its donor, and fences every process that held this owner's memory there under an older
//!    epoch.
//! 2. While the space opens, and if it adopts, the task adopts what the owner's last epoch left at the donor: the fence
//!    then keeps these sections.
//! 3. The task *sweeps*: it returns every section that the donor lists but that this connection does not know.
//! 4. When the donor is lost, the task starts again with step 1. When a newer epoch has fenced this one, the task
//!    ends.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::ErrorKind;
use base::rt::channel::OneshotSender;
use base::rt::{self, AbortOnDrop, Backoff};
use futures_util::future::select;
use rma::Credential;

use super::link::DonorLink;
use super::{DonorConnection, LossReason, RESPONSE_TIMEOUT, SpaceCore, watch};
use crate::Error;
use crate::events::{DonorsConnected, DonorsLost, SectionsSwept};
use crate::lock::lock;
use crate::message::{PROTOCOL_VERSIONS, Rejection, Request, Response};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a donor may take to fence: its provider may have to wait for a paused process, and to end it.
const FENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often an unconfirmed fence is requested again on one connection.
const FENCE_ATTEMPTS_MAX: u32 = 5;
/// How often opening a space tries a donor whose connection is lost meanwhile; a silent donor is tried once.
const OPEN_ATTEMPTS_MAX: u32 = 3;
/// The first pause between attempts to connect; half of it is jitter, so that not all owners reconnect at once after a
/// donor's restart.
const CONNECT_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// The longest such pause.
const CONNECT_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The first pause before a sweep is retried, and what the pause before an unconfirmed fence grows by with each attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest pause before a sweep is retried.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Which sections of earlier epochs a space adopts while it opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Adoption {
    None,
    All,
    /// Those whose first bytes are not zero.
    Headed,
}

/// Keeps one donor connected for as long as the space exists, or until the donor is removed. `first` gets the outcome of
/// the first attempts. `adoption`: what these adopt; a section found after the space has opened would come too late,
/// because its owner has decided what memory holds.
pub(super) async fn run(
    shared: Arc<SpaceCore>,
    place: usize,
    adoption: Adoption,
    first: OneshotSender<Result<(), Error>>,
) {
    let place = shared.donors.at(place);
    let stop = shared.stop.clone();
    let connected = place.removed.run_until_cancelled(reconnect_loop(&shared, place, adoption, first));
    stop.run_until_cancelled(connected).await;
    if let Some(link) = disconnect(&shared, place) {
        shared.lose(&link, LossReason::Disconnected);
    }
}

async fn reconnect_loop(
    shared: &Arc<SpaceCore>,
    place: &DonorConnection,
    adoption: Adoption,
    first: OneshotSender<Result<(), Error>>,
) {
    let mut first = Some(first);
    let mut backoff = Backoff::spread(CONNECT_BACKOFF_MIN, CONNECT_BACKOFF_MAX);
    let (mut attempts, start) = (0, rt::now());
    loop {
        attempts += 1;
        let adoption = if first.is_some() { adoption } else { Adoption::None };
        match connect(shared, place, adoption).await {
            Ok((link, receiving)) => {
                if let Some(before) = lock(&place.problem).take() {
                    tracing::info!(donor = %place.donor.address, before, "a memory node is back");
                }
                backoff.reset();
                if !link.endpoint.profile().synchronous {
                    shared.asynchronous.fetch_add(1, Ordering::Relaxed);
                }
                *lock(&place.link) = Some(Arc::clone(&link));
                DonorsConnected.add(1);
                if let Some(first) = first.take() {
                    // The caller of `open` may have gone; then the space ends.
                    let _ = first.send(Ok(()));
                }
                let section = || Some(shared.table.locate(link.a_section()?)?.capability);
                let watching = pin!(watch::close_when_stuck(&link.endpoint, &link.address, section));
                // When the watch closes the connection, the sweeps end as well.
                select(pin!(sweep_when_due(shared, &link)), watching).await;
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
                    || start.elapsed() >= RESPONSE_TIMEOUT
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
        backoff.wait().await;
    }
}

/// Removes the link from its donor.
fn disconnect(shared: &SpaceCore, place: &DonorConnection) -> Option<Arc<DonorLink>> {
    let link = lock(&place.link).take()?;
    if !link.endpoint.profile().synchronous {
        shared.asynchronous.fetch_sub(1, Ordering::Relaxed);
    }
    DonorsLost.add(1);
    Some(link)
}

/// A new connection, fenced and swept.
async fn connect(
    shared: &Arc<SpaceCore>,
    place: &DonorConnection,
    adoption: Adoption,
) -> Result<(Arc<DonorLink>, AbortOnDrop<()>), Error> {
    let address = &place.donor.address;
    let credential = Credential { name: shared.owner.clone(), token: place.donor.token.clone() };
    let connecting = rt::timeout(CONNECT_TIMEOUT, shared.provider.connect(address, &credential)).await;
    let endpoint = match connecting {
        Ok(Ok(endpoint)) => endpoint,
        Ok(Err(rma::Error::Rejected(reason))) => {
            let reason = format!("{reason}; register this owner and its token at the memory node");
            return Err(Error::Rejected { address: address.clone(), owner: shared.owner.clone(), reason });
        }
        Ok(Err(rma::Error::Version(mismatch))) => {
            return Err(Error::Version { address: address.clone(), mismatch });
        }
        Ok(Err(error)) => {
            return Err(Error::Rma { doing: format!("connecting to the memory node at {address}"), error });
        }
        Err(rt::Elapsed) => {
            let reason = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
            let error = rma::Error::Unreachable { address: address.clone(), reason };
            return Err(Error::Rma { doing: format!("connecting to the memory node at {address}"), error });
        }
    };
    let link = Arc::new(DonorLink::new(endpoint, address.clone()));
    let receiver = Arc::clone(&link);
    let receiving = rt::spawn(async move { receiver.receive().await }).abort_on_drop();
    let ending = EndOnDrop(Some((shared, &link)));
    match handshake(shared, &link, adoption).await {
        Ok(()) => {
            ending.disarm();
            Ok((link, receiving))
        }
        // The connection may have ended with the notice of a fence.
        Err(error) => Err(match link.fenced() {
            Some(newest) => Error::Fenced { owner: shared.owner.clone(), ours: shared.epoch, newest },
            None => error,
        }),
    }
}

/// Ends a link that could not be set up, and the sections that were adopted over it.
struct EndOnDrop<'a>(Option<(&'a SpaceCore, &'a DonorLink)>);

impl EndOnDrop<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if let Some((shared, link)) = self.0 {
            shared.lose(link, LossReason::Disconnected);
        }
    }
}

async fn handshake(shared: &SpaceCore, link: &Arc<DonorLink>, adoption: Adoption) -> Result<(), Error> {
    let hello = Request::Hello { versions: PROTOCOL_VERSIONS, section_bytes: shared.section_bytes };
    match link.turn(RESPONSE_TIMEOUT).await?.ask(hello, RESPONSE_TIMEOUT).await? {
        Response::Welcome { section_bytes, .. } if section_bytes != shared.section_bytes => {
            return Err(Error::SectionSize {
                address: link.address.clone(),
                ours: shared.section_bytes,
                theirs: section_bytes,
            });
        }
        Response::Welcome { .. } => {}
        reply => return Err(shared.unexpected(link, &reply)),
    }
    let keep = adoption != Adoption::None;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let fence = Request::Fence { epoch: shared.epoch, nonce: shared.nonce, keep };
        match link.turn(RESPONSE_TIMEOUT).await?.ask(fence, FENCE_TIMEOUT).await? {
            Response::Fenced { .. } => break,
            Response::Rejected { rejection: Rejection::Unconfirmed, .. } if attempts < FENCE_ATTEMPTS_MAX => {
                rt::sleep(BACKOFF_MIN * attempts).await;
            }
            Response::Rejected { rejection: Rejection::Unconfirmed, .. } => {
                return Err(Error::Unconfirmed(link.address.clone()));
            }
            reply => return Err(shared.unexpected(link, &reply)),
        }
    }
    if keep {
        adopt(shared, link, adoption).await?;
    }
    // Sections of an earlier connection of this process are lost to it.
    if !sweep(shared, link).await? {
        link.leave_unswept();
    }
    Ok(())
}

/// Adopts the sections that the donor lists, as many as the budget allows.
async fn adopt(shared: &SpaceCore, link: &Arc<DonorLink>, adoption: Adoption) -> Result<(), Error> {
    let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
    let sections = match turn.ask(Request::List, RESPONSE_TIMEOUT).await? {
        Response::Listed { sections, .. } => sections,
        reply => return Err(shared.unexpected(link, &reply)),
    };
    for (section, bytes) in sections {
        if bytes == shared.section_bytes && !link.knows(section) {
            shared.adopt_from(link, &mut turn, section, adoption).await?;
        }
    }
    Ok(())
}

/// Returns the sections that the donor lists and we do not know; false when some are still there.
async fn sweep(shared: &SpaceCore, link: &DonorLink) -> Result<bool, Error> {
    let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
    let sections = match turn.ask(Request::List, RESPONSE_TIMEOUT).await? {
        Response::Listed { sections, .. } => sections,
        reply => return Err(shared.unexpected(link, &reply)),
    };
    link.note_listed(&sections.iter().map(|(section, _)| *section).collect());
    let mut clean = true;
    for (section, _) in sections {
        if link.knows(section) {
            continue;
        }
        link.note_returning(section);
        match turn.ask(Request::Release { section }, RESPONSE_TIMEOUT).await? {
            Response::Released { .. } => {
                link.note_returned(section);
                SectionsSwept.add(1);
            }
            Response::Rejected { rejection: Rejection::UnknownSection, .. } => link.note_returned(section),
            Response::Rejected { rejection: Rejection::Unconfirmed, .. } => clean = false,
            reply => return Err(shared.unexpected(link, &reply)),
        }
    }
    Ok(clean)
}

/// Sweeps whenever a sweep is due, until the link ends.
async fn sweep_when_due(shared: &SpaceCore, link: &DonorLink) {
    let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
    loop {
        if link.take_unswept() {
            match link.ended.run_until_cancelled(sweep(shared, link)).await {
                Some(Ok(true)) => backoff.reset(),
                Some(outcome) => {
                    if let Err(error) = outcome {
                        tracing::debug!(%error, donor = %link.address, "a sweep is retried");
                    }
                    if link.ended.run_until_cancelled(backoff.wait()).await.is_none() {
                        return;
                    }
                    link.leave_unswept();
                }
                None => return,
            }
        }
        if link.ended.run_until_cancelled(link.sweep.notified()).await.is_none() {
            return;
        }
    }
}
