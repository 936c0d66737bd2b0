//! The least that serving a fault costs in each way: what measurements compare a region with.

use std::time::Instant;

use crate::error::Error;
use crate::guard::{FaultService, FaultSite};
use crate::kernel::mapping::Mapping;
use crate::kernel::placement::HandlerPlacement;
use crate::kernel::userfault::{UserEvent, UserFaults};
use crate::page::PAGE_BYTES;
use crate::report;

/// Touches absent pages one after the other, each of which a thread on the same processor fills with the same bytes, and does
/// nothing else. Returns the nanoseconds of each.
///
/// # Errors
/// [`Error::NoUserFaults`], [`Error::System`].
#[allow(clippy::disallowed_methods)] // It measures the machine's time, with a thread as regions have it.
pub fn fault_nanos(faults: usize) -> Result<Vec<u64>, Error> {
    let files = UserFaults::open()?;
    let memory = Mapping::reserve(faults * PAGE_BYTES)?;
    files.register(memory.address(), memory.len() as u64, true)?;
    let handler = std::thread::spawn(move || {
        let (mut placement, mut arrived, page) = (HandlerPlacement::new(), Vec::new(), [1; PAGE_BYTES]);
        let mut served = 0;
        while served < faults {
            // When an error ends this thread, it closes the file, and the kernel serves the faults that are left.
            files.read(&mut arrived)?;
            for event in arrived.drain(..) {
                let UserEvent::Fault(fault) = event else { continue };
                placement.follow(fault.thread);
                let address = fault.address & !(PAGE_BYTES as u64 - 1);
                match files.copy(address, &page, true) {
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                        files.wake(address, PAGE_BYTES as u64)?;
                    }
                    copied => copied?,
                }
                served += 1;
            }
        }
        std::io::Result::Ok(())
    });
    let times = touch(&memory, faults);
    let served = handler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    served.map_err(|error| Error::from_io("cannot serve a page fault", &error))?;
    Ok(times)
}

/// As [`fault_nanos`], of a thread that fills the pages itself, in the handler of its signal.
///
/// # Errors
/// [`Error::NoUserFaults`], [`Error::System`], [`Error::Config`] when the process has too many regions.
pub fn own_fault_nanos(faults: usize) -> Result<Vec<u64>, Error> {
    let files = UserFaults::open_signalling()?;
    let memory = Mapping::reserve(faults * PAGE_BYTES)?;
    files.register(memory.address(), memory.len() as u64, true)?;
    let site = FaultSite::new(memory.address(), memory.len() as u64, "floor")?;
    let serve = move |address: u64, _| {
        let page = [1; PAGE_BYTES];
        // An access to a page that is not there is repeated for ever; the kernel has no reason to fail.
        if let Err(error) = files.copy(address & !(PAGE_BYTES as u64 - 1), &page, true) {
            report::end(&format!("farmem: cannot map a page: {error}\n"));
        }
        true
    };
    site.serve(FaultService(Box::new(serve)))?;
    Ok(touch(&memory, faults))
}

/// Touches pages one after the other; the nanoseconds of each.
#[allow(clippy::disallowed_methods)] // It measures the machine's time.
fn touch(memory: &Mapping, faults: usize) -> Vec<u64> {
    let times = (0..faults).map(|page| {
        let start = Instant::now();
        memory.touch(page * PAGE_BYTES);
        start.elapsed().as_nanos() as u64
    });
    times.collect()
}
