//! `heddle farmem relay`, and the other end of the relay beside the role.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use base::event;
use base::rt::{CancellationToken, net};
use executor_relay::{ExecutorsEnd, ExecutorsEndSettings, ProgramEnd, ProgramEndSettings, Tenant};
use executors::OwnersAllowed;
use link_transport::{LinkTlsIdentity, OrganizationRoots, TLS_SCHEME, TlsTransport};
use node::metrics::{MetricsSource, serve};
use tokio::net::TcpListener;

use crate::cli::relay::{FarMemoryRelayArguments, RelayListenArguments, RelayTlsArguments};
use crate::failure::CommandError;
use crate::output;
use crate::signals::StopSignals;

/// Others than the owner may read or change the file.
const MODE_OF_OTHERS: u32 = 0o077;

/// The metrics of a process that has nothing else to say.
struct EventPage;

#[async_trait]
impl MetricsSource for EventPage {
    async fn metrics(&self) -> String {
        event::render_prometheus()
    }

    async fn problem(&self) -> Option<String> {
        None
    }

    async fn notes(&self) -> String {
        String::new()
    }
}

/// Runs the program's end until a signal.
pub async fn run(arguments: &FarMemoryRelayArguments) -> Result<(), CommandError> {
    node::logging::start("info").map_err(CommandError::new)?;
    check_address("--to", &arguments.to)?;
    if !arguments.tls.trust.iter().any(|(name, _)| *name == arguments.organisation) {
        return Err(CommandError::new(format!(
            "no authorities of {} are known: name them by --trust {0}=FILE",
            arguments.organisation
        )));
    }
    register(&arguments.tls)?;
    let mut signals = StopSignals::listen()?;
    let metrics = start_metrics(arguments.metrics).await?;
    let mut end = ProgramEnd::start(ProgramEndSettings {
        socket: arguments.socket.clone(),
        address: arguments.to.clone(),
        organisation: arguments.organisation.clone(),
        owners: OwnersAllowed::new(arguments.any_owner, arguments.owner.iter().copied()),
        programs_max: arguments.programs_max,
        per_owner_max: arguments.per_owner,
    })
    .map_err(CommandError::new)?;
    let metrics = metrics.map_or(String::new(), |address| format!("; metrics at http://{address}/metrics"));
    let (socket, to) = (arguments.socket.display(), &arguments.to);
    output::print(&format!("executors of {to} are ready at {socket}{metrics}\n"))?;
    tokio::select! {
        () = signals.received() => output::print("the relay has ended\n"),
        () = end.ended() => Err(CommandError::new("the relay has ended by a panic; see its log")),
    }
}

async fn start_metrics(address: Option<SocketAddr>) -> Result<Option<SocketAddr>, CommandError> {
    let Some(address) = address else { return Ok(None) };
    event::register(base::admission::EVENTS);
    event::register(net::EVENTS);
    let listener = TcpListener::bind(address).await;
    let listener = listener
        .map_err(|error| CommandError::new(format!("cannot listen on {address}: {error}; change --metrics")))?;
    let bound = listener.local_addr().ok();
    tokio::spawn(serve(listener, EventPage, CancellationToken::new()));
    Ok(bound)
}

/// Starts the executors' end, if it is wanted.
pub(super) async fn start_executors_end(
    arguments: &RelayListenArguments,
    role: &Path,
) -> Result<Option<ExecutorsEnd>, CommandError> {
    let Some(listen) = &arguments.listen else { return Ok(None) };
    check_address("--listen", listen)?;
    let known = |name: &str| arguments.tls.trust.iter().any(|(trusted, _)| trusted == name);
    if let Some((name, ..)) = arguments.tenant.iter().find(|(name, ..)| !known(name)) {
        return Err(CommandError::new(format!("no authorities of {name} are known: name them by --trust {name}=FILE")));
    }
    let mut names: Vec<&String> = arguments.tenant.iter().map(|(name, ..)| name).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(CommandError::new(format!("--tenant names {} twice", pair[0])));
    }
    register(&arguments.tls)?;
    event::register(net::EVENTS);
    let tenants =
        arguments.tenant.iter().map(|(name, user, group)| (name.clone(), Tenant { user: *user, group: *group }));
    let settings = ExecutorsEndSettings {
        listen: listen.clone(),
        role: role.to_path_buf(),
        tenants: tenants.collect::<BTreeMap<_, _>>(),
        per_tenant_max: arguments.per_tenant,
    };
    ExecutorsEnd::start(settings).await.map(Some).map_err(CommandError::new)
}

/// Completes when the executors' end has ended, which it does only by a panic; never, if there is none.
pub(super) async fn ended(end: &mut Option<ExecutorsEnd>) {
    match end {
        Some(end) => end.ended().await,
        None => std::future::pending().await,
    }
}

fn check_address(option: &str, address: &str) -> Result<(), CommandError> {
    let is_tls = address.strip_prefix("tls:").is_some_and(|rest| rest.contains(':'));
    match is_tls {
        true => Ok(()),
        false => Err(CommandError::new(format!("{option} {address}: it must be tls:HOST:PORT"))),
    }
}

/// Registers links over mutual TLS.
fn register(arguments: &RelayTlsArguments) -> Result<(), CommandError> {
    let (Some(certificate), Some(key)) = (&arguments.certificate, &arguments.key) else {
        return Err(CommandError::new("links to other hosts need --certificate and --key"));
    };
    let mode = fs::metadata(key).map_err(|error| unreadable(key, &error))?.mode();
    if mode & MODE_OF_OTHERS != 0 {
        let key = key.display();
        return Err(CommandError::new(format!("others may read the key {key}; run: chmod 600 {key}")));
    }
    let read = |path: &PathBuf| fs::read(path).map_err(|error| unreadable(path, &error));
    let identity = LinkTlsIdentity { certificate_pem: read(certificate)?, key_pem: read(key)? };
    let roots =
        arguments.trust.iter().map(|(name, file)| Ok(OrganizationRoots { name: name.clone(), roots_pem: read(file)? }));
    let roots = roots.collect::<Result<Vec<_>, CommandError>>()?;
    let transport = TlsTransport::new(&identity, &roots).map_err(CommandError::new)?;
    net::register(TLS_SCHEME, Arc::new(transport));
    Ok(())
}

fn unreadable(path: &Path, error: &std::io::Error) -> CommandError {
    CommandError::new(format!("{}: {error}", path.display()))
}
