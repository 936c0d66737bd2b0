//! The format of a snapshot: the group's members, then the state machine's own bytes.

use std::collections::BTreeMap;

use base::bytes::BufMut as _;
use base::{Bytes, BytesMut};
use raft_rs::eraftpb::Snapshot;
use wire::Reader;

use crate::codec::MEMBERS_MAX;
use crate::{Error, RaftMember};

/// The bytes of the members and of the machine, as a snapshot holds them.
pub(super) fn snapshot_data(members: &BTreeMap<u64, RaftMember>, machine: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(machine.len() + 64 * members.len() + 16);
    bytes.put_u32_le(members.len() as u32);
    for (id, member) in members {
        bytes.put_u64_le(*id);
        bytes.put_u32_le(member.is_learner.into());
        bytes.put_u32_le(member.address.len() as u32);
        bytes.put_slice(member.address.as_bytes());
    }
    bytes.put_slice(machine);
    bytes.freeze()
}

/// The members in a snapshot of another node, and the machine's bytes.
pub(super) fn parts_of(snapshot: &Snapshot) -> Result<(BTreeMap<u64, RaftMember>, Bytes), Error> {
    let (members, data) = members_of(snapshot.data.clone())?;
    let state = snapshot.get_metadata().get_conf_state();
    let (voters, learners) = (state.voters.iter().map(|id| (*id, false)), state.learners.iter().map(|id| (*id, true)));
    let counted: BTreeMap<u64, bool> = voters.chain(learners).collect();
    if !counted.into_iter().eq(members.values().map(|member| (member.id, member.is_learner))) {
        return Err(Error::Corrupt("the members in a snapshot of a Raft group differ from those in its metadata"));
    }
    Ok((members, data))
}

/// Whether a snapshot of another node can be installed, as far as this can be checked without the machine.
pub(crate) fn check_snapshot(snapshot: &Snapshot) -> Result<(), Error> {
    parts_of(snapshot).map(drop)
}

pub(super) fn members_of(data: Bytes) -> Result<(BTreeMap<u64, RaftMember>, Bytes), Error> {
    let mut reader = Reader::new(data);
    let mut members = BTreeMap::new();
    for _ in 0..reader.count(16, MEMBERS_MAX)? {
        let (id, learns) = (reader.u64()?, reader.u32()? != 0);
        let address = address_of(&reader.long(usize::MAX)?)?;
        members.insert(id, RaftMember { id, address, is_learner: learns });
    }
    Ok((members, reader.rest()))
}

pub(super) fn address_of(bytes: &[u8]) -> Result<String, Error> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| Error::Corrupt("the address of a member of a Raft group is not UTF-8"))
}

/// The snapshot with which a node starts: the same at each founder, and empty at a node that is to be added.
pub(crate) fn first_snapshot(founders: &[RaftMember], machine: &[u8]) -> Snapshot {
    let members: BTreeMap<u64, RaftMember> = founders.iter().map(|member| (member.id, member.clone())).collect();
    let mut snapshot = Snapshot { data: snapshot_data(&members, machine), ..Snapshot::default() };
    let point = u64::from(!members.is_empty());
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (point, point);
    let state = metadata.mut_conf_state();
    for member in members.values() {
        if member.is_learner { state.learners.push(member.id) } else { state.voters.push(member.id) }
    }
    snapshot
}
