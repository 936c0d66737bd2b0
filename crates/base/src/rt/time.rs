//! Time: a monotonic clock, the wall clock, sleeping and time-outs.

use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::context::AmbientContext;
use super::{context, simulation};

/// A point on the monotonic clock, in nanoseconds since the start of the machine (or the simulation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Instant(u64);

impl Instant {
    /// From nanoseconds since the clock's zero.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since the clock's zero.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Time from this point until now; zero if this point is in the future.
    pub fn elapsed(self) -> Duration {
        now() - self
    }

    /// Time from `earlier` to this point; zero when `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    /// Saturates at the end of the clock, after 584 years.
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos_of(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    /// Saturates at the clock's zero.
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos_of(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Zero when `earlier` is later.
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// A point on the wall clock, in nanoseconds since the Unix epoch (UTC, without leap seconds).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct WallTime(u64);

impl WallTime {
    /// From nanoseconds since the Unix epoch.
    pub const fn from_nanos(nanos: u64) -> WallTime {
        WallTime(nanos)
    }

    /// From seconds since the Unix epoch and the nanoseconds within the second.
    pub const fn from_parts(seconds: u64, subsecond_nanos: u32) -> WallTime {
        WallTime(seconds.saturating_mul(1_000_000_000).saturating_add(subsecond_nanos as u64))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch.
    pub const fn seconds(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// Nanoseconds within the second.
    pub const fn subsecond_nanos(self) -> u32 {
        (self.0 % 1_000_000_000) as u32
    }
}

impl Add<Duration> for WallTime {
    type Output = WallTime;
    fn add(self, duration: Duration) -> WallTime {
        WallTime(self.0.saturating_add(nanos_of(duration)))
    }
}

impl Sub<Duration> for WallTime {
    type Output = WallTime;
    fn sub(self, duration: Duration) -> WallTime {
        WallTime(self.0.saturating_sub(nanos_of(duration)))
    }
}

impl Sub for WallTime {
    type Output = Duration;
    /// Zero when `earlier` is later.
    fn sub(self, earlier: WallTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The monotonic clock.
pub fn now() -> Instant {
    if let Some(AmbientContext { world, incarnation: life }) = context::ambient() {
        return Instant(world.clock_of(life.node));
    }
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    // Neither is negative, nor exceeds 64 bits within 584 years.
    Instant(tv_sec as u64 * 1_000_000_000 + tv_nsec as u64)
}

/// The monotonic clock as of its last tick: never after [`now`], as a rule a few milliseconds before it, and read in a fraction
/// of the time. For the start of an interval that should end early rather than late. In simulation there are no ticks.
#[inline]
pub fn ticked() -> Instant {
    if context::is_simulation() {
        return now();
    }
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::MonotonicCoarse);
    Instant(tv_sec as u64 * 1_000_000_000 + tv_nsec as u64)
}

/// The wall clock.
pub fn wall_now() -> WallTime {
    if let Some(AmbientContext { world, incarnation: life }) = context::ambient() {
        return WallTime(simulation::WALL_START_NANOS.saturating_add(world.clock_of(life.node)));
    }
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    WallTime(nanos_of(since_epoch.expect("the machine's clock is set after 1970")))
}

pin_project! {
    /// Completes at its deadline. Created by [`sleep`] and [`sleep_until`]; dropping it is safe.
    #[must_use = "a sleep does nothing unless awaited"]
    pub struct Sleep {
        #[pin]
        inner: SleepInner,
    }
}

pin_project! {
    #[project = SleepProjection]
    enum SleepInner {
        Production { #[pin] sleep: tokio::time::Sleep },
        Simulation { #[pin] sleep: simulation::Sleep },
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project().inner.project() {
            SleepProjection::Production { sleep } => sleep.poll(cx),
            SleepProjection::Simulation { sleep } => sleep.poll(cx),
        }
    }
}

/// Waits for `duration`, counted from this call. In production the resolution is a millisecond.
pub fn sleep(duration: Duration) -> Sleep {
    let inner = match context::ambient() {
        Some(AmbientContext { world, incarnation: life }) => {
            let deadline = Instant(world.clock_of(life.node)) + duration;
            SleepInner::Simulation { sleep: simulation::Sleep::until(world, life.node, deadline.0) }
        }
        None => SleepInner::Production { sleep: tokio::time::sleep(duration) },
    };
    Sleep { inner }
}

/// Waits until `deadline`; completes at once if that has passed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    sleep(deadline - now())
}

/// The time limit of a future expired before it completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// Runs `future` for at most `duration`.
///
/// # Errors
/// [`Elapsed`] when the time expired; the future is then dropped. Operations that it had started may have taken effect.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut alarm = pin!(sleep(duration));
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        alarm.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleep")
    }
}
