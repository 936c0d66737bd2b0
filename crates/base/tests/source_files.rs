//! The structure of the workspace's source files, read from their text.
//!
//! The checks:
//! 1. No circles: files of one crate that use one another, directly or through others, stand in [`CIRCLES`], each with
//!    its reason.
//! 2. A `mod.rs` or `lib.rs` declares modules and re-exports names; those that define more stand in [`DEFINING_ROOTS`].
//! 3. No file has more than [`LINES_MAX`] lines without its tests; longer files stand in [`LONG_FILES`], each with its
//!    reason.
//! 4. No crate has more than [`CRATE_LINES_MAX`] lines without its tests; larger crates stand in [`LARGE_CRATES`].
//!
//! The lists must match what is found: an entry that is no longer needed fails as well, so the lists only shrink.
//!
//! A file uses another if a `use` declaration or a path in its code names an item that the other defines. Names are
//! resolved through modules, `use` declarations and re-exports as the compiler does it, so a name that `mod.rs`
//! re-exports leads to the file that defines it, not to `mod.rs`. Neither `mod x;` alone nor a call of a method counts
//! as a use. The check leaves out test modules, the methods of `impl` blocks, names that macros make, and names of
//! other crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Files that use one another: the first of them by name, how many they are, and why.
const CIRCLES: &[(&str, usize, &str)] = &[
    (
        "base/src/collections.rs",
        26,
        "every call of the runtime is simulated or real, and the simulation runs the same code",
    ),
    ("identity/src/identity.rs", 2, "an identity verifies with the process's verifier, whose claims name identities"),
    ("kv/src/kv_core.rs", 2, "a lookup fills the index that the core keeps, and the core looks up"),
    ("ordered_log/src/sift/leader.rs", 3, "a log knows its leader, which recovers and extends the log"),
    ("rma/src/shm/connection.rs", 2, "a connection executes the verbs that waited for it, by posting them again"),
    ("rma_verbs/src/connection.rs", 3, "a host accepts connections, which copy between its regions"),
    ("sift/src/coordinator/state.rs", 6, "one state machine, in files by what it does"),
    ("simulator/src/campaign.rs", 27, "one simulated network: scenarios plan its faults, mutants break its parts"),
    ("storage/src/private/interface.rs", 2, "private rows are rows of tables, and tables give pages of private rows"),
];

/// Files `mod.rs` and `lib.rs` that define items.
const DEFINING_ROOTS: &[&str] = &[
    // The generated modules, by a macro, and the description of their files.
    "proto/src/lib.rs",
];

/// Most lines of a file, without its test modules.
const LINES_MAX: usize = 600;

/// Longer files, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[
    ("chain/src/order/orderer_channel.rs", "one channel's pipeline, whose stages share its queue"),
    ("raft/src/engine.rs", "one task, and the steps that it takes"),
];

/// Most lines of a crate that are not empty, without its test modules and without test suites that a feature adds.
const CRATE_LINES_MAX: usize = 12_000;

/// Larger crates, each with its reason.
const LARGE_CRATES: &[(&str, &str)] = &[];

/// Folders of test suites that a feature adds.
const TEST_SUITES: &[&str] = &["ordered_log/src/conformance/", "rma/src/conformance/"];

/// Words that begin an item that is no module and no re-export.
const ITEMS: &[&str] = &["fn", "struct", "enum", "union", "trait", "impl", "const", "static", "type", "macro_rules"];

/// One module: a file, or a block within a file.
struct Module {
    /// The file, as an index into [`Sources::files`].
    file: usize,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// Names that the module defines.
    items: BTreeSet<String>,
    /// Names that `use` declarations bring in, with their paths.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths of `use …::*`.
    globs: Vec<Vec<String>>,
    /// Paths in `use` declarations and code.
    paths: BTreeSet<Vec<String>>,
}

struct SourceFile {
    /// The path below `crates`.
    name: String,
    /// Lines without test modules.
    lines: usize,
    /// Those of them that are not empty.
    filled_lines: usize,
    /// The items that it defines at its top.
    defines: Vec<String>,
}

#[derive(Default)]
struct Sources {
    files: Vec<SourceFile>,
    modules: Vec<Module>,
}

type Token = (String, usize);

/// The words and signs of `text` with their lines, without comments, literals and lifetimes.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut index, mut line) = (Vec::new(), 0, 1);
    while index < chars.len() {
        let start = index;
        match at(index) {
            '/' if at(index + 1) == '/' => {
                while index < chars.len() && at(index) != '\n' {
                    index += 1;
                }
            }
            '/' if at(index + 1) == '*' => {
                index += 2;
                while index < chars.len() && !(at(index) == '*' && at(index + 1) == '/') {
                    index += 1;
                }
                index += 2;
            }
            '"' => {
                index += 1;
                while index < chars.len() && at(index) != '"' {
                    index += if at(index) == '\\' { 2 } else { 1 };
                }
                index += 1;
            }
            '\'' if at(index + 1) == '\\' => {
                index += 3;
                while index < chars.len() && at(index) != '\'' {
                    index += 1;
                }
                index += 1;
            }
            '\'' if at(index + 2) == '\'' => index += 3,
            '\'' => index += 1 + chars[index + 1..].iter().take_while(|c| is_word(**c)).count(),
            c if is_word(c) => {
                index += chars[index..].iter().take_while(|c| is_word(**c)).count();
                let word: String = chars[start..index].iter().collect();
                let hashes = chars[index..].iter().take_while(|c| **c == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && at(index + hashes) == '"' {
                    let end: String = std::iter::once('"').chain("#".repeat(hashes).chars()).collect();
                    let rest: String = chars[index + hashes + 1..].iter().collect();
                    let length = rest.find(&end).expect("a raw string ends");
                    index += hashes + 1 + rest[..length].chars().count() + end.len();
                } else {
                    found.push((word, line));
                }
            }
            ':' if at(index + 1) == ':' => {
                found.push(("::".to_owned(), line));
                index += 2;
            }
            c => {
                if !c.is_whitespace() {
                    found.push((c.to_string(), line));
                }
                index += 1;
            }
        }
        line += chars[start..index.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    found
}

/// The index behind the bracket that closes the one at `open`.
fn behind_block(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (index, (token, _)) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth -= 1;
                if depth == 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// The tokens without the items that only tests have, and the lines of those, first and last.
fn without_tests(all: &[Token]) -> (Vec<Token>, Vec<(usize, usize)>) {
    let is = |index: usize, word: &str| all.get(index).is_some_and(|(token, _)| token == word);
    let (mut kept, mut index, mut lines) = (Vec::new(), 0, Vec::new());
    while index < all.len() {
        if !(is(index, "#") && is(index + 1, "[") && is(index + 2, "cfg")) {
            kept.push(all[index].clone());
            index += 1;
            continue;
        }
        let behind = behind_block(all, index + 1);
        let words: Vec<&str> = all[index..behind].iter().map(|(token, _)| token.as_str()).collect();
        // `#[cfg(test)]` and `#[cfg(all(test, …))]`.
        let only_tests = words[4..].starts_with(&["test", ")"]) || words[4..].starts_with(&["all", "(", "test"]);
        if !only_tests {
            kept.extend_from_slice(&all[index..behind]);
            index = behind;
            continue;
        }
        let mut end = behind;
        let mut is_item = false;
        while end < all.len() {
            match all[end].0.as_str() {
                "#" => end = behind_block(all, end + 1),
                "(" | "[" => end = behind_block(all, end),
                "{" => {
                    end = behind_block(all, end);
                    // The braces of `use a::{b};` do not end it.
                    if !is(end, ";") {
                        break;
                    }
                }
                ";" | "," => {
                    end += 1;
                    break;
                }
                "}" => break,
                word => {
                    is_item |= ITEMS.contains(&word) || word == "mod";
                    end += 1;
                }
            }
        }
        if is_item {
            lines.push((all[index].1, all[end - 1].1));
        }
        index = end;
    }
    (kept, lines)
}

/// The paths that a `use` tree brings in, with the names that they get; `*` for all.
fn use_tree(tokens: &[Token], index: &mut usize, prefix: &[String], found: &mut Vec<(String, Vec<String>)>) {
    let mut path = prefix.to_vec();
    while *index < tokens.len() {
        match tokens[*index].0.as_str() {
            "::" => *index += 1,
            "{" => {
                *index += 1;
                while tokens[*index].0 != "}" {
                    use_tree(tokens, index, &path, found);
                    if tokens[*index].0 == "," {
                        *index += 1;
                    }
                }
                *index += 1;
                return;
            }
            "as" => {
                found.push((tokens[*index + 1].0.clone(), path));
                *index += 2;
                return;
            }
            ";" | "," | "}" => {
                if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                    path.pop();
                }
                if let Some(last) = path.last().cloned() {
                    found.push((last, path));
                }
                return;
            }
            word => {
                path.push(word.to_owned());
                *index += 1;
            }
        }
    }
}

impl Sources {
    /// Reads the crates' sources, each crate from its roots.
    fn read(crates: &Path) -> Sources {
        let mut sources = Sources::default();
        let mut folders: Vec<PathBuf> =
            fs::read_dir(crates).expect("readable").map(|entry| entry.expect("readable").path()).collect();
        folders.sort();
        for folder in folders {
            let mut roots = vec![folder.join("src/lib.rs"), folder.join("src/main.rs")];
            let programs = fs::read_dir(folder.join("src/bin")).into_iter().flatten();
            roots.extend(programs.map(|entry| entry.expect("readable").path()));
            for root in roots.iter().filter(|root| root.is_file()) {
                sources.read_file(crates, root, None);
            }
        }
        sources
    }

    /// Adds the file, the module at its top and those that it declares; returns the module.
    fn read_file(&mut self, crates: &Path, path: &Path, parent: Option<usize>) -> usize {
        let text = fs::read_to_string(path).expect("source code is text");
        let name = path.strip_prefix(crates).expect("below").to_str().expect("plain names").to_owned();
        let (tokens, test_lines) = without_tests(&tokens(&text));
        let of_tests = |line: usize| test_lines.iter().any(|(first, last)| (*first..=*last).contains(&line));
        let others: Vec<&str> =
            text.lines().zip(1..).filter(|(_, line)| !of_tests(*line)).map(|(text, _)| text).collect();
        let filled_lines = others.iter().filter(|line| !line.trim().is_empty()).count();
        self.files.push(SourceFile { name, lines: others.len(), filled_lines, defines: Vec::new() });
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("plain names");
        let folder = path.parent().expect("files stand in folders").to_owned();
        let folder =
            if parent.is_none() || matches!(stem, "mod" | "lib" | "main") { folder } else { folder.join(stem) };
        let file = self.files.len() - 1;
        let module = self.add_module(file, parent);
        self.read_items(&tokens, module, crates, &folder);
        self.files[file].defines = self.modules[module].items.iter().cloned().collect();
        module
    }

    fn add_module(&mut self, file: usize, parent: Option<usize>) -> usize {
        let index = self.modules.len();
        self.modules.push(Module {
            file,
            parent: parent.unwrap_or(index),
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            paths: BTreeSet::new(),
        });
        index
    }

    fn read_items(&mut self, tokens: &[Token], module: usize, crates: &Path, folder: &Path) {
        let word = |index: usize| tokens.get(index).map_or("", |(token, _)| token.as_str());
        let (mut index, mut depth) = (0, 0);
        let mut path_attribute_ahead = false;
        while index < tokens.len() {
            match word(index) {
                "#" if word(index + 1) == "[" => {
                    path_attribute_ahead |= word(index + 2) == "path";
                    index = behind_block(tokens, index + 1);
                }
                "mod" if matches!(word(index + 2), ";" | "{") => {
                    let name = word(index + 1).to_owned();
                    if word(index + 2) == "{" {
                        let end = behind_block(tokens, index + 2);
                        let file = self.modules[module].file;
                        let child = self.add_module(file, Some(module));
                        self.read_items(&tokens[index + 3..end - 1], child, crates, &folder.join(&name));
                        self.modules[module].children.insert(name, child);
                        index = end;
                        continue;
                    }
                    let candidates = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
                    match candidates.iter().find(|path| path.is_file()) {
                        Some(path) => {
                            let child = self.read_file(crates, path, Some(module));
                            self.modules[module].children.insert(name, child);
                        }
                        None => assert!(path_attribute_ahead, "{name} in {} has no file", folder.display()),
                    }
                    path_attribute_ahead = false;
                    index += 3;
                }
                "use" if word(index + 1) != "<" => {
                    index += 1;
                    let mut found = Vec::new();
                    use_tree(tokens, &mut index, &[], &mut found);
                    for (name, path) in found {
                        let module = &mut self.modules[module];
                        if name == "*" {
                            module.globs.push(path[..path.len() - 1].to_vec());
                        } else {
                            module.paths.insert(path.clone());
                            if name != "_" {
                                module.imports.insert(name, path);
                            }
                        }
                    }
                }
                item if ITEMS.contains(&item) && depth == 0 => {
                    let name = match (item, word(index + 1)) {
                        ("macro_rules", _) => word(index + 2),
                        // `const fn`, and `type` within the words of another item.
                        ("const", "fn" | "unsafe" | "async" | "extern") | ("union", ":") => "",
                        (_, name) => name,
                    };
                    if !name.is_empty() {
                        self.modules[module].items.insert(if item == "impl" {
                            "impl".to_owned()
                        } else {
                            name.to_owned()
                        });
                    }
                    index += 1;
                }
                "{" => {
                    depth += 1;
                    index += 1;
                }
                "}" => {
                    depth -= 1;
                    index += 1;
                }
                first if first.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                    let mut path = vec![first.to_owned()];
                    index += 1;
                    while word(index) == "::" && word(index + 1).starts_with(|c: char| c.is_alphabetic() || c == '_') {
                        path.push(word(index + 1).to_owned());
                        index += 2;
                    }
                    if path.len() > 1 {
                        self.modules[module].paths.insert(path);
                    }
                }
                _ => index += 1,
            }
        }
    }

    /// The module that defines what `path` names in `module`, and the name; `None` for other crates' names.
    fn resolve(&self, module: usize, path: &[String], seen: &mut BTreeSet<(usize, Vec<String>)>) -> Option<Found> {
        // A library that has a name like its module makes paths that grow.
        if seen.len() > 64 || !seen.insert((module, path.to_vec())) {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let at = match first.as_str() {
            "crate" => {
                let mut root = module;
                while self.modules[root].parent != root {
                    root = self.modules[root].parent;
                }
                root
            }
            "super" => self.modules[module].parent,
            "self" => module,
            _ => return self.resolve_name(module, first, rest, seen),
        };
        match rest.first() {
            None => Some(Found::Module),
            Some(next) if matches!(next.as_str(), "super" | "self") => self.resolve(at, rest, seen),
            Some(next) => self.resolve_name(at, next, &rest[1..], seen),
        }
    }

    fn resolve_name(
        &self,
        module: usize,
        name: &str,
        rest: &[String],
        seen: &mut BTreeSet<(usize, Vec<String>)>,
    ) -> Option<Found> {
        let here = &self.modules[module];
        if let Some(child) = here.children.get(name) {
            return match rest.split_first() {
                None => Some(Found::Module),
                Some((next, rest)) => self.resolve_name(*child, next, rest, seen),
            };
        }
        if here.items.contains(name) {
            return Some(Found::Item(module));
        }
        if let Some(path) = here.imports.get(name) {
            let path: Vec<String> = path.iter().chain(rest).cloned().collect();
            return self.resolve(module, &path, seen);
        }
        here.globs.iter().find_map(|glob| {
            let path: Vec<String> = glob.iter().cloned().chain([name.to_owned()]).chain(rest.iter().cloned()).collect();
            self.resolve(module, &path, seen)
        })
    }

    /// For each file, the other files that it uses.
    fn uses(&self) -> Vec<BTreeSet<usize>> {
        let mut uses = vec![BTreeSet::new(); self.files.len()];
        for (index, module) in self.modules.iter().enumerate() {
            for path in &module.paths {
                if let Some(Found::Item(definer)) = self.resolve(index, path, &mut BTreeSet::new()) {
                    let file = self.modules[definer].file;
                    if file != module.file {
                        uses[module.file].insert(file);
                    }
                }
            }
        }
        uses
    }

    /// What the file named `file` uses of the other files in `circle`, a line for each.
    fn uses_within(&self, file: &str, circle: &BTreeSet<&str>) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        for (index, module) in self.modules.iter().enumerate().filter(|(_, one)| self.files[one.file].name == file) {
            for path in &module.paths {
                if let Some(Found::Item(definer)) = self.resolve(index, path, &mut BTreeSet::new()) {
                    let used = self.files[self.modules[definer].file].name.as_str();
                    if used != file && circle.contains(used) {
                        lines.insert(format!("{file} uses {used}: {}", path.join("::")));
                    }
                }
            }
        }
        lines
    }

    /// The circles: sets of files in which each file reaches each other file.
    fn circles(&self) -> Vec<BTreeSet<&str>> {
        let uses = self.uses();
        let reached: Vec<BTreeSet<usize>> = (0..uses.len())
            .map(|start| {
                let (mut reached, mut next) = (BTreeSet::new(), vec![start]);
                while let Some(file) = next.pop() {
                    next.extend(uses[file].iter().filter(|other| reached.insert(**other)));
                }
                reached
            })
            .collect();
        let mut circles = BTreeSet::new();
        for start in 0..uses.len() {
            let circle: BTreeSet<usize> =
                reached[start].iter().copied().filter(|other| reached[*other].contains(&start)).collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        circles
            .into_iter()
            .map(|circle| circle.into_iter().map(|file| self.files[file].name.as_str()).collect())
            .collect()
    }
}

/// What a path names.
enum Found {
    /// A whole module, which alone is no use of its file.
    Module,
    /// An item that this module defines.
    Item(usize),
}

fn sources() -> Sources {
    let sources = Sources::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    assert!(sources.files.len() > 100, "the workspace has files");
    sources
}

/// What is found but not listed, and what is listed but not found.
fn differences<T: Ord + std::fmt::Debug>(found: &BTreeSet<T>, listed: &BTreeSet<T>) -> String {
    let unlisted = found.difference(listed).map(|one| format!("not listed: {one:?}\n"));
    unlisted.chain(listed.difference(found).map(|one| format!("listed in vain: {one:?}\n"))).collect()
}

#[test]
fn files_do_not_use_one_another_in_circles() {
    let sources = sources();
    let circles = sources.circles();
    for circle in &circles {
        println!("A circle of {} files:", circle.len());
        circle.iter().flat_map(|file| sources.uses_within(file, circle)).for_each(|line| println!("  {line}"));
    }
    let found = circles.iter().map(|circle| (*circle.first().expect("not empty"), circle.len())).collect();
    let different = differences(&found, &CIRCLES.iter().map(|(file, files, _)| (*file, *files)).collect());
    assert!(different.is_empty(), "{different}");
}

#[test]
fn module_roots_declare_and_re_export_only() {
    let sources = sources();
    let roots = sources.files.iter().filter(|file| file.name.ends_with("/mod.rs") || file.name.ends_with("/lib.rs"));
    let defining: Vec<&SourceFile> = roots.filter(|file| !file.defines.is_empty()).collect();
    for file in &defining {
        println!("{}: {:?}", file.name, file.defines);
    }
    let found = defining.iter().map(|file| file.name.as_str()).collect();
    let different = differences(&found, &DEFINING_ROOTS.iter().copied().collect());
    assert!(different.is_empty(), "{different}");
}

#[test]
fn no_file_is_too_long() {
    let sources = sources();
    let long: Vec<&SourceFile> = sources.files.iter().filter(|file| file.lines > LINES_MAX).collect();
    for file in &long {
        println!("{}: {} lines", file.name, file.lines);
    }
    let found = long.iter().map(|file| file.name.as_str()).collect();
    let different = differences(&found, &LONG_FILES.iter().map(|(file, _)| *file).collect());
    assert!(different.is_empty(), "{different}");
}

#[test]
fn no_crate_is_too_large() {
    let mut crates: BTreeMap<String, usize> = BTreeMap::new();
    for file in sources().files {
        let folder = file.name.split('/').next().unwrap_or_default().to_owned();
        let is_suite = TEST_SUITES.iter().any(|suite| file.name.starts_with(suite));
        *crates.entry(folder).or_default() += if is_suite { 0 } else { file.filled_lines };
    }
    crates.retain(|_, lines| *lines > CRATE_LINES_MAX);
    println!("{crates:#?}");
    let found = crates.keys().map(String::as_str).collect();
    let different = differences(&found, &LARGE_CRATES.iter().map(|(folder, _)| *folder).collect());
    assert!(different.is_empty(), "{different}");
}
