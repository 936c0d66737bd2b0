//! Makes, sends and installs snapshots, and defines their content.

use std::sync::atomic::Ordering;

use base::rt;
use raft_rs::SnapshotStatus;
use raft_rs::eraftpb::{HardState, Message, Snapshot};

use super::snapshot_format::{parts_of, snapshot_data};
use super::{EngineEvent, RaftEngine};
use crate::fault::{Mutant, crash_point, mutant};
use crate::{Error, StateMachine, links};

impl<M: StateMachine> RaftEngine<M> {
    pub(super) fn send_snapshot(&mut self, message: Message) {
        let to = message.to;
        let Some(member) = self.members.get(&to).filter(|_| !self.sending_snapshot.contains_key(&to)) else {
            self.node.report_snapshot(to, SnapshotStatus::Failure);
            return;
        };
        let (address, ends, events) = (self.found(member).address, self.endpoints(to), self.events.clone());
        let task = rt::spawn(async move {
            let is_whole = links::send_snapshot(&address, ends, message).await;
            let _ = events.send(EngineEvent::SnapshotSent(to, is_whole)).await;
        });
        self.sending_snapshot.insert(to, task.abort_on_drop());
    }

    /// Makes a snapshot when one is needed, or when the log on disk has become long.
    pub(super) fn maintain_snapshots(&mut self) -> Result<(), Error> {
        let is_wanted = self.node.raft.store().wanted.load(Ordering::Relaxed);
        let is_long = self.disk.is_some() && self.bytes_since >= self.options.snapshot_after_bytes as u64;
        let is_worth_it = is_long && self.applied > self.snapshot_index;
        if self.making_snapshot.is_some() || !(is_wanted || is_worth_it) || self.applied == 0 {
            return Ok(());
        }
        self.node.raft.store().wanted.store(false, Ordering::Relaxed);
        self.bytes_since = 0;
        let (index, term) = (self.applied, self.applied_term);
        let state = self.node.raft.store().members.clone();
        let (members, machine) = (self.members.clone(), self.machine.snapshot());
        let events = self.events.clone();
        let snapshots = self.disk.as_ref().map(|disk| disk.snapshots().clone());
        let task = rt::spawn(async move {
            let making = async {
                let data = machine.await?;
                let mut snapshot = Snapshot { data: snapshot_data(&members, &data), ..Snapshot::default() };
                let metadata = snapshot.mut_metadata();
                (metadata.index, metadata.term) = (index, term);
                metadata.set_conf_state(state);
                if let Some(snapshots) = snapshots {
                    crash_point("consensus.raft.saving").await;
                    snapshots.save(&snapshot).await?;
                    crash_point("consensus.raft.saved").await;
                }
                Ok(snapshot)
            };
            let _ = events.send(EngineEvent::SnapshotMade(making.await)).await;
        });
        self.making_snapshot = Some(task.abort_on_drop());
        Ok(())
    }

    pub(super) async fn snapshot_made(&mut self, snapshot: Snapshot) -> Result<(), Error> {
        self.making_snapshot = None;
        let index = snapshot.get_metadata().index;
        // Kept for the members that need it, and no longer.
        let is_wanted = self.node.raft.store().wanted.swap(false, Ordering::Relaxed);
        let is_lagging = |progress: &raft_rs::Progress| progress.matched < self.node.raft.raft_log.first_index();
        let is_lagging = self.is_leader() && self.node.raft.prs().iter().any(|(_, progress)| is_lagging(progress));
        if is_wanted || is_lagging {
            self.node.raft.mut_store().snapshot = Some(snapshot);
        }
        if index > self.snapshot_index {
            self.snapshot_index = index;
            if let Some(disk) = &mut self.disk {
                disk.remove_old(index).await?;
            }
            self.compact();
        }
        Ok(())
    }

    /// The crate must learn at once that a snapshot is applied: it looks for entries behind the applied index.
    pub(super) async fn installed(&mut self, number: u64) -> Result<(), Error> {
        if let Some(disk) = &mut self.disk {
            let durable = disk.syncing_all().run().await?;
            disk.synced(durable);
            self.synced(number);
        }
        self.node.advance_apply_to(self.applied);
        Ok(())
    }

    /// Replaces this node's state by a leader's snapshot.
    pub(super) async fn install(&mut self, snapshot: &Snapshot, hard: Option<&HardState>) -> Result<(), Error> {
        let metadata = snapshot.get_metadata();
        let (index, term) = (metadata.index, metadata.term);
        // A snapshot that cannot be decoded ends this node before it is on disk, so that the next start finds the old state.
        let (members, data) = parts_of(snapshot)?;
        let is_late = mutant(Mutant::InstallUnread);
        if !is_late && !mutant(Mutant::SkipRestore) {
            self.machine.restore(index, data.clone())?;
        }
        if let Some(disk) = &mut self.disk {
            crash_point("consensus.raft.installing").await;
            disk.snapshots().save(snapshot).await?;
            crash_point("consensus.raft.installed").await;
            let hard = hard.unwrap_or(&self.node.raft.store().hard);
            disk.restart(hard, index, term)?;
        }
        if is_late {
            self.machine.restore(index, data)?;
        }
        let storage = self.node.raft.mut_store();
        storage.restart(index, term);
        storage.members = metadata.get_conf_state().clone();
        self.members = members;
        (self.applied, self.applied_term, self.snapshot_index) = (index, term, index);
        self.bytes_since = 0;
        self.shared.applied.store(index, Ordering::Release);
        tracing::info!(node = self.options.node, index, "a Raft node takes over a snapshot");
        self.reconnect();
        Ok(())
    }
}
