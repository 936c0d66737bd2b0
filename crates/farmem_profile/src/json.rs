//! The JSON of a report: `docs/formats/farmem-profile.md`.

use serde_json::{Value, json};

use crate::report::{FunctionCount, FunctionReport, FunctionRow};

/// The version of the format.
const VERSION: u32 = 1;

impl FunctionReport {
    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "version": VERSION,
            "seconds": rounded(self.time.as_secs_f64()),
            "accesses": self.accesses,
            "samples": self.samples,
            "every": self.every,
            "functions": self.rows.iter().map(row).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

fn row(row: &FunctionRow) -> Value {
    json!({
        "function": row.function,
        "object": row.object,
        "accesses": row.accesses,
        "share": rounded(row.share),
        "pages_ahead": row.pages_ahead,
        "seconds": rounded(row.time.as_secs_f64()),
        "accesses_per_second": row.accesses_per_second.map(rounded),
        "inclusive_accesses": row.inclusive,
        "runtimes": row.runtimes.iter().map(count).collect::<Vec<_>>(),
        "callers": row.callers.iter().map(count).collect::<Vec<_>>(),
    })
}

fn count(count: &FunctionCount) -> Value {
    json!({ "function": count.function, "object": count.object, "accesses": count.accesses })
}

/// To six digits after the point.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
