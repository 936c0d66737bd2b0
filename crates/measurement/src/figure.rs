//! The result of measuring a part of the system without a network: rows of numbers, and ratios with their bounds, shown
//! as a table, JSON and a plot. ([`crate::report`] is for workloads on a network.)
//!
//! The JSON has the form of `docs/formats/bench.md`: `figure`, `version`, `machine`, `settings`, `rows`, `ratios`,
//! `bounds`. Scripts compare each ratio with its bound.

mod curves;
mod row;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use plotters::prelude::*;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::process;
use row::{COLORS, SIZE_WIDTH};
pub use row::{CurvePlot, FigureRow};

const BAR_HEIGHT: u32 = 18;
/// The bound of a ratio.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RatioBound {
    /// It should not be more.
    AtMost(f64),
    /// It should not be less.
    AtLeast(f64),
}

impl RatioBound {
    /// Whether a value is within the bound.
    pub fn is_kept_by(self, value: f64) -> bool {
        match self {
            RatioBound::AtMost(most) => value <= most,
            RatioBound::AtLeast(least) => value >= least,
        }
    }

    /// Whether the bound demands a gain: a ratio of 1, no change, misses it. Other bounds forbid a loss.
    pub fn asks_for_gain(self) -> bool {
        !self.is_kept_by(1.0)
    }

    /// In words.
    pub fn text(self) -> String {
        match self {
            RatioBound::AtMost(most) => format!("at most {most}"),
            RatioBound::AtLeast(least) => format!("at least {least}"),
        }
    }
}

/// A requested ratio.
#[derive(Clone, Debug)]
pub struct FigureRatio {
    /// Its name in the JSON.
    pub name: &'static str,
    /// The measured value.
    pub value: f64,
    /// Its bound.
    pub bound: Option<RatioBound>,
}

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    name: &'static str,
    title: String,
    settings: Map<String, Value>,
    rows: Vec<FigureRow>,
    ratios: Vec<FigureRatio>,
    notes: Vec<String>,
    curves: Vec<CurvePlot>,
}

impl Figure {
    /// An empty figure.
    pub fn new(name: &'static str, title: impl Into<String>) -> Figure {
        let (settings, rows, ratios, notes) = (Map::new(), Vec::new(), Vec::new(), Vec::new());
        Figure { name, title: title.into(), settings, rows, ratios, notes, curves: Vec::new() }
    }

    /// States how it was measured.
    pub fn setting(&mut self, name: &str, value: impl Into<Value>) {
        self.settings.insert(name.to_owned(), value.into());
    }

    /// Adds a row.
    pub fn row(&mut self, labels: &[(&'static str, &str)], numbers: &[(&'static str, f64)]) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.rows.push(FigureRow { labels, numbers: numbers.to_vec() });
    }

    /// Adds a ratio.
    pub fn ratio(&mut self, name: &'static str, value: f64, bound: Option<RatioBound>) {
        self.ratios.push(FigureRatio { name, value, bound });
    }

    /// Adds a sentence below the table.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Plots one number over another, instead of bars; each call adds a chart.
    pub fn curves(&mut self, curves: CurvePlot) {
        self.curves.push(curves);
    }

    /// The rows so far.
    pub fn rows(&self) -> &[FigureRow] {
        &self.rows
    }

    /// The JSON.
    pub fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let labels = row.labels.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())));
            let numbers = row.numbers.iter().map(|(name, value)| ((*name).to_owned(), Value::from(rounded(*value))));
            Value::Object(labels.chain(numbers).collect())
        });
        let ratios: Map<String, Value> =
            self.ratios.iter().map(|ratio| (ratio.name.to_owned(), rounded(ratio.value).into())).collect();
        let bounds: Map<String, Value> =
            self.ratios.iter().filter_map(|ratio| Some((ratio.name.to_owned(), ratio.bound?.text().into()))).collect();
        json!({
            "figure": self.name,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": process::machine(),
            "settings": self.settings,
            "rows": rows.collect::<Vec<_>>(),
            "ratios": ratios,
            "bounds": bounds,
            "notes": self.notes,
        })
    }

    /// Writes the JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_json(&self, path: &Path) -> Result<(), Error> {
        let mut text = serde_json::to_string_pretty(&self.to_json()).expect("a figure is always JSON");
        text.push('\n');
        write(path, &text)
    }

    /// The table for people.
    pub fn to_table(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for group in self.groups() {
            let head: Vec<String> = group[0]
                .labels
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .chain(group[0].numbers.iter().map(|(name, _)| (*name).to_owned()))
                .collect();
            let lines: Vec<Vec<String>> = group
                .iter()
                .map(|row| {
                    let labels = row.labels.iter().map(|(_, value)| value.clone());
                    labels.chain(row.numbers.iter().map(|(_, value)| shown(*value))).collect()
                })
                .collect();
            let labels = group[0].labels.len();
            let width =
                |column: usize| lines.iter().chain([&head]).map(|line| line[column].chars().count()).max().unwrap_or(0);
            let widths: Vec<usize> = (0..head.len()).map(width).collect();
            text.push('\n');
            for line in std::iter::once(&head).chain(&lines) {
                for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                    let width = *width;
                    let written = match column < labels {
                        true => write!(text, "  {cell:<width$}"),
                        false => write!(text, "  {cell:>width$}"),
                    };
                    written.expect("writing into a string does not fail");
                }
                text.push('\n');
            }
        }
        text.push('\n');
        for ratio in &self.ratios {
            let verdict = match ratio.bound {
                None => String::new(),
                Some(bound) if bound.is_kept_by(ratio.value) => format!("   {}: kept", bound.text()),
                Some(bound) => format!("   {}: MISSED", bound.text()),
            };
            writeln!(text, "  {:<36} {:>10}{verdict}", ratio.name, shown(ratio.value))
                .expect("writing into a string does not fail");
        }
        for note in &self.notes {
            writeln!(text, "  {note}").expect("writing into a string does not fail");
        }
        writeln!(text, "  {}", process::machine()).expect("writing into a string does not fail");
        text
    }

    /// Rows that follow one another and have the same columns.
    fn groups(&self) -> Vec<&[FigureRow]> {
        let columns = |row: &FigureRow| {
            let labels = row.labels.iter().map(|(name, _)| *name);
            labels.chain(row.numbers.iter().map(|(name, _)| *name)).collect::<Vec<_>>()
        };
        self.rows.chunk_by(|one, other| columns(one) == columns(other)).collect()
    }

    /// Writes the [`Figure::curves`] if there are any; else bars of the first number of every row, one colour for each
    /// value of the first label, along a logarithmic axis.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_svg(&self, path: &Path) -> Result<(), Error> {
        let mut text = String::new();
        let drawn = if self.curves.is_empty() {
            self.draw(&mut text)
        } else {
            curves::draw(&self.title, &self.rows, &self.curves, &mut text)
        };
        drawn.map_err(|error| Error::Write { path: path.display().to_string(), reason: error.to_string() })?;
        write(path, &text)
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let bars: Vec<(&FigureRow, f64)> =
            self.rows.iter().filter_map(|row| Some((row, row.numbers.first()?.1))).collect();
        let positive = || bars.iter().map(|(_, value)| *value).filter(|value| *value > 0.0);
        let low = positive().fold(f64::INFINITY, f64::min).min(1e12) / 2.0;
        let high = positive().fold(0.0, f64::max).max(low * 10.0) * 2.0;
        let height = 90 + BAR_HEIGHT * u32::try_from(bars.len().max(1)).unwrap_or(u32::MAX).min(2_000);
        let area = SVGBackend::with_string(text, (SIZE_WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(&self.title, ("sans-serif", 20))?;
        // One unit along the axis, or each bar's unit beside it.
        let unit_of = |row: &FigureRow| row.numbers.first().map_or("", |(name, _)| *name);
        let first = bars.first().map_or("", |(row, _)| unit_of(row));
        let is_one = bars.iter().all(|(row, _)| unit_of(row) == first);
        let unit = if is_one { first } else { "" };
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(34)
            .y_label_area_size(300)
            .build_cartesian_2d((low..high).log_scale(), 0..bars.len().max(1))?;
        let label = |index: &usize| match bars.get(bars.len().wrapping_sub(index + 1)) {
            Some((row, _)) => {
                let labels = row.labels.iter().map(|(_, value)| value.as_str());
                labels.chain((!is_one).then(|| unit_of(row))).collect::<Vec<_>>().join(" ")
            }
            None => String::new(),
        };
        chart.configure_mesh().disable_y_mesh().y_labels(bars.len()).y_label_formatter(&label).x_desc(unit).draw()?;
        let mut colors = BTreeMap::new();
        for (index, (row, value)) in bars.iter().enumerate() {
            let first = row.labels.first().map_or("", |(_, value)| value.as_str());
            let next = colors.len();
            let color = COLORS[*colors.entry(first).or_insert(next) % COLORS.len()];
            let place = bars.len() - index - 1;
            chart.draw_series([Rectangle::new([(low, place), (value.max(low), place + 1)], color.filled())])?;
        }
        area.present()?;
        drop(chart);
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text)
        .map_err(|error| Error::Write { path: path.display().to_string(), reason: error.to_string() })
}

/// Three digits after the point: more would pretend a precision that no measurement has.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// As many digits as help.
fn shown(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let mut figure = Figure::new("example", "An example");
        figure.setting("seconds", 2.0);
        figure.row(&[("provider", "shm"), ("verb", "read")], &[("p50_ns", 81.2345), ("p99_ns", 1_200.0)]);
        figure.row(&[("provider", "tcp"), ("verb", "read")], &[("p50_ns", 9_000.0), ("p99_ns", 12_000.0)]);
        figure.ratio("over_floor_max", 1.2, Some(RatioBound::AtMost(1.5)));
        figure.ratio("bandwidth_min", 0.7, Some(RatioBound::AtLeast(0.8)));
        figure.note("A note.");
        figure
    }

    #[test]
    fn json_has_what_scripts_look_for() {
        let json = figure().to_json();
        assert_eq!(json["figure"], "example");
        assert_eq!(json["rows"][0]["p50_ns"], 81.235);
        assert_eq!(json["rows"][1]["provider"], "tcp");
        assert_eq!(json["ratios"]["over_floor_max"], 1.2);
        assert_eq!(json["bounds"]["bandwidth_min"], "at least 0.8");
    }

    #[test]
    fn tables_say_which_bounds_are_missed() {
        let table = figure().to_table();
        let line = |name: &str| table.lines().find(|line| line.contains(name)).expect("it is there").to_owned();
        assert!(line("over_floor_max").ends_with("kept"));
        assert!(line("bandwidth_min").ends_with("MISSED"));
        assert!(line("shm").contains("81.2"));
    }

    #[test]
    fn curves_have_a_line_for_each_set_of_labels() {
        let mut figure = Figure::new("example", "An example");
        for (percent, rate) in [(10.0, 50.0), (50.0, 90.0), (100.0, 100.0)] {
            figure.row(&[("form", "ours")], &[("percent", percent), ("rate", rate)]);
            figure.row(&[("form", "two-sided")], &[("percent", percent), ("rate", rate / 2.0)]);
        }
        figure.curves(CurvePlot { x: "percent", x_log: true, y: "rate" });
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("plot.svg");
        figure.write_svg(&path).expect("it can be drawn");
        let text = std::fs::read_to_string(&path).expect("it was written");
        for part in ["<svg", "ours", "two-sided", "percent", "rate", "An example", "<polyline"] {
            assert!(text.contains(part), "`{part}` is missing");
        }
    }

    #[test]
    fn plots_name_their_bars() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("plot.svg");
        figure().write_svg(&path).expect("it can be drawn");
        let text = std::fs::read_to_string(&path).expect("it was written");
        for part in ["<svg", "shm read", "tcp read", "p50_ns", "An example"] {
            assert!(text.contains(part), "`{part}` is missing");
        }
    }
}
