//! Memory that the program has and functions cannot: why, for people.

use std::ops::Range;

use crate::stacks::on_private_stack;
use crate::wait::{CALLER, is_open};

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
    fn text(self) -> &'static str {
        match self {
            OutOfReach::Shared => "is shared memory or a device's",
            OutOfReach::OfFile => {
                "is a private mapping of a file that was made while the process had several threads; map it before, or by \
                 the C library's mmap()"
            }
            OutOfReach::ServedElsewhere => {
                "is served by another userfaultfd, as a far heap of `heddle farmem run` or a farmem::Region is; functions can \
                 have the far heap of `heddle farmem run --executor`, and what heddle_far_map() returns"
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

    fn why(&self, address: u64) -> Option<OutOfReach> {
        self.0.as_ref().filter(|(memory, _)| memory.contains(&address)).map(|(_, why)| *why)
    }
}

/// Why a function could not access an address, if it was out of reach.
pub(crate) fn explain(address: u64) -> Option<String> {
    if !is_open() {
        return None;
    }
    let why = on_private_stack(move |_, _| CALLER.acquire().as_ref().and_then(|caller| caller.refused.why(address)))?;
    Some(format!("the function accessed {address:#x}, which functions cannot have: it {}", why.text()))
}

#[cfg(test)]
mod tests {
    use super::{OutOfReach, RefusedMemory};

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
    }
}
