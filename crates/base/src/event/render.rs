//! Events as text: for Prometheus, and for the metrics reference.

use std::fmt::Write;

use super::{EventDescription, EventKind, EventSnapshot, EventValue, Unit, catalogue, snapshot};

/// All known events in Prometheus's text format, version 0.0.4.
pub fn render_prometheus() -> String {
    render(&catalogue(), &snapshot())
}

/// All known events as a table in Markdown, for the generated reference.
pub fn catalogue_markdown() -> String {
    let mut text = String::from("| metric | type | meaning |\n|---|---|---|\n");
    for EventDescription { name, documentation, kind: sort } in catalogue() {
        let sentence = documentation.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        writeln!(text, "| `{name}` | {} | {sentence} |", type_of(sort)).expect("writing to a string cannot fail");
    }
    text
}

fn type_of(sort: EventKind) -> &'static str {
    match sort {
        EventKind::Counter => "counter",
        EventKind::Gauge => "gauge",
        EventKind::Histogram(_) => "histogram",
    }
}

fn render(catalogue: &[EventDescription], snapshot: &EventSnapshot) -> String {
    let mut text = String::new();
    for description in catalogue {
        let value = snapshot.values.get(description.name);
        write_event(&mut text, description, value).expect("writing to a string cannot fail");
    }
    text
}

fn write_event(text: &mut String, description: &EventDescription, value: Option<&EventValue>) -> std::fmt::Result {
    let EventDescription { name, documentation, kind: sort } = *description;
    let help = documentation.split_whitespace().collect::<Vec<_>>().join(" ").replace('\\', "\\\\");
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", type_of(sort))?;
    match (sort, value) {
        (EventKind::Counter, Some(EventValue::Counter(count))) => writeln!(text, "{name} {count}"),
        (EventKind::Gauge, Some(EventValue::Gauge(level))) => writeln!(text, "{name} {level}"),
        (EventKind::Histogram(unit), Some(EventValue::Histogram(distribution))) => {
            // Powers of four: from a microsecond to a minute for times, from 1 to 16 million for the rest.
            let (exponents, scale) = match unit {
                Unit::Seconds => (10..=36, 1e-9),
                Unit::Count | Unit::Bytes => (0..=24, 1.0),
            };
            for exponent in exponents.step_by(2) {
                let bound = 1u64 << exponent;
                let shown = bound as f64 * scale;
                writeln!(text, "{name}_bucket{{le=\"{shown}\"}} {}", distribution.count_up_to(bound))?;
            }
            let count = distribution.count();
            writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}")?;
            writeln!(text, "{name}_sum {}\n{name}_count {count}", distribution.sum() as f64 * scale)
        }
        (EventKind::Histogram(_), _) => writeln!(text, "{name}_bucket{{le=\"+Inf\"}} 0\n{name}_sum 0\n{name}_count 0"),
        (EventKind::Counter | EventKind::Gauge, _) => writeln!(text, "{name} 0"),
    }
}

#[cfg(test)]
mod tests {
    crate::events! {
        /// Things that happened
        /// in this test.
        counter Happened("heddle_render_test_happened_total");
        /// How many are here.
        gauge Here("heddle_render_test_here");
        /// How long it took.
        histogram Took("heddle_render_test_took_seconds", seconds);
    }

    #[test]
    fn rendered_text_is_what_prometheus_reads() {
        crate::event::register(EVENTS);
        Happened.add(2);
        Happened.add(3);
        Here.set(7);
        Here.add(-9);
        Took.record_duration(std::time::Duration::from_millis(3));
        let text = super::render_prometheus();
        let expected = [
            "# HELP heddle_render_test_happened_total Things that happened in this test.",
            "# TYPE heddle_render_test_happened_total counter",
            "heddle_render_test_happened_total 5",
            "heddle_render_test_here -2",
            "heddle_render_test_took_seconds_bucket{le=\"0.001048576\"} 0",
            "heddle_render_test_took_seconds_bucket{le=\"0.004194304\"} 1",
            "heddle_render_test_took_seconds_bucket{le=\"+Inf\"} 1",
            "heddle_render_test_took_seconds_sum 0.003",
            "heddle_render_test_took_seconds_count 1",
        ];
        let lines: Vec<&str> = text.lines().collect();
        for line in expected {
            assert!(lines.contains(&line), "missing {line:?} in\n{text}");
        }
        assert!(super::catalogue_markdown().contains("| `heddle_render_test_here` | gauge | How many are here. |"));
        assert_eq!(Took.value().count(), 1);
    }
}
