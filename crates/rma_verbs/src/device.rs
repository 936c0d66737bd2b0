//! The adapter's objects, each freed when its last user is gone.
//!
//! This module owns all memory that the adapter reads or writes independently of the processor. A [`Registration`] owns the
//! memory that it covers. If it cannot be deregistered, it leaks that memory, so that the adapter never reaches memory that has
//! been reused.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as sys;

use crate::registered_memory::RegisteredMemory;
use crate::wire::PairAddress;

/// Selects the adapter, if there are several.
#[derive(Clone, Debug, Default)]
pub struct DeviceConfig {
    /// Its name as `rdma link` shows it; by default the first with an active port.
    pub name: Option<String>,
    /// The index of one of the port's addresses; by default its IPv4 address over RoCE version 2, otherwise the first.
    pub gid_index: Option<u8>,
}

/// An open adapter with one active port.
pub struct Device {
    context: NonNull<sys::ibv_context>,
    port: u8,
    gid_index: u8,
    gid: [u8; 16],
    lid: u16,
    mtu: u8,
    reads_max: u8,
}

// SAFETY: libibverbs lets any thread use a context; the rest is plain data that never changes.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

fn outcome(status: i32) -> io::Result<()> {
    // The library returns an error number, or -1 with `errno` set.
    match status {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

/// An object that the library has created, or the reason why not.
fn made<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

impl Device {
    pub fn open(options: &DeviceConfig) -> io::Result<Arc<Device>> {
        let mut count = 0;
        // SAFETY: the count is written before the call returns. A null list is an answer, too: no adapter, or no library.
        let list = unsafe { sys::ibv_get_device_list(&mut count) };
        let list = NonNull::new(list).ok_or_else(|| none("no RDMA adapter, or libibverbs is not installed"))?;
        let mut reason = none("no RDMA adapter");
        let mut found = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries, and lives until it is freed below.
            let device = unsafe { *list.as_ptr().add(index) };
            // SAFETY: a device of the list has a name that lives as long as the list.
            let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) }.to_string_lossy().into_owned();
            if options.name.as_ref().is_some_and(|wanted| *wanted != name) {
                continue;
            }
            // SAFETY: the device is one of the list.
            let opened =
                made(unsafe { sys::ibv_open_device(device) }).and_then(|context| Device::new(context, options));
            match opened {
                Ok(device) => {
                    found = Some(device);
                    break;
                }
                Err(error) => reason = error,
            }
        }
        // SAFETY: the list came from the library and no entry of it is used below; open contexts outlive it.
        unsafe { sys::ibv_free_device_list(list.as_ptr()) };
        found.map(Arc::new).ok_or(reason)
    }

    /// Takes ownership of the context, and closes it on failure.
    fn new(context: NonNull<sys::ibv_context>, options: &DeviceConfig) -> io::Result<Device> {
        let mut device = Device { context, port: 1, gid_index: 0, gid: [0; 16], lid: 0, mtu: 0, reads_max: 0 };
        // SAFETY: all zero is a value of this plain structure.
        let mut limits: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and the structure is the library's own.
        outcome(unsafe { sys::ibv_query_device(context.as_ptr(), &mut limits) })?;
        if limits.atomic_cap == sys::ibv_atomic_cap::IBV_ATOMIC_NONE {
            return Err(none("the adapter has no atomic operations"));
        }
        device.reads_max =
            u8::try_from(limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom)).unwrap_or(1).clamp(1, READS_MAX);
        for port in 1..=limits.phys_port_cnt {
            // SAFETY: all zero is a value of this plain structure.
            let mut state: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
            // SAFETY: the context is open and the structure is the library's own.
            outcome(unsafe { sys::ibv_query_port(context.as_ptr(), port, &mut state) })?;
            if state.state != sys::ibv_port_state::IBV_PORT_ACTIVE {
                continue;
            }
            device.port = port;
            device.lid = state.lid;
            device.mtu = u8::try_from(state.active_mtu).unwrap_or(1);
            let count = u8::try_from(state.gid_tbl_len).unwrap_or(u8::MAX);
            (device.gid_index, device.gid) = device.address(count, options.gid_index)?;
            return Ok(device);
        }
        Err(none("no port of the RDMA adapter is active"))
    }

    /// The port's address and its index.
    fn address(&self, count: u8, wanted: Option<u8>) -> io::Result<(u8, [u8; 16])> {
        let mut best: Option<(u8, u8, [u8; 16])> = None;
        for index in 0..count {
            // SAFETY: all zero is a value of this plain structure.
            let mut entry: sys::ibv_gid_entry = unsafe { std::mem::zeroed() };
            let (port, at) = (u32::from(self.port), u32::from(index));
            // SAFETY: the context is open and the structure is the library's own. An empty entry gives an error.
            if unsafe { sys::ibv_query_gid_ex(self.context.as_ptr(), port, at, &mut entry, 0) } != 0 {
                continue;
            }
            // SAFETY: the library wrote the entry, and any bytes are an address.
            let gid = unsafe { entry.gid.raw };
            let mapped = gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
            let rank = match wanted {
                Some(wanted) if wanted != index => continue,
                Some(_) => 0,
                None => u8::from(!mapped) + 2 * u8::from(entry.gid_type != GID_ROCE_2),
            };
            if best.is_none_or(|(other, ..)| rank < other) {
                best = Some((rank, index, gid));
            }
        }
        best.map(|(_, index, gid)| (index, gid)).ok_or_else(|| none("the RDMA adapter's port has no such address"))
    }
}

fn none(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, text)
}

/// `IBV_GID_TYPE_ROCE_V2`.
const GID_ROCE_2: u32 = 2;
/// Reads and atomics of one queue pair in progress at the adapter; further ones wait there.
const READS_MAX: u8 = 16;

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every object of the context holds an `Arc` of the device, so none is left.
        unsafe { sys::ibv_close_device(self.context.as_ptr()) };
    }
}

/// A protection domain: its queue pairs reach its own registrations and no others.
pub struct ProtectionDomain {
    pd: NonNull<sys::ibv_pd>,
    device: Arc<Device>,
}

// SAFETY: libibverbs lets any thread use a protection domain.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub fn new(device: &Arc<Device>) -> io::Result<Arc<ProtectionDomain>> {
        // SAFETY: the context is open.
        let pd = made(unsafe { sys::ibv_alloc_pd(device.context.as_ptr()) })?;
        Ok(Arc::new(ProtectionDomain { pd, device: Arc::clone(device) }))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: every object of the domain holds an `Arc` of it. If one could not be freed, the library refuses to free the
        // domain.
        unsafe { sys::ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

/// The access that queue pairs of the other end have to a registration.
#[derive(Clone, Copy, Default, Debug)]
pub struct RegistrationAccess {
    pub read: bool,
    pub write: bool,
    pub atomic: bool,
}

/// Memory that the adapter may reach.
pub struct Registration {
    mr: NonNull<sys::ibv_mr>,
    memory: Arc<RegisteredMemory>,
    domain: Arc<ProtectionDomain>,
    ended: bool,
}

// SAFETY: libibverbs lets any thread use a registration.
unsafe impl Send for Registration {}
// SAFETY: as above; no field changes.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers all of `memory`; local queue pairs may always write there.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        memory: &Arc<RegisteredMemory>,
        access: RegistrationAccess,
    ) -> io::Result<Registration> {
        use sys::ibv_access_flags as flags;
        let mut bits = flags::IBV_ACCESS_LOCAL_WRITE.0;
        for (wanted, bit) in [
            (access.read, flags::IBV_ACCESS_REMOTE_READ),
            (access.write, flags::IBV_ACCESS_REMOTE_WRITE),
            (access.atomic, flags::IBV_ACCESS_REMOTE_ATOMIC),
        ] {
            bits |= if wanted { bit.0 } else { 0 };
        }
        let (pd, address) = (domain.pd.as_ptr(), memory.address());
        // SAFETY: the range is the memory's own, which this registration keeps until the adapter has released it.
        let mr = unsafe { sys::ibv_reg_mr_iova2(pd, address.cast(), memory.bytes(), address as u64, bits) };
        Ok(Registration { mr: made(mr)?, memory: Arc::clone(memory), domain: Arc::clone(domain), ended: false })
    }

    /// The key for queue pairs of this end.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the library's object lives until it is deregistered.
        unsafe { self.mr.as_ref() }.lkey
    }

    /// The key for queue pairs of the other end.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }

    /// The address of its first byte, in the adapter's address space.
    pub fn address(&self) -> u64 {
        self.memory.address() as u64
    }

    pub fn memory(&self) -> &Arc<RegisteredMemory> {
        &self.memory
    }

    /// Deregisters the memory. Once this has returned without an error, nothing under its keys takes effect.
    pub fn end(mut self) -> io::Result<()> {
        self.deregister()
    }

    fn deregister(&mut self) -> io::Result<()> {
        self.ended = true;
        // SAFETY: `ended` makes this the only call for the object.
        let ended = outcome(unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) });
        if ended.is_err() {
            // The adapter may still reach the memory, so it must never be reused.
            std::mem::forget(Arc::clone(&self.memory));
            std::mem::forget(Arc::clone(&self.domain));
        }
        ended
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.ended {
            // On failure the memory is leaked; nothing more can be done.
            let _ = self.deregister();
        }
    }
}

/// The queue in which the adapter reports completed work.
pub struct CompletionQueue {
    cq: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    /// Keeps the context open.
    _device: Arc<Device>,
}

// SAFETY: libibverbs lets any thread use a completion queue.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// One completed work request.
#[derive(Clone, Copy, Debug)]
pub struct WorkCompletion {
    pub id: u64,
    pub outcome: Result<(), WorkError>,
    /// Bytes received.
    pub bytes: u32,
}

/// The adapter's status of a failed work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkError(pub u32);

impl WorkError {
    /// A description of the status.
    pub fn text(self) -> &'static str {
        use sys::ibv_wc_status as status;
        match self.0 {
            status::IBV_WC_WR_FLUSH_ERR => "the connection had failed before",
            status::IBV_WC_RETRY_EXC_ERR => "the other end does not answer",
            status::IBV_WC_REM_ACCESS_ERR => "the other end's adapter rejected the access",
            status::IBV_WC_REM_INV_REQ_ERR => "the other end's adapter rejected the request",
            status::IBV_WC_REM_OP_ERR => "the other end's adapter failed",
            _ => "the adapter failed",
        }
    }
}

/// Completions that one call takes from the queue.
pub const POLL_MAX: usize = 32;

impl CompletionQueue {
    pub fn new(device: &Arc<Device>, entries: usize) -> io::Result<Arc<CompletionQueue>> {
        let context = device.context.as_ptr();
        // SAFETY: the context is open.
        let channel = made(unsafe { sys::ibv_create_comp_channel(context) })?;
        let entries = i32::try_from(entries).expect("queues are short");
        // SAFETY: the context is open and the channel belongs to it; vector 0 exists always.
        let cq = made(unsafe { sys::ibv_create_cq(context, entries, ptr::null_mut(), channel.as_ptr(), 0) });
        let cq = cq.inspect_err(|_| {
            // SAFETY: nothing uses the channel.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
        })?;
        let queue = CompletionQueue { cq, channel, _device: Arc::clone(device) };
        let flags = rustix::fs::fcntl_getfl(queue.as_fd())?;
        rustix::fs::fcntl_setfl(queue.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Arc::new(queue))
    }

    /// Takes completions, up to [`POLL_MAX`], in order.
    pub fn poll(&self, ended: &mut Vec<WorkCompletion>) -> io::Result<()> {
        // SAFETY: all zero is a value of this plain structure.
        let mut entries: [sys::ibv_wc; POLL_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is alive and the array has space for as many entries as are requested.
        let count = unsafe { sys::ibv_poll_cq(self.cq.as_ptr(), POLL_MAX as i32, entries.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| io::Error::other("the completion queue failed"))?;
        ended.extend(entries[..count].iter().map(|entry| WorkCompletion {
            id: entry.wr_id,
            outcome: if entry.status == sys::ibv_wc_status::IBV_WC_SUCCESS {
                Ok(())
            } else {
                Err(WorkError(entry.status))
            },
            bytes: entry.byte_len,
        }));
        Ok(())
    }

    /// Requests an event at the next completion. Poll once more afterwards: earlier completions make no event.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is alive.
        outcome(unsafe { sys::ibv_req_notify_cq(self.cq.as_ptr(), 0) })
    }

    /// Takes the pending events, so that the descriptor waits for the next one.
    pub fn take_events(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and does not block; both pointers are written on success and not used otherwise.
        while unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &mut cq, &mut context) } == 0 {
            // SAFETY: the event is this queue's, the only one of the channel; each is acknowledged once.
            unsafe { sys::ibv_ack_cq_events(self.cq.as_ptr(), 1) };
        }
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open as long as the channel, and the channel as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: every queue pair holds an `Arc` of its queue, so none uses it, and all events are acknowledged.
        unsafe {
            sys::ibv_destroy_cq(self.cq.as_ptr());
            sys::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// A range of a registration of this end.
#[derive(Clone, Copy, Debug)]
pub struct LocalBuffer {
    pub address: u64,
    pub bytes: u32,
    pub key: u32,
}

/// An address in a registration of the other end.
#[derive(Clone, Copy, Debug)]
pub struct RemoteBuffer {
    pub address: u64,
    pub key: u32,
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug)]
pub enum WorkOrder {
    Read(RemoteBuffer),
    Write(RemoteBuffer),
    Send,
    CompareSwap { remote: RemoteBuffer, expected: u64, new: u64 },
    FetchAdd { remote: RemoteBuffer, add: u64 },
}

/// One work request. Each reports its completion.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest {
    pub id: u64,
    pub order: WorkOrder,
    pub local: LocalBuffer,
    /// Wait for earlier reads and atomics, which this work would overtake.
    pub fence: bool,
}

/// A reliable connection to one queue pair of the other end.
pub struct QueuePair {
    qp: NonNull<sys::ibv_qp>,
    domain: Arc<ProtectionDomain>,
    _completions: Arc<CompletionQueue>,
    first_packet: u32,
}

// SAFETY: libibverbs lets any thread use a queue pair.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// Packet sequence numbers have 24 bits.
const PACKET_MASK: u32 = 0x00ff_ffff;
/// Local acknowledgement timeout: 4.096 µs times two to this power, 67 ms.
const TIMEOUT: u8 = 14;
/// Retries before the connection fails. Soft-RoCE takes the largest value, 7, for no limit at all.
const RETRIES: u8 = 6;
/// If the receiver has no buffer, the adapter retries without end: that is the back-pressure of messages.
const RECEIVER_RETRIES: u8 = 7;
/// How long a sender waits before such a retry: code 1 is 10 µs.
const RECEIVER_TIMER: u8 = 1;
const HOPS_MAX: u8 = 64;

impl QueuePair {
    /// `sends` and `receives` may be outstanding at once. Both report their completion in `completions`.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        sends: u32,
        receives: u32,
    ) -> io::Result<QueuePair> {
        // SAFETY: all zero is a value of this plain structure.
        let mut wish: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        wish.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        wish.send_cq = completions.cq.as_ptr();
        wish.recv_cq = completions.cq.as_ptr();
        wish.sq_sig_all = 1;
        wish.cap.max_send_wr = sends;
        wish.cap.max_recv_wr = receives;
        wish.cap.max_send_sge = 1;
        wish.cap.max_recv_sge = 1;
        // SAFETY: domain and completion queue are alive and held by the pair below.
        let qp = made(unsafe { sys::ibv_create_qp(domain.pd.as_ptr(), &mut wish) })?;
        let first_packet = (base::rt::random_u64() as u32) & PACKET_MASK;
        let pair = QueuePair { qp, domain: Arc::clone(domain), _completions: Arc::clone(completions), first_packet };
        pair.initialise()?;
        Ok(pair)
    }

    /// The data that the other end needs to connect.
    pub fn address(&self) -> PairAddress {
        let device = &self.domain.device;
        PairAddress {
            // SAFETY: the library's object lives as long as `self`.
            number: unsafe { self.qp.as_ref() }.qp_num,
            first_packet: self.first_packet,
            gid: device.gid,
            lid: device.lid,
            mtu: device.mtu,
            reads_max: device.reads_max,
        }
    }

    /// From reset to initialised: receives may be posted, nothing arrives yet.
    fn initialise(&self) -> io::Result<()> {
        use sys::{ibv_access_flags as access, ibv_qp_attr_mask as mask};
        let mut change = self.change(sys::ibv_qp_state::IBV_QPS_INIT);
        change.port_num = self.domain.device.port;
        // Each registration restricts its own access.
        change.qp_access_flags =
            (access::IBV_ACCESS_REMOTE_READ | access::IBV_ACCESS_REMOTE_WRITE | access::IBV_ACCESS_REMOTE_ATOMIC).0;
        self.modify(&mut change, mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS)
    }

    /// Connects to the other end's pair: from now on its work is executed and ours may be posted.
    pub fn connect(&self, other: &PairAddress) -> io::Result<()> {
        use sys::ibv_qp_attr_mask as mask;
        let device = &self.domain.device;
        let mut change = self.change(sys::ibv_qp_state::IBV_QPS_RTR);
        change.path_mtu = u32::from(device.mtu.min(other.mtu).max(1));
        change.dest_qp_num = other.number;
        change.rq_psn = other.first_packet & PACKET_MASK;
        change.max_dest_rd_atomic = device.reads_max;
        change.min_rnr_timer = RECEIVER_TIMER;
        change.ah_attr.port_num = device.port;
        change.ah_attr.dlid = other.lid;
        change.ah_attr.is_global = 1;
        change.ah_attr.grh.dgid.raw = other.gid;
        change.ah_attr.grh.sgid_index = device.gid_index;
        change.ah_attr.grh.hop_limit = HOPS_MAX;
        self.modify(
            &mut change,
            mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        )?;
        let mut change = self.change(sys::ibv_qp_state::IBV_QPS_RTS);
        change.timeout = TIMEOUT;
        change.retry_cnt = RETRIES;
        change.rnr_retry = RECEIVER_RETRIES;
        change.sq_psn = self.first_packet;
        change.max_rd_atomic = device.reads_max.min(other.reads_max).max(1);
        self.modify(
            &mut change,
            mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    fn change(&self, state: sys::ibv_qp_state::Type) -> sys::ibv_qp_attr {
        // SAFETY: all zero is a value of this plain structure.
        let mut change: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        change.qp_state = state;
        change
    }

    fn modify(&self, change: &mut sys::ibv_qp_attr, also: sys::ibv_qp_attr_mask) -> io::Result<()> {
        let mask = (sys::ibv_qp_attr_mask::IBV_QP_STATE | also).0;
        // SAFETY: the pair is alive and the structure is the library's own.
        outcome(unsafe { sys::ibv_modify_qp(self.qp.as_ptr(), change, mask as i32) })
    }

    /// Posts work with one ring of the adapter's doorbell.
    ///
    /// # Safety
    /// Each local range lies in a registration of this pair's domain, and no other code uses its bytes until the work has
    /// completed or the pair is destroyed.
    ///
    /// # Errors
    /// Some of the work may have been posted; the connection is unusable from then on.
    pub unsafe fn post(&self, work: &[WorkRequest]) -> io::Result<()> {
        if work.is_empty() {
            return Ok(());
        }
        let mut ranges: Vec<sys::ibv_sge> = work.iter().map(|work| range(&work.local)).collect();
        let mut requests: Vec<sys::ibv_send_wr> = Vec::with_capacity(work.len());
        for (work, range) in work.iter().zip(&mut ranges) {
            requests.push(request(work, range));
        }
        let first = requests.as_mut_ptr();
        for at in 1..requests.len() {
            // SAFETY: both indices are within the vector, which neither grows nor moves any more.
            unsafe { (*first.add(at - 1)).next = first.add(at) };
        }
        let mut failed = ptr::null_mut();
        // SAFETY: the pair is alive; the chain and the ranges it points to live until the call has read them. The caller
        // answers for the memory.
        outcome(unsafe { sys::ibv_post_send(self.qp.as_ptr(), first, &mut failed) })
    }

    /// Gives the adapter a buffer for a message.
    ///
    /// # Safety
    /// As for [`QueuePair::post`].
    pub unsafe fn post_receive(&self, id: u64, local: LocalBuffer) -> io::Result<()> {
        let mut range = range(&local);
        // SAFETY: all zero is a value of this plain structure.
        let mut request: sys::ibv_recv_wr = unsafe { std::mem::zeroed() };
        request.wr_id = id;
        request.sg_list = &mut range;
        request.num_sge = 1;
        let mut failed = ptr::null_mut();
        // SAFETY: the pair is alive; request and range live until the call has read them. The caller answers for the
        // memory.
        outcome(unsafe { sys::ibv_post_recv(self.qp.as_ptr(), &mut request, &mut failed) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the pair is alive, and this is the last use. On return the adapter neither sends nor receives for it.
        if unsafe { sys::ibv_destroy_qp(self.qp.as_ptr()) } != 0 {
            // The adapter may still use it, so the domain, and with it the context, must stay. Deregistration fails then, too.
            std::mem::forget(Arc::clone(&self.domain));
            std::mem::forget(Arc::clone(&self._completions));
        }
    }
}

fn range(local: &LocalBuffer) -> sys::ibv_sge {
    sys::ibv_sge { addr: local.address, length: local.bytes, lkey: local.key }
}

fn request(work: &WorkRequest, range: &mut sys::ibv_sge) -> sys::ibv_send_wr {
    use sys::ibv_wr_opcode as code;
    // SAFETY: all zero is a value of this plain structure.
    let mut request: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = work.id;
    request.num_sge = i32::from(work.local.bytes > 0);
    request.sg_list = range;
    request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
    if work.fence {
        request.send_flags |= sys::ibv_send_flags::IBV_SEND_FENCE.0;
    }
    let rdma = |remote: RemoteBuffer| sys::rdma_t { remote_addr: remote.address, rkey: remote.key };
    let atomic = |remote: RemoteBuffer, compare_add, swap| sys::atomic_t {
        remote_addr: remote.address,
        compare_add,
        swap,
        rkey: remote.key,
    };
    request.opcode = match work.order {
        WorkOrder::Read(remote) => {
            request.wr.rdma = rdma(remote);
            code::IBV_WR_RDMA_READ
        }
        WorkOrder::Write(remote) => {
            request.wr.rdma = rdma(remote);
            code::IBV_WR_RDMA_WRITE
        }
        WorkOrder::Send => code::IBV_WR_SEND,
        WorkOrder::CompareSwap { remote, expected, new } => {
            request.wr.atomic = atomic(remote, expected, new);
            code::IBV_WR_ATOMIC_CMP_AND_SWP
        }
        WorkOrder::FetchAdd { remote, add } => {
            request.wr.atomic = atomic(remote, add, 0);
            code::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
    };
    request
}
