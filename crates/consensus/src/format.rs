//! Making a new group, and making one anew.
//!
//! To make a new one ([`format()`]):
//! 1. Every memory node must answer; none may hold a copy that a coordinator has used.
//! 2. Each is fenced under the first term, and gets a header that says: a copy, of nothing.
//! 3. Each gets the first term and its admission into the administrative region. From then on it has a vote.
//!
//! Whoever is interrupted does it again: a node that holds a copy of nothing is as good as a blank one.
//!
//! To make one anew ([`reform`]), when more than F of its 2F+1 nodes hold nothing. The caller has what counts elsewhere, and has seen
//! to it that nobody else uses the term, and that no reign of a smaller one counts any more ([`crate::ordered::sift`]):
//! 1. A majority of the nodes must answer. In each, the term is raised to the given one, which nobody is elected in.
//! 2. Each of these is fenced under it: from here on nobody of a smaller term writes to them, or takes over.
//! 3. What they hold is looked at once more. If a majority has copies of one making after all, that one is left as it is, and what
//!    follows is done to nothing but their votes.
//! 4. Each loses its headers, then gets the number of this making (the term), then a header that says: a copy, of nothing.
//! 5. A majority has one: each is admitted, and has a vote.
//!
//! Why a crash anywhere does no harm, and nodes may be away. Copies are told apart by the making that they bear, so that a copy from
//! before, at a node that was away or that was not come by, is as good as a blank one to whoever takes over or takes it back. There are
//! never enough of them to be taken for the group: before step 4 more than F nodes hold no copy of an earlier making, at one time,
//! behind fences that keep everybody from giving them one. So after a crash the nodes show a majority of copies of this making, and the
//! group is made; or more than F nodes hold nothing of use, and it is made anew again; or too few nodes answer to tell which,
//! since one that was made, or has its vote, is not lost: then another is waited for. Terms stand at every node before it is fenced under them, so that elections go on
//! above. Entries of an earlier making that are left in a log continue no chain: that of this making begins with a
//! number of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Bytes;

use crate::fault::crash_point;
use crate::layout::{ADMITTED_AT, Admin, Cursor, HEADER_BYTES, HEADS_BYTES, Header, MADE_AT};
use crate::link::{Held, Link, NotFenced, Reign};
use crate::quorum::gather;
use crate::{Error, Group, Term};

/// The term under which groups are made.
pub(crate) const FIRST_TERM: Term = Term(1);

/// Makes a group on memory nodes that hold nothing. Its memory is zeros. Dropping the future leaves some nodes done;
/// call it again.
///
/// # Errors
/// [`Error::AlreadyFormatted`] when a node holds a group that was used; [`Error::NoAnswer`] and others when not every node
/// could be reached; [`Error::Invalid`], [`Error::Refused`].
pub async fn format(group: &Group) -> Result<(), Error> {
    group.check()?;
    let mut links = Vec::new();
    for slot in 0..group.nodes.len() {
        let link = Link::connect(group, slot).await?;
        if link.read_admin().await?.term > FIRST_TERM {
            return Err(Error::AlreadyFormatted(group.nodes[slot].address.clone()));
        }
        links.push(link);
    }
    // The same for everybody who makes this group, so that it can be done again.
    let holder = group.id.0;
    let failed = Error::rma("formatting a memory node");
    for link in links {
        let address = &group.nodes[link.slot].address;
        let region = match link.fence(group, FIRST_TERM, holder).await {
            Ok(region) => region,
            Err(NotFenced::Newer(_)) => return Err(Error::AlreadyFormatted(address.clone())),
            Err(NotFenced::Unknown(error)) => return Err(error),
        };
        let held = Held { link, region, reign: Reign { term: FIRST_TERM, holder } };
        let headers = held.read_all(0, HEADS_BYTES, group.timing.answer_max).await.map_err(&failed)?;
        let header = Header {
            sequence: 1,
            term: FIRST_TERM,
            adopted: 0,
            applied: Cursor::default(),
            nodes: group.nodes.len() as u32,
        };
        match Header::newest(&headers, &group.layout)?.0 {
            Some(other) if other != header => return Err(Error::AlreadyFormatted(address.clone())),
            _ => held.write(header.at(), &[Bytes::copy_from_slice(&header.encode())]).await.map_err(&failed)?,
        }
        let header = vec![(header.at(), Bytes::copy_from_slice(&header.encode()))];
        held.keep(group, false, header).await.map_err(&failed)?;
        // The admission comes last: a vote is that of a copy.
        held.link.swap_term(Term(0), FIRST_TERM).await.map_err(&failed)?;
        let admitted = Bytes::copy_from_slice(&group.id.0.to_le_bytes());
        held.link.write_admin(ADMITTED_AT, admitted).await.map_err(&failed)?;
        held.keep(group, true, Vec::new()).await.map_err(&failed)?;
    }
    Ok(())
}

/// Whether a group was used, as a majority of its memory nodes know; others need not answer.
///
/// # Errors
/// [`Error::NoMajority`]; [`Error::Invalid`].
pub async fn is_used(group: &Group) -> Result<bool, Error> {
    group.check()?;
    let links = reach(group).await?;
    Ok(links.iter().any(|(_, admin)| admin.term > FIRST_TERM))
}

/// The memory nodes that answer, a majority at least, with their words.
///
/// # Errors
/// [`Error::NoMajority`].
pub(crate) async fn reach(group: &Group) -> Result<Vec<(Arc<Link>, Admin)>, Error> {
    let links = (0..group.nodes.len()).map(|slot| async move {
        let link = Link::connect(group, slot).await.inspect_err(|error| tracing::debug!(slot, %error)).ok()?;
        let admin = link.read_admin().await.ok()?;
        Some((link, admin))
    });
    // Who is a little late is waited for: a node that is left out now is copied to later.
    let answers = gather(links, group.majority(), group.timing.attempt_max, group.timing.answer_max).await;
    enough(group, answers)
}

/// Makes a group anew, as the head of this module says. When the future is dropped, some nodes are done; it is done again under a
/// greater term.
///
/// # Errors
/// [`Error::Fenced`] when somebody else was faster; [`Error::NotElected`] when a majority holds copies after all, which have their
/// votes then; [`Error::NoMajority`].
pub(crate) async fn reform(
    group: &Group,
    links: Vec<(Arc<Link>, Admin)>,
    term: Term,
    holder: u64,
) -> Result<(), Error> {
    let (majority, timing) = (group.majority(), &group.timing);
    let outbid = &AtomicBool::new(false);
    let fences = links.into_iter().map(|(link, admin)| async move {
        if raise(&link, admin.term, term).await? > term {
            outbid.store(true, Ordering::Relaxed);
            return None;
        }
        crash_point("consensus.reform.raised").await;
        match link.fence(group, term, holder).await {
            Ok(region) => Some(Held { link, region, reign: Reign { term, holder } }),
            Err(NotFenced::Newer(_)) => {
                outbid.store(true, Ordering::Relaxed);
                None
            }
            Err(NotFenced::Unknown(error)) => {
                tracing::debug!(slot = link.slot, %error, "not fenced");
                None
            }
        }
    });
    let fenced = gather(fences, majority, timing.attempt_max, timing.answer_max * 2).await;
    if outbid.load(Ordering::Relaxed) {
        return Err(Error::Fenced(term));
    }
    let fenced: Vec<Held> = enough(group, fenced)?;
    crash_point("consensus.reform.fenced").await;

    let looks = fenced.into_iter().map(|held| async move {
        let heads = held.read_all(0, HEADS_BYTES, timing.answer_max).await.ok()?;
        let newest = Header::newest(&heads, &group.layout);
        // Of one that holds what makes no sense nothing is known, as of one that does not answer.
        let newest = newest.inspect_err(|error| tracing::error!(slot = held.link.slot, %error, "it is passed over"));
        newest.ok().map(|(header, made)| (held, header.map(|_| made)))
    });
    let looked = gather(looks, majority, timing.attempt_max, timing.answer_max).await;
    let looked: Vec<(Held, Option<Term>)> = enough(group, looked)?;
    let newest = looked.iter().filter_map(|(_, made)| *made).max();
    let copies = looked.iter().filter(|(_, made)| made.is_some() && *made == newest).count();
    if copies >= majority {
        let held = looked.into_iter().filter(|(_, made)| *made == newest).map(|(held, _)| held);
        admit(group, held.collect()).await?;
        return Err(Error::NotElected);
    }
    if group.nodes.len() - (looked.len() - copies) >= majority {
        // Those that do not answer may hold the group.
        let (answering, nodes) = (copies, group.nodes.len());
        return Err(Error::NoMajority { answering, needed: majority, nodes });
    }
    let made = looked.into_iter().map(|(held, _)| async move {
        let written = async {
            begin(group, &held, term).await?;
            crash_point("consensus.reform.cleared").await;
            let nodes = group.nodes.len() as u32;
            let applied = Cursor { chain: holder, ..Cursor::default() };
            let header = Header { sequence: 1, term, adopted: 0, applied, nodes };
            write(group, &held, vec![(header.at(), Bytes::copy_from_slice(&header.encode()))]).await
        };
        written.await.inspect_err(|error| tracing::debug!(slot = held.link.slot, %error, "not made")).ok()?;
        crash_point("consensus.reform.header").await;
        Some(held)
    });
    let made = enough(group, gather(made, majority, timing.attempt_max, timing.answer_max).await)?;
    admit(group, made).await
}

/// Has elections go on above a term, at a majority of the memory nodes.
///
/// # Errors
/// [`Error::NoMajority`].
pub(crate) async fn surpass(group: &Group, links: Vec<(Arc<Link>, Admin)>, term: Term) -> Result<(), Error> {
    let raises = links.into_iter().map(|(link, admin)| async move { raise(&link, admin.term, term).await });
    let raised = gather(raises, group.majority(), group.timing.attempt_max, group.timing.answer_max).await;
    enough(group, raised).map(drop)
}

/// Raises the term of a node to one at least; gives what stands there then.
async fn raise(link: &Link, from: Term, to: Term) -> Option<Term> {
    let mut stands = from;
    while stands < to {
        let stood = Term(link.swap_term(stands, to).await.ok()?);
        // Somebody was faster, with a smaller term perhaps.
        stands = if stood == stands { to } else { stood };
    }
    Some(stands)
}

/// The answers, if they are those of a majority.
fn enough<T>(group: &Group, answers: Vec<T>) -> Result<Vec<T>, Error> {
    let (answering, needed, nodes) = (answers.len(), group.majority(), group.nodes.len());
    match answering >= needed {
        true => Ok(answers),
        false => Err(Error::NoMajority { answering, needed, nodes }),
    }
}

/// Gives nodes their vote, a majority at least.
async fn admit(group: &Group, nodes: Vec<Held>) -> Result<(), Error> {
    let admissions = nodes.into_iter().map(|held| async move {
        // The admission comes last: a vote is that of a copy.
        held.link.write_admin(ADMITTED_AT, Bytes::copy_from_slice(&group.id.0.to_le_bytes())).await.ok()?;
        held.keep(group, true, Vec::new()).await.ok()?;
        crash_point("consensus.reform.admitted").await;
        Some(())
    });
    let timing = &group.timing;
    let admitted = gather(admissions, group.majority(), timing.attempt_max, timing.answer_max).await;
    enough(group, admitted).map(drop)
}

/// Takes from a fenced node whatever copy it holds, and has it bear the number of a making. In this order: a header never stands
/// beside the number of another making than its own.
pub(crate) async fn begin(group: &Group, held: &Held, made: Term) -> Result<(), rma::Error> {
    write(group, held, vec![(0, Bytes::from_static(&[0; 2 * HEADER_BYTES]))]).await?;
    write(group, held, vec![(MADE_AT, Bytes::copy_from_slice(&made.0.to_le_bytes()))]).await
}

/// Writes to a node, and has it keep that on disk if it has one.
async fn write(group: &Group, held: &Held, writes: Vec<(u64, Bytes)>) -> Result<(), rma::Error> {
    for (at, bytes) in &writes {
        let written = held.write(*at, std::slice::from_ref(bytes));
        held.link.endpoint.flush();
        written.await?;
    }
    held.keep(group, false, writes).await
}
