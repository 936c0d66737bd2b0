//! The record of searched-out targets, a table in Markdown that is committed, so that the search of all targets can be
//! spread over machines and days.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

const FILE: &str = "fuzz/searched-out.md";
const HEAD: &str = "# Targets that were searched out

Written by `cargo xtask fuzz`; [docs/fuzzing.md](../docs/fuzzing.md) says what *searched out* means. A target that has failed
since has no row. `cargo xtask fuzz --unsearched` searches the targets that are not here.

| target | commit | inputs | edges | processor s without a new edge | processor s |
|---|---|--:|--:|--:|--:|
";

/// A search that ended because its target was searched out.
#[derive(Clone, Copy)]
pub struct Search {
    pub inputs: u64,
    pub edges: u64,
    /// Seconds of processor time since the last new edge.
    pub quiet: u64,
    /// Seconds of processor time.
    pub processor: u64,
}

/// The rows of the table by target: all that follows the target's name.
pub struct SearchedOut(BTreeMap<String, String>);

impl SearchedOut {
    /// Reads the table; it is empty if there is no file.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn read() -> Result<SearchedOut, String> {
        match fs::read_to_string(FILE) {
            Ok(text) => Ok(SearchedOut::parse(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(SearchedOut(BTreeMap::new())),
            Err(error) => Err(format!("{FILE}: {error}")),
        }
    }

    fn parse(text: &str) -> SearchedOut {
        let rows = text.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
        let row = |line: &str| {
            let (target, rest) = line.strip_prefix("| ")?.split_once(" | ")?;
            Some((target.to_owned(), rest.to_owned()))
        };
        SearchedOut(rows.filter_map(row).collect())
    }

    pub fn has(&self, target: &str) -> bool {
        self.0.contains_key(target)
    }

    /// Replaces the row of a target.
    pub fn note(&mut self, target: &str, commit: &str, search: Search) {
        let Search { inputs, edges, quiet, processor } = search;
        let row = format!("{commit} | {inputs} | {edges} | {quiet} | {processor} |");
        self.0.insert(target.to_owned(), row);
    }

    /// Removes the row of a target that has failed.
    pub fn forget(&mut self, target: &str) {
        self.0.remove(target);
    }

    fn text(&self) -> String {
        let rows: String = self.0.iter().map(|(target, rest)| format!("| {target} | {rest}\n")).collect();
        format!("{HEAD}{rows}")
    }

    /// Writes the table, without the rows of targets that no longer exist.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&mut self, targets: &[String]) -> Result<(), String> {
        self.0.retain(|target, _| targets.contains(target));
        fs::write(FILE, self.text()).map_err(|error| format!("{FILE}: {error}"))
    }
}

/// The commit that is checked out.
///
/// # Errors
/// Git cannot tell.
pub fn commit() -> Result<String, String> {
    let output = Command::new("git").args(["rev-parse", "--short=8", "HEAD"]).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err("git does not say which commit is checked out".to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_as_it_was_written() {
        let mut table = SearchedOut::parse("");
        let search = Search { inputs: 1_500_000, edges: 812, quiet: 601, processor: 900 };
        table.note("ledger-block", "0123abcd", search);
        table.note("kv-request", "0123abcd", search);
        let mut again = SearchedOut::parse(&table.text());
        assert_eq!(again.text(), table.text());
        assert!(again.has("ledger-block") && again.has("kv-request"));
        again.forget("kv-request");
        assert!(again.has("ledger-block") && !again.has("kv-request"));
    }
}
