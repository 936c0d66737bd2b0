//! What is counted by owner: metrics with a label, whose values are users of this host and no others.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Owners that are remembered without executors; the totals of others begin at zero again.
const OWNERS_MAX: usize = 256;

/// A metric with the label `owner`.
#[derive(Clone, Copy, Debug)]
pub struct OwnerMetric {
    /// Its name.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// Its meaning, in a sentence.
    pub documentation: &'static str,
}

/// The metrics with the label `owner`.
pub const OWNER_METRICS: [OwnerMetric; 4] = [
    OwnerMetric {
        name: "heddle_executors_owner_calls_total",
        kind: "counter",
        documentation: "By owner: functions that executors have begun.",
    },
    OwnerMetric {
        name: "heddle_executors_owner_memory_bytes",
        kind: "gauge",
        documentation: "By owner: bytes that the executors use, if their memory is limited.",
    },
    OwnerMetric {
        name: "heddle_executors_owner_open",
        kind: "gauge",
        documentation: "By owner: executors that there are.",
    },
    OwnerMetric {
        name: "heddle_executors_owner_processor_seconds_total",
        kind: "counter",
        documentation: "By owner: processor time that executors have used, if it is limited.",
    },
];

/// What one owner has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OwnerUse {
    pub(crate) open: u64,
    pub(crate) calls: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) processor_us: u64,
}

/// All owners.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owners(BTreeMap<u32, OwnerUse>);

impl Owners {
    /// The numbers of an owner, to change. An owner without executors gives way if there are too many.
    pub(crate) fn of(&mut self, owner: u32) -> &mut OwnerUse {
        if self.0.len() >= OWNERS_MAX && !self.0.contains_key(&owner) {
            let idle = self.0.iter().find(|(_, used)| used.open == 0).map(|(owner, _)| *owner);
            if let Some(idle) = idle {
                self.0.remove(&idle);
            }
        }
        self.0.entry(owner).or_default()
    }

    /// What is there at this moment begins at zero.
    pub(crate) fn clear_levels(&mut self) {
        for used in self.0.values_mut() {
            (used.open, used.memory_bytes) = (0, 0);
        }
    }

    /// In Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        let mut page = String::new();
        for metric in OWNER_METRICS {
            let OwnerMetric { name, kind, documentation } = metric;
            let _ = writeln!(page, "# HELP {name} {documentation}\n# TYPE {name} {kind}");
            for (owner, used) in &self.0 {
                let _ = match name {
                    "heddle_executors_owner_calls_total" => {
                        writeln!(page, "{name}{{owner=\"{owner}\"}} {}", used.calls)
                    }
                    "heddle_executors_owner_memory_bytes" => {
                        writeln!(page, "{name}{{owner=\"{owner}\"}} {}", used.memory_bytes)
                    }
                    "heddle_executors_owner_open" => writeln!(page, "{name}{{owner=\"{owner}\"}} {}", used.open),
                    _ => writeln!(page, "{name}{{owner=\"{owner}\"}} {}", used.processor_us as f64 / 1e6),
                };
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_labels_and_their_number_is_bounded() {
        let mut owners = Owners::default();
        *owners.of(1000) = OwnerUse { open: 1, calls: 5, memory_bytes: 4096, processor_us: 2_500_000 };
        let page = owners.render();
        assert!(page.contains("heddle_executors_owner_calls_total{owner=\"1000\"} 5\n"), "{page}");
        assert!(page.contains("heddle_executors_owner_processor_seconds_total{owner=\"1000\"} 2.5\n"), "{page}");
        assert!(page.contains("heddle_executors_owner_memory_bytes{owner=\"1000\"} 4096\n"), "{page}");
        for owner in 0..2 * OWNERS_MAX as u32 {
            owners.of(owner).calls += 1;
        }
        assert_eq!(owners.0.len(), OWNERS_MAX);
        assert_eq!(owners.of(1000).calls, 5, "one with an executor stays");
        owners.clear_levels();
        assert_eq!(owners.of(1000), &OwnerUse { open: 0, calls: 5, memory_bytes: 0, processor_us: 2_500_000 });
    }
}
