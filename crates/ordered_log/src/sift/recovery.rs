//! How a new leader finds the newest log among the acceptors, and brings its own up to it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use base::FenceToken;
use sift::quorum::gather;
use sift::{EntryKind, LogEntry};

use super::CpuNode;
use super::acceptor::{digest_of, digests};
use super::client::AcceptorClient;
use super::limits::BATCH_BYTES;
use super::message::{AcceptorRequest, AcceptorResponse, DIGESTS_MAX};
use crate::fault::{Mutant, mutant};
use crate::sift::log_core::SiftLogCore;
use crate::{Error, Term};

/// An acceptor that has answered.
pub(super) struct AcceptorReport {
    pub(super) cpu_node: CpuNode,
    pub(super) client: AcceptorClient,
    pub promised: Term,
    pub(super) adopted: Term,
    pub(super) height: u64,
}

/// Queries every acceptor; returns the answers of a majority, the first of which is this node's own.
pub(super) async fn query_acceptors(
    shared: &SiftLogCore,
    token: FenceToken,
    command: AcceptorRequest,
) -> Result<Vec<AcceptorReport>, Error> {
    let (own, others): (Vec<_>, Vec<_>) = shared.cpu_nodes.iter().partition(|neighbour| neighbour.id == shared.me);
    let own = query_acceptor(shared, own[0], token, command.clone()).await?;
    let fenced = AtomicBool::new(false);
    let asks = others.into_iter().map(|neighbour| {
        let (command, fenced) = (command.clone(), &fenced);
        async move {
            let outcome = query_acceptor(shared, neighbour, token, command).await;
            if let Err(error) = &outcome {
                tracing::debug!(%error, "a request to an acceptor failed");
                fenced.fetch_or(matches!(error, Error::Fenced(_)), Ordering::Relaxed);
            }
            outcome.ok()
        }
    });
    let mut heard = gather(asks, shared.majority() - 1, shared.group.timing.grace, shared.disk_timeout).await;
    heard.insert(0, own);
    if heard.len() >= shared.majority() {
        return Ok(heard);
    }
    if fenced.load(Ordering::Relaxed) {
        return Err(Error::Fenced(token.term));
    }
    let (answering, needed, nodes) = (heard.len(), shared.majority(), shared.cpu_nodes.len());
    Err(Error::NoMajority { answering, needed, nodes })
}

pub(super) async fn query_acceptor(
    shared: &SiftLogCore,
    neighbour: &CpuNode,
    token: FenceToken,
    command: AcceptorRequest,
) -> Result<AcceptorReport, Error> {
    let path = match neighbour.id == shared.me {
        true => AcceptorClient::Local(shared.queue.clone()),
        false => AcceptorClient::connect(neighbour, shared.disk_timeout).await?,
    };
    match path.request(token, command, shared.disk_timeout).await? {
        // A term of the last generation has no successor.
        AcceptorResponse::Status { promised, adopted, height } if promised.max(adopted).next_generation().is_some() => {
            Ok(AcceptorReport { cpu_node: neighbour.clone(), client: path, promised, adopted, height })
        }
        _ => Err(path.unexpected_response()),
    }
}

/// Step 3: makes this node's log store equal to the best of those that answered; returns its height. A log store that cannot be
/// fetched, or whose acceptor gives invalid answers, counts as one that did not answer: as long as the others are a majority,
/// the best of them is taken.
pub(super) async fn adopt_newest_log(
    shared: &SiftLogCore,
    token: FenceToken,
    own: &AcceptorReport,
    others: &mut Vec<AcceptorReport>,
) -> Result<u64, Error> {
    let mut height = own.height;
    loop {
        let rank = |adopted: Term, height: u64| match mutant(Mutant::LongestJournal) {
            true => (Term(0), height),
            false => (adopted, height),
        };
        let best = (0..others.len()).max_by_key(|at| rank(others[*at].adopted, others[*at].height));
        let better = |best: &usize| rank(others[*best].adopted, others[*best].height) > rank(own.adopted, height);
        let Some(best) = best.filter(better) else { return Ok(height) };
        if mutant(Mutant::OwnDisk) {
            return Ok(height);
        }
        let error = match copy_log_from(shared, token, own, height, &others[best]).await? {
            Ok(height) => return Ok(height),
            Err(error) => error,
        };
        let from = others.remove(best).cpu_node.id;
        tracing::warn!(cpu_node = %shared.me, %from, %error, "the log of another CPU node cannot be read");
        let (answering, needed) = (others.len() + 1, shared.majority());
        if answering < needed {
            return Err(Error::NoMajority { answering, needed, nodes: shared.cpu_nodes.len() });
        }
        // This node's log store may hold a part of the other one by now, as after a crash during this step: it still bears its
        // old adoption.
        height = shared.log_store.height();
    }
}

/// The inner error is the other node's; an error of this node's own log store is the outer one.
async fn copy_log_from(
    shared: &SiftLogCore,
    token: FenceToken,
    own: &AcceptorReport,
    height: u64,
    best: &AcceptorReport,
) -> Result<Result<u64, Error>, Error> {
    tracing::info!(
        cpu_node = %shared.me,
        from = %best.cpu_node.id,
        adopted = %best.adopted,
        height = best.height,
        "its journal is brought up to another's"
    );
    let no_answer = |reason: &str| {
        let address = best.cpu_node.address.clone();
        Ok(Err(Error::NoAnswer { address, reason: reason.to_owned() }))
    };
    let mut common = match common_height(shared, token, &best.client, height.min(best.height)).await? {
        Ok(common) => common,
        Err(error) => return Ok(Err(error)),
    };
    if common < (*shared.deliverable.borrow()).min(height) {
        return no_answer("its entries differ from those that were delivered here");
    }
    if common < height {
        own.client.request(token, AcceptorRequest::Truncate { height: common }, shared.disk_timeout).await?;
    }
    while common < best.height {
        let read = AcceptorRequest::Read { from: common, bytes: BATCH_BYTES };
        let entries = match best.client.request(token, read, shared.disk_timeout).await {
            Ok(AcceptorResponse::Entries(entries)) => entries,
            Ok(_) => return Ok(Err(best.client.unexpected_response())),
            Err(error) => return Ok(Err(error)),
        };
        let count = entries.len() as u64;
        if !(1..=best.height - common).contains(&count) {
            return no_answer("it returned another number of entries than it has reported");
        }
        match own.client.request(token, AcceptorRequest::Align { position: common, entries }, shared.disk_timeout).await
        {
            Ok(_) => common += count,
            Err(Error::Invalid(reason)) => return no_answer(&reason),
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(best.height))
}

/// How many of the first `height` entries two log stores have in common: this node's and another one, whose error is the inner
/// one.
pub(super) async fn common_height(
    shared: &SiftLogCore,
    token: FenceToken,
    other: &AcceptorClient,
    mut height: u64,
) -> Result<Result<u64, Error>, Error> {
    while height > 0 {
        let from = height.saturating_sub(DIGESTS_MAX.min(64));
        let count = height - from;
        let ours = digests(&*shared.log_store, from, count)?;
        let theirs = match other.request(token, AcceptorRequest::GetDigests { from, count }, shared.disk_timeout).await
        {
            Ok(AcceptorResponse::Digests(theirs)) if theirs.len() == ours.len() => theirs,
            Ok(_) => return Ok(Err(other.unexpected_response())),
            Err(error) => return Ok(Err(error)),
        };
        // Log stores differ only behind their common entries, so the last equal entry is the last common one.
        if let Some(last) = ours.iter().zip(&theirs).rposition(|(ours, theirs)| ours == theirs) {
            return Ok(Ok(from + last as u64 + 1));
        }
        height = from;
    }
    tracing::error!(cpu_node = %shared.me, "the log of another CPU node has no entry in common with this one: it belongs to another group");
    Ok(Err(other.unexpected_response()))
}

/// The second half of step 3: appends the entries that the group's log has beyond the log store.
pub(super) async fn append_recovered(
    shared: &SiftLogCore,
    token: FenceToken,
    own: &AcceptorReport,
    mut height: u64,
    recovered: &[LogEntry],
) -> Result<(u64, VecDeque<(u64, u64)>), Error> {
    let mut records = VecDeque::new();
    for entry in recovered.iter().filter(|entry| entry.kind == EntryKind::Record) {
        let [write] = &entry.writes[..] else {
            return Err(Error::Corrupt("a record of the group's log does not have one write"));
        };
        let position = write.address;
        records.push_back((position, entry.index));
        if position < height {
            let held = shared.log_store.read(position)?;
            if held.is_none_or(|held| digest_of(&held) != digest_of(&write.bytes)) {
                return Err(Error::Corrupt(
                    "the group's log and the orderers' log stores have different entries at one position",
                ));
            }
            continue;
        }
        if mutant(Mutant::ForgetLog) {
            continue;
        }
        if position > height {
            return Err(Error::Corrupt(
                "the group's log starts beyond the end of the orderers' log stores: the directory of an orderer was emptied or \
                 is an older copy; start the orderers that have all blocks, or restore their directories",
            ));
        }
        let align = AcceptorRequest::Align { position, entries: vec![write.bytes.clone()] };
        match own.client.request(token, align, shared.disk_timeout).await {
            Err(Error::Invalid(_)) => {
                return Err(Error::Corrupt(
                    "an entry of the group's log cannot follow the last entry of the log store",
                ));
            }
            aligned => drop(aligned?),
        }
        height += 1;
    }
    Ok((height, records))
}
