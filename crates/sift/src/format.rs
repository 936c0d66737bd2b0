//! Formatting a new group, and reformatting an existing one.
//!
//! To format a new group ([`format()`]):
//! 1. Every memory node must answer; none may hold a copy that a coordinator has used.
//! 2. Each node is fenced under the first term, and gets a header that declares an empty copy.
//! 3. Each node gets the first term and its admission into the administrative region. From then on it has a vote.
//!
//! After an interruption the caller formats again: a node that holds an empty copy is treated like a blank node.
//!
//! To reformat a group in which more than F of the 2F+1 nodes have lost their copies ([`reformat`]). Precondition: the
//! caller has all committed entries on disk, has reserved the term of the reformatting, and has fenced every smaller
//! term (`ordered_log::sift`).
//! 1. A majority of the nodes must answer. The term of each node that answers is raised to the reserved term, in which
//!    no CPU node is elected.
//! 2. Each of these nodes is fenced under the reserved term: from here on no coordinator of a smaller term writes to
//!    them or takes over.
//! 3. Their headers are read once more. If a majority holds copies of one generation after all, the nodes of that
//!    generation only get their votes back, and the reformatting ends. It also ends if too few nodes have answered to
//!    show that more than F have lost their copies.
//! 4. At each of these nodes the headers are erased; then the node gets the number of the new generation (the reserved
//!    term), then a header that declares an empty copy.
//! 5. Once a majority has an empty copy, each of these nodes is admitted and has a vote.
//!
//! Why a crash at any point does no harm, and why nodes may be absent. Each copy carries its generation. So a takeover
//! or a re-admission treats a node with an older copy like a blank node, whether the node was absent or the
//! reformatting had not reached it. The older copies never form a majority again: before step 4 more than F nodes lack
//! a copy of the generation that is given up, all at the same time, and their fences keep every older coordinator from
//! giving them one.
//!
//! After a crash, one of three cases holds. If a majority of the nodes has copies of the new generation, the group is
//! formatted. If more than F nodes hold no usable copy, the group is reformatted again. Otherwise too few nodes answer
//! to decide, and the caller waits for another node: a node that was formatted, or that has its vote, does not count as
//! lost.
//!
//! The reserved term is stored at every node before the node is fenced under it, so that elections continue above it.
//! Entries of an earlier generation that remain in a log do not continue the chain, since the chain of the new
//! generation starts with a different number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Bytes, FenceToken};

use crate::fault::crash_point;
use crate::layout::{ADMITTED_AT, AdminWords, CopyHeader, FORMAT_TERM_AT, HEADER_BYTES, HEADS_BYTES, LogCursor};
use crate::link::{FenceError, FencedNode, MemoryNodeLink};
use crate::quorum::gather;
use crate::{Error, SiftGroup, Term};

/// The term under which groups are first formatted.
pub(crate) const FIRST_TERM: Term = Term(1);

/// Formats a group on memory nodes that hold nothing. Its memory is zeros. Dropping the future leaves some nodes
/// formatted; call it again.
///
/// # Errors
/// [`Error::AlreadyFormatted`] when a node holds a group that was used; [`Error::NoAnswer`] and others when not every
/// node could be reached; [`Error::Invalid`], [`Error::Rejected`].
pub async fn format(group: &SiftGroup) -> Result<(), Error> {
    group.check()?;
    let mut links = Vec::new();
    for slot in 0..group.nodes.len() {
        let link = MemoryNodeLink::connect(group, slot).await?;
        if link.read_admin().await?.term > FIRST_TERM {
            return Err(Error::AlreadyFormatted(group.nodes[slot].address.clone()));
        }
        links.push(link);
    }
    // The same nonce for every attempt to format this group, so that formatting can be repeated.
    let nonce = group.id.0;
    let failed = Error::rma("formatting a memory node");
    for link in links {
        let address = &group.nodes[link.slot].address;
        let region = match link.fence(group, FIRST_TERM, nonce).await {
            Ok(region) => region,
            Err(FenceError::Newer(_)) => return Err(Error::AlreadyFormatted(address.clone())),
            Err(FenceError::Unknown(error)) => return Err(error),
        };
        let held = FencedNode { link, region, token: FenceToken { term: FIRST_TERM, nonce } };
        let headers = held.read_all(0, HEADS_BYTES, group.timing.answer_max).await.map_err(&failed)?;
        let header = CopyHeader {
            sequence: 1,
            term: FIRST_TERM,
            adopted: 0,
            applied: LogCursor::default(),
            nodes: group.nodes.len() as u32,
        };
        match CopyHeader::newest(&headers, &group.layout)?.0 {
            Some(other) if other != header => return Err(Error::AlreadyFormatted(address.clone())),
            _ => held.write(header.at(), &[Bytes::copy_from_slice(&header.encode())]).await.map_err(&failed)?,
        }
        let header = vec![(header.at(), Bytes::copy_from_slice(&header.encode()))];
        held.keep(group, false, header).await.map_err(&failed)?;
        // The admission comes last: only a node with a copy may vote.
        held.link.swap_term(Term(0), FIRST_TERM).await.map_err(&failed)?;
        let admitted = Bytes::copy_from_slice(&group.id.0.to_le_bytes());
        held.link.write_admin(ADMITTED_AT, admitted).await.map_err(&failed)?;
        held.keep(group, true, Vec::new()).await.map_err(&failed)?;
    }
    Ok(())
}

/// Whether a group was used, according to a majority of its memory nodes; the others need not answer.
///
/// # Errors
/// [`Error::NoMajority`]; [`Error::Invalid`].
pub async fn is_used(group: &SiftGroup) -> Result<bool, Error> {
    group.check()?;
    let links = connect_majority(group).await?;
    Ok(links.term_max() > FIRST_TERM)
}

/// The memory nodes of a group that answered, a majority at least, with their administrative words.
pub struct AnsweringNodes(Vec<(Arc<MemoryNodeLink>, AdminWords)>);

impl AnsweringNodes {
    /// The greatest term at any of them.
    pub fn term_max(&self) -> Term {
        self.0.iter().map(|(_, words)| words.term).max().unwrap_or_default()
    }
}

/// The memory nodes that answer, a majority at least.
///
/// # Errors
/// [`Error::NoMajority`].
pub async fn connect_majority(group: &SiftGroup) -> Result<AnsweringNodes, Error> {
    let links = (0..group.nodes.len()).map(|slot| async move {
        let link =
            MemoryNodeLink::connect(group, slot).await.inspect_err(|error| tracing::debug!(slot, %error)).ok()?;
        let admin = link.read_admin().await.ok()?;
        Some((link, admin))
    });
    // Wait for nodes that are a little late: a node that is left out now must be copied to later.
    let answers = gather(links, group.majority(), group.timing.attempt_max, group.timing.answer_max).await;
    check_majority(group, answers).map(AnsweringNodes)
}

/// Reformats a group, as the head of this module describes. If the future is dropped, some nodes are reformatted;
/// repeat the call under a greater term.
///
/// # Errors
/// [`Error::Fenced`] when another CPU node was faster; [`Error::NotElected`] when a majority holds copies after all,
/// which have their votes then; [`Error::NoMajority`].
pub async fn reformat(group: &SiftGroup, links: AnsweringNodes, term: Term, holder: u64) -> Result<(), Error> {
    let (majority, timing) = (group.majority(), &group.timing);
    let outbid = &AtomicBool::new(false);
    let fences = links.0.into_iter().map(|(link, admin)| async move {
        if raise_term(&link, admin.term, term).await? > term {
            outbid.store(true, Ordering::Relaxed);
            return None;
        }
        crash_point("consensus.reformat.raised").await;
        match link.fence(group, term, holder).await {
            Ok(region) => Some(FencedNode { link, region, token: FenceToken { term, nonce: holder } }),
            Err(FenceError::Newer(_)) => {
                outbid.store(true, Ordering::Relaxed);
                None
            }
            Err(FenceError::Unknown(error)) => {
                tracing::debug!(slot = link.slot, %error, "not fenced");
                None
            }
        }
    });
    let fenced = gather(fences, majority, timing.attempt_max, timing.answer_max * 2).await;
    if outbid.load(Ordering::Relaxed) {
        return Err(Error::Fenced(term));
    }
    let fenced: Vec<FencedNode> = check_majority(group, fenced)?;
    crash_point("consensus.reformat.fenced").await;

    let looks = fenced.into_iter().map(|held| async move {
        let heads = held.read_all(0, HEADS_BYTES, timing.answer_max).await.ok()?;
        let newest = CopyHeader::newest(&heads, &group.layout);
        // A node with an invalid header counts as one that does not answer.
        let newest = newest.inspect_err(|error| tracing::error!(slot = held.link.slot, %error, "it is passed over"));
        newest.ok().map(|(header, made)| (held, header.map(|_| made)))
    });
    let looked = gather(looks, majority, timing.attempt_max, timing.answer_max).await;
    let looked: Vec<(FencedNode, Option<Term>)> = check_majority(group, looked)?;
    let newest = looked.iter().filter_map(|(_, made)| *made).max();
    let copies = looked.iter().filter(|(_, made)| made.is_some() && *made == newest).count();
    if copies >= majority {
        let held = looked.into_iter().filter(|(_, made)| *made == newest).map(|(held, _)| held);
        admit(group, held.collect()).await?;
        return Err(Error::NotElected);
    }
    if group.nodes.len() - (looked.len() - copies) >= majority {
        // The nodes that do not answer may hold the group.
        let (answering, nodes) = (copies, group.nodes.len());
        return Err(Error::NoMajority { answering, needed: majority, nodes });
    }
    let made = looked.into_iter().map(|(held, _)| async move {
        let written = async {
            write_initial_header(group, &held, term).await?;
            crash_point("consensus.reformat.cleared").await;
            let nodes = group.nodes.len() as u32;
            let applied = LogCursor { chain: holder, ..LogCursor::default() };
            let header = CopyHeader { sequence: 1, term, adopted: 0, applied, nodes };
            write(group, &held, vec![(header.at(), Bytes::copy_from_slice(&header.encode()))]).await
        };
        written.await.inspect_err(|error| tracing::debug!(slot = held.link.slot, %error, "not made")).ok()?;
        crash_point("consensus.reformat.header").await;
        Some(held)
    });
    let made = check_majority(group, gather(made, majority, timing.attempt_max, timing.answer_max).await)?;
    admit(group, made).await
}

/// Makes elections continue above a term, at a majority of the memory nodes.
///
/// # Errors
/// [`Error::NoMajority`].
pub async fn raise_terms(group: &SiftGroup, links: AnsweringNodes, term: Term) -> Result<(), Error> {
    let raises = links.0.into_iter().map(|(link, admin)| async move { raise_term(&link, admin.term, term).await });
    let raised = gather(raises, group.majority(), group.timing.attempt_max, group.timing.answer_max).await;
    check_majority(group, raised).map(drop)
}

/// Raises the term of a node to at least `to`; returns the term that the node has then.
async fn raise_term(link: &MemoryNodeLink, from: Term, to: Term) -> Option<Term> {
    let mut stands = from;
    while stands < to {
        let stood = Term(link.swap_term(stands, to).await.ok()?);
        // Another CPU node was faster, perhaps with a smaller term.
        stands = if stood == stands { to } else { stood };
    }
    Some(stands)
}

/// The answers, if a majority has answered.
fn check_majority<T>(group: &SiftGroup, answers: Vec<T>) -> Result<Vec<T>, Error> {
    let (answering, needed, nodes) = (answers.len(), group.majority(), group.nodes.len());
    match answering >= needed {
        true => Ok(answers),
        false => Err(Error::NoMajority { answering, needed, nodes }),
    }
}

/// Gives nodes their vote; succeeds once a majority has it.
async fn admit(group: &SiftGroup, nodes: Vec<FencedNode>) -> Result<(), Error> {
    let admissions = nodes.into_iter().map(|held| async move {
        // The admission comes last: only a node with a copy may vote.
        held.link.write_admin(ADMITTED_AT, Bytes::copy_from_slice(&group.id.0.to_le_bytes())).await.ok()?;
        held.keep(group, true, Vec::new()).await.ok()?;
        crash_point("consensus.reformat.admitted").await;
        Some(())
    });
    let timing = &group.timing;
    let admitted = gather(admissions, group.majority(), timing.attempt_max, timing.answer_max).await;
    check_majority(group, admitted).map(drop)
}

/// Removes the copy, if any, from a fenced node, and writes the number of the new generation to it. In this order: a
/// header never stands beside the number of a generation other than its own.
pub(crate) async fn write_initial_header(
    group: &SiftGroup,
    held: &FencedNode,
    format_term: Term,
) -> Result<(), rma::Error> {
    write(group, held, vec![(0, Bytes::from_static(&[0; 2 * HEADER_BYTES]))]).await?;
    write(group, held, vec![(FORMAT_TERM_AT, Bytes::copy_from_slice(&format_term.0.to_le_bytes()))]).await
}

/// Writes to a node, and to its disk if it has one.
async fn write(group: &SiftGroup, held: &FencedNode, writes: Vec<(u64, Bytes)>) -> Result<(), rma::Error> {
    for (at, bytes) in &writes {
        let written = held.write(*at, std::slice::from_ref(bytes));
        held.link.endpoint.flush();
        written.await?;
    }
    held.keep(group, false, writes).await
}
