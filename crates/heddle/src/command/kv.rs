//! `heddle kv`: runs stores in this process, and clients of a store.

use std::io::Read as _;
use std::path::Path;

use base::Bytes;
use gateway::client::GrpcCode;
use heddle_cli::store::{connect, failed, find};
use node::kv::{KeyValueServer, KvEndpoint, KvProcessEndpoint, KvStoresConfig, Persistence, StoreGeometry};
use proto::heddle::kv as wire;
use proto::heddle::kv::compare_and_set_request::Expected;
use serde_json::{Value, json};

use super::kv_isolate::{self, IsolatedStores};
use crate::cli::exit;
use crate::cli::kv::{
    KvCasArguments, KvCommand, KvDeleteArguments, KvGetArguments, KvPutArguments, KvStatusArguments, KvUpArguments,
    KvWatchArguments, PersistenceChoice as Mode,
};
use crate::failure::CommandError;
use crate::output;
use crate::signals::StopSignals;

/// The block count is a multiple of this; there are at least [`BUCKETS_MIN`] buckets.
const BLOCKS_UNIT: u64 = 512;
const BUCKETS_MIN: u64 = 8;

pub async fn run(command: &KvCommand) -> Result<(), CommandError> {
    match command {
        KvCommand::Up(arguments) => up(arguments).await,
        KvCommand::Get(arguments) => get(arguments).await,
        KvCommand::Put(arguments) => put(arguments).await,
        KvCommand::Delete(arguments) => delete(arguments).await,
        KvCommand::Cas(arguments) => cas(arguments).await,
        KvCommand::Watch(arguments) => watch(arguments).await,
        KvCommand::Status(arguments) => status(arguments).await,
        KvCommand::Part => kv_isolate::part().await,
    }
}

async fn up(arguments: &KvUpArguments) -> Result<(), CommandError> {
    if arguments.bound {
        super::end_with_parent()?;
    }
    if arguments.asynchronous && arguments.persistence != Mode::Coordinator {
        return Err(CommandError::new("--asynchronous needs `--persistence coordinator`"));
    }
    let mut signals = StopSignals::listen()?;
    let sizes = StoreGeometry {
        log_bytes: arguments.log_bytes,
        buckets: arguments.keys.next_power_of_two().max(BUCKETS_MIN),
        blocks: arguments.keys.next_multiple_of(BLOCKS_UNIT),
        block_bytes: arguments.block_bytes,
    };
    let directory = arguments.dir.clone();
    let options = KvStoresConfig {
        directory: directory.clone(),
        listen: arguments.listen,
        token_file: arguments.token_file.clone(),
        stores: arguments.stores,
        backups: arguments.backups,
        persistence: match arguments.persistence {
            Mode::None => Persistence::None,
            Mode::Coordinator => Persistence::Coordinator { is_synchronous: !arguments.asynchronous },
            Mode::Nodes => Persistence::Nodes,
        },
        memory_nodes: arguments.memory_nodes,
        sizes,
        cache_bytes: usize::try_from(arguments.cache_bytes).unwrap_or(usize::MAX),
    };
    let said = StartedMessage { arguments, directory: &directory, sizes };
    if arguments.isolate {
        let Some(mut isolated) = IsolatedStores::start(&options, &mut signals).await? else {
            return Err(CommandError::interrupted());
        };
        said.print(isolated.endpoint())?;
        let failed = tokio::select! {
            () = signals.received() => None,
            failure = isolated.watch() => Some(failure),
        };
        isolated.stop(&mut signals).await;
        return failed.map_or(Ok(()), Err);
    }
    let store = tokio::select! {
        store = KeyValueServer::start(options) => store?,
        () = signals.received() => return Err(CommandError::interrupted()),
    };
    store.missing().iter().for_each(|remedy| eprintln!("{remedy}"));
    said.print(store.endpoint())?;
    let failed = tokio::select! {
        () = signals.received() => None,
        error = store.failed() => Some(error),
    };
    store.stop().await;
    match failed {
        None => Ok(()),
        Some(error) => Err(CommandError::new(format!("the key-value store has ended: {error}"))),
    }
}

/// The message once stores serve.
struct StartedMessage<'a> {
    arguments: &'a KvUpArguments,
    directory: &'a Path,
    sizes: StoreGeometry,
}

impl StartedMessage<'_> {
    fn print(&self, endpoint: &KvEndpoint) -> Result<(), CommandError> {
        let StartedMessage { arguments, directory, sizes } = self;
        let addresses: Vec<String> = endpoint.stores.iter().map(ToString::to_string).collect();
        let (what, serves) = match addresses.len() {
            1 => ("A key-value store".to_owned(), "serves"),
            count => (format!("{count} key-value stores"), "serve"),
        };
        let ends = match arguments.persistence {
            Mode::None => "Ctrl-C stops it, and its data is lost.",
            Mode::Coordinator | Mode::Nodes => {
                "Ctrl-C stops it; its data is on disk, and the next start continues with it."
            }
        };
        let mut text = format!(
            "{what} on {} memory nodes {serves} gRPC over TLS at {}; clients trust {}.\n\
             Keys of up to {} bytes, values of up to {}. {ends}\n",
            arguments.memory_nodes,
            addresses.join(", "),
            directory.join(&endpoint.authority).display(),
            sizes.key_bytes_max(),
            sizes.value_bytes_max()
        );
        for part in &endpoint.parts {
            let ports: Vec<String> = part.stores.iter().map(ToString::to_string).collect();
            let line = format!("  {:<14} process {} {}", part.name, part.process, ports.join(", "));
            text += &(line.trim_end().to_owned() + "\n");
        }
        output::print(&text)
    }
}

fn absent(key: &str) -> CommandError {
    CommandError::with_code(exit::ABSENT, format!("{key} has no value"))
}

/// A value from the command line, or from standard input.
fn value(text: &str) -> Result<Bytes, CommandError> {
    if text != "-" {
        return Ok(Bytes::copy_from_slice(text.as_bytes()));
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(|error| CommandError::new(format!("standard input: {error}")))?;
    Ok(bytes.into())
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Bytes as JSON: text under one name, or hexadecimal under another.
fn put_value(into: &mut Value, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => into[name] = text.into(),
        Err(_) => into[format!("{name}Hex")] = identity::hex::encode(bytes).into(),
    }
}

fn found_json(found: Option<&wire::Versioned>) -> Value {
    let Some(found) = found else { return Value::Null };
    let mut json = json!({ "version": found.version });
    put_value(&mut json, "value", &found.value);
    json
}

async fn get(arguments: &KvGetArguments) -> Result<(), CommandError> {
    let client = connect(&arguments.directory).await?;
    let found = client.get(bytes(&arguments.key)).await.map_err(failed)?;
    let found = found.ok_or_else(|| absent(&arguments.key))?;
    match arguments.json {
        true => output::print_json(&found_json(Some(&found))),
        false => output::print_bytes(&[&found.value[..], b"\n"].concat()),
    }
}

async fn put(arguments: &KvPutArguments) -> Result<(), CommandError> {
    let client = connect(&arguments.directory).await?;
    let version = client.put(bytes(&arguments.key), value(&arguments.value)?).await.map_err(failed)?;
    output::print(&format!("{version}\n"))
}

async fn delete(arguments: &KvDeleteArguments) -> Result<(), CommandError> {
    let client = connect(&arguments.directory).await?;
    let version = client.delete(bytes(&arguments.key)).await.map_err(failed)?;
    output::print(&format!("{}\n", version.ok_or_else(|| absent(&arguments.key))?))
}

async fn cas(arguments: &KvCasArguments) -> Result<(), CommandError> {
    let client = connect(&arguments.directory).await?;
    let expected = match (arguments.if_version, &arguments.if_value) {
        (Some(version), _) => Expected::Version(version),
        (None, Some(value)) => Expected::Value(bytes(value)),
        (None, None) if arguments.if_present => Expected::Present(true),
        (None, None) => Expected::Absent(true),
    };
    let new = arguments.value.as_deref().map(value).transpose()?;
    let answer = client.compare_and_set(bytes(&arguments.key), expected, new).await.map_err(failed)?;
    if answer.version > 0 {
        return output::print(&format!("{}\n", answer.version));
    }
    output::print_json(&found_json(answer.found.as_ref()))?;
    Err(CommandError::with_code(exit::ABSENT, format!("{} is not as expected; nothing was changed", arguments.key)))
}

async fn watch(arguments: &KvWatchArguments) -> Result<(), CommandError> {
    let mut signals = StopSignals::listen()?;
    tokio::select! {
        outcome = print_changes(arguments) => outcome,
        () = signals.received() => Err(CommandError::interrupted()),
    }
}

async fn print_changes(arguments: &KvWatchArguments) -> Result<(), CommandError> {
    let (mut from, mut left) = (arguments.from, arguments.count.unwrap_or(u64::MAX));
    let client = connect(&arguments.directory).await?;
    if from.is_none() {
        // So that no change is missed when the watch has to be started again.
        from = Some(client.status().await.map_err(failed)?.version + 1);
    }
    while left > 0 {
        let mut changes = client.watch(bytes(&arguments.prefix), from).await.map_err(failed)?;
        while left > 0 {
            match changes.next().await {
                Ok(Some(change)) => {
                    from = Some(change.version + 1);
                    left -= 1;
                    print_change(&change, arguments.json)?;
                }
                // The coordinator has changed, or this client was too slow.
                Ok(None) => break,
                Err(status) if status.code == GrpcCode::Unavailable => break,
                Err(status) => return Err(failed(status)),
            }
        }
    }
    Ok(())
}

fn print_change(change: &wire::Change, as_json: bool) -> Result<(), CommandError> {
    let what = if change.value.is_some() { "put" } else { "delete" };
    if as_json {
        let mut json = json!({ "version": change.version, "change": what });
        put_value(&mut json, "key", &change.key);
        if let Some(value) = &change.value {
            put_value(&mut json, "value", value);
        }
        return output::print(&format!("{json}\n"));
    }
    let head = format!("{} {what} ", change.version);
    let mut line = [head.as_bytes(), &change.key].concat();
    if let Some(value) = &change.value {
        line.push(b' ');
        line.extend_from_slice(value);
    }
    line.push(b'\n');
    output::print_bytes(&line)
}

async fn status(arguments: &KvStatusArguments) -> Result<(), CommandError> {
    let (client, serving) = find(&arguments.directory).await?;
    let status = client.status().await.map_err(failed)?;
    if arguments.json {
        return output::print_json(&status_json(&status, serving.as_ref()));
    }
    output::print(&text(&status, serving.as_ref()))
}

fn status_json(status: &wire::StatusResponse, serving: Option<&KvProcessEndpoint>) -> serde_json::Value {
    let is_one_process = serving.is_none();
    let cpu_node = serving.map(|part| part.name.as_str());
    json!({
        "term": status.term,
        "cpuNode": cpu_node,
        // The key of release 0.1, for one release.
        "processor": cpu_node,
        "version": status.version,
        "applied": status.applied,
        "logUsedBytes": status.log_used_bytes,
        "blocks": status.blocks,
        "blocksTaken": status.blocks - status.blocks_free,
        "cacheBytes": status.cache_bytes,
        "memoryNodes": status.memory_nodes,
        "memoryNodesLive": status.memory_nodes_live,
        "persistent": status.persistent,
        "persisted": status.persisted,
        "stores": status.stores,
        "storesWaiting": status.stores_waiting,
        // As in `text` below.
        "backups": is_one_process.then_some(status.backups),
        "backupsFree": is_one_process.then_some(status.backups_free),
        "byBackup": status.by_backup,
    })
}

fn text(status: &wire::StatusResponse, serving: Option<&KvProcessEndpoint>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &format!("{name:<14} {value}\n");
    let kept = if status.persistent { "; the store is kept on disk" } else { "" };
    line("memory nodes", format!("{} of {} live{kept}", status.memory_nodes_live, status.memory_nodes));
    // If CPU nodes are processes, each is its own pool of backups, and knows no other.
    if serving.is_none() {
        let wire::StatusResponse { backups, backups_free, stores, stores_waiting, .. } = status;
        line(
            "backups",
            format!("{backups_free} free of {backups}, for {stores} stores, {stores_waiting} of them waiting"),
        );
    }
    let processor = match serving {
        Some(part) => format!(", of {}", part.name),
        None if status.by_backup => ", of a backup".to_owned(),
        None => String::new(),
    };
    line("term", format!("{}{processor}", status.term));
    let to_be_applied = status.version - status.applied;
    line(
        "version",
        format!("{} ({to_be_applied} to be applied, {} bytes of log)", status.version, status.log_used_bytes),
    );
    line("blocks", format!("{} of {} taken", status.blocks - status.blocks_free, status.blocks));
    line("cache", format!("{} bytes", status.cache_bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_names_the_cpu_node_under_its_former_key_too() {
        let status = wire::StatusResponse::default();
        let part = KvProcessEndpoint { name: "cpu-node-2".to_owned(), process: 1, stores: Vec::new() };
        let json = status_json(&status, Some(&part));
        assert_eq!((&json["cpuNode"], &json["processor"]), (&"cpu-node-2".into(), &"cpu-node-2".into()));
        let alone = status_json(&status, None);
        assert!(alone["cpuNode"].is_null() && alone["processor"].is_null());
    }
}
