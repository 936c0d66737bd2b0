//! FlexChain's division of labour (section 4.2), to compare with: the memory node's processor keeps the table from keys to
//! addresses and the free space. A reader asks it for the address and reads the record one-sided; a writer asks it for a
//! buffer, writes the record, and has it linked.
//!
//! It is not hobbled: requests of a block travel together, several to a message, and the memory node answers from one hash
//! map without locks, on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Bytes, BytesMut, Map};
use rma::{Capability, Endpoint, Host, HostOptions, Incoming, NodeId, Rights, Token};

use super::setup::{fabric, failed};
use crate::error::Error;

/// Bytes before a record's key and value: lengths.
const HEAD_BYTES: usize = 8;
const ASK_ADDRESS: u8 = 1;
const ASK_BUFFER: u8 = 2;
const LINK: u8 = 3;

static HOSTS: AtomicU64 = AtomicU64::new(0);

/// The compute node's side, and the memory node's task.
pub struct TwoSided {
    endpoint: Endpoint,
    capability: Capability,
    _host: Arc<dyn Host>,
    _node: base::rt::AbortOnDrop<()>,
}

/// What the memory node's processor keeps.
#[derive(Default)]
struct Control {
    addresses: Map<Box<[u8]>, (u64, u32)>,
    /// Freed buffers by their size.
    free: Map<u32, Vec<u64>>,
    end: u64,
    bytes: u64,
}

impl TwoSided {
    pub async fn start(latency: Option<Duration>, bytes: u64) -> Result<TwoSided, Error> {
        let failed = |error: rma::Error| failed("the two-sided baseline", error);
        let token = Token::random();
        let expected = token.clone();
        let address = format!("local:two-sided-{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed));
        let options = HostOptions { node: NodeId(2), tokens: Arc::new(move |_| Some(expected.clone())) };
        let host = fabric(None).host(&address, options).await.map_err(failed)?;
        let bytes = bytes.next_multiple_of(4096);
        let region = host.register("two-sided", bytes).await.map_err(failed)?;
        let capability = host.grant(region, Rights::ALL).map_err(failed)?;
        let credential = rma::Credential { name: "bench".to_owned(), token };
        let endpoint = fabric(latency).connect(&address, &credential).await.map_err(failed)?;
        let accepted = host.accept().await.map_err(failed)?;
        let mut control = Control { end: 64, bytes, ..Control::default() };
        let node = base::rt::spawn(async move {
            while let Ok(Incoming::Message(request)) = accepted.receive().await {
                let reply = control.answer(&request);
                if accepted.send(&[reply]).await.is_err() {
                    return;
                }
            }
        });
        Ok(TwoSided { endpoint, capability, _host: host, _node: node.abort_on_drop() })
    }

    async fn ask(&mut self, request: BytesMut) -> Result<Bytes, Error> {
        let failed = |error: rma::Error| failed("the two-sided baseline", error);
        let sent = self.endpoint.send(&[request.freeze()]);
        self.endpoint.flush();
        sent.await.map_err(failed)?;
        match self.endpoint.receive().await.map_err(failed)? {
            Incoming::Message(reply) => Ok(reply),
            Incoming::Immediate { .. } => {
                Err(Error::Part { what: "the two-sided baseline", reason: "a notice that nobody sent".to_owned() })
            }
        }
    }

    /// Reads one record.
    pub async fn get(&mut self, key: &str) -> Result<Option<Bytes>, Error> {
        let mut request = BytesMut::with_capacity(key.len() + 3);
        put_request(&mut request, ASK_ADDRESS, key.as_bytes(), 0, 0);
        let reply = self.ask(request).await?;
        let (address, length) = place(&reply, 0);
        if length == 0 {
            return Ok(None);
        }
        let read = self.endpoint.read(&self.capability, address, length as usize, BytesMut::new());
        let record = read.await.map_err(|error| failed("the two-sided baseline", error))?.freeze();
        let key_bytes = u32::from_le_bytes([record[0], record[1], record[2], record[3]]) as usize;
        if &record[HEAD_BYTES..HEAD_BYTES + key_bytes] != key.as_bytes() {
            return Err(failed("the two-sided baseline", "another key's record"));
        }
        Ok(Some(record.slice(HEAD_BYTES + key_bytes..)))
    }

    /// Writes a block: buffers for all, records side by side, then links for all.
    pub async fn put(&mut self, writes: &[(Arc<str>, Bytes)]) -> Result<(), Error> {
        let size = |key: &str, value: &Bytes| (HEAD_BYTES + key.len() + value.len()) as u32;
        let mut request = BytesMut::new();
        for (key, value) in writes {
            put_request(&mut request, ASK_BUFFER, &[], 0, size(key, value));
        }
        let buffers = self.ask(request).await?;
        let mut request = BytesMut::new();
        let mut written = Vec::with_capacity(writes.len());
        for (index, (key, value)) in writes.iter().enumerate() {
            let (address, length) = place(&buffers, index);
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
        self.ask(request).await.map(drop)
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
fn place(reply: &[u8], index: usize) -> (u64, u32) {
    let at = index * 12;
    let mut address = [0; 8];
    address.copy_from_slice(&reply[at..at + 8]);
    (u64::from_le_bytes(address), u32::from_le_bytes([reply[at + 8], reply[at + 9], reply[at + 10], reply[at + 11]]))
}

impl Control {
    fn answer(&mut self, mut requests: &[u8]) -> Bytes {
        let mut reply = BytesMut::with_capacity(requests.len());
        while let [kind, low, high, rest @ ..] = requests {
            let key_bytes = usize::from(u16::from_le_bytes([*low, *high]));
            let (address, length) = place(rest, 0);
            let (key, next) = rest[12..].split_at(key_bytes);
            let (address, length) = match *kind {
                ASK_ADDRESS => self.addresses.get(key).copied().unwrap_or((0, 0)),
                ASK_BUFFER => self.buffer(length),
                _ => {
                    // The old record's buffer is free at once, which favours this side.
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
