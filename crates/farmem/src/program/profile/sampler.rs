//! Samples the remote accesses of one program.

use std::io;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use base::Map;
use base::rt::{self, Instant};

use super::access_profile::{CodeSite, ReturnAddress};
use super::address_map::AddressMap;
use super::callers::CallerSearch;
use super::collector::{AccessCollector, Sample, UNKNOWN};
use super::thread_position;

/// Threads whose last samples are remembered. With one more, all are forgotten: most of them have ended.
const THREADS_MAX: usize = 1 << 14;
/// Return addresses of a sample, with callers: a few may be leftovers.
const CALLERS_MAX: usize = 12;

/// Samples the accesses of a program, for a profile that several have in common.
pub(in crate::program) struct ProgramSampler {
    pub(in crate::program) collector: Arc<AccessCollector>,
    /// The far heap, and the doorbell.
    far: [Range<u64>; 2],
    program: Mutex<SampledProgram>,
}

#[derive(Default)]
struct SampledProgram {
    map: AddressMap,
    callers: CallerSearch,
    threads: Map<u32, SampledThread>,
}

struct SampledThread {
    /// Accesses until the next sample, that one included.
    until_sample: u32,
    /// Accesses since the last sample.
    accesses: u64,
    /// The site of the last sample, and when the thread could go on.
    last: Option<(u32, Instant)>,
}

impl ProgramSampler {
    /// `far` are the pages whose faults the caller of [`ProgramSampler::note`] serves.
    pub(in crate::program) fn new(collector: Arc<AccessCollector>, far: [Range<u64>; 2]) -> ProgramSampler {
        ProgramSampler { collector, far, program: Mutex::default() }
    }

    /// Notes the access of a thread, which waits until this has returned. `pages_ahead` pages were asked for with it.
    pub(in crate::program) fn note(&self, thread: u32, pages_ahead: u64) {
        let arrived_at = rt::now();
        // What is remembered is right after each statement.
        let program = &mut *self.program.lock().unwrap_or_else(PoisonError::into_inner);
        self.collector.count();
        if program.threads.len() >= THREADS_MAX && !program.threads.contains_key(&thread) {
            program.threads.clear();
        }
        let every = self.collector.config.every;
        let new = || SampledThread { until_sample: distance(every), accesses: 0, last: None };
        let sampled = program.threads.entry(thread).or_insert_with(new);
        sampled.accesses += 1;
        sampled.until_sample -= 1;
        if sampled.until_sample > 0 {
            return;
        }
        sampled.until_sample = distance(every);
        let accesses = std::mem::take(&mut sampled.accesses);
        let last = sampled.last.map(|(site, since)| (site, (arrived_at - since)));
        let site = self.site(thread, &mut program.map, &mut program.callers);
        self.collector.add(&Sample { site, accesses, pages_ahead: pages_ahead * accesses, last });
        sampled.last = Some((site, rt::now()));
    }

    /// The number of the site at which a thread waits.
    fn site(&self, thread: u32, map: &mut AddressMap, callers: &mut CallerSearch) -> u32 {
        match self.read_site(thread, map, callers) {
            Ok(Some(site)) => self.collector.site(site),
            Ok(None) => {
                self.collector.note_failure("the code is in no executable mapping that was known");
                UNKNOWN
            }
            Err(error) => {
                self.collector.note_failure(&error.to_string());
                UNKNOWN
            }
        }
    }

    fn read_site(&self, thread: u32, map: &mut AddressMap, callers: &mut CallerSearch) -> io::Result<Option<CodeSite>> {
        let position = thread_position::of_thread(thread)?;
        let mut number = |object| self.collector.object(object);
        let Some(mapped) = map.find_or_look(position.instruction, thread, &mut number)? else { return Ok(None) };
        let count = match (self.collector.config.callers, mapped.is_runtime) {
            (true, _) => CALLERS_MAX,
            (false, true) => 1,
            (false, false) => 0,
        };
        let callers: Vec<ReturnAddress> = match count {
            0 => Vec::new(),
            count => callers.find(thread, position.stack, &self.far, map, count),
        };
        Ok(Some(CodeSite { leaf: mapped.address, callers }))
    }
}

/// Accesses until the next sample: at random, so that the samples of a loop do not meet the same access each time.
fn distance(every: NonZeroU32) -> u32 {
    let every = every.get();
    if every == 1 {
        return 1;
    }
    let choices = u64::from(every) * 2 - 1;
    1 + (rt::random_u64() % choices) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_distance_that_was_asked_for() {
        let every = |every| NonZeroU32::new(every).expect("not zero");
        assert_eq!(distance(every(1)), 1);
        let distances: Vec<u32> = (0..10_000).map(|_| distance(every(10))).collect();
        assert!(distances.iter().all(|distance| (1..=19).contains(distance)));
        let mean = f64::from(distances.iter().sum::<u32>()) / 10_000.0;
        assert!((9.5..10.5).contains(&mean), "{mean}");
        assert!(distance(every(u32::MAX)) >= 1);
    }

    #[test]
    fn accesses_that_are_not_sampled_are_counted_with_the_next_that_is() {
        let config = super::super::ProfileConfig { every: NonZeroU32::new(5).expect("not zero"), callers: true };
        let collector = Arc::new(AccessCollector::new(config));
        let sampler = ProgramSampler::new(Arc::clone(&collector), [0..0, 0..0]);
        // This thread runs, in the system call that asks: no user of userfaultfd is needed.
        let own = std::fs::read_link("/proc/thread-self").expect("it exists");
        let own = own.file_name().and_then(|number| number.to_str()?.parse().ok()).expect("a number");
        (0..1000).for_each(|_| sampler.note(own, 1));
        let profile = collector.profile();
        let attributed: u64 = profile.sites.iter().map(|site| site.accesses).sum();
        assert_eq!(profile.accesses, 1000);
        assert!((990..=1000).contains(&attributed), "{attributed}");
        assert!((100..400).contains(&profile.samples), "{}", profile.samples);
        assert_eq!(profile.sites[0].accesses, 0, "{:?}", profile.failure);
    }
}
