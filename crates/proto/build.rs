//! Compiles `proto/**/*.proto` into Rust messages and one encoded descriptor set, without `protoc`.
//!
//! It generates no code for services. A crate that serves a service generates that code itself, with these message
//! types.

#![allow(clippy::disallowed_methods, reason = "what a build makes is made again")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use prost::Message;

const PROTO_ROOT: &str = "proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO_ROOT}");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    let mut files = Vec::new();
    collect_proto_files(Path::new(PROTO_ROOT), &mut files)?;
    files.sort();

    let mut compiler = protox::Compiler::new([PROTO_ROOT])?;
    compiler.include_imports(true).include_source_info(true).open_files(&files)?;
    let mut descriptors = compiler.file_descriptor_set();
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors.clone())?;

    // The comments are in the generated code already; reflection has no use for them.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    fs::write(out_dir.join("descriptors.bin"), descriptors.encode_to_vec())?;
    Ok(())
}

fn collect_proto_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_proto_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
