//! `heddle status`: shows each gateway's report on its peer's ledger, the network's health page, and the rates of
//! counters over one second.

use std::path::Path;
use std::time::{Duration, Instant};

use base::Bytes;
use gateway::client::{GatewayClient, GrpcConnection};
use heddle_cli::process_usage;
use node::Endpoints;
use prost::Message as _;
use proto::common::BlockchainInfo;
use serde_json::{Map, Value, json};

use crate::cli::network::StatusArguments;
use crate::failure::CommandError;
use crate::{instance, output, page};

/// The interval over which rates are measured.
const RATE_WINDOW: Duration = Duration::from_secs(1);
/// A gateway that takes longer is shown as not answering.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The rates: name, counter, and whether every peer counts the event.
const RATES: [(&str, &str, bool); 5] = [
    ("endorsed", "heddle_gateway_endorsed_total", false),
    ("ordered", "heddle_chain_messages_ordered_total", false),
    ("valid", "heddle_chain_transactions_valid_total", true),
    ("conflicting", "heddle_chain_transactions_conflicted_total", true),
    ("blocks", "heddle_chain_blocks_committed_total", true),
];

pub async fn run(arguments: &StatusArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    let endpoints = instance::expect_running(dir)?;
    let mut peers = Vec::new();
    for (index, gateway) in endpoints.gateways.iter().enumerate() {
        let mut peer = json!({ "name": gateway.name, "address": gateway.address });
        match height(dir, &endpoints, index + 1).await {
            Ok(height) => peer["height"] = height.into(),
            Err(reason) => peer["problem"] = reason.into(),
        }
        peers.push(peer);
    }
    let page = |path: &str| {
        let failed =
            |error| CommandError::new(format!("the network's page http://{}{path}: {error}", endpoints.metrics));
        page::get(endpoints.metrics, path).map_err(failed)
    };
    let health = page("/healthz").unwrap_or_else(|failure| failure.message().unwrap_or_default().to_owned());
    let before = page("/metrics")?;
    let start = Instant::now();
    tokio::time::sleep(RATE_WINDOW).await;
    let after = page("/metrics")?;
    let resident = |process: u32| process_usage::usage(Some(process)).unwrap_or_default().resident_bytes;
    let processes: Vec<Value> = endpoints
        .processes
        .iter()
        .map(|process| {
            json!({
                "name": process.name,
                "role": process.role.name(),
                "process": process.process,
                "address": process.address,
                "metrics": format!("http://{}/metrics", process.metrics),
                "resident_bytes": resident(process.process),
            })
        })
        .collect();
    let own = resident(endpoints.process);
    let all = own + processes.iter().filter_map(|process| process["resident_bytes"].as_u64()).sum::<u64>();
    let view = json!({
        "channel": endpoints.channel,
        "policy": endpoints.policy,
        "process": endpoints.process,
        "health": health.trim(),
        "peers": peers,
        "orderer": endpoints.orderer,
        "metrics": format!("http://{}/metrics", endpoints.metrics),
        "processes": processes,
        "resident_bytes": all,
        "a_second": rates(&before, &after, start.elapsed(), endpoints.gateways.len()),
    });
    if arguments.json {
        return output::print_json(&view);
    }
    output::print(&text(&view))
}

fn rates(before: &str, after: &str, elapsed: Duration, peers: usize) -> Map<String, Value> {
    let rate = |metric: &str, by_every_peer: bool| {
        let moved = page::metric(after, metric)? - page::metric(before, metric)?;
        let counted = if by_every_peer { peers.max(1) } else { 1 };
        Some((moved / elapsed.as_secs_f64() / counted as f64).round().max(0.0) as u64)
    };
    RATES.iter().filter_map(|(name, metric, every)| Some(((*name).to_owned(), rate(metric, *every)?.into()))).collect()
}

async fn height(dir: &Path, endpoints: &Endpoints, number: usize) -> Result<u64, String> {
    let ask = async {
        let target = endpoints.target(dir, number).map_err(|error| error.to_string())?;
        let user = endpoints.user(dir, number).map_err(|error| error.to_string())?;
        let connection = GrpcConnection::connect(&target).await.map_err(|error| error.to_string())?;
        let client = GatewayClient::new(connection, user);
        let args = [Bytes::from(endpoints.channel.clone())];
        let proposal = client.proposal(&endpoints.channel, "qscc", "GetChainInfo", &args).sign();
        let info = client.evaluate(&proposal).await.map_err(|status| status.to_string())?;
        BlockchainInfo::decode(info).map(|info| info.height).map_err(|error| error.to_string())
    };
    tokio::time::timeout(ANSWER_MAX, ask).await.unwrap_or_else(|_| Err("no answer".to_owned()))
}

fn text(view: &Value) -> String {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: &Value| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        lines.push(format!("{name:<14} {value}"));
    };
    for name in ["channel", "policy", "process", "health"] {
        line(name, &view[name]);
    }
    for peer in view["peers"].as_array().into_iter().flatten() {
        let state = match &peer["height"] {
            Value::Null => peer["problem"].as_str().unwrap_or_default().to_owned(),
            height => format!("{height} blocks"),
        };
        let name = peer["name"].as_str().unwrap_or_default();
        line(name, &format!("{} {state}", peer["address"].as_str().unwrap_or_default()).into());
    }
    for name in ["orderer", "metrics"] {
        line(name, &view[name]);
    }
    for process in view["processes"].as_array().into_iter().flatten() {
        let (number, mib) = (&process["process"], process["resident_bytes"].as_u64().unwrap_or(0) >> 20);
        let address = process["address"].as_str().unwrap_or_default();
        let name = process["name"].as_str().unwrap_or_default();
        line(name, &format!("process {number}, {mib} MiB, {address}").into());
    }
    line("memory", &format!("{} MiB", view["resident_bytes"].as_u64().unwrap_or(0) >> 20).into());
    let rates: Vec<String> =
        view["a_second"].as_object().into_iter().flatten().map(|(name, rate)| format!("{name} {rate}")).collect();
    line("a second", &rates.join(", ").into());
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_rates_and_missing_ones_are_left_out() {
        let before = "heddle_chain_transactions_valid_total 100\nheddle_gateway_endorsed_total 0\n\
                      heddle_chain_blocks_committed_total 30\nheddle_chain_blocks_ordered_total 10\n";
        // Each of three orderers counts each block, and so does each of three peers.
        let after = "heddle_chain_transactions_valid_total 700\nheddle_gateway_endorsed_total 210\nheddle_x 7\n\
                     heddle_chain_blocks_committed_total 54\nheddle_chain_blocks_ordered_total 34\n";
        let rates = rates(before, after, Duration::from_secs(2), 3);
        assert_eq!(Value::from(rates), json!({ "endorsed": 105, "valid": 100, "blocks": 4 }));
    }

    #[test]
    fn a_peer_that_does_not_answer_is_shown_with_its_problem() {
        let view = json!({
            "channel": "c", "peers": [
                { "name": "Org1", "address": "127.0.0.1:1", "height": 7 },
                { "name": "Org2", "address": "127.0.0.1:2", "problem": "no answer" },
            ],
            "a_second": { "valid": 3 },
        });
        let text = text(&view);
        assert!(text.contains("Org1           127.0.0.1:1 7 blocks\nOrg2           127.0.0.1:2 no answer\n"), "{text}");
        assert!(text.contains("valid 3"), "{text}");
    }
}
