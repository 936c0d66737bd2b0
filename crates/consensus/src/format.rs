//! Making a new group.
//!
//! 1. Every memory node must answer; none may hold a copy that a coordinator has used.
//! 2. Each is fenced under the first term, and gets a header that says: a copy, of nothing.
//! 3. Each gets the first term and its admission into the administrative region. From then on it has a vote.
//!
//! Whoever is interrupted does it again: a node that holds a copy of nothing is as good as a blank one.

use base::Bytes;

use crate::fault::crash_point;
use crate::layout::{ADMITTED_AT, Cursor, HEADER_BYTES, Header};
use crate::link::{Held, Link, NotFenced, Reign};
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
        let headers = held.read_all(0, 2 * HEADER_BYTES as u64).await.map_err(&failed)?;
        let header = Header {
            sequence: 1,
            term: FIRST_TERM,
            adopted: 0,
            applied: Cursor::default(),
            nodes: group.nodes.len() as u32,
        };
        match Header::newest(&headers, &group.layout)? {
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

/// Makes a group anew on memory nodes of which so many have lost their memory that nobody can tell what it was: what any of them
/// still holds is given up. For those alone who have what counts elsewhere, and have seen to it that nobody else does this
/// under the same term: a memory node admits one holder a term. Terms go on behind the given one, which must be greater than any
/// that was ever used. When the future is dropped, some nodes are done; it is done again under a greater term.
///
/// # Errors
/// As [`format()`]; [`Error::Fenced`] when somebody else was faster, or a coordinator lives.
pub(crate) async fn reform(group: &Group, term: Term, holder: u64) -> Result<(), Error> {
    let mut links = Vec::new();
    for slot in 0..group.nodes.len() {
        let link = Link::connect(group, slot).await?;
        let before = link.read_admin().await?.term;
        links.push((link, before));
    }
    if links.iter().any(|(_, before)| *before >= term) {
        return Err(Error::Fenced(term));
    }
    let failed = Error::rma("making a group anew");
    for (link, before) in links {
        let region = match link.fence(group, term, holder).await {
            Ok(region) => region,
            Err(NotFenced::Newer(_)) => return Err(Error::Fenced(term)),
            Err(NotFenced::Unknown(error)) => return Err(error),
        };
        let held = Held { link, region, reign: Reign { term, holder } };
        // Neither header of what was there must win over the new one.
        held.write(0, &[Bytes::from_static(&[0; 2 * HEADER_BYTES])]).await.map_err(&failed)?;
        let header =
            Header { sequence: 1, term, adopted: 0, applied: Cursor::default(), nodes: group.nodes.len() as u32 };
        held.write(header.at(), &[Bytes::copy_from_slice(&header.encode())]).await.map_err(&failed)?;
        let kept = vec![
            (0, Bytes::from_static(&[0; 2 * HEADER_BYTES])),
            (header.at(), Bytes::copy_from_slice(&header.encode())),
        ];
        held.keep(group, false, kept).await.map_err(&failed)?;
        crash_point("consensus.reform.header").await;
        if held.link.swap_term(before, term).await.map_err(&failed)? != before.0 {
            return Err(Error::Fenced(term));
        }
        let admitted = Bytes::copy_from_slice(&group.id.0.to_le_bytes());
        held.link.write_admin(ADMITTED_AT, admitted).await.map_err(&failed)?;
        held.keep(group, true, Vec::new()).await.map_err(&failed)?;
    }
    Ok(())
}

/// The greatest term that stands at any memory node; all must answer.
pub(crate) async fn greatest_term(group: &Group) -> Result<Term, Error> {
    let mut greatest = Term::default();
    for slot in 0..group.nodes.len() {
        greatest = greatest.max(Link::connect(group, slot).await?.read_admin().await?.term);
    }
    Ok(greatest)
}
