use clap::CommandFactory as _;

use super::*;
use crate::cli::farmem::FarMemoryCommand;

const HEAD: &str = "\
# Command line

Made by `UPDATE_DOCS=1 cargo test --package heddle --package heddle-bench cli`, from `crates/heddle/src/cli` up to
`heddle bench`, and from there on from `crates/bench/src/bin/heddle-bench/cli`. Do not edit.
";
/// Where the part of the other program begins in `docs/cli.md`.
const BENCH: &str = "\n## `heddle bench`\n";

/// This program's part of `docs/cli.md`.
fn document() -> String {
    HEAD.to_owned() + &heddle_cli::document::of(Cli::command(), "heddle", |path| path == "heddle bench")
}

#[test]
fn declarations_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_command_line_document_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let (document, written) = (document(), std::fs::read_to_string(path).unwrap_or_default());
    let (mut own, other) = written.split_once(BENCH).unwrap_or_default();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, [&document, BENCH, other].concat()).expect("the document can be written");
        own = &document;
    }
    assert!(own == document, "docs/cli.md is out of date: UPDATE_DOCS=1 cargo test --package heddle cli");
}

#[test]
fn no_line_of_help_is_too_wide_for_a_terminal() {
    for line in document().lines() {
        assert!(line.chars().count() <= 120, "{line}");
    }
}

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn everyday_command_lines_are_understood() {
    for line in [
        "heddle up",
        "heddle up --orgs 5 --policy majority --dir x --any-ports --detach",
        "heddle up --config heddle.toml --gateway-port 8051",
        "heddle down",
        "heddle status --json",
        "heddle config",
        "heddle orderer members --json",
        "heddle orderer members --node x",
        "heddle orderer add --dir x",
        "heddle orderer add --node x --number 4 --address tcp:10.0.0.4:7303",
        "heddle orderer plan --host 10.0.0.4 --port 7300",
        "heddle orderer plan --removed orderer-4",
        "heddle orderer remove orderer-4",
        "heddle peer memory org1",
        "heddle peer memory org1 --set 512MiB --no-wait --json",
        "heddle peer memory --node x --set 1GiB",
        "heddle peer memory org1 --vacate tcp:10.0.0.1:7301 --no-wait",
        "heddle peer memory org1 --use tcp:10.0.0.1:7301",
        "heddle ledger verify --peer org2",
        "heddle ledger show --block 3 --json",
        "heddle ledger replay recorded --json replay.json",
        "heddle kv up --listen 127.0.0.1:0 --memory-nodes 5 --keys 1000 --block-bytes 4KiB",
        "heddle kv up --isolate --backups 2",
        "heddle kv get key --json",
        "heddle kv cas key - --if-version 3 --dir x",
        "heddle kv cas key --if-value -1",
        "heddle kv watch --from 7 --count 1",
        "heddle farmem run --budget 1G --size 16G -- python3 x.py --budget y",
        "heddle farmem profile --budget 8M --callers --every 16 --top 5 --json a --picture b -- ./query --json c",
        "heddle bench",
        "heddle bench --help",
        "heddle bench smallbank --no-such-flag -1",
    ] {
        assert!(parse(line).is_ok(), "{line}");
    }
}

#[test]
fn nonsense_is_refused_before_anything_starts() {
    for line in [
        "heddle",
        "heddle up --orgs 0",
        "heddle up --orgs 17",
        "heddle up --policy some",
        "heddle up --any-ports --orderer-port 7050",
        "heddle ledger show --block 1 --tx a",
        "heddle ledger replay",
        "heddle orderer add --number 4 --address tcp:10.0.0.4:7303",
        "heddle orderer add --node x --number 4",
        "heddle orderer plan --host 10.0.0.4",
        "heddle orderer plan --removed orderer --host 10.0.0.4 --port 7300",
        "heddle orderer remove",
        "heddle orderer remove orderer-1",
        "heddle peer memory",
        "heddle peer memory org1 --set 512MB",
        "heddle peer memory org1 --no-wait",
        "heddle peer memory org1 --use tcp:10.0.0.1:7301 --no-wait",
        "heddle peer memory org1 --set 1GiB --vacate tcp:10.0.0.1:7301",
        "heddle peer memory org1 --use tcp:10.0.0.1:7301 --vacate tcp:10.0.0.2:7301",
        "heddle peer memory org1 --node x",
        "heddle farmem profile",
        "heddle farmem profile --every 0 ./query",
        "heddle kv",
        "heddle kv up --memory-nodes 4",
        "heddle kv put key",
        "heddle kv cas key value",
        "heddle kv cas key value --if-absent --if-version 3",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

/// `heddle farmem run --typo PROGRAM` once ran a program named `--typo`.
#[test]
fn an_option_before_the_program_of_a_far_heap_is_the_commands_and_one_behind_it_the_programs() {
    let program = |line: &str| match parse(line).map(|cli| cli.command) {
        Ok(Command::Farmem(FarMemoryCommand::Run(arguments))) => Ok(arguments.heap.program),
        Ok(Command::Farmem(FarMemoryCommand::Profile(arguments))) => Ok(arguments.heap.program),
        Ok(other) => panic!("{line}: {other:?}"),
        Err(error) => Err(error),
    };
    for command in ["heddle farmem run", "heddle farmem profile"] {
        for unknown in ["--typo ./query", "--budget 1G -t ./query", "--typo=1G -- ./query", "--typo"] {
            let error = program(&format!("{command} {unknown}")).expect_err("the option is unknown");
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{command} {unknown}");
            assert!(error.to_string().contains(&format!("Usage: {command}")), "{error}");
        }
        for (before, words) in [
            ("", "./query --typo -t 9"),
            ("--stats", "./query --budget 2G"),
            ("--budget 1G", "./query -- --help"),
            ("--budget 1G --", "./query --typo"),
            // A program with such a name can be run.
            ("--", "--typo --stats"),
        ] {
            let line = format!("{command} {before} {words}");
            let expected: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            assert_eq!(program(&line).expect("it names a program"), expected, "{line}");
        }
    }
}
