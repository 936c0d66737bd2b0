//! How mimalloc is set up.

#![allow(unsafe_code)]

use libmimalloc_sys as mimalloc;

// Options that the crate does not name: their places in `mi_option_t` of mimalloc 2.3.
const OPTION_EAGER_COMMIT: mimalloc::mi_option_t = 3;
const OPTION_ARENA_EAGER_COMMIT: mimalloc::mi_option_t = 4;
const OPTION_PURGE_DELAY: mimalloc::mi_option_t = 15;
const OPTION_DESTROY_ON_EXIT: mimalloc::mi_option_t = 22;
const OPTION_ARENA_RESERVE: mimalloc::mi_option_t = 23;

/// Leaves the memory as it is when the process ends, instead of going through all of it.
const DESTROY_NOTHING: i64 = 2;
const PURGE_DELAY_MILLISECONDS: i64 = 1000;
const ARENA_BYTES_MAX: usize = 1 << 30;
/// No arena is a larger part of the region.
const ARENAS_MIN: usize = 8;

/// Sets mimalloc up, before it has allocated anything; `region_bytes` is the length of the far heap, if there is one.
pub(crate) fn configure(region_bytes: Option<usize>) {
    for output in [mimalloc::mi_option_show_errors, mimalloc::mi_option_show_stats, mimalloc::mi_option_verbose] {
        set(output, 0);
    }
    set(OPTION_DESTROY_ON_EXIT, DESTROY_NOTHING);
    let Some(region_bytes) = region_bytes else { return };
    // Memory that is reserved without access, to be opened later, would be local.
    set(OPTION_EAGER_COMMIT, 1);
    set(OPTION_ARENA_EAGER_COMMIT, 1);
    set(mimalloc::mi_option_eager_commit_delay, 0);
    set(mimalloc::mi_option_large_os_pages, 0);
    set(mimalloc::mi_option_reserve_huge_os_pages, 0);
    set(mimalloc::mi_option_reserve_os_memory, 0);
    set(OPTION_PURGE_DELAY, PURGE_DELAY_MILLISECONDS);
    // In KiB.
    set(OPTION_ARENA_RESERVE, ((region_bytes / ARENAS_MIN).min(ARENA_BYTES_MAX) >> 10) as i64);
}

fn set(option: mimalloc::mi_option_t, value: i64) {
    // SAFETY: called by the one thread that attaches; the option exists, as a test checks.
    unsafe { mimalloc::mi_option_set(option, value) };
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys as mimalloc;

    #[test]
    fn options_have_their_places_in_this_version_of_mimalloc() {
        // SAFETY: the call reads a constant.
        assert_eq!(unsafe { mimalloc::mi_version() } / 100, 203);
    }
}
