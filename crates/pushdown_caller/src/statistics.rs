//! What is counted of calls.

use crate::call_counts::CallCounts;
use crate::caller::Caller;
use crate::stacks::on_private_stack;
use crate::wait::CALLER;

/// `struct heddle_pushdown_statistics`, which has the members' meanings.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Statistics {
    pub(crate) size: usize,
    calls: u64,
    returned: u64,
    signalled: u64,
    killed: u64,
    cancelled: u64,
    busy: u64,
    lost: u64,
    declined: u64,
    queued_ns: u64,
    open: u32,
    running: u32,
}

impl Caller {
    fn statistics(&self) -> Statistics {
        let CallCounts { returned, signalled, killed, cancelled, busy, lost, declined } = self.call_counts;
        let (running, queued_ns) = self.link.area().load();
        let open = self.open_calls() as u32;
        Statistics {
            size: size_of::<Statistics>(),
            calls: returned + signalled + killed + cancelled + busy + lost + u64::from(open),
            returned,
            signalled,
            killed,
            cancelled,
            busy,
            lost,
            declined,
            queued_ns,
            open,
            running: if self.is_lost { 0 } else { running },
        }
    }
}

/// What was counted so far; `None` if the library is not open.
pub(crate) fn statistics() -> Option<Statistics> {
    on_private_stack(|_, _| CALLER.acquire().as_ref().map(Caller::statistics))
}

const _: () = assert!(size_of::<Statistics>() == 88, "as the header says");
