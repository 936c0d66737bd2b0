//! The measured endpoint: a host with a region, and a connection to it.

use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use rma::tcp::TcpConfig;
use rma::{Credential, Host, HostConfig, NodeId, Provider, Rights, Token};

use super::copy::LocalMemory;
use super::cpu_affinity::PinnedCaller;
use super::echo::EchoFloor;
use super::provider::{MeasuredConnection, ProviderKind, TCP_ROUNDS_EACH, failed};
use super::verbs::{VerbCaller, VerbCase};
use crate::rma::floor::FloorOperation;
use measurement::error::Error;

/// If no case is cold, a region of this size suffices.
const WARM_BYTES: u64 = 8 << 20;
/// The region is touched in chunks of this size before the measurement.
const TOUCHED_BYTES: usize = 1 << 20;

/// A connection, and the floor of its verbs.
pub struct RmaTarget {
    fabric: Arc<dyn Provider>,
    host: Arc<dyn Host>,
    credential: Credential,
    link: MeasuredConnection,
    /// Memory of this process that the copies of the floor go to; `None` if the floor is a socket.
    memory: Option<LocalMemory>,
    pinned: PinnedCaller,
}

impl RmaTarget {
    pub async fn start(provider: ProviderKind, latency: Option<Duration>, data_bytes: u64) -> Result<RmaTarget, Error> {
        let failed = |error: rma::Error| failed("a host and a connection to it", error);
        let region_bytes = match provider {
            ProviderKind::Shm => data_bytes.max(WARM_BYTES),
            ProviderKind::Tcp | ProviderKind::TcpTls => WARM_BYTES,
        };
        let token = Token::random();
        let expected = token.clone();
        let options = HostConfig { node: NodeId(1), tokens: Arc::new(move |_| Some(expected.clone())) };
        let fabric = provider.fabric(latency)?;
        let host = fabric.host(&provider.address(), options).await.map_err(failed)?;
        let region = host.register("bench", region_bytes).await.map_err(failed)?;
        let capability = host.grant(region, Rights::ALL, "bench").map_err(failed)?;
        let credential = Credential { name: "bench".to_owned(), token };
        let endpoint = fabric.connect(&host.address(), &credential).await.map_err(failed)?;
        let accepted = host.accept().await.map_err(failed)?;
        // The system gives memory when it is first touched, which is not to be measured.
        let zeroes = Bytes::from(vec![0; TOUCHED_BYTES]);
        for at in (0..region_bytes).step_by(TOUCHED_BYTES) {
            let length = (region_bytes - at).min(TOUCHED_BYTES as u64) as usize;
            endpoint.write(&capability, at, &[zeroes.slice(..length)]).await.map_err(failed)?;
        }
        let memory = (provider == ProviderKind::Shm).then(|| LocalMemory::new(region_bytes as usize));
        let link = MeasuredConnection { provider, endpoint, accepted, capability, region_bytes };
        Ok(RmaTarget { fabric, host, credential, link, memory, pinned: PinnedCaller::pin() })
    }

    /// Rounds between [`RmaTarget::reconnect`]s.
    pub fn rounds_each(&self) -> usize {
        match self.link.provider {
            ProviderKind::Shm => usize::MAX,
            ProviderKind::Tcp | ProviderKind::TcpTls => TCP_ROUNDS_EACH,
        }
    }

    /// Replaces the connection by another one.
    ///
    /// # Errors
    /// No connection can be made.
    pub async fn reconnect(&mut self) -> Result<(), Error> {
        let failed = |error: rma::Error| failed("another connection to a host", error);
        self.link.endpoint = self.fabric.connect(&self.host.address(), &self.credential).await.map_err(failed)?;
        self.link.accepted = self.host.accept().await.map_err(failed)?;
        Ok(())
    }

    /// The caller of a verb, and its floor. Both go to the same offsets.
    pub async fn pair(
        &mut self,
        case: &VerbCase,
        seed: u64,
    ) -> Result<(VerbCaller<'_>, Box<dyn FloorOperation + '_>), Error> {
        let places = case.offsets(self.link.region_bytes, seed);
        let floor: Box<dyn FloorOperation> = match &mut self.memory {
            Some(memory) => Box::new(memory.floor(case, places.clone())),
            None => Box::new(EchoFloor::start(case, TcpConfig::default().spin, &self.pinned)?),
        };
        let caller = VerbCaller::new(&self.link, case, places).await;
        Ok((caller.map_err(|error| failed("a verb", error))?, floor))
    }
}
