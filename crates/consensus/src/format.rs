//! Making a new group.
//!
//! 1. Every memory node must answer; none may hold a copy that a coordinator has used.
//! 2. Each is fenced under the first term, and gets a header that says: a copy, of nothing.
//! 3. Each gets the first term and its admission into the administrative region. From then on it has a vote.
//!
//! Whoever is interrupted does it again: a node that holds a copy of nothing is as good as a blank one.

use base::Bytes;

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
