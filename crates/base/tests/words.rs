//! Words that shall not come back: private coinages for which the field has a standard term, and type names that say
//! nothing without their path. [docs/glossary.md](../../../docs/glossary.md) has the words to use.

use std::fs;
use std::path::{Path, PathBuf};

/// Words that no source file and no document may contain, each with what to write instead. Compared without regard to case.
const WORDS: &[(&str, &str)] = &[
    ("reign", "term (of a coordinator) or epoch (of a primary)"),
    ("reigns", "terms or epochs"),
    ("reigning", "the leader, the primary"),
    ("whoever", "the caller, the client, the new leader: name the actor"),
    ("anew", "again, or a new …"),
    ("roster", "orderer set"),
    ("enlist", "add an orderer"),
    ("enlisted", "added"),
    ("unopened", "recovered"),
    ("lender", "verification worker"),
];

/// Names that no type may have.
const TYPES: &[&str] = &["Shared", "State", "Place", "Options", "Kind"];

/// Files that may contain the words: the history, and this test.
const EXEMPT: &[&str] = &["CHANGELOG.md", "docs/moved.md", "crates/base/tests/words.rs"];
/// Types of those names that a library's trait, or Fabric, asks for.
const ASSOCIATED: &[&str] = &[
    "crates/sift/tests/sift/model.rs",
    "crates/sift/tests/sift/model/shards.rs",
    "crates/page_coherence/tests/coherence/model.rs",
    "crates/proto/proto/orderer/configuration.proto",
];

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("the crate lies two folders below the root").to_path_buf()
}

/// Files of the repository that people read, without what was built, downloaded or recorded.
fn files() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the repository can be listed") {
            let path = entry.expect("the repository can be listed").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !name.starts_with('.')
                    && !["target", "node_modules", "corpus", "clients", "generated"].contains(&name)
                {
                    folders.push(path);
                }
                continue;
            }
            let is_read = [".rs", ".md", ".proto", ".toml"].iter().any(|ending| name.ends_with(ending));
            let shown = path.strip_prefix(&root).expect("it lies below the root").display().to_string();
            if is_read && !EXEMPT.contains(&shown.as_str()) {
                found.push((shown, fs::read_to_string(&path).expect("sources are text")));
            }
        }
    }
    assert!(found.len() > 500, "the repository has more files than these {}", found.len());
    found
}

/// The words of a line, where an underscore and a change to upper case end a word as a space does.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in line.chars() {
        let starts = letter.is_ascii_uppercase() && was_lower;
        if starts || !letter.is_ascii_alphabetic() {
            words.push(String::new());
        }
        if letter.is_ascii_alphabetic() {
            words.last_mut().expect("it has one").push(letter.to_ascii_lowercase());
        }
        was_lower = letter.is_ascii_lowercase();
    }
    words
}

/// The type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let mut parts = line.split_whitespace().skip_while(|part| part.starts_with("pub"));
    let kind = parts.next()?;
    let name = parts.next()?;
    let end = name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(name.len());
    ["struct", "enum", "trait", "type", "union"].contains(&kind).then_some(&name[..end])
}

#[test]
fn private_words_do_not_come_back() {
    let mut found = Vec::new();
    for (path, text) in files() {
        for (number, line) in text.lines().enumerate() {
            for word in words(line) {
                if let Some((_, instead)) = WORDS.iter().find(|(forbidden, _)| *forbidden == word) {
                    found.push(format!("{path}:{}: `{word}`; write {instead}", number + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} forbidden words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_type_says_what_it_is_without_its_path() {
    let mut found = Vec::new();
    for (path, text) in files() {
        for (number, line) in text.lines().enumerate() {
            if declared(line).is_some_and(|name| TYPES.contains(&name)) && !ASSOCIATED.contains(&path.as_str()) {
                found.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{} types need a name of their own:\n{}", found.len(), found.join("\n"));
}

#[test]
fn words_and_types_are_found() {
    assert_eq!(words("let a_reign = WhoeverLeads"), ["let", "a", "reign", "", "", "whoever", "leads"]);
    assert_eq!(declared("pub(crate) struct Shared<T> {"), Some("Shared"));
    assert_eq!(declared("    enum Kind {"), Some("Kind"));
    assert_eq!(declared("pub struct SharedMemory;"), Some("SharedMemory"));
    assert_eq!(declared("a struct is State"), None);
}
