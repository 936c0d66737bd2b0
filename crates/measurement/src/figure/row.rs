//! The rows of a figure, and the choice of the numbers that are drawn as curves.

use plotters::prelude::*;

pub(super) const SIZE_WIDTH: u32 = 960;

pub(super) const COLORS: [RGBColor; 10] = [
    RGBColor(31, 98, 142),
    RGBColor(196, 78, 32),
    RGBColor(70, 130, 60),
    RGBColor(130, 90, 160),
    RGBColor(120, 120, 120),
    RGBColor(180, 150, 40),
    RGBColor(40, 160, 170),
    RGBColor(200, 90, 140),
    RGBColor(90, 60, 40),
    RGBColor(150, 190, 90),
];

/// One line of a figure: its subject, and its numbers by name.
#[derive(Clone, Debug)]
pub struct FigureRow {
    /// The subject: names and their values, such as `provider` and `shm`, in the order to be shown.
    pub labels: Vec<(&'static str, String)>,
    /// The numbers, each with its unit in its name, in the order to be shown.
    pub numbers: Vec<(&'static str, f64)>,
}

/// A chart of one number of some rows over another.
#[derive(Clone, Debug)]
pub struct CurvePlot {
    /// The number along the lower axis.
    pub x: &'static str,
    /// Whether that axis is logarithmic.
    pub x_log: bool,
    /// The number that is shown over it. Rows without both are left out; rows with the same labels are one line.
    pub y: &'static str,
}
