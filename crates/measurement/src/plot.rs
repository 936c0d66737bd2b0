//! Plots a measurement: transactions per second over time, and their latencies.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::Error;
use crate::report::BenchmarkReport;

const SIZE: (u32, u32) = (900, 720);
const VALID: RGBColor = RGBColor(31, 98, 142);
const INVALID: RGBColor = RGBColor(196, 78, 32);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Writes an SVG file.
///
/// # Errors
/// The file cannot be written.
pub fn write_svg(report: &BenchmarkReport, path: &Path) -> Result<(), Error> {
    let mut text = String::new();
    draw(report, &mut text)
        .map_err(|error| error.to_string())
        .and_then(|()| std::fs::write(path, text).map_err(|error| error.to_string()))
        .map_err(|reason| Error::Write { path: path.display().to_string(), reason })
}

fn draw(report: &BenchmarkReport, text: &mut String) -> Drawn {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.titled(&report.title(), ("sans-serif", 22))?;
    let (upper, lower) = area.split_vertically(SIZE.1 / 2 - 20);
    throughput(report, &upper)?;
    latency(report, &lower)?;
    area.present()?;
    Ok(())
}

fn throughput(report: &BenchmarkReport, area: &Area<'_>) -> Drawn {
    // The end of the window cuts the last second short.
    let whole = usize::try_from(report.measurement().elapsed.as_secs()).unwrap_or(usize::MAX);
    let seconds = &report.measurement().tally.seconds;
    let seconds = &seconds[..seconds.len().min(whole.max(1))];
    let highest = seconds.iter().map(|second| second.valid.max(second.invalid)).max().unwrap_or(0).max(1);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0..seconds.len().max(2) - 1, 0..highest + highest / 10 + 1)?;
    chart.configure_mesh().x_desc("second").y_desc("transactions a second").light_line_style(WHITE).draw()?;
    let valid = seconds.iter().enumerate().map(|(second, counts)| (second, counts.valid));
    chart.draw_series(LineSeries::new(valid, VALID.stroke_width(2)))?.label("valid").legend(key(VALID));
    let invalid = seconds.iter().enumerate().map(|(second, counts)| (second, counts.invalid));
    chart.draw_series(LineSeries::new(invalid, INVALID.stroke_width(2)))?.label("invalid").legend(key(INVALID));
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}

fn key(color: RGBColor) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> {
    move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
}

/// The cumulative distribution of the latency of valid transactions.
fn latency(report: &BenchmarkReport, area: &Area<'_>) -> Drawn {
    let times = &report.measurement().tally.latency;
    let total = times.count().max(1) as f64;
    let mut seen = 0;
    let mut points = vec![(0.0, 0.0)];
    for (_, end_us, count) in times.buckets() {
        seen += count;
        points.push((end_us as f64 / 1e3, 100.0 * seen as f64 / total));
    }
    // The slowest thousandth would squeeze all others into a corner.
    let longest_ms = (times.quantile_us(0.999) as f64 / 1e3 * 1.05).max(1.0);
    points.retain(|(ms, _)| *ms <= longest_ms);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..longest_ms, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds from proposal to commit")
        .y_desc("% of valid transactions")
        .light_line_style(WHITE)
        .draw()?;
    chart.draw_series(LineSeries::new(points, VALID.stroke_width(2)))?;
    for quantile in [0.5, 0.95, 0.99] {
        let ms = times.quantile_us(quantile) as f64 / 1e3;
        let percent = quantile * 100.0;
        chart.draw_series([Circle::new((ms, percent), 4, INVALID.filled())])?;
        let label = format!("p{percent:.0} {ms:.1} ms");
        chart.draw_series([Text::new(label, (ms + longest_ms * 0.01, percent - 6.0), ("sans-serif", 14))])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn a_plot_names_its_axes_and_quantiles() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("plot.svg");
        write_svg(&report(), &path).expect("it can be drawn");
        let text = std::fs::read_to_string(&path).expect("it was written");
        for part in
            ["<svg", "transactions a second", "milliseconds from proposal to commit", "p95 25.0 ms", "smallbank"]
        {
            assert!(text.contains(part), "`{part}` is missing");
        }
        let nowhere = folder.path().join("no such folder/plot.svg");
        assert!(write_svg(&report(), &nowhere).is_err());
    }
}
