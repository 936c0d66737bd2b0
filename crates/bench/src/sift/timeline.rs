//! Computes throughput over time, and its recovery after a kill, for figures 11 and 12.

use super::child_processes::OperationCount;

const NS_PER_MS: u64 = 1_000_000;

/// The rates in an interval.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RateInterval {
    /// Its start, in milliseconds from some moment on; `length_ms` is its length.
    pub from_ms: f64,
    pub length_ms: f64,
    /// Operations a second.
    pub ops_per_second: f64,
    /// Reads a second.
    pub reads_per_second: f64,
}

/// The counts of the clients of several processes, each process in the order of time.
#[derive(Default)]
pub struct Timeline {
    /// Time, and the number of reads and writes since the previous count.
    steps: Vec<(u64, u64, u64)>,
}

impl Timeline {
    /// Adds the counts of a process.
    pub fn add(&mut self, counts: &[OperationCount]) {
        for pair in counts.windows(2) {
            let [before, now] = [pair[0], pair[1]];
            self.steps.push((now.at_ns, now.reads - before.reads, now.writes - before.writes));
        }
        self.steps.sort_unstable();
    }

    /// The rates between two moments.
    pub fn rate(&self, from_ns: u64, until_ns: u64) -> RateInterval {
        let begin = self.steps.partition_point(|step| step.0 <= from_ns);
        let end = self.steps.partition_point(|step| step.0 <= until_ns);
        let (reads, writes) =
            self.steps[begin..end].iter().fold((0, 0), |(reads, writes), step| (reads + step.1, writes + step.2));
        let seconds = (until_ns - from_ns) as f64 / 1e9;
        RateInterval {
            from_ms: 0.0,
            length_ms: seconds * 1e3,
            ops_per_second: (reads + writes) as f64 / seconds,
            reads_per_second: reads as f64 / seconds,
        }
    }

    /// Intervals of a length that fit between two moments; their starts are relative to the first moment.
    pub fn intervals(&self, from_ns: u64, until_ns: u64, length_ms: u64) -> Vec<RateInterval> {
        let length = length_ms * NS_PER_MS;
        let count = until_ns.saturating_sub(from_ns) / length;
        let at = |number: u64| from_ns + number * length;
        (0..count)
            .map(|number| RateInterval {
                from_ms: (number * length_ms) as f64,
                ..self.rate(at(number), at(number + 1))
            })
            .collect()
    }

    /// Milliseconds from a moment to the end of the first window of a length with this throughput.
    pub fn reached_ms(&self, from_ns: u64, until_ns: u64, length_ms: u64, ops_per_second: f64) -> Option<f64> {
        let length = length_ms * NS_PER_MS;
        let starts = (from_ns..until_ns.saturating_sub(length)).step_by(NS_PER_MS as usize);
        let mut reached = starts.filter(|start| self.rate(*start, start + length).ops_per_second >= ops_per_second);
        reached.next().map(|start| (start + length - from_ns) as f64 / NS_PER_MS as f64)
    }

    /// The longest time between two counts that had reads, in milliseconds, between two moments.
    pub fn longest_without_reads_ms(&self, from_ns: u64, until_ns: u64) -> f64 {
        let (mut last, mut longest) = (from_ns, 0);
        for (at, reads, _) in &self.steps {
            if *at > from_ns && *at <= until_ns && *reads > 0 {
                longest = longest.max(at - last);
                last = *at;
            }
        }
        longest.max(until_ns.saturating_sub(last)) as f64 / NS_PER_MS as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with ten reads and a write every 5 ms, from one moment to another.
    fn counts(from_ms: u64, until_ms: u64) -> Vec<OperationCount> {
        let numbers = (from_ms..=until_ms).step_by(5).zip(0..);
        numbers
            .map(|(ms, done)| OperationCount { at_ns: ms * NS_PER_MS, reads: 10 * done, writes: done, live: 3 })
            .collect()
    }

    #[test]
    fn rates_come_back_as_soon_as_they_do() {
        let mut timeline = Timeline::default();
        timeline.add(&counts(1, 1_000));
        timeline.add(&counts(1_081, 2_000));
        let ms = |ms: u64| ms * NS_PER_MS;
        assert_eq!(timeline.rate(ms(100), ms(900)).ops_per_second, 2_200.0);
        assert_eq!(timeline.rate(ms(100), ms(900)).reads_per_second, 2_000.0);
        let half = timeline.reached_ms(ms(1_000), ms(2_000), 20, 1_100.0).expect("it does");
        assert!((86.0..=96.0).contains(&half), "{half}");
        let all = timeline.reached_ms(ms(1_000), ms(2_000), 100, 2_200.0).expect("it does");
        assert!((181.0..=191.0).contains(&all), "{all}");
        assert_eq!(timeline.reached_ms(ms(1_000), ms(2_000), 100, 2_300.0), None);
        let gap = timeline.longest_without_reads_ms(ms(900), ms(1_900));
        assert!((85.0..=95.0).contains(&gap), "{gap}");
        assert_eq!(timeline.longest_without_reads_ms(ms(3_000), ms(3_100)), 100.0);
    }

    #[test]
    fn intervals_cover_what_lies_between() {
        let mut timeline = Timeline::default();
        timeline.add(&counts(1, 1_000));
        let intervals = timeline.intervals(100 * NS_PER_MS, 650 * NS_PER_MS, 100);
        assert_eq!(intervals.len(), 5);
        assert_eq!(intervals[4].from_ms, 400.0);
        assert!(intervals.iter().all(|interval| interval.ops_per_second == 2_200.0));
    }
}
