//! Pages that a device holds: the kernel refuses to move them.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use farmem::{FaultPath, PAGE_BYTES};

use crate::memory_store::MemoryStore;
use crate::regions::region;
use crate::time_limit::time_limit;

const CHILD: &str = "HEDDLE_FARMEM_PINNED";

/// Registers memory as a buffer of an `io_uring`, which pins its pages until the ring is closed.
fn pin(start: *mut u8, bytes: usize) -> OwnedFd {
    const REGISTER_BUFFERS: libc::c_long = 0;
    // `struct io_uring_params` has 120 bytes, all of which may be zero.
    let mut parameters = [0_u64; 15];
    let buffer = libc::iovec { iov_base: start.cast(), iov_len: bytes };
    // SAFETY: the kernel writes to `parameters`, and reads one `iovec`. The memory outlives the ring.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) as libc::c_int;
        assert!(ring >= 0, "io_uring_setup: {}", std::io::Error::last_os_error());
        let registered = libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_BUFFERS, &raw const buffer, 1);
        assert_eq!(registered, 0, "io_uring_register: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(ring)
    }
}

fn processor_time() -> Duration {
    // SAFETY: the structure is plain data, which the kernel fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |time: libc::timeval| Duration::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// The evictor found only pages that it could not move, began again at once, and used up a processor.
#[test]
#[allow(clippy::disallowed_methods, reason = "it measures the time of the machine")]
fn pages_that_a_device_holds_stay_and_the_evictor_pauses() {
    if std::env::var(CHILD).is_err() {
        let program = std::env::current_exe().expect("the test has a file");
        let name = "pinned::pages_that_a_device_holds_stay_and_the_evictor_pauses";
        let run = Command::new(program).args([name, "--exact"]).env(CHILD, "1").output().expect("it runs");
        return assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    }
    let _limit = time_limit();
    let mut region = region(2 << 20, 256 << 10, Arc::new(MemoryStore::default()), FaultPath::Handler);
    let pinned = 56 * PAGE_BYTES;
    region.as_mut_slice()[..pinned].fill(7);
    let ring = pin(region.as_ptr(), pinned);
    let before = processor_time();
    std::thread::sleep(Duration::from_millis(500));
    let used = processor_time() - before;
    assert!(used < Duration::from_millis(250), "{used:?} of 500 ms for nothing");
    // The other pages of the budget serve the rest of the region meanwhile.
    region.as_mut_slice()[pinned..].fill(8);
    assert!(region.as_slice()[pinned..].iter().all(|byte| *byte == 8));
    drop(ring);
    region.as_mut_slice().fill(9);
    assert!(region.as_slice().iter().all(|byte| *byte == 9) && region.stats().evicted_pages > 400);
}
