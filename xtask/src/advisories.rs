//! Known vulnerabilities of dependencies, checked offline.
//!
//! 1. `advisories.json` beside this crate is a snapshot of the RustSec database's facts: ids, packages, version ranges,
//!    dates and addresses, without its texts. `cargo xtask advisories --refresh FOLDER` creates it from a checkout of
//!    the database.
//! 2. The list `noted` in this file is written by hand, for advisories that are newer than the snapshot; a refresh
//!    drops those that the database contains by then.
//! 3. [`check`] fails if a version in `Cargo.lock` is affected by an advisory that `deny.toml` does not ignore;
//!    unmaintained versions are affected too. An ignore in `deny.toml` names the day of the decision and the reason
//!    (`reason = "2026-11-23: …"`), and expires after [`IGNORE_DAYS_MAX`].
//!
//! A snapshot older than [`SNAPSHOT_DAYS_MAX`] causes a warning, not a failure: a build that has passed must not fail
//! because of the date alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use semver::{Version, VersionReq};
use serde::{Deserialize, Serialize};

use crate::step::first_line;

const SNAPSHOT: &str = "xtask/advisories.json";
const DATABASE: &str = "https://github.com/RustSec/advisory-db";
/// Days for which an ignore holds after the day of the decision.
const IGNORE_DAYS_MAX: i64 = 183;
/// Days after which a snapshot causes a warning.
const SNAPSHOT_DAYS_MAX: i64 = 180;

/// The facts of the database on one day.
#[derive(Serialize, Deserialize, Default)]
struct Snapshot {
    database: String,
    date: String,
    noted: Vec<Advisory>,
    advisories: Vec<Advisory>,
}

/// One advisory, without its text.
#[derive(Clone, Serialize, Deserialize, Default, Debug)]
struct Advisory {
    id: String,
    package: String,
    date: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// `unmaintained`, `unsound` or `notice`; a vulnerability has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    informational: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    patched: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unaffected: Vec<String>,
}

/// A package of `Cargo.lock`.
#[derive(Deserialize, Clone, Debug)]
pub struct LockedPackage {
    pub name: String,
    pub version: String,
    /// Missing for packages of this workspace.
    pub source: Option<String>,
    pub checksum: Option<String>,
}

/// A known problem that does not count as a failure, from `deny.toml`.
#[derive(Deserialize, Debug)]
struct IgnoredAdvisory {
    id: String,
    reason: String,
}

/// All packages of a `Cargo.lock`.
pub fn locked(text: &str) -> Result<Vec<LockedPackage>, String> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<LockedPackage>,
    }
    toml::from_str::<Lock>(text).map(|lock| lock.package).map_err(|error| format!("Cargo.lock: {error}"))
}

/// Checks the versions in `Cargo.lock`.
///
/// # Errors
/// The versions that are affected and not ignored, and what to do.
pub fn check() -> Result<(), String> {
    let snapshot = read()?;
    let today = today();
    let age = today - days_of(&snapshot.date)?;
    if age > SNAPSHOT_DAYS_MAX {
        println!(
            "warning: the advisories date from {}, {age} days ago; refresh them: git clone {DATABASE} FOLDER && cargo xtask \
             advisories --refresh FOLDER",
            snapshot.date
        );
    }
    let locked = locked(&read_text("Cargo.lock")?)?;
    let problems = problems(&snapshot, &locked, &ignored(&read_text("deny.toml")?)?, today)?;
    if problems.is_empty() {
        println!("advisories: {} packages, none affected except ignored ones", locked.len());
        return Ok(());
    }
    Err(format!("advisories:\n{}", problems.join("\n")))
}

fn ignored(text: &str) -> Result<Vec<IgnoredAdvisory>, String> {
    #[derive(Deserialize)]
    struct Deny {
        #[serde(default)]
        advisories: Section,
    }
    #[derive(Deserialize, Default)]
    struct Section {
        #[serde(default)]
        ignore: Vec<IgnoredAdvisory>,
    }
    toml::from_str::<Deny>(text).map(|deny| deny.advisories.ignore).map_err(|error| format!("deny.toml: {error}"))
}

/// A line for each affected version, each expired ignore and each ignore without effect.
fn problems(
    snapshot: &Snapshot,
    locked: &[LockedPackage],
    ignored: &[IgnoredAdvisory],
    today: i64,
) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    let mut found = BTreeSet::new();
    for package in locked.iter().filter(|package| package.source.is_some()) {
        let version =
            Version::parse(&package.version).map_err(|error| format!("Cargo.lock: {}: {error}", package.name))?;
        for advisory in snapshot.noted.iter().chain(&snapshot.advisories) {
            if advisory.package != package.name || !advisory.affects(&version)? {
                continue;
            }
            found.insert(advisory.id.as_str());
            if !ignored.iter().any(|ignored| ignored.id == advisory.id) {
                problems.push(advisory.problem(package));
            }
        }
    }
    for IgnoredAdvisory { id, reason } in ignored {
        let decided = reason.split_once(": ").map(|(date, _)| days_of(date)).transpose()?;
        match decided {
            _ if !found.contains(id.as_str()) => {
                problems.push(format!("{id} is ignored in deny.toml and affects nothing: remove the line"));
            }
            None => problems.push(format!(
                "{id} is ignored in deny.toml without the day of the decision: write reason = \"YYYY-MM-DD: …\""
            )),
            Some(decided) if today - decided > IGNORE_DAYS_MAX => problems.push(format!(
                "{id} has been ignored for {} days: see whether there is a release without it; if not, argue again and \
                 write today's date",
                today - decided
            )),
            Some(_) => {}
        }
    }
    Ok(problems)
}

impl Advisory {
    fn affects(&self, version: &Version) -> Result<bool, String> {
        for range in self.patched.iter().chain(&self.unaffected) {
            let range = VersionReq::parse(range).map_err(|error| format!("{}: the range {range}: {error}", self.id))?;
            if range.matches(version) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn problem(&self, package: &LockedPackage) -> String {
        let kind = self.informational.as_deref().unwrap_or("vulnerable");
        let upgrade = match self.patched.is_empty() {
            true => "no release is patched: replace it".to_owned(),
            false => format!("upgrade to {}", self.patched.join(" or ")),
        };
        let url = self.url.as_deref().unwrap_or("no address");
        format!(
            "{} {} is {kind}, {} of {} ({url}): {upgrade}, or ignore it in deny.toml with a date and an argument",
            package.name, package.version, self.id, self.date
        )
    }
}

/// Creates the snapshot from a checkout of the database.
///
/// # Errors
/// A file that cannot be read or written.
pub fn refresh(from: &Path) -> Result<(), String> {
    let folder = from.join("crates");
    let mut advisories = Vec::new();
    let entries = |folder: &Path| -> Result<Vec<_>, String> {
        let list = fs::read_dir(folder).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        list.map_err(|error| format!("{}: {error}; name a checkout of {DATABASE}", folder.display()))
    };
    for package in entries(&folder)? {
        for file in entries(&package.path())? {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.starts_with("RUSTSEC-") && name.ends_with(".md") {
                let text = fs::read_to_string(file.path()).map_err(|error| format!("{name}: {error}"))?;
                advisories.extend(facts(&text).map_err(|error| format!("{name}: {error}"))?);
            }
        }
    }
    if advisories.is_empty() {
        return Err(format!("{} has no advisories; name a checkout of {DATABASE}", folder.display()));
    }
    advisories.sort_by(|one, other| one.id.cmp(&other.id));
    let newest = advisories.iter().map(|advisory| advisory.date.clone()).max().unwrap_or_default();
    let date = first_line("git", &["-C", &from.to_string_lossy(), "log", "-1", "--format=%cs"]).unwrap_or(newest);
    let mut noted = read().map(|snapshot| snapshot.noted).unwrap_or_default();
    noted.retain(|noted| !advisories.iter().any(|advisory| advisory.id == noted.id));
    write(&Snapshot { database: DATABASE.to_owned(), date, noted, advisories })
}

/// The facts of an advisory; `None` if it was withdrawn.
fn facts(text: &str) -> Result<Option<Advisory>, String> {
    #[derive(Deserialize)]
    struct Front {
        advisory: Head,
        #[serde(default)]
        versions: Versions,
    }
    #[derive(Deserialize)]
    struct Head {
        id: String,
        package: String,
        date: String,
        url: Option<String>,
        informational: Option<String>,
        withdrawn: Option<String>,
    }
    #[derive(Deserialize, Default)]
    struct Versions {
        #[serde(default)]
        patched: Vec<String>,
        #[serde(default)]
        unaffected: Vec<String>,
    }
    let front = text.strip_prefix("```toml").and_then(|rest| rest.split_once("\n```")).ok_or("it has no facts")?.0;
    let Front { advisory, versions } = toml::from_str(front).map_err(|error| error.to_string())?;
    if advisory.withdrawn.is_some() {
        return Ok(None);
    }
    let Versions { patched, unaffected } = versions;
    let Head { id, package, date, url, informational, .. } = advisory;
    let facts = Advisory { id, package, date, url, informational, patched, unaffected };
    facts.affects(&Version::new(0, 0, 0))?;
    Ok(Some(facts))
}

fn read_text(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn read() -> Result<Snapshot, String> {
    serde_json::from_str(&read_text(SNAPSHOT)?).map_err(|error| format!("{SNAPSHOT}: {error}"))
}

/// One advisory per line, so that a refresh shows the changes.
fn write(snapshot: &Snapshot) -> Result<(), String> {
    let line = |value: &Advisory| serde_json::to_string(value).expect("texts are JSON");
    let list = |list: &[Advisory]| list.iter().map(line).collect::<Vec<_>>().join(",\n");
    let text = format!(
        "{{\n\"database\": \"{}\",\n\"date\": \"{}\",\n\"noted\": [\n{}\n],\n\"advisories\": [\n{}\n]\n}}\n",
        snapshot.database,
        snapshot.date,
        list(&snapshot.noted),
        list(&snapshot.advisories)
    );
    fs::write(SNAPSHOT, text).map_err(|error| format!("{SNAPSHOT}: {error}"))?;
    println!("{SNAPSHOT}: {} advisories as of {}", snapshot.advisories.len(), snapshot.date);
    Ok(())
}

/// Days since 1970 of a date such as 2026-11-23.
fn days_of(date: &str) -> Result<i64, String> {
    let numbers: Vec<i64> = date.split('-').filter_map(|part| part.parse().ok()).collect();
    let &[year, month @ 1..=12, day @ 1..=31] = numbers.as_slice() else {
        return Err(format!("{date:?} is not a date of the form YYYY-MM-DD"));
    };
    // The year begins in March here, so that the leap day is its last day.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Ok(365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469)
}

fn today() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (elapsed.as_secs() / 86_400) as i64
}

/// Prints the snapshot's size and age.
///
/// # Errors
/// The snapshot cannot be read.
pub fn show() -> Result<(), String> {
    let snapshot = read()?;
    let (advisories, noted) = (snapshot.advisories.len(), snapshot.noted.len());
    let date = &snapshot.date;
    println!("{SNAPSHOT}: {advisories} advisories of {} as of {date}, and {noted} noted by hand", snapshot.database);
    // The snapshot's last commit in git, for readers who want the texts of that time.
    let _ = Command::new("git").args(["log", "-1", "--format=last refreshed in %h of %cs", "--", SNAPSHOT]).status();
    check()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> LockedPackage {
        let source = Some("registry".to_owned());
        LockedPackage { name: name.to_owned(), version: version.to_owned(), source, checksum: None }
    }

    fn snapshot() -> Snapshot {
        let advisory = |id: &str, package: &str, patched: &[&str], unaffected: &[&str]| Advisory {
            id: id.to_owned(),
            package: package.to_owned(),
            date: "2024-01-01".to_owned(),
            patched: patched.iter().map(|range| (*range).to_owned()).collect(),
            unaffected: unaffected.iter().map(|range| (*range).to_owned()).collect(),
            ..Advisory::default()
        };
        let noted = vec![advisory("RUSTSEC-2024-0002", "old", &[], &[])];
        let advisories = vec![advisory("RUSTSEC-2024-0001", "holed", &[">= 1.2.3", "^0.9.8"], &["< 0.5.0"])];
        Snapshot { noted, advisories, ..Snapshot::default() }
    }

    fn found(locked: &[LockedPackage], ignored: &[(&str, &str)], today: &str) -> Vec<String> {
        let ignored: Vec<IgnoredAdvisory> = ignored
            .iter()
            .map(|(id, reason)| IgnoredAdvisory { id: (*id).to_owned(), reason: (*reason).to_owned() })
            .collect();
        problems(&snapshot(), locked, &ignored, days_of(today).expect("a date")).expect("sound facts")
    }

    #[test]
    fn an_affected_version_is_named_and_a_patched_or_older_one_is_not() {
        for (version, affected) in
            [("1.2.2", true), ("1.2.3", false), ("0.9.7", true), ("0.9.9", false), ("0.4.9", false)]
        {
            let found = found(&[package("holed", version)], &[], "2026-11-23");
            assert_eq!(!found.is_empty(), affected, "{version}: {found:?}");
        }
        assert!(found(&[package("old", "0.1.0")], &[], "2026-11-23")[0].contains("no release is patched"));
        let ours = LockedPackage { source: None, ..package("holed", "1.0.0") };
        assert!(found(&[ours], &[], "2026-11-23").is_empty(), "a crate of ours that is called so is another");
    }

    #[test]
    fn an_ignore_is_dated_runs_out_and_must_be_of_use() {
        let old = [package("old", "0.1.0")];
        let with = |reason: &str, today: &str| found(&old, &[("RUSTSEC-2024-0002", reason)], today);
        assert!(with("2026-11-23: nothing of it is called", "2026-11-24").is_empty());
        assert!(with("2026-11-23: nothing of it is called", "2027-05-25").is_empty());
        assert!(with("2026-11-23: nothing of it is called", "2027-05-26")[0].contains("argue again"));
        assert!(with("nothing of it is called", "2026-11-24")[0].contains("without the day"));
        let useless = found(&[], &[("RUSTSEC-2024-0002", "2026-11-23: why")], "2026-11-24");
        assert!(useless[0].contains("affects nothing"), "{useless:?}");
    }

    #[test]
    fn dates_are_days() {
        assert_eq!(days_of("1970-01-01"), Ok(0));
        assert_eq!(days_of("2000-03-01"), Ok(11_017));
        assert_eq!(days_of("2026-11-23"), Ok(20_780));
        assert!(days_of("soon").is_err() && days_of("2026-13-01").is_err());
    }

    #[test]
    fn the_facts_of_an_advisory_are_read_without_its_text() {
        let text = "```toml\n[advisory]\nid = \"RUSTSEC-2023-0001\"\npackage = \"holed\"\ndate = \"2023-01-04\"\n\
                    [versions]\npatched = [\">= 1.0.1\"]\n```\n\n# A title\n\nProse.\n";
        let facts = facts(text).expect("it has facts").expect("it stands");
        assert_eq!((facts.id.as_str(), facts.patched.as_slice()), ("RUSTSEC-2023-0001", &[">= 1.0.1".to_owned()][..]));
        assert!(
            super::facts(&text.replace("[versions]", "withdrawn = \"2023-02-01\"\n[versions]"))
                .expect("facts")
                .is_none()
        );
        assert!(super::facts("no facts").is_err());
    }

    /// The check that CI also runs as a step, so that an affected lock file fails `cargo test` as well.
    #[test]
    fn the_workspace_is_affected_by_nothing_that_is_not_ignored() {
        std::env::set_current_dir(crate::root()).expect("the workspace root");
        check().expect("the advisories hold");
    }
}
