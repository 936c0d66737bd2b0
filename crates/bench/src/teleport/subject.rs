//! The measured processes: each runs one part of a figure, and prints its numbers, a name and a value a line.

mod ablation;
mod calls;
mod contention;
mod data;
mod false_sharing;
mod messages;
mod settings;

use farmem::pushdown::{Executor, PushdownOptions};
use measurement::error::Error;

use self::settings::Settings;
use super::part;

/// Runs the part that is the first argument, with the settings `name=value` of the others.
///
/// # Errors
/// An argument is wrong, or functions cannot be pushed down.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let executor = Executor::open(&PushdownOptions::default()).map_err(|error| part(&error))?;
    let (name, settings) = arguments.split_first().ok_or_else(|| part(&"no part is named"))?;
    let settings: Settings = settings.iter().filter_map(|setting| setting.split_once('=')).collect();
    let numbers = match name.as_str() {
        "calls" => calls::calls(&executor, &settings),
        "ablation" => ablation::ablation(&executor, &settings),
        "false-sharing" => false_sharing::false_sharing(&executor, &settings),
        "contention" => contention::contention(&executor, &settings),
        "messages" => messages::messages(&executor),
        _ => Err(part(&format!("there is no part {name}"))),
    }?;
    for (name, value) in numbers {
        println!("{name} {value}");
    }
    Ok(())
}
