//! `heddle contract define` brings the first definition of each configured contract onto the ledger
//! ([`super::definition`]). A contract that the ledger defines already is left as it is.

use super::definition::{Administrator, DefinitionChange};
use crate::cli::contract::ContractDefineArguments;
use crate::failure::CommandError;
use crate::{instance, output};

/// Brings the configured contracts onto the ledger.
pub async fn define(arguments: &ContractDefineArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    let endpoints = instance::expect_running(dir)?;
    let definitions = node::first_definitions(&super::config(dir)?).map_err(CommandError::new)?;
    let names = match arguments.names.is_empty() {
        true => definitions.keys().cloned().collect(),
        false => arguments.names.clone(),
    };
    let admins = Administrator::connect_all(dir, &endpoints).await?;
    for name in names {
        let definition = definitions.get(&name).ok_or_else(|| {
            let known = definitions.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            CommandError::new(format!("the network's configuration has no contract {name}; it has {known}"))
        })?;
        let first = DefinitionChange { channel: &endpoints.channel, name: &name, definition, package: "" };
        let line = match first.bring(&admins).await? {
            true => format!("{name:<12} defined: version {}, sequence 1\n", definition.endorsement.version),
            false => format!("{name:<12} is on the ledger already\n"),
        };
        output::print(&line)?;
    }
    Ok(())
}
