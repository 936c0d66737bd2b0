//! `heddle deny`: the operator's deny list of certificates.

use std::path::PathBuf;

use identity::Certificate;
use node::credentials::{DENIED_FILE, DeniedEntry, DeniedFile};

use crate::cli::DirectoryArguments;
use crate::cli::deny::{DenyAddArguments, DenyListArguments};
use crate::failure::CommandError;
use crate::output;

fn file(directory: &DirectoryArguments, node: Option<&PathBuf>) -> Result<PathBuf, CommandError> {
    let folder = node.unwrap_or(&directory.dir);
    match folder.is_dir() {
        true => Ok(folder.join(DENIED_FILE)),
        false => Err(CommandError::new(format!(
            "there is no folder {}; name a network with --dir, or a process with --node",
            folder.display()
        ))),
    }
}

pub fn add(arguments: &DenyAddArguments) -> Result<(), CommandError> {
    let file = file(&arguments.directory, arguments.node.as_ref())?;
    let cert = arguments.cert.display();
    let pem = std::fs::read(&arguments.cert).map_err(|error| CommandError::new(format!("reading {cert}: {error}")))?;
    let certificate = Certificate::from_pem(&pem).map_err(|error| CommandError::new(format!("{cert}: {error}")))?;
    let mut list = DeniedFile::load(&file).map_err(CommandError::new)?;
    let entry = DeniedEntry::of(&certificate, arguments.reason.clone().unwrap_or_default(), arguments.until.clone());
    entry.check().map_err(|what| CommandError::new(format!("the entry {what}")))?;
    list.denied.retain(|other| other.sha256 != entry.sha256);
    list.denied.push(entry);
    list.store(&file).map_err(CommandError::new)?;
    output::print(&format!("{} is denied by {}\n", certificate.common_name(), file.display()))
}

pub fn list(arguments: &DenyListArguments) -> Result<(), CommandError> {
    let file = file(&arguments.directory, arguments.node.as_ref())?;
    let list = DeniedFile::load(&file).map_err(CommandError::new)?;
    if arguments.json {
        return output::print_json(&serde_json::to_value(&list).map_err(CommandError::new)?);
    }
    let lines = list.denied.iter().map(|entry| {
        let by_serial = || format!("{} {}", entry.msp.as_deref().unwrap_or(""), entry.serial.as_deref().unwrap_or(""));
        let whom = entry.sha256.clone().unwrap_or_else(by_serial);
        let until = entry.until.as_ref().map(|until| format!("  until {until}")).unwrap_or_default();
        format!("{whom}{until}  {}\n", entry.reason)
    });
    let text: String = lines.collect();
    output::print(if text.is_empty() { "no certificate is denied\n" } else { &text })
}
