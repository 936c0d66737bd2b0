//! Finds donors whose memory no longer answers, though the connection lasts: the process is frozen, or the network drops
//! everything.
//!
//! While a connection has a section, a read of a few bytes of it is in flight now and then. If it does not complete within
//! [`STUCK_AFTER`], nor do the verbs of the layers above. The connection is then closed: its verbs complete as
//! ambiguous, and the donor counts as lost. A donor that merely answers no requests is not affected: verbs do not need
//! its process everywhere.
//!
//! The time is counted in slices, so that a pause of this process counts as one slice: the answer may have come meanwhile.

use std::time::Duration;

use base::bytes::BytesMut;
use base::rt;
use rma::{Capability, Endpoint};

use crate::events::DonorsStuck;

/// The pause between two reads.
const PERIOD: Duration = Duration::from_millis(250);
/// The slice in which time is counted.
const SLICE: Duration = Duration::from_millis(125);
const SLICES: u32 = 8;
/// How long a verb may take.
pub const STUCK_AFTER: Duration = Duration::from_millis(SLICE.as_millis() as u64 * SLICES as u64);
/// Bytes of a read.
const BYTES: usize = 8;

/// Closes the connection once its verbs do not complete any more. `section`: the capability of a section at this donor, if
/// there is one.
pub(super) async fn close_when_stuck(endpoint: &Endpoint, donor: &str, section: impl Fn() -> Option<Capability>) {
    if endpoint.profile().synchronous {
        return std::future::pending().await;
    }
    loop {
        rt::sleep(PERIOD).await;
        let Some(capability) = section() else { continue };
        let mut read = endpoint.read(&capability, 0, BYTES, BytesMut::with_capacity(BYTES));
        endpoint.flush();
        let mut is_stuck = !base::rt::fault_point("pool.watch.mutant.blind");
        for _ in 0..SLICES {
            // An error is an answer as well.
            if rt::timeout(SLICE, &mut read).await.is_ok() {
                is_stuck = false;
                break;
            }
        }
        if is_stuck {
            DonorsStuck.add(1);
            tracing::warn!(donor, "the memory of a memory node does not answer: the connection is closed");
            return endpoint.close();
        }
    }
}
