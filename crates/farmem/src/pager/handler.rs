//! The thread that serves faults.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::BytesMut;
use base::rt::{self, Instant};

use super::core::PagerCore;
use super::read_ahead::ReadAheadRequest;
use crate::kernel::placement::HandlerPlacement;
use crate::kernel::userfault::{PageFault, UserEvent};
use crate::page::{PageNumber, PageRange};
use crate::report::Messages;
use crate::store::StoreError;
use crate::table::{FaultPlan, PageAccess};

/// The pause after a read that failed for now, so that the thread which needs the page does not spin.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Serves faults until the region ends.
pub(super) async fn run(core: Arc<PagerCore>) {
    core.faults.set_reader();
    let mut events = Vec::new();
    let mut postponed = Vec::new();
    let mut handler = Handler {
        core: &core,
        placement: HandlerPlacement::new(),
        buffer: BytesMut::new(),
        failures: Messages::default(),
        losses: Messages::default(),
    };
    while core.or_end("cannot read page faults", core.home.wait(&core.faults, &mut events)) {
        for event in events.drain(..) {
            match event {
                UserEvent::Forked(child) => core.home.forked(&core, child),
                UserEvent::Fault(fault) if core.home.is_doorbell(fault.address) => {
                    let answered = core.home.answer_doorbell(&core, fault.thread);
                    if !core.or_end("cannot answer the doorbell", answered) {
                        return;
                    }
                }
                UserEvent::Fault(fault) if core.home.is_postponed(fault.thread) => postponed.push(fault),
                UserEvent::Fault(fault) => {
                    handler.handle(fault).await;
                    core.announce();
                }
            }
        }
        if !postponed.is_empty() && !core.home.is_postponed(postponed[0].thread) {
            for fault in std::mem::take(&mut postponed) {
                handler.handle(fault).await;
            }
        }
    }
}

struct Handler<'a> {
    core: &'a PagerCore,
    placement: HandlerPlacement,
    /// Reused, so that a fault allocates no memory for its page.
    buffer: BytesMut,
    failures: Messages,
    losses: Messages,
}

impl Handler<'_> {
    async fn handle(&mut self, fault: PageFault) {
        self.placement.follow(fault.thread);
        let arrived_at = rt::now();
        // The buffer of evicted pages is registered too, and never touched while a page of it is absent.
        if let Some(page) = self.core.page_at(fault.address) {
            self.serve(page, fault).await;
        }
        self.placement.note_served(arrived_at.elapsed());
    }

    async fn serve(&mut self, page: PageNumber, fault: PageFault) {
        let core = self.core;
        let access = if fault.is_write { PageAccess::Write } else { PageAccess::Read };
        let range = PageRange::of(page);
        let (address, bytes) = (core.address(range), range.bytes() as u64);
        let mut waits_since: Option<Instant> = None;
        let plan = loop {
            let mut table = core.table();
            match table.fault(page, access) {
                FaultPlan::NoRoom => {}
                FaultPlan::Wait => {
                    core.has_waiting.store(true, Ordering::Relaxed);
                    return;
                }
                plan => break plan,
            }
            drop(table);
            if core.is_stopping() {
                // The fault is stale: its thread has been woken since. The evictor has stopped, so there will be no room.
                return;
            }
            // The thread that forks may be the one that waits, and nothing is evicted before that thread has forked.
            core.home.give_up_fork(core);
            // While the event of a fork is unread, the kernel moves no page.
            core.faults.relieve();
            let waited = waits_since.get_or_insert_with(rt::now).elapsed();
            core.or_end("there is no room for a page", core.obstacle.check(waited));
            core.wait_for_room();
        };
        match plan {
            FaultPlan::Wake | FaultPlan::Lost => core.wake(range),
            FaultPlan::Unprotect => {
                core.or_end("cannot make a page writable", core.faults.unprotect(address, bytes));
            }
            FaultPlan::Zero(range) => core.map_zeros(range),
            FaultPlan::Fill { writable, ahead } => {
                let pages_ahead = ahead.iter().map(|range| u64::from(range.pages)).sum();
                core.home.note_remote_access(fault.thread, pages_ahead);
                self.fill(range, writable, ahead).await;
            }
            FaultPlan::Wait | FaultPlan::NoRoom => {}
        }
        if core.table().wants_eviction() {
            core.ask_for_room();
        }
    }

    async fn fill(&mut self, range: PageRange, writable: bool, ahead: Vec<PageRange>) {
        let core = self.core;
        self.buffer.clear();
        let outcome = core.store.read(range, std::mem::take(&mut self.buffer)).await;
        let is_read = outcome.is_ok();
        match outcome {
            Ok(bytes) => {
                core.map(range, &bytes, writable);
                self.buffer = bytes;
            }
            Err(error) => self.failed(range, error).await,
        }
        if ahead.is_empty() {
            return;
        }
        let request = ReadAheadRequest { ranges: ahead, writable };
        let refused = if is_read { core.ahead.push(request).err() } else { Some(request) };
        refused.iter().flat_map(|request| &request.ranges).for_each(|range| core.give_up_filling(*range));
    }

    async fn failed(&mut self, range: PageRange, error: StoreError) {
        let core = self.core;
        let address = core.address(range);
        match error {
            StoreError::Lost { range: lost, node } if lost.contains(range) => {
                self.losses
                    .error(|| format!("far memory: {range:?} of the region {} were lost with {node}", core.name));
                core.home.note_loss(range, &node);
                core.table().lost(range);
                core.or_end("cannot poison a lost page", core.faults.poison(address, range.bytes() as u64));
            }
            // A loss of other pages says nothing about this one.
            error => {
                self.failures.warn(|| {
                    format!(
                        "far memory: {range:?} of the region {} could not be read, and are tried again: {error}",
                        core.name
                    )
                });
                rt::sleep(RETRY_PAUSE).await;
                core.give_up_filling(range);
            }
        }
    }
}
