//! The settings that a subject gets, and the numbers that it prints.

use std::collections::BTreeMap;

use measurement::error::Error;

use crate::teleport::part;

/// By name.
pub(super) type Settings<'a> = BTreeMap<&'a str, &'a str>;
/// Numbers, by name.
pub(super) type Measured = Result<Vec<(String, f64)>, Error>;

/// The setting of a name.
pub(super) fn setting<T: std::str::FromStr>(settings: &Settings<'_>, name: &str) -> Result<T, Error> {
    let value = settings.get(name).and_then(|value| value.parse().ok());
    value.ok_or_else(|| part(&format!("{name} is missing, or not what it should be")))
}

/// Numbers with these names.
pub(super) fn named<const N: usize>(numbers: [(&str, f64); N]) -> Vec<(String, f64)> {
    numbers.map(|(name, number)| (name.to_owned(), number)).into()
}
