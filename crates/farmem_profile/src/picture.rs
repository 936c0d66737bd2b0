//! The picture: bars of memory intensity, the highest first, as TELEPORT orders operators (section 7.4).
//!
//! It is an SVG of rectangles, lines and text. The crate that draws the figures of `heddle-bench` is not built into `heddle`.

use std::fmt::Write as _;

use crate::report::{FunctionReport, FunctionRow};
use crate::text::{brief, grouped, percent, rounded, shortened};

const WIDTH: f64 = 960.0;
const TOP: f64 = 76.0;
const ROW: f64 = 30.0;
const BAR: f64 = 18.0;
const BOTTOM: f64 = 64.0;
const MARGIN: f64 = 16.0;
/// Where bars start, and the most that they may need; behind them is room for their numbers.
const BARS_LEFT: f64 = 330.0;
const BARS_WIDTH: f64 = 470.0;
/// Characters of a name that fit before the bars.
const NAME_CHARACTERS: usize = 42;
/// Functions with a smaller part of the accesses are left out: their rates are those of a few moments.
const SHARE_MIN: f64 = 0.01;
/// Red, green and blue of a dark bar.
const COLOR: [f64; 3] = [31.0, 98.0, 142.0];
/// How dark the bars are of functions with hardly any accesses.
const SHADE_MIN: f64 = 0.35;
/// Lines of the grid, at most.
const STEPS: f64 = 6.0;

impl FunctionReport {
    /// An SVG with a bar for each of the first `top` functions: accesses in a second of the time that the function ran.
    pub fn picture(&self, top: usize) -> String {
        let mut bars: Vec<(&FunctionRow, f64)> = self
            .rows
            .iter()
            .filter(|row| row.accesses > 0)
            .take(top)
            .filter(|row| row.share >= SHARE_MIN)
            .filter_map(|row| Some((row, row.accesses_per_second.filter(|rate| rate.is_finite())?)))
            .collect();
        bars.sort_by(|one, other| other.1.total_cmp(&one.1));
        let highest = bars.first().map_or(1.0, |(_, rate)| rate.max(1.0));
        let step = step(highest);
        let end = (highest / step).ceil() * step;
        let height = TOP + ROW * bars.len().max(1) as f64 + BOTTOM;
        let mut svg = Svg::new(height);
        self.draw_head(&mut svg);
        draw_grid(&mut svg, step, end, height);
        let most = bars.iter().map(|(row, _)| row.share).fold(SHARE_MIN, f64::max);
        for (at, (row, rate)) in bars.iter().enumerate() {
            let bar = Bar { top: TOP + ROW * at as f64, width: BARS_WIDTH * rate / end, shade: row.share / most };
            draw_bar(&mut svg, &bar, row, *rate);
        }
        if bars.is_empty() {
            svg.text(BARS_LEFT + 8.0, TOP + 20.0, Style::Note, "no function made enough remote accesses");
        }
        self.draw_foot(&mut svg, &bars, height);
        svg.end()
    }

    fn draw_head(&self, svg: &mut Svg) {
        svg.text(MARGIN, 28.0, Style::Title, "Memory intensity: remote accesses a second, by function");
        let seconds = self.time.as_secs_f64();
        let head = format!(
            "{} remote accesses in {seconds:.1} s. What makes many of them (dark) at a high rate gains most from being pushed down.",
            grouped(self.accesses)
        );
        svg.text(MARGIN, 48.0, Style::Note, &head);
    }

    fn draw_foot(&self, svg: &mut Svg, bars: &[(&FunctionRow, f64)], height: f64) {
        let axis = "remote accesses in a second of the time that the function ran (share of all accesses)";
        svg.text(BARS_LEFT, height - 26.0, Style::Note, axis);
        let shown: f64 = bars.iter().map(|(row, _)| row.share).sum();
        let left_out = self.rows.iter().filter(|row| row.accesses > 0).count() - bars.len();
        if left_out > 0 {
            let rest = percent((1.0 - shown).max(0.0));
            let foot = format!("Other functions, {left_out} in number, made {rest} of all accesses.");
            svg.text(BARS_LEFT, height - 8.0, Style::Note, &foot);
        }
    }
}

/// The distance of the grid's lines: 1, 2 or 5 times a power of ten.
fn step(highest: f64) -> f64 {
    let power = 10_f64.powf((highest / STEPS).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| highest / step <= STEPS).unwrap_or(10.0 * power)
}

fn draw_grid(svg: &mut Svg, step: f64, end: f64, height: f64) {
    let bottom = height - BOTTOM;
    let lines = (end / step).round() as u32;
    for line in 0..=lines {
        let value = f64::from(line) * step;
        let x = BARS_LEFT + BARS_WIDTH * value / end;
        svg.line(x, TOP - 6.0, x, bottom);
        let text = if step < 1.0 { format!("{value:.1}") } else { rounded(value) };
        svg.text(x, bottom + 16.0, Style::Tick, &text);
    }
}

struct Bar {
    top: f64,
    width: f64,
    /// From 0, light, to 1, dark.
    shade: f64,
}

fn draw_bar(svg: &mut Svg, bar: &Bar, row: &FunctionRow, rate: f64) {
    let middle = bar.top + BAR / 2.0 + 4.5;
    let name = shortened(&brief(&row.function), NAME_CHARACTERS);
    let whole = format!("{} in {}", row.function, row.object);
    svg.titled_text(BARS_LEFT - 8.0, middle, &name, &whole);
    let numbers = format!("{} ({})", rounded(rate), percent(row.share));
    let title = format!(
        "{whole}: {} accesses, {} of all, in {:.3} s",
        row.accesses,
        percent(row.share),
        row.time.as_secs_f64()
    );
    svg.bar(BARS_LEFT, bar, &title);
    svg.text(BARS_LEFT + bar.width + 6.0, middle, Style::Number, &numbers);
}

/// How text looks.
#[derive(Clone, Copy)]
enum Style {
    Title,
    Note,
    Tick,
    Number,
}

/// An SVG that is being written.
struct Svg(String);

impl Svg {
    fn new(height: f64) -> Svg {
        let mut text = String::new();
        write!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
        )
        .expect("a string takes all of it");
        Svg(text)
    }

    fn push(&mut self, element: &str) {
        self.0.push_str(element);
        self.0.push('\n');
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.push(&format!("<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#ddd\"/>"));
    }

    fn bar(&mut self, x: f64, bar: &Bar, title: &str) {
        let (title, Bar { top, width, shade }) = (escaped(title), bar);
        let depth = SHADE_MIN + (1.0 - SHADE_MIN) * shade;
        let [red, green, blue] = COLOR.map(|part| (255.0 - (255.0 - part) * depth) as u8);
        self.push(&format!(
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR}\" \
             fill=\"#{red:02x}{green:02x}{blue:02x}\"><title>{title}</title></rect>"
        ));
    }

    fn text(&mut self, x: f64, y: f64, style: Style, text: &str) {
        let style = match style {
            Style::Title => "font-size=\"17\" font-weight=\"bold\"",
            Style::Note => "fill=\"#555\" font-size=\"12\"",
            Style::Tick => "fill=\"#555\" font-size=\"12\" text-anchor=\"middle\"",
            Style::Number => "",
        };
        self.push(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{}</text>", escaped(text)));
    }

    /// Text that ends at `x`, and more that a reader sees by pointing at it.
    fn titled_text(&mut self, x: f64, y: f64, text: &str, title: &str) {
        let (text, title) = (escaped(text), escaped(title));
        self.push(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{text}<title>{title}</title></text>"));
    }

    fn end(mut self) -> String {
        self.push("</svg>");
        self.0
    }
}

/// Text without what XML takes for markup, or forbids.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            character if character.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&character) => {
                escaped.push('\u{fffd}')
            }
            character => escaped.push(character),
        }
    }
    escaped
}
