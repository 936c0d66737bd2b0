//! A descriptor that becomes readable at a set time (timerfd), and the clock by which it goes.
//!
//! A thread that sleeps in `poll` is woken by it at the right moment, also by other threads, which only set it. Setting it takes its
//! readability away, so nobody ever reads it.

#![allow(unsafe_code)]

use std::time::Duration;

use crate::system_call::{Errno, system_call};

/// The time of the monotonic clock.
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the structure.
    let _ = unsafe { system_call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, &raw mut time as usize]) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// An alarm. Copies are the same one.
#[derive(Clone, Copy, Debug)]
pub struct Alarm(
    /// Its descriptor.
    pub i32,
);

impl Alarm {
    /// An alarm that is not set. The descriptor is closed when another program is executed.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn new() -> Result<Alarm, Errno> {
        let flags = (libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) as usize;
        // SAFETY: the call has no memory argument.
        unsafe { system_call(libc::SYS_timerfd_create, [libc::CLOCK_MONOTONIC as usize, flags]) }
            .map(|descriptor| Alarm(descriptor as i32))
    }

    /// Sets it to a time of [`now`], which may have passed, or, with `None`, to never.
    ///
    /// # Errors
    /// Of the operating system: somebody has closed the descriptor.
    pub fn set(self, at: Option<Duration>) -> Result<(), Errno> {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // All zeros means never.
        let value = at.map_or(zero, |at| libc::timespec {
            tv_sec: at.as_secs() as i64,
            tv_nsec: i64::from(at.subsec_nanos()).max(1),
        });
        let setting = libc::itimerspec { it_interval: zero, it_value: value };
        let arguments = [self.0 as usize, libc::TFD_TIMER_ABSTIME as usize, &raw const setting as usize, 0];
        // SAFETY: the kernel reads the structure.
        unsafe { system_call(libc::SYS_timerfd_settime, arguments) }.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable_within(alarm: Alarm, milliseconds: i32) -> bool {
        let mut poll = libc::pollfd { fd: alarm.0, events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one structure.
        let found = unsafe { system_call(libc::SYS_poll, [&raw mut poll as usize, 1, milliseconds as usize]) };
        found == Ok(1)
    }

    #[test]
    fn an_alarm_rings_at_its_time_until_it_is_set_again() {
        let alarm = Alarm::new().expect("the kernel has alarms");
        assert!(!is_readable_within(alarm, 0), "nobody has set it");
        let at = now() + Duration::from_millis(30);
        alarm.set(Some(at)).expect("it is open");
        assert!(is_readable_within(alarm, 10_000) && now() >= at);
        alarm.set(Some(at + Duration::from_secs(3600))).expect("it is open");
        assert!(!is_readable_within(alarm, 0), "it is set to another time");
        alarm.set(Some(Duration::ZERO)).expect("it is open");
        assert!(is_readable_within(alarm, 10_000), "the time has passed");
        alarm.set(None).expect("it is open");
        assert!(!is_readable_within(alarm, 0), "it is not set any more");
        // SAFETY: the descriptor is this test's.
        let _ = unsafe { system_call(libc::SYS_close, [alarm.0 as usize]) };
    }
}
