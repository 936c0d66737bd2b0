//! A memory node that comes back (step 5 at the head of [`crate::coordinator`]).

use std::ops::Range;

use base::{Bytes, BytesMut};
use rma::Completion;

use super::keeping::Journal;
use super::{Fetch, LAG_MAX, Member, Phase, State, Step, Woken};
use crate::Error;
use crate::entry::{Kind, padded};
use crate::layout::{Cursor, Header, Layout};
use crate::link::Held;
use crate::scan::Placed;

/// Bytes of the largest region, the unit of copying to a node that comes back.
const REGION_BYTES_MAX: u64 = 64 << 10;
/// Regions that a small memory is divided into.
const REGIONS: u64 = 64;
/// Entries go to a node that comes back in runs, which have at most this part of the log, or the least bytes that a run is worth.
const RUN_PART: u64 = 256;
const RUN_BYTES_MIN: u64 = 64 << 10;
// Two that follow one another have more than one may have.
const _: () = assert!(2 * RUN_PART as usize + 2 < LAG_MAX / 2, "there is room for all at once");

/// Reads of a region, from those who have it.
pub(in crate::coordinator) struct Copying {
    pub plain: Option<(Held, Completion<BytesMut>)>,
    pub coded: Option<Fetch>,
}

/// A region as it was read: the part that every node holds as it is, and whole blocks of the rest.
pub(in crate::coordinator) struct Copied {
    pub plain: Option<Bytes>,
    pub coded: Option<Bytes>,
}

/// Bytes of a region of a layout.
pub(in crate::coordinator) fn region_bytes(layout: &Layout) -> u64 {
    // Powers of two, so that a region is made of whole blocks.
    let small = (layout.address_bytes() / REGIONS).next_power_of_two();
    small.min(REGION_BYTES_MAX).max(layout.block_bytes)
}

impl State {
    /// Regions, those first that are written least.
    pub(in crate::coordinator) fn regions(&self) -> Vec<usize> {
        let mut regions: Vec<usize> = (0..self.heat.len()).collect();
        regions.sort_by_key(|region| self.heat[*region]);
        regions
    }

    /// From here on a node gets new entries. Gives the last entry, and the last that is applied.
    pub(in crate::coordinator) fn join(&mut self, held: &Held, sequence: u64) -> Result<(u64, Cursor), Error> {
        self.check_open()?;
        let slot = held.link.slot;
        assert!(self.members[slot].phase == Phase::Lost, "a node has one keeper");
        let (copied, touched) = (vec![false; self.heat.len()], vec![false; self.heat.len()]);
        let (journal, held) = (Journal::of(held), Some(held.clone()));
        self.members[slot] =
            Member { phase: Phase::Joining, held, journal, sequence, copied, touched, ..Member::lost() };
        for (offset, parts) in self.records_in_runs() {
            let at = self.layout.log_at(offset);
            if let Err(error) = self.members[slot].post(at, &parts, self.ticket, None) {
                self.lose_slot(slot, &error);
                break;
            }
        }
        Ok((self.last.index, self.applied))
    }

    /// What the log still needs of what was appended, with its offsets: short entries that lie one behind the other as one write,
    /// since a node may not have as many verbs under way as a log has entries.
    fn records_in_runs(&self) -> Vec<(u64, Vec<Bytes>)> {
        let run_bytes = (self.layout.log_bytes / RUN_PART).max(RUN_BYTES_MIN) as usize;
        let watermark = self.watermark().index;
        let records = self.kept.iter().filter(|kept| kept.after.index > watermark);
        let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let mut run = BytesMut::new();
        let mut run_at = 0;
        for (offset, parts) in records.filter_map(|kept| kept.raw.as_ref()) {
            let bytes = padded(parts.iter().map(|part| part.len() as u64).sum()) as usize;
            if !run.is_empty() && (run_at + run.len() as u64 != *offset || run.len() + bytes > run_bytes) {
                runs.push((run_at, vec![run.split().freeze()]));
            }
            if bytes > run_bytes {
                runs.push((*offset, parts.clone()));
                continue;
            }
            if run.is_empty() {
                run_at = *offset;
            }
            let end = run.len() + bytes;
            parts.iter().for_each(|part| run.extend_from_slice(part));
            run.resize(end, 0);
        }
        if !run.is_empty() {
            runs.push((run_at, vec![run.freeze()]));
        }
        runs
    }

    /// A live node whose log can be read, and the header under which its entries count.
    pub(in crate::coordinator) fn log_source(&self) -> Option<(Held, Header)> {
        let source = self.live().min_by_key(|member| member.posted.len() + member.slow as usize)?;
        Some((source.held.clone()?, self.header(0, Cursor::default())))
    }

    /// Leaves a node what it has kept: `entries` are those behind what its header covers, `before`. If they lead to what was
    /// applied when it joined, they and what was applied since tell every region of the logged memory that was written; the
    /// others are as they are to be. False if they do not.
    pub(in crate::coordinator) fn keep_unchanged(
        &mut self,
        held: &Held,
        before: Cursor,
        joined_at: Cursor,
        entries: &[Placed],
    ) -> Result<bool, Error> {
        let region = region_bytes(&self.layout);
        let mut changed = self.joining(held)?.touched.clone();
        if before != joined_at && entries.iter().all(|placed| placed.after != joined_at) {
            return Ok(false);
        }
        // What was written without the log is not known.
        changed[..self.layout.direct_bytes.div_ceil(region) as usize].fill(true);
        let writes = entries.iter().filter(|placed| placed.entry.kind == Kind::Writes);
        for write in writes.flat_map(|placed| &placed.entry.writes) {
            let until = write.address.saturating_add(write.bytes.len() as u64).div_ceil(region) as usize;
            let Some(written) = changed.get_mut((write.address / region) as usize..until) else { return Ok(false) };
            written.fill(true);
        }
        self.joining(held)?.copied = changed.into_iter().map(|changed| !changed).collect();
        Ok(true)
    }

    /// Whether a node has a region already.
    pub(in crate::coordinator) fn has_region(&mut self, held: &Held, region: usize) -> Result<bool, Error> {
        Ok(self.joining(held)?.copied[region])
    }

    fn joining(&mut self, held: &Held) -> Result<&mut Member, Error> {
        self.check_open()?;
        let member = &mut self.members[held.link.slot];
        match member.phase == Phase::Joining && member.is_held_by(held) {
            true => Ok(member),
            false => Err(Error::NoAnswer { address: String::new(), reason: "the node was lost again".to_owned() }),
        }
    }

    /// The part of a region that every node holds as it is, and the part of which it holds shares.
    fn parts(&self, region: usize) -> (Range<u64>, Range<u64>) {
        let bytes = region_bytes(&self.layout);
        let from = region as u64 * bytes;
        let until = (from + bytes).min(self.layout.address_bytes());
        let plain = if self.layout.is_coded() { self.layout.direct_bytes } else { until };
        (from..until.min(plain.max(from)), from.max(plain.min(until))..until)
    }

    /// Begins to copy a region: posts the reads of it, and keeps writers away from it.
    pub(in crate::coordinator) fn begin_copy(&mut self, held: &Held, region: usize) -> Result<Step<Copying>, Error> {
        self.joining(held)?;
        let (plain, coded) = self.parts(region);
        let blocks = self.blocks(plain.start, coded.end - plain.start);
        if self.is_locked(blocks.clone())
            || self.is_behind()
            || self.members[held.link.slot].posted.len() >= LAG_MAX / 4
        {
            return Ok(Step::Blocked);
        }
        let source = self.live().filter(|member| member.held.is_some());
        let source = source.min_by_key(|member| member.posted.len() + member.slow as usize);
        let Some(source) = source.and_then(|member| member.held.clone()) else { return Ok(Step::Blocked) };
        let mut copying = Copying { plain: None, coded: None };
        if !coded.is_empty() {
            copying.coded = self.post_fetch(coded.start, (coded.end - coded.start) as usize);
            if copying.coded.is_none() {
                return Ok(Step::Blocked);
            }
        }
        if !plain.is_empty() {
            let read = source.read(self.layout.memory_at(plain.start), (plain.end - plain.start) as usize);
            source.link.endpoint.flush();
            copying.plain = Some((source, read));
        }
        self.joining(held)?.copying = blocks;
        Ok(Step::Done(copying))
    }

    /// Posts a region that was read, in a coded group the node's shares of it; from here on the node gets what is written to
    /// it. With `None` it could not be read.
    pub(in crate::coordinator) fn end_copy(
        &mut self,
        held: &Held,
        region: usize,
        copied: Option<Copied>,
    ) -> Result<(), Error> {
        let (ticket, slot, layout) = (self.ticket, held.link.slot, self.layout);
        let (shares, (plain, coded)) = (self.shares, self.parts(region));
        let member = self.joining(held)?;
        member.copying = 0..0;
        if let Some(copied) = copied {
            member.copied[region] = true;
            let mut posted = Ok(());
            let bytes = [&copied.plain, &copied.coded].into_iter().flatten().map(Bytes::len).sum::<usize>();
            if let Some(bytes) = copied.plain {
                posted = member.post(layout.memory_at(plain.start), &[bytes], ticket, None);
            }
            if let (Ok(()), Some(shares), Some(run)) = (&posted, shares, &copied.coded) {
                posted = member.post(layout.share_at(coded.start), &[shares.encode(slot, run)], ticket, None);
            }
            if let Err(error) = posted {
                self.lose_slot(slot, &error);
            }
            self.copied_bytes += bytes as u64;
        }
        self.flush();
        self.wake_blocked();
        self.joining(held).map(drop)
    }

    /// Posts the header of a node that has everything; gives the ticket that it is to acknowledge.
    pub(in crate::coordinator) fn complete_join(&mut self, held: &Held, from: u64) -> Result<Step<u64>, Error> {
        self.joining(held)?;
        if self.applied.index < from {
            return Ok(Step::Blocked);
        }
        // In a coded group a live node may need any entry behind its header, from whichever node leads the next takeover:
        // this one lacks those from before it came.
        let needed = from.min(self.watermark().index);
        if self.shares.is_some() && self.live().any(|member| member.applied < needed) {
            self.post_headers();
            return Ok(Step::Blocked);
        }
        assert!(self.members[held.link.slot].copied.iter().all(|copied| *copied), "all regions are copied");
        self.ticket += 1;
        let watermark = self.watermark();
        self.post_header(held.link.slot, watermark, self.ticket);
        self.flush();
        self.joining(held)?;
        Ok(Step::Done(self.ticket))
    }

    /// Whether a joining node has acknowledged a ticket.
    pub(in crate::coordinator) fn has_acked(&mut self, held: &Held, ticket: u64) -> Result<Step<()>, Error> {
        let member = self.joining(held)?;
        Ok(if member.acked >= ticket { Step::Done(()) } else { Step::Blocked })
    }

    /// From here on the node counts, also for what waits for a majority.
    pub(in crate::coordinator) fn admit(&mut self, held: &Held) -> Result<Woken, Error> {
        let member = self.joining(held)?;
        member.phase = Phase::Live;
        member.votes = true;
        (member.copied, member.touched) = (Vec::new(), Vec::new());
        self.publish_lease();
        self.note_changed();
        Ok(self.progressed())
    }

    pub(in crate::coordinator) fn lacks_vote(&self, held: &Held) -> bool {
        let member = &self.members[held.link.slot];
        member.phase == Phase::Live && member.is_held_by(held) && !member.votes
    }

    pub(in crate::coordinator) fn note_vote(&mut self, held: &Held) {
        let member = &mut self.members[held.link.slot];
        if member.is_held_by(held) {
            member.votes = true;
        }
    }

    pub(in crate::coordinator) fn give_up_join(&mut self, held: &Held) {
        let member = &mut self.members[held.link.slot];
        if member.phase == Phase::Joining && member.is_held_by(held) {
            *member = Member::lost();
            self.wake_blocked();
        }
    }

    /// The live nodes other than one.
    pub(in crate::coordinator) fn others(&self, slot: usize) -> Vec<Held> {
        let live = self.live().filter_map(|member| member.held.clone());
        live.filter(|held| held.link.slot != slot).collect()
    }
}
