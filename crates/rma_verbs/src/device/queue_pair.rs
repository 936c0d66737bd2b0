//! A queue pair, and the work that is posted to it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::{io, ptr};

use rdma_mummy_sys as sys;

use super::{CompletionQueue, ProtectionDomain, made, outcome};
use crate::wire::PairAddress;

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
pub(super) const PACKET_MASK: u32 = 0x00ff_ffff;
/// Local acknowledgement timeout: 4.096 µs times two to this power, 67 ms.
pub(super) const TIMEOUT: u8 = 14;
/// Retries before the connection fails. Soft-RoCE takes the largest value, 7, for no limit at all.
pub(super) const RETRIES: u8 = 6;
/// If the receiver has no buffer, the adapter retries without end: that is the back-pressure of messages.
pub(super) const RECEIVER_RETRIES: u8 = 7;
/// How long a sender waits before such a retry: code 1 is 10 µs.
pub(super) const RECEIVER_TIMER: u8 = 1;
pub(super) const HOPS_MAX: u8 = 64;

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

pub(super) fn range(local: &LocalBuffer) -> sys::ibv_sge {
    sys::ibv_sge { addr: local.address, length: local.bytes, lkey: local.key }
}

pub(super) fn request(work: &WorkRequest, range: &mut sys::ibv_sge) -> sys::ibv_send_wr {
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
