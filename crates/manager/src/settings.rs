//! Settings: when and how far the manager scales.

use std::time::Duration;

/// Bounds of one peer: what its tenant pays for at least and at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerLimits {
    /// Compute nodes at most, those of the plan included.
    pub nodes_max: usize,
    /// The least quota of a compute node, in percent of one processor.
    pub quota_min_percent: u32,
    /// The largest quota of a compute node.
    pub quota_max_percent: u32,
    /// The least budget of remote memory.
    pub memory_min_bytes: u64,
    /// The largest budget of remote memory.
    pub memory_max_bytes: u64,
}

/// When compute is scaled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ComputePolicy {
    /// From this utilisation on a peer is hot.
    pub hot_percent: u32,
    /// Up to this utilisation a peer is cold.
    pub cold_percent: u32,
    /// A step down must leave the utilisation this far below `hot_percent`.
    pub margin_percent: u32,
    /// From this many queued proposals and work items a node on, a peer is hot at a lower utilisation too:
    /// [`ComputePolicy::queueing_percent`].
    pub queue_hot: u32,
    /// From this many queued a node on, a hot peer grows at once, without being watched for [`ComputePolicy::hot_for`]. A larger
    /// quota, which costs less than a node, is given at once from `queue_hot` on.
    pub queue_swamped: u32,
    /// Above this many a peer is never cold.
    pub queue_cold: u32,
    /// Below this utilisation a queue waits for something else than processors.
    pub queueing_percent: u32,
    /// The step by which a quota changes, in percent of one processor.
    pub quota_step_percent: u32,
    /// How long a peer must be hot before it grows.
    pub hot_for: Duration,
    /// How long a peer must be cold before it shrinks.
    pub cold_for: Duration,
    /// The least time between the end of a change and the next step up.
    pub up_pause: Duration,
    /// The least time between a change and the next step down.
    pub down_pause: Duration,
}

/// When remote memory is scaled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryPolicy {
    /// The time that one miss costs: a read from the storage node in place of one from remote memory.
    pub miss_us: u64,
    /// The price of a MiB: the waiting, in microseconds each second, that it must save to be worth holding.
    pub mib_us_per_second: u64,
    /// The step by which a budget changes. Whole sections of the peer.
    pub step_bytes: u64,
    /// Memory grows only if this share of the budget is taken: an empty part of it saves nothing.
    pub full_percent: u32,
    /// Misses must cost this many times the price of a step before memory grows.
    pub grow_factor: u64,
    /// A step saves enough if the misses cost less afterwards by this share of its price.
    pub worth_percent: u64,
    /// The interval over which misses are measured, and the least time between two changes.
    pub period: Duration,
    /// How long memory does not change in the other direction, nor grow after a growth that saved nothing. Doubles, up to
    /// [`MemoryPolicy::pause_max`], with each growth in vain and each step down that was regretted.
    pub pause: Duration,
    /// The longest such pause.
    pub pause_max: Duration,
}

/// When storage processes are started and stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoragePolicy {
    /// How long a peer must lack a copy before a process is started: longer than a supervisor takes to restart one.
    pub lost_for: Duration,
    /// How long a peer must be without a primary before a process is started for it: it may need that one.
    pub silent_for: Duration,
    /// How long a process must be without a copy before it is stopped.
    pub idle_for: Duration,
}

/// Everything that an operator may set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerSettings {
    /// Bounds of every peer.
    pub limits: PeerLimits,
    /// The compute loop.
    pub compute: ComputePolicy,
    /// The memory loop.
    pub memory: MemoryPolicy,
    /// The storage loop.
    pub storage: StoragePolicy,
    /// A report that is older does not count.
    pub fresh_for: Duration,
    /// A launched node that is silent for this long is given up, if another node of its peer is heard.
    pub silent_max: Duration,
    /// A launched node that is not ready by then is given up.
    pub launch_max: Duration,
    /// A draining node is killed after this time.
    pub drain_max: Duration,
    /// The pause before an action that did not end is executed again.
    pub retry_pause: Duration,
}

impl Default for ManagerSettings {
    fn default() -> ManagerSettings {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        ManagerSettings {
            limits: PeerLimits {
                nodes_max: 4,
                quota_min_percent: 50,
                quota_max_percent: 100,
                memory_min_bytes: 64 << 20,
                memory_max_bytes: 1 << 30,
            },
            compute: ComputePolicy {
                hot_percent: 75,
                cold_percent: 30,
                margin_percent: 10,
                queue_hot: 4,
                queue_swamped: 8,
                queue_cold: 1,
                queueing_percent: 50,
                quota_step_percent: 50,
                hot_for: ms(300),
                cold_for: s(10),
                up_pause: ms(400),
                down_pause: s(10),
            },
            memory: MemoryPolicy {
                miss_us: 200,
                mib_us_per_second: 20,
                step_bytes: 32 << 20,
                full_percent: 80,
                grow_factor: 2,
                worth_percent: 50,
                period: s(5),
                pause: s(30),
                pause_max: s(600),
            },
            storage: StoragePolicy { lost_for: s(3), silent_for: s(10), idle_for: s(30) },
            fresh_for: s(1),
            silent_max: s(5),
            launch_max: s(30),
            drain_max: s(15),
            retry_pause: ms(200),
        }
    }
}

impl ManagerSettings {
    /// Checks that the loops have room between their bounds: with others they would go to and fro.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub fn check(&self) -> Result<(), String> {
        let (limits, compute, memory) = (&self.limits, &self.compute, &self.memory);
        let storage = &self.storage;
        if limits.quota_min_percent < 10 || limits.quota_min_percent > limits.quota_max_percent {
            return Err("the least quota must be at least 10 percent and no more than the largest".to_owned());
        }
        if limits.nodes_max == 0 || limits.nodes_max > NODES_MAX {
            return Err(format!("a peer has 1 to {NODES_MAX} compute nodes"));
        }
        if limits.memory_min_bytes > limits.memory_max_bytes || memory.step_bytes == 0 {
            return Err("the least memory must be no more than the largest, and its step not 0".to_owned());
        }
        if compute.hot_percent > 100
            || compute.cold_percent.saturating_add(compute.margin_percent) >= compute.hot_percent
        {
            return Err(
                "the peer must be cold at a utilisation that is more than the margin below the hot one".to_owned()
            );
        }
        if compute.queue_swamped < compute.queue_hot {
            return Err("a queue at which a peer grows at once must be hot".to_owned());
        }
        if compute.queue_cold >= compute.queue_hot || compute.queueing_percent <= compute.cold_percent {
            return Err(
                "a cold queue must be shorter than a hot one, and one that counts lie above the cold utilisation"
                    .to_owned(),
            );
        }
        if compute.quota_step_percent == 0
            || [memory.period, memory.pause, storage.lost_for, storage.silent_for, storage.idle_for]
                .iter()
                .any(Duration::is_zero)
        {
            return Err("steps and periods must not be 0".to_owned());
        }
        Ok(())
    }

    /// The price of a step of memory, in microseconds of waiting each second.
    pub(crate) fn step_price(&self) -> u64 {
        (self.memory.step_bytes >> 20).max(1).saturating_mul(self.memory.mib_us_per_second)
    }
}

/// The most compute nodes of a peer.
pub const NODES_MAX: usize = 64;
/// The most peers of a pool.
pub const PEERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_without_room_between_them_are_refused() {
        let defaults = ManagerSettings::default();
        defaults.check().expect("the defaults have room");
        let mut flapping = defaults;
        flapping.compute.cold_percent = 70;
        assert!(flapping.check().expect_err("70 + 10 is above 75").contains("margin"));
        let mut crossed = defaults;
        crossed.limits.quota_min_percent = 200;
        assert!(crossed.check().is_err());
        let mut empty = defaults;
        empty.limits.nodes_max = 0;
        assert!(empty.check().is_err());
    }
}
