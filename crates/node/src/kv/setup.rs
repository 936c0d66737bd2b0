//! Sets up a store: its certificates, groups and memory nodes. `heddle kv up` uses it in one process and in several.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::rt::disk::{Directory, File};
use base::rt::{Backoff, CancellationToken};
use gateway::grpc::ConnectionConfig;
use gateway::server;
use identity::issue::{CertificateTerms, IssuingOrganization, TlsIdentity};
use identity::{KeyKind, MemberRole};
use kv::Error;
use rma::{HostConfig, NodeId, Provider};
use sift::{
    GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts,
};
use tokio::net::TcpListener;

use super::config::{GROUP_LOG_BYTES, KvStoresConfig, LISTEN, Persistence, STORES_MAX};
use super::service::KvService;
use super::stores::StoreSet;
use super::token::KvToken;
use crate::network::NodeError;
use crate::plan;

pub(super) const AUTHORITY: &str = "ca.pem";
pub(super) const HOST: &str = "localhost";
/// The name under which CPU nodes connect to memory nodes.
pub(super) const NAME: &str = "kv";
/// The folder of the coordinators' tables.
pub(super) const TABLES: &str = "tables";
/// Held while a process uses a directory.
pub(super) const LOCK: &str = "lock";
/// Pauses before a memory node whose disk has failed is restarted.
pub(super) const RESTART_PAUSE_MIN: Duration = Duration::from_millis(200);
pub(super) const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// A restarted memory node that runs for this long counts as sound.
pub(super) const STABLE_AFTER: Duration = Duration::from_secs(60);
/// Time limit for the first coordinator.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the stores are polled for failures.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The timing of groups whose nodes share one process on a busy machine.
pub(super) fn timing(persistence: Persistence) -> SiftTimeouts {
    let timing = SiftTimeouts {
        lease: Duration::from_millis(60),
        election_timeout: Duration::from_millis(40),
        attempt_max: Duration::from_millis(100),
        ..SiftTimeouts::default()
    };
    match persistence {
        Persistence::None | Persistence::Coordinator { .. } => timing,
        // A disk may be slow, and at a takeover a node compares all of its memory with the disk.
        Persistence::Nodes => {
            SiftTimeouts { answer_max: Duration::from_secs(20), grace: Duration::from_millis(100), ..timing }
        }
    }
}

/// Locks a directory for this process.
pub(super) async fn lock(directory: &Path) -> Result<(Directory, File), NodeError> {
    let opened = Directory::open(directory).await.map_err(NodeError::file("make", directory))?;
    let path = directory.join(LOCK);
    let lock = opened.open_file(LOCK, true).map_err(NodeError::file("open", &path))?;
    match lock.try_lock().map_err(NodeError::file("lock", &path))? {
        true => Ok((opened, lock)),
        false => {
            Err(Error::Invalid(format!("another process runs key-value stores in {}", directory.display())).into())
        }
    }
}

/// The layout of each store's group.
pub(super) fn layout(options: &KvStoresConfig) -> Result<GroupLayout, NodeError> {
    let KvStoresConfig { stores, sizes, .. } = options;
    sizes.check_geometry()?;
    if !(1..=STORES_MAX).contains(stores) {
        return Err(Error::Invalid(format!("{stores} stores: choose 1 to {STORES_MAX}")).into());
    }
    // Twice the minimum, so that transactions can be in flight one after the other.
    let group_log = GROUP_LOG_BYTES.max((sizes.block_bytes * 128).next_multiple_of(4096));
    Ok(sizes.group_layout(group_log)?)
}

/// The group of each store.
pub(super) fn groups(
    options: &KvStoresConfig,
    layout: GroupLayout,
    node_addresses: &[MemoryNodeAddress],
    provider: &Arc<dyn Provider>,
) -> Vec<SiftGroup> {
    let timing = timing(options.persistence);
    let group = |id| SiftGroup { id, layout, nodes: node_addresses.to_vec(), provider: Arc::clone(provider), timing };
    (1..=u64::from(options.stores)).map(|id| group(GroupId(id))).collect()
}

/// Formats groups that were never used. A minority of nodes that keep groups on disk may be missing if the others know
/// that the group was used. A new group needs all nodes.
pub(super) async fn format(options: &KvStoresConfig, groups: &[SiftGroup], missing: usize) -> Result<(), NodeError> {
    for group in groups {
        if missing > 0 && sift::is_used(group).await? {
            continue;
        }
        match sift::format(group).await {
            // The group continues with what the nodes have on disk.
            Err(sift::Error::AlreadyFormatted(_)) if options.persistence == Persistence::Nodes => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Starts a memory node for all groups.
pub(super) async fn memory_node(
    options: &KvStoresConfig,
    layout: GroupLayout,
    slot: usize,
    node_address: &MemoryNodeAddress,
    provider: &Arc<dyn Provider>,
    stop: &CancellationToken,
) -> Result<Arc<LogMemoryNode>, NodeError> {
    let token = node_address.token.clone();
    let host_options = HostConfig { node: NodeId(slot as u32), tokens: Arc::new(move |_| Some(token.clone())) };
    let failed = |source| NodeError::Provider { who: "a memory node".to_owned(), source };
    let host = provider.host(&node_address.address, host_options).await.map_err(failed)?;
    let groups = (1..=u64::from(options.stores)).map(|id| GroupMemory { id: GroupId(id), layout }).collect();
    let node_options = LogMemoryNodeConfig { host, groups, stop: stop.clone() };
    let host = Arc::clone(&node_options.host);
    let started = async {
        match options.persistence {
            Persistence::None | Persistence::Coordinator { .. } => Ok(LogMemoryNode::start(node_options).await?),
            Persistence::Nodes => {
                let path = options.memory_folder(slot);
                let kept = Directory::open(&path).await.map_err(NodeError::file("make", &path))?;
                Ok(LogMemoryNode::start_persistent(node_options, &kept).await?)
            }
        }
    };
    let outcome = started.await;
    if outcome.is_err() {
        // The next attempt uses the same address.
        host.close().await;
    }
    outcome
}

/// A memory node of this process that is restarted after its disk or its host has failed.
pub(super) struct SupervisedMemoryNode {
    pub(super) options: KvStoresConfig,
    pub(super) layout: GroupLayout,
    pub(super) slot: usize,
    pub(super) node_address: MemoryNodeAddress,
    pub(super) provider: Arc<dyn Provider>,
}

impl SupervisedMemoryNode {
    pub(super) async fn run(self, mut node: Option<Arc<LogMemoryNode>>, stop: CancellationToken) {
        let SupervisedMemoryNode { options, layout, slot, node_address: place, provider } = self;
        let mut backoff = Backoff::new(RESTART_PAUSE_MIN, RESTART_PAUSE_MAX);
        loop {
            if let Some(node) = node.take() {
                let since = rt::now();
                let failed = stop.run_until_cancelled(node.failed()).await;
                node.stop().await;
                let Some(error) = failed else { return };
                tracing::error!(slot, %error, "a memory node has failed and is started again");
                if since.elapsed() > STABLE_AFTER {
                    backoff.reset();
                }
            }
            if stop.run_until_cancelled(backoff.wait()).await.is_none() {
                return;
            }
            match memory_node(&options, layout, slot, &place, &provider, &stop).await {
                Ok(again) => node = Some(again),
                Err(error) => tracing::error!("{}", options.remedy(slot, &error)),
            }
        }
    }
}

/// The token that clients must present.
///
/// # Errors
/// No token is set although clients from other machines reach the port; or the token cannot be read.
pub(super) fn token(options: &KvStoresConfig) -> Result<Option<KvToken>, NodeError> {
    if options.token_file.is_none() && !options.listen.ip().is_loopback() {
        let reason = format!(
            "anyone who reaches --listen {} could read and write: add --token-file FILE, with a secret of 16 characters or \
             more in FILE that clients present, or listen on 127.0.0.1",
            options.listen
        );
        return Err(Error::Invalid(reason).into());
    }
    options.token_file.as_deref().map(KvToken::read).transpose()
}

/// The certificate by which clients recognise the stores.
pub(super) fn certificate(listen: SocketAddr) -> Result<TlsIdentity, NodeError> {
    let organization =
        IssuingOrganization::create("HeddleKv", "kv.heddle", &CertificateTerms::starting_now(KeyKind::P256))?;
    let ip = listen.ip().to_string();
    Ok(organization.issue_tls(MemberRole::Peer, "kv", &[HOST, "127.0.0.1", "::1", &ip])?)
}

/// A path that clients in other working directories find too.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, NodeError> {
    std::path::absolute(path).map_err(NodeError::file("find", path))
}

/// Binds a port for each store, consecutive from `listen` on; any free ports if it is 0.
pub(super) async fn bind(listen: SocketAddr, stores: u32) -> Result<(Vec<TcpListener>, Vec<SocketAddr>), NodeError> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for store in 0..stores as usize {
        let address = SocketAddr::new(listen.ip(), plan::port_behind(listen.port(), store, LISTEN)?);
        let cannot_listen = |source| NodeError::Listen { address, source };
        let listener = server::bind(address).await.map_err(cannot_listen)?;
        addresses.push(listener.local_addr().map_err(cannot_listen)?);
        listeners.push(listener);
    }
    Ok((listeners, addresses))
}

/// Serves clients at the ports.
pub(super) fn serve(
    options: &KvStoresConfig,
    listeners: Vec<TcpListener>,
    stores: &Arc<StoreSet>,
    (certificate_pem, key_pem): (&[u8], &[u8]),
    token: Option<KvToken>,
    stop: &CancellationToken,
) -> Result<Vec<tokio::task::JoinHandle<()>>, NodeError> {
    let KvStoresConfig { sizes, memory_nodes, persistence, .. } = *options;
    let message_bytes_max = 2 * sizes.value_bytes_max() + (64 << 10);
    let token = token.map(Arc::new);
    let mut serving = Vec::new();
    for (store, listener) in listeners.into_iter().enumerate() {
        let tls = server::tls(certificate_pem, key_pem)?;
        let port = KvService {
            stores: Arc::clone(stores),
            store,
            sizes,
            memory_nodes,
            persistence,
            permits: Arc::new(super::service::permit_pool()),
            token: token.clone(),
            stop: stop.clone(),
        };
        let (settings, limits) =
            (ConnectionConfig { message_bytes_max, ..ConnectionConfig::default() }, server::PortLimits::default());
        serving.push(tokio::spawn(server::serve(listener, Some(tls), port, settings, limits, stop.clone())));
    }
    Ok(serving)
}
