//! Draws charts: one column of a figure over another, with one line for each set of labels.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::row::{COLORS, CurvePlot, FigureRow, SIZE_WIDTH};

const CHART_HEIGHT: u32 = 380;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;
/// Labels, and points.
type Line = (String, Vec<(f64, f64)>);

pub fn draw(title: &str, rows: &[FigureRow], plots: &[CurvePlot], text: &mut String) -> Drawn {
    let charts = u32::try_from(plots.len()).unwrap_or(u32::MAX).min(16);
    let area = SVGBackend::with_string(text, (SIZE_WIDTH, 40 + CHART_HEIGHT * charts)).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.titled(title, ("sans-serif", 20))?;
    for (part, curves) in area.split_evenly((charts as usize, 1)).iter().zip(plots) {
        let lines = lines(rows, curves);
        let all = || lines.iter().flat_map(|(_, places)| places);
        let most = |place: fn(&(f64, f64)) -> f64| all().map(place).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let least_x = all().map(|(x, _)| *x).fold(f64::INFINITY, f64::min).min(most(|(x, _)| *x));
        let (high_x, high_y) = (most(|(x, _)| *x), most(|(_, y)| *y) * 1.08);
        if curves.x_log && least_x > 0.0 {
            chart(part, curves, &lines, (least_x * 0.9..high_x * 1.1).log_scale(), high_y)?;
        } else {
            chart(part, curves, &lines, 0.0..high_x * 1.03, high_y)?;
        }
    }
    area.present()?;
    Ok(())
}

fn lines(rows: &[FigureRow], curves: &CurvePlot) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let number = |name: &str| row.numbers.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
        let (Some(x), Some(y)) = (number(curves.x), number(curves.y)) else { continue };
        let label = row.labels.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ");
        match lines.iter_mut().find(|(known, _)| *known == label) {
            Some((_, places)) => places.push((x, y)),
            None => lines.push((label, vec![(x, y)])),
        }
    }
    for (_, places) in &mut lines {
        places.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    lines
}

fn chart<X>(area: &Area<'_>, curves: &CurvePlot, lines: &[Line], x: X, high_y: f64) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d(x, 0.0..high_y)?;
    chart.configure_mesh().x_desc(curves.x).y_desc(curves.y).light_line_style(WHITE).draw()?;
    for (number, (label, places)) in lines.iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        let key = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2));
        chart.draw_series(LineSeries::new(places.iter().copied(), color.stroke_width(2)))?.label(label).legend(key);
        chart.draw_series(places.iter().map(|place| Circle::new(*place, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}
