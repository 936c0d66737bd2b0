//! A baseline with FlexChain's division of labour (section 4.2): the memory node's processor manages the free space and
//! the table from keys to addresses. To read, a compute node asks the memory node for the address, and reads the record
//! with a one-sided verb. To write, it asks for a buffer, writes the record with a one-sided verb, and asks the memory
//! node to enter it in the table.
//!
//! The baseline is made as fast as possible. The requests of a block travel together, several to a message. The memory
//! node answers from one hash map without locks, on a separate thread. A compute node may cache addresses, as the
//! paper's metadata cache does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Bytes, BytesMut, Map};
use rma::{Capability, Endpoint, Host, HostConfig, IncomingEvent, NodeId, Rights, Token};

use super::setup::{OWNER, failed, provider};
use measurement::error::Error;

/// Bytes before a record's key and value: lengths.
const HEAD_BYTES: usize = 8;
const REQUEST_ADDRESS: u8 = 1;
const REQUEST_BUFFER: u8 = 2;
const LINK: u8 = 3;

static HOSTS: AtomicU64 = AtomicU64::new(0);

/// The compute node's side.
pub struct TwoSided {
    endpoint: Endpoint,
    capability: Capability,
    /// Addresses of some keys, each in the one slot of its hash. There is no other writer, so they are current.
    cached: Vec<Option<(Box<str>, u64, u32)>>,
    /// The memory node, if it is in this process.
    _node: Option<base::rt::AbortOnDrop<()>>,
}

/// The memory node's side.
pub struct TwoSidedNode {
    host: Arc<dyn Host>,
    capability: Capability,
    control: ValueAllocator,
}

/// The data of the memory node's processor.
#[derive(Default)]
struct ValueAllocator {
    addresses: Map<Box<[u8]>, (u64, u32)>,
    /// Freed buffers by their size.
    free: Map<u32, Vec<u64>>,
    end: u64,
    bytes: u64,
}

impl TwoSidedNode {
    pub async fn start(host: Arc<dyn Host>, bytes: u64) -> Result<TwoSidedNode, Error> {
        let failed = |error: rma::Error| failed("the two-sided baseline", error);
        let bytes = bytes.next_multiple_of(4096);
        let region = host.register("two-sided", bytes).await.map_err(failed)?;
        let capability = host.grant(region, Rights::ALL, OWNER).map_err(failed)?;
        let control = ValueAllocator { end: 64, bytes, ..ValueAllocator::default() };
        Ok(TwoSidedNode { host, capability, control })
    }

    /// Answers one compute node after another.
    pub async fn serve(mut self) -> Result<(), Error> {
        loop {
            let accepted = self.host.accept().await.map_err(|error| failed("the two-sided baseline", error))?;
            let hello = Bytes::copy_from_slice(&self.capability.encode());
            let mut sent = accepted.send(&[hello]).await;
            while sent.is_ok()
                && let Ok(IncomingEvent::Message(request)) = accepted.receive().await
            {
                let reply = self.control.answer(&request);
                sent = accepted.send(&[reply]).await;
            }
        }
    }
}

impl TwoSided {
    /// Starts with a memory node in this process, and without a cache of addresses.
    pub async fn start(latency: Option<Duration>, bytes: u64) -> Result<TwoSided, Error> {
        let token = Token::random();
        let expected = token.clone();
        let address = format!("local:two-sided-{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed));
        let options = HostConfig { node: NodeId(2), tokens: Arc::new(move |_| Some(expected.clone())) };
        let host = provider(None).host(&address, options).await;
        let node = TwoSidedNode::start(host.map_err(|error| failed("the two-sided baseline", error))?, bytes).await?;
        let serving = base::rt::spawn(async move {
            // The compute node notices that it has ended.
            let _ = node.serve().await;
        });
        let mut two_sided = TwoSided::connect(latency, &address, token, 0).await?;
        two_sided._node = Some(serving.abort_on_drop());
        Ok(two_sided)
    }

    /// Connects to a remote memory node, and caches addresses of at most `known_max` keys.
    pub async fn connect(
        latency: Option<Duration>,
        address: &str,
        token: Token,
        known_max: usize,
    ) -> Result<TwoSided, Error> {
        let failed = |error: rma::Error| failed("the two-sided baseline", error);
        let credential = rma::Credential { name: OWNER.to_owned(), token };
        let endpoint = provider(latency).connect(address, &credential).await.map_err(failed)?;
        let IncomingEvent::Message(hello) = endpoint.receive().await.map_err(failed)? else {
            return Err(Error::Part { what: "the two-sided baseline", reason: "an unexpected notice".to_owned() });
        };
        let capability = Capability::decode(&hello).map_err(failed)?;
        Ok(TwoSided { endpoint, capability, cached: vec![None; known_max], _node: None })
    }

    async fn request(&mut self, request: BytesMut) -> Result<Bytes, Error> {
        let failed = |error: rma::Error| failed("the two-sided baseline", error);
        let sent = self.endpoint.send(&[request.freeze()]);
        self.endpoint.flush();
        sent.await.map_err(failed)?;
        match self.endpoint.receive().await.map_err(failed)? {
            IncomingEvent::Message(reply) => Ok(reply),
            IncomingEvent::Immediate { .. } => {
                Err(Error::Part { what: "the two-sided baseline", reason: "an unexpected notice".to_owned() })
            }
        }
    }

    /// Reads one record.
    pub async fn get(&mut self, key: &str) -> Result<Option<Bytes>, Error> {
        Ok(self.get_many(&[key]).await?.pop().flatten())
    }

    /// Reads records concurrently; one message asks for the addresses that are not cached.
    pub async fn get_many(&mut self, keys: &[&str]) -> Result<Vec<Option<Bytes>>, Error> {
        let mut places: Vec<Option<(u64, u32)>> = keys.iter().map(|key| self.cached_address(key)).collect();
        let mut request = BytesMut::new();
        let unknown: Vec<usize> = (0..keys.len()).filter(|at| places[*at].is_none()).collect();
        if !unknown.is_empty() {
            for at in &unknown {
                put_request(&mut request, REQUEST_ADDRESS, keys[*at].as_bytes(), 0, 0);
            }
            let reply = self.request(request).await?;
            for (index, at) in unknown.into_iter().enumerate() {
                let (address, length) = value_address(&reply, index);
                if length > 0 {
                    places[at] = Some((address, length));
                    self.cache_address(keys[at], address, length);
                }
            }
        }
        let reads: Vec<_> = places
            .into_iter()
            .map(|place| {
                let (address, length) = place?;
                Some(self.endpoint.read(&self.capability, address, length as usize, BytesMut::new()))
            })
            .collect();
        self.endpoint.flush();
        let mut values = Vec::with_capacity(keys.len());
        for (key, read) in keys.iter().zip(reads) {
            let Some(read) = read else {
                values.push(None);
                continue;
            };
            let record = read.await.map_err(|error| failed("the two-sided baseline", error))?.freeze();
            let key_bytes = u32::from_le_bytes([record[0], record[1], record[2], record[3]]) as usize;
            if record[HEAD_BYTES..HEAD_BYTES + key_bytes] != *key.as_bytes() {
                return Err(failed("the two-sided baseline", "another key's record"));
            }
            values.push(Some(record.slice(HEAD_BYTES + key_bytes..)));
        }
        Ok(values)
    }

    fn slot(&self, key: &str) -> Option<usize> {
        let count = self.cached.len() as u64;
        // FNV-1a: keys are short, and no attacker chooses them.
        let hash = key
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        (count > 0).then(|| (hash % count) as usize)
    }

    fn cached_address(&self, key: &str) -> Option<(u64, u32)> {
        let (known, address, length) = self.cached[self.slot(key)?].as_ref()?;
        (**known == *key).then_some((*address, *length))
    }

    fn cache_address(&mut self, key: &str, address: u64, length: u32) {
        let Some(slot) = self.slot(key) else { return };
        match &mut self.cached[slot] {
            Some((known, known_address, known_length)) if **known == *key => {
                (*known_address, *known_length) = (address, length);
            }
            other => *other = Some((key.into(), address, length)),
        }
    }

    /// Writes a block: buffers for all, records concurrently, then links for all.
    pub async fn put(&mut self, writes: &[(Arc<str>, Bytes)]) -> Result<(), Error> {
        let size = |key: &str, value: &Bytes| (HEAD_BYTES + key.len() + value.len()) as u32;
        let mut request = BytesMut::new();
        for (key, value) in writes {
            put_request(&mut request, REQUEST_BUFFER, &[], 0, size(key, value));
        }
        let buffers = self.request(request).await?;
        let mut request = BytesMut::new();
        let mut written = Vec::with_capacity(writes.len());
        for (index, (key, value)) in writes.iter().enumerate() {
            let (address, length) = value_address(&buffers, index);
            if length == 0 {
                return Err(failed("the two-sided baseline", "the memory is full"));
            }
            let mut head = BytesMut::with_capacity(HEAD_BYTES + key.len());
            head.extend_from_slice(&(key.len() as u32).to_le_bytes());
            head.extend_from_slice(&(value.len() as u32).to_le_bytes());
            head.extend_from_slice(key.as_bytes());
            written.push(self.endpoint.write(&self.capability, address, &[head.freeze(), value.clone()]));
            put_request(&mut request, LINK, key.as_bytes(), address, size(key, value));
        }
        self.endpoint.flush();
        for written in written {
            written.await.map_err(|error| failed("the two-sided baseline", error))?;
        }
        self.request(request).await?;
        for (index, (key, value)) in writes.iter().enumerate() {
            let (address, _) = value_address(&buffers, index);
            self.cache_address(key, address, size(key, value));
        }
        Ok(())
    }
}

/// `kind:u8 | key length:u16 | address:u64 | length:u32 | key`
fn put_request(request: &mut BytesMut, kind: u8, key: &[u8], address: u64, length: u32) {
    request.extend_from_slice(&[kind]);
    request.extend_from_slice(&(key.len() as u16).to_le_bytes());
    request.extend_from_slice(&address.to_le_bytes());
    request.extend_from_slice(&length.to_le_bytes());
    request.extend_from_slice(key);
}

/// The answer to one of several requests: `address:u64 | length:u32`.
fn value_address(reply: &[u8], index: usize) -> (u64, u32) {
    let at = index * 12;
    let mut address = [0; 8];
    address.copy_from_slice(&reply[at..at + 8]);
    (u64::from_le_bytes(address), u32::from_le_bytes([reply[at + 8], reply[at + 9], reply[at + 10], reply[at + 11]]))
}

impl ValueAllocator {
    fn answer(&mut self, mut requests: &[u8]) -> Bytes {
        let mut reply = BytesMut::with_capacity(requests.len());
        while let [kind, low, high, rest @ ..] = requests {
            let key_bytes = usize::from(u16::from_le_bytes([*low, *high]));
            let (address, length) = value_address(rest, 0);
            let (key, next) = rest[12..].split_at(key_bytes);
            let (address, length) = match *kind {
                REQUEST_ADDRESS => self.addresses.get(key).copied().unwrap_or((0, 0)),
                REQUEST_BUFFER => self.buffer(length),
                _ => {
                    // The old record's buffer is free at once, which favours this baseline.
                    if let Some((old, old_length)) = self.addresses.insert(key.into(), (address, length)) {
                        self.free.entry(old_length).or_default().push(old);
                    }
                    (address, length)
                }
            };
            reply.extend_from_slice(&address.to_le_bytes());
            reply.extend_from_slice(&length.to_le_bytes());
            requests = next;
        }
        reply.freeze()
    }

    fn buffer(&mut self, length: u32) -> (u64, u32) {
        if let Some(address) = self.free.get_mut(&length).and_then(Vec::pop) {
            return (address, length);
        }
        let address = self.end;
        let end = address + u64::from(length).next_multiple_of(16);
        if end > self.bytes {
            return (0, 0);
        }
        self.end = end;
        (address, length)
    }
}
