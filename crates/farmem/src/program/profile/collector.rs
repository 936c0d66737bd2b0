//! Sums up samples.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Map;

use super::access_profile::{AccessProfile, AccessRun, CodeAddress, CodeObject, CodeSite, ProfileConfig, SiteAccesses};

/// Objects with code; what further ones do is counted as unknown.
const OBJECTS_MAX: usize = 4096;
/// Sites, likewise.
const SITES_MAX: usize = 1 << 16;
/// Pairs of sites of which one's access came after the other's. The times of others are not counted.
const RUNS_MAX: usize = 1 << 18;
/// The longest time between two samples that is certainly not that of other code in between.
const SHORT: Duration = Duration::from_millis(1);
/// The object, and the site, of all that is unknown.
pub(super) const UNKNOWN: u32 = 0;

/// The profile of all programs of a server, while they run.
pub(in crate::program) struct AccessCollector {
    pub(super) config: ProfileConfig,
    collected: Mutex<Collected>,
}

struct Collected {
    profile: AccessProfile,
    objects: Map<CodeObject, u32>,
    sites: Map<CodeSite, u32>,
    runs: Map<(u32, u32), u32>,
}

/// One sample.
pub(super) struct Sample {
    pub(super) site: u32,
    /// Accesses that it stands for.
    pub(super) accesses: u64,
    pub(super) pages_ahead: u64,
    /// The site of the thread's last sample, and the time since.
    pub(super) last: Option<(u32, Duration)>,
}

impl AccessCollector {
    pub(in crate::program) fn new(config: ProfileConfig) -> AccessCollector {
        let unknown = CodeSite { leaf: CodeAddress { object: UNKNOWN, offset: 0 }, callers: Vec::new() };
        let profile = AccessProfile {
            config,
            objects: vec![CodeObject::Unknown],
            sites: vec![SiteAccesses { site: unknown.clone(), accesses: 0, pages_ahead: 0 }],
            ..AccessProfile::default()
        };
        let objects = Map::from_iter([(CodeObject::Unknown, UNKNOWN)]);
        let sites = Map::from_iter([(unknown, UNKNOWN)]);
        let collected = Collected { profile, objects, sites, runs: Map::default() };
        AccessCollector { config, collected: Mutex::new(collected) }
    }

    fn collected(&self) -> MutexGuard<'_, Collected> {
        // Sums, each of which is right by itself.
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was collected so far.
    pub(in crate::program) fn profile(&self) -> AccessProfile {
        self.collected().profile.clone()
    }

    /// The number of an object.
    pub(super) fn object(&self, object: CodeObject) -> u32 {
        let Collected { profile, objects, .. } = &mut *self.collected();
        if let Some(known) = objects.get(&object) {
            return *known;
        }
        if profile.objects.len() >= OBJECTS_MAX {
            return UNKNOWN;
        }
        let number = profile.objects.len() as u32;
        profile.objects.push(object.clone());
        objects.insert(object, number);
        number
    }

    /// The number of a site.
    pub(super) fn site(&self, site: CodeSite) -> u32 {
        let Collected { profile, sites, .. } = &mut *self.collected();
        if let Some(known) = sites.get(&site) {
            return *known;
        }
        if profile.sites.len() >= SITES_MAX {
            return UNKNOWN;
        }
        let number = profile.sites.len() as u32;
        profile.sites.push(SiteAccesses { site: site.clone(), accesses: 0, pages_ahead: 0 });
        sites.insert(site, number);
        number
    }

    /// Counts an access, sampled or not.
    pub(super) fn count(&self) {
        self.collected().profile.accesses += 1;
    }

    /// Notes why the code of an access is unknown.
    pub(super) fn note_failure(&self, reason: &str) {
        self.collected().profile.failure.get_or_insert_with(|| reason.to_owned());
    }

    /// Adds a sample.
    pub(super) fn add(&self, sample: &Sample) {
        let Collected { profile, runs, .. } = &mut *self.collected();
        profile.samples += 1;
        let site = &mut profile.sites[sample.site as usize];
        site.accesses += sample.accesses;
        site.pages_ahead += sample.pages_ahead;
        let Some((from, time)) = sample.last else { return };
        let pair = (from, sample.site);
        let known = runs.get(&pair).copied();
        if known.is_none() && profile.runs.len() >= RUNS_MAX {
            return;
        }
        let index = known.unwrap_or_else(|| {
            let (from, to) = pair;
            profile.runs.push(AccessRun { from, to, ..AccessRun::default() });
            let index = profile.runs.len() as u32 - 1;
            runs.insert(pair, index);
            index
        });
        let run = &mut profile.runs[index as usize];
        run.time += time;
        run.short_time += time.min(SHORT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(offset: u64) -> CodeSite {
        CodeSite { leaf: CodeAddress { object: UNKNOWN, offset }, callers: Vec::new() }
    }

    #[test]
    fn samples_of_a_site_are_summed_up_and_too_many_sites_are_unknown() {
        let collector = AccessCollector::new(ProfileConfig::default());
        let (one, other) = (collector.site(site(1)), collector.site(site(2)));
        assert_eq!((one, other, collector.site(site(1))), (1, 2, 1));
        let millis = Duration::from_millis;
        for (site, last) in [(one, None), (one, Some((one, millis(3)))), (one, Some((one, millis(4)))), (other, None)] {
            collector.add(&Sample { site, accesses: 10, pages_ahead: 7, last });
        }
        let profile = collector.profile();
        assert_eq!(profile.samples, 4);
        assert_eq!((profile.sites[1].accesses, profile.sites[1].pages_ahead, profile.sites[2].accesses), (30, 21, 10));
        assert_eq!(profile.runs, [AccessRun { from: 1, to: 1, time: millis(7), short_time: millis(2) }]);
        for offset in 0..2 * SITES_MAX as u64 {
            collector.site(site(offset));
        }
        assert_eq!(collector.site(site(u64::MAX)), UNKNOWN);
        assert_eq!(collector.profile().sites.len(), SITES_MAX);
    }
}
