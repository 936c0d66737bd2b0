//! The adapter's objects, each freed when its last user is gone.
//!
//! This module owns all memory that the adapter reads or writes by DMA. A [`Registration`] owns the memory that it
//! covers. If deregistration fails, the `Registration` leaks its memory, so that the adapter never reaches memory that
//! has been reused.

pub mod queue_pair;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as sys;

use crate::registered_memory::RegisteredMemory;

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
