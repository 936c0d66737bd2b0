//! What the executor is told of the program's mappings when it asks.

use std::ops::Range;

use bare::PAGE_BYTES;
use bare::system_call::Errno;
use pushdown::{CONSTANT_PAGES_MAX, MappingKind, ToExecutor};

use crate::caller::{Broken, Caller, pages_of};
use crate::mappings::Found;
use crate::refused_memory::OutOfReach;
use crate::variables;

/// How often a mapping is looked for that changes meanwhile.
const MAPPING_TURNS: u32 = 1000;

impl Caller {
    /// The answer to a question for a mapping. The faults of memory that the executor may have are reported from now on.
    ///
    /// Until they are, nobody says that the memory is unmapped: another mapping may have taken the place of a part of it.
    pub(crate) fn mapping(&mut self, wanted: u64) -> ToExecutor {
        if let Some(Range { start, end }) = self.vdso.as_ref().and_then(|vdso| vdso.range_at(wanted)) {
            let protection = (libc::PROT_READ | libc::PROT_EXEC) as u32;
            return ToExecutor::Mapping { wanted, start, end, protection, kind: MappingKind::Constant };
        }
        for _ in 0..MAPPING_TURNS {
            self.settle();
            let events = self.events_handled;
            let Some(Found { start, end, protection, mut kind, is_file }) = self.mappings.find(wanted) else { break };
            let mut out_of_reach = (kind == MappingKind::Refused && protection != 0).then_some(OutOfReach::Shared);
            if kind == MappingKind::Ordinary {
                let is_anonymous = !is_file || variables::make_anonymous_if_alone(start, end, protection);
                let registered = if is_anonymous { self.pages.register(start, end) } else { Ok(()) };
                let is_registered = is_anonymous && registered.is_ok();
                out_of_reach = match registered {
                    _ if !is_anonymous => Some(OutOfReach::OfFile),
                    Err(Errno(libc::EBUSY)) => Some(OutOfReach::ServedElsewhere),
                    _ => None,
                };
                if is_registered {
                    let owned = self.own_unregistered(start, end);
                    self.check(owned);
                }
                let is_same = self.mappings.find(wanted).is_some_and(|now| {
                    now.start <= start && now.end >= end && (now.protection, now.kind) == (protection, kind)
                });
                if !is_same || self.events_handled != events || self.pages.is_changing() {
                    continue;
                }
                match is_registered {
                    true => self.pages.registered(start, end),
                    false => kind = MappingKind::Refused,
                }
            }
            match out_of_reach {
                Some(why) => self.refused.note(start..end, why),
                None => self.refused.forget(wanted),
            }
            if kind == MappingKind::Constant {
                self.constant.insert(pages_of(start, end), ());
            }
            return ToExecutor::Mapping { wanted, start, end, protection, kind };
        }
        self.refused.forget(wanted);
        ToExecutor::Mapping { wanted, start: 0, end: 0, protection: 0, kind: MappingKind::Refused }
    }

    /// Tells the executor of the ordinary mappings of a range for which it has not asked yet. Their faults are reported from now on.
    /// Behind a gap in the range nothing is looked for.
    pub(crate) fn introduce(&mut self, pages: &Range<u64>) {
        for run in self.pages.unregistered_in(pages.clone()) {
            let (mut at, end) = (run.start * PAGE_BYTES as u64, run.end * PAGE_BYTES as u64);
            while at < end && !self.is_lost {
                // What is not mapped, or is no ordinary memory, stays unknown.
                let Some(found) = self.mappings.find(at) else { break };
                if found.kind == MappingKind::Ordinary {
                    let mapping = self.mapping(at);
                    if matches!(mapping, ToExecutor::Mapping { kind: MappingKind::Ordinary, .. }) {
                        let told = self.tell(&mapping);
                        self.check(told);
                    }
                }
                at = found.end;
            }
        }
    }

    pub(crate) fn send_constant(&mut self, address: u64) -> Result<(), Broken> {
        let bytes_max = (CONSTANT_PAGES_MAX as usize).saturating_mul(PAGE_BYTES);
        if let Some(bytes) = self.vdso.as_ref().and_then(|vdso| vdso.bytes_at(address, bytes_max)) {
            return self.tell(&ToExecutor::Pages(address, bytes));
        }
        let found = self.mappings.find(address).filter(|found| found.kind == MappingKind::Constant);
        let end = found.map_or(address, |found| found.end.min(address + CONSTANT_PAGES_MAX * PAGE_BYTES as u64));
        let mut bytes = vec![0_u8; (end - address) as usize];
        let copied = variables::copy_of_this_process(address, &mut bytes);
        bytes.truncate(copied / PAGE_BYTES * PAGE_BYTES);
        self.tell(&ToExecutor::Pages(address, bytes.into()))
    }
}
