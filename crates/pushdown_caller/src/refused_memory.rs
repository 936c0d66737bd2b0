//! Memory that the program has and functions cannot have.

use std::ops::Range;

/// Why functions cannot have some memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutOfReach {
    /// Other processes, or a device, have it too.
    Shared,
    /// It is a private mapping of a file, and could not be made anonymous.
    OfFile,
    /// The kernel reports its faults to somebody else.
    ServedElsewhere,
}

impl OutOfReach {
    pub(crate) fn text(self) -> &'static str {
        match self {
            OutOfReach::Shared => "is shared memory or a device's",
            OutOfReach::OfFile => {
                "is a private mapping of a file, whose faults the kernel does not report; the C library's mmap(), called after \
                 heddle_pushdown_open(), makes ones that functions can have"
            }
            OutOfReach::ServedElsewhere => {
                "is served by another userfaultfd, as a farmem::Region is; functions can have the far heap of \
                 `heddle farmem run --executor`, and what heddle_far_map() returns"
            }
        }
    }
}

/// The memory that was refused to functions last.
#[derive(Default)]
pub(crate) struct RefusedMemory(Option<(Range<u64>, OutOfReach)>);

impl RefusedMemory {
    /// A function has asked for it.
    pub(crate) fn note(&mut self, memory: Range<u64>, why: OutOfReach) {
        self.0 = Some((memory, why));
    }

    /// Functions can have the memory at an address, or there is none.
    pub(crate) fn forget(&mut self, address: u64) {
        self.0.take_if(|(memory, _)| memory.contains(&address));
    }

    pub(crate) fn why(&self, address: u64) -> Option<OutOfReach> {
        self.0.as_ref().filter(|(memory, _)| memory.contains(&address)).map(|(_, why)| *why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_last_explains_its_own_addresses_alone() {
        let mut refused = RefusedMemory::default();
        assert_eq!(refused.why(10), None);
        refused.note(10..20, OutOfReach::Shared);
        refused.note(30..40, OutOfReach::ServedElsewhere);
        assert_eq!(
            (refused.why(10), refused.why(39), refused.why(40)),
            (None, Some(OutOfReach::ServedElsewhere), None)
        );
        refused.forget(29);
        assert_eq!(refused.why(30), Some(OutOfReach::ServedElsewhere));
        refused.forget(35);
        assert_eq!(refused.why(30), None);
    }
}
