//! Checks that `src/generated` is what `proto/**/*.proto` generates: Rust messages and one encoded descriptor set, made
//! without `protoc`.
//!
//! The files are kept in the repository, so that a build of Heddle needs no compiler of protobuf. After a change of a `.proto`
//! file, `UPDATE_PROTO=1 cargo test --package heddle-proto --test generated` makes them again.
//!
//! Services yield no code here: a crate that serves a service generates the code, against these messages.

#![allow(clippy::disallowed_methods, reason = "what is generated is made again")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

/// The name of each file in a folder, and its bytes.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("the folder can be listed");
    let file = |path: PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).expect("plain names").to_owned();
        (name, fs::read(path).expect("the file can be read"))
    };
    entries.map(|entry| file(entry.expect("the folder can be listed").path())).collect()
}

/// Compiles all files below `proto` into a folder.
fn generate(proto: &Path, out: &Path) {
    let mut files = Vec::new();
    collect_proto_files(proto, &mut files);
    files.sort();
    let mut compiler = protox::Compiler::new([proto]).expect("the folder is there");
    compiler.include_imports(true).include_source_info(true).open_files(&files).expect("the files are valid");
    let mut descriptors = compiler.file_descriptor_set();
    let mut config = prost_build::Config::new();
    config.bytes(["."]).btree_map(["."]).out_dir(out).compile_fds(descriptors.clone()).expect("Rust can express them");

    // The comments are in the generated code already; reflection has no use for them.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec()).expect("it can be written");
}

fn collect_proto_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            collect_proto_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
}

#[test]
fn the_generated_code_is_that_of_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kept = root.join("src/generated");
    let made = tempfile::tempdir().expect("a temporary folder");
    generate(&root.join("proto"), made.path());
    let made = files(made.path());
    if std::env::var_os("UPDATE_PROTO").is_some() {
        for name in files(&kept).keys() {
            fs::remove_file(kept.join(name)).expect("it is there");
        }
        for (name, bytes) in &made {
            fs::write(kept.join(name), bytes).expect("it can be written");
        }
    }
    let kept = files(&kept);
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&kept), names(&made), "a new package also needs its module in lib.rs");
    let differ: Vec<&String> = made.keys().filter(|name| made[*name] != kept[*name]).collect();
    let command = "UPDATE_PROTO=1 cargo test --package heddle-proto --test generated";
    assert!(differ.is_empty(), "{differ:?} in crates/proto/src/generated are out of date: {command}");
}
