//! Finds the key-value store that runs in a directory, and connects to the CPU node that serves it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use gateway::client::{GrpcCode, GrpcConnection, GrpcStatus};
use node::kv::{KvClient, KvEndpoint, KvProcessEndpoint, KvToken};

use crate::exit;
use crate::failure::CommandError;

/// The default directory of a store.
pub const DIRECTORY: &str = "./heddle-kv";

/// Time limit for finding the CPU node that serves, the pause between attempts, and the time limit for one node's
/// answer.
const CONNECT_MAX: Duration = Duration::from_secs(30);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
const STATUS_MAX: Duration = Duration::from_secs(5);

/// The store that a command uses.
#[derive(Args, Debug, Clone)]
pub struct StoreDirectory {
    /// The directory of `heddle kv up`: its kv.json gives the store's address and certificate authority
    #[arg(long = "dir", value_name = "DIR", default_value = DIRECTORY)]
    pub dir: PathBuf,
    /// Which of the stores of `heddle kv up --stores`
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub store: u32,
    /// The file with the token that clients present, if it is not the one that kv.json names
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// A client of a directory's store. If CPU nodes are processes of their own, any of which may serve, the client
/// connects to the one that does; while they change, it rereads their addresses and looks again.
///
/// # Errors
/// No store runs there, or it has no store of this number.
pub async fn connect(store: &StoreDirectory) -> Result<KvClient, CommandError> {
    find(store).await.map(|(client, _)| client)
}

/// As [`connect`], with the process that serves if several may.
///
/// # Errors
/// As [`connect`].
pub async fn find(store: &StoreDirectory) -> Result<(KvClient, Option<KvProcessEndpoint>), CommandError> {
    let start = Instant::now();
    loop {
        match find_once(store).await {
            Err((failure, true)) if start.elapsed() > CONNECT_MAX => return Err(failure),
            Err((_, true)) => tokio::time::sleep(CONNECT_PAUSE).await,
            outcome => return outcome.map_err(|(failure, _)| failure),
        }
    }
}

/// One attempt of [`find`]; an error says whether another attempt is worthwhile.
async fn find_once(store: &StoreDirectory) -> Result<(KvClient, Option<KvProcessEndpoint>), (CommandError, bool)> {
    let directory: &Path = &store.dir;
    let absent = || {
        let dir = directory.display();
        let message = format!("no key-value store runs in {dir}; start one with `heddle kv up --dir {dir}`");
        CommandError::with_code(exit::NOT_RUNNING, message)
    };
    let endpoint = KvEndpoint::load(directory).map_err(|error| (error.into(), false))?;
    let endpoint = endpoint.ok_or_else(|| (absent(), false))?;
    let addresses = endpoint.addresses_of(store.store as usize - 1);
    let is_one_of_many = addresses.len() > 1;
    let token = match &store.token_file {
        Some(path) => KvToken::read(path).map(Some),
        None => endpoint.token(),
    };
    let token = token.map_err(|error| (error.into(), false))?;
    let asked = addresses.iter().map(|address| {
        let target = endpoint.target_of(directory, *address);
        let (absent, token) = (&absent, token.as_ref());
        async move {
            let connection = GrpcConnection::connect(&target?).await.map_err(|error| match error.kind() {
                // The process was killed, and has left its file behind.
                base::ErrorKind::Retry => absent(),
                _ => CommandError::new(error),
            });
            let client = KvClient::with_token(connection?, token);
            if is_one_of_many {
                // The node that serves answers at once; another one waits for a while before it answers that it does
                // not serve.
                let status = tokio::time::timeout(STATUS_MAX, client.status()).await;
                let silent = || {
                    let seconds = STATUS_MAX.as_secs();
                    CommandError::new(format!("the CPU node at {address} did not answer within {seconds} s; try again"))
                };
                status.map_err(|_| silent())?.map_err(failed)?;
            }
            Ok::<_, CommandError>((client, *address))
        }
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut last = None;
    while let Some(outcome) = asked.next().await {
        match outcome {
            Ok((client, address)) => {
                let serving = endpoint.parts.into_iter().find(|part| part.stores.contains(&address));
                return Ok((client, serving));
            }
            Err(failure) => last = Some(failure),
        }
    }
    let none = || {
        let message = format!("there is no store {}: {} run, counted from 1", store.store, endpoint.stores.len());
        CommandError::new(message)
    };
    Err((last.unwrap_or_else(none), is_one_of_many))
}

/// The failure that an answer of a store means, with advice.
pub fn failed(status: GrpcStatus) -> CommandError {
    let advice = match status.code {
        GrpcCode::Unknown => "; it may or may not have taken effect: check with `heddle kv get`",
        GrpcCode::Unavailable => "; try again",
        _ => "",
    };
    CommandError::new(format!("{}{advice}", status.message))
}
