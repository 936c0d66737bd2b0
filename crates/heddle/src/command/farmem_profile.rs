//! `heddle farmem profile`: what is shown when the program has ended.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use base::durable::{self, FileAccess};
use farmem::AccessProfile;
use farmem_profile::FunctionReport;

use crate::cli::farmem::FarMemoryProfileArguments;
use crate::failure::CommandError;

/// Tries the files before the program runs: a profile that took hours should not be lost to a mistyped name.
pub(super) fn check_files(arguments: &FarMemoryProfileArguments) -> Result<(), CommandError> {
    for file in [&arguments.json, &arguments.picture].into_iter().flatten() {
        let opened = OpenOptions::new().create(true).append(true).open(file);
        opened.map_err(|error| CommandError::about(file, error))?;
    }
    Ok(())
}

/// Prints the table, and writes the files.
pub(super) fn show(
    arguments: &FarMemoryProfileArguments,
    profile: &AccessProfile,
    time: Duration,
) -> Result<(), CommandError> {
    let report = FunctionReport::new(profile, time);
    // Standard output is the program's.
    eprint!("heddle: {}", report.table(arguments.top));
    if let Some(file) = &arguments.json {
        write(file, &format!("{:#}\n", report.to_json()))?;
    }
    if let Some(file) = &arguments.picture {
        write(file, &report.picture(arguments.top))?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), CommandError> {
    durable::write(file, text.as_bytes(), FileAccess::Everybody).map_err(|error| CommandError::about(file, error))
}
