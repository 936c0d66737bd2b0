//! Work permits: which follower gets a work item, and whose answer counts ([`super::work`]).

use std::sync::Arc;
use std::time::Duration;

use base::rt::channel::{OneshotReceiver, oneshot};
use base::{Bytes, rt};

use super::follower_table::{FollowerEntry, FollowerTable};
use crate::events;
use crate::fault::{Mutant, mutant};
use crate::followers::message::{ToFollower, WORK_VERSION_MIN};
use crate::followers::work::WORK_ITEM_BYTES_MAX;
use crate::lease::FollowerId;

/// What a work item in flight adds to the load that a follower has reported, in percent.
const WORK_ITEM_PERCENT: u32 = 20;

impl FollowerTable {
    /// A work permit for an item at this height, at a trusted follower with at most this load ([`crate::followers::work`]).
    pub fn work_permit(
        self: &Arc<Self>,
        load_max: u8,
        height: u64,
        trusts: &dyn Fn(&str) -> bool,
    ) -> Option<WorkPermit> {
        if !self.any() {
            return None;
        }
        let now = rt::now();
        let mut guard = self.state();
        let state = &mut *guard;
        let is_fit = |holder: &FollowerId, member: &FollowerEntry| {
            member.version >= WORK_VERSION_MIN
                && !member.announced.is_draining
                && member.load.percent <= load_max
                && member.work_items.have_capacity(now)
                && trusts(&member.name)
                && state.live_until(*holder, now).is_some()
        };
        let fit = state.members.iter().filter(|(holder, member)| is_fit(holder, member));
        let (holder, load) =
            fit.map(|(holder, member)| (*holder, member.expected_load())).min_by_key(|(_, load)| *load)?;
        state.asked += 1;
        let (number, position) = (state.asked, state.sequence);
        let member = state.members.get_mut(&holder).expect("it is one of them");
        member.work_items.open(number, position, height);
        let (name, processors) = (Arc::clone(&member.name), member.announced.processors.as_str().into());
        Some(WorkPermit {
            followers: Arc::clone(self),
            follower: holder,
            name,
            number,
            load,
            processors,
            has_failed: false,
        })
    }

    /// Sends a work item under its permit; `None` if the follower has left.
    pub(super) fn send_work(
        &self,
        holder: FollowerId,
        number: u64,
        piece: Bytes,
    ) -> Option<OneshotReceiver<Option<Bytes>>> {
        let mut state = self.state();
        let member = state.members.get_mut(&holder)?;
        let (answer, answered) = oneshot();
        let height = member.work_items.sent(number, answer)?;
        member.updates.try_send(ToFollower::Work { number, height, item: piece }.encode().into()).ok()?;
        Some(answered)
    }

    /// Takes a follower's answer to a work item.
    pub(super) fn work_done(&self, follower: FollowerId, number: u64, height: u64, answer: Bytes) {
        let mut state = self.state();
        let is_live = state.live_until(follower, rt::now()).is_some();
        let Some(member) = state.members.get_mut(&follower) else { return };
        let is_in_fold = is_live || mutant(Mutant::CountLapsed);
        member.work_items.done(number, height, answer, is_in_fold, member.acked);
    }

    pub(super) fn close_work(&self, follower: FollowerId, number: u64, has_failed: bool) {
        if let Some(member) = self.state().members.get_mut(&follower) {
            member.work_items.close(number, has_failed);
        }
    }
}

/// A work permit at one follower, until it is dropped.
pub struct WorkPermit {
    followers: Arc<FollowerTable>,
    follower: FollowerId,
    name: Arc<str>,
    number: u64,
    load: u32,
    processors: Arc<str>,
    has_failed: bool,
}

impl FollowerEntry {
    /// How busy its cores are in percent, with the items in flight, which the last report may not contain.
    fn expected_load(&self) -> u32 {
        u32::from(self.load.percent) + WORK_ITEM_PERCENT * self.work_items.count() as u32
    }
}

impl WorkPermit {
    /// How busy the follower was when it got the permit: its cores in percent, and more for each item that it had.
    pub fn load(&self) -> u32 {
        self.load
    }

    /// The follower's name: the one that its link proved, or else one that it has until it joins again.
    pub fn follower(&self) -> &Arc<str> {
        &self.name
    }

    /// The name of the follower's processors.
    pub fn processors(&self) -> &str {
        &self.processors
    }

    /// Has the follower do a work item of at most [`WORK_ITEM_BYTES_MAX`] bytes, and waits that long for its answer.
    pub async fn work(mut self, item: Bytes, timeout: Duration) -> Option<Bytes> {
        assert!(item.len() <= WORK_ITEM_BYTES_MAX, "work items are bounded");
        let answer = match self.followers.send_work(self.follower, self.number, item) {
            Some(answer) => rt::timeout(timeout, answer).await.ok().and_then(Result::ok).flatten(),
            None => None,
        };
        self.has_failed = answer.is_none();
        if self.has_failed { &events::WorkItemsFailed } else { &events::WorkItemsDone }.add(1);
        answer
    }
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        self.followers.close_work(self.follower, self.number, self.has_failed);
    }
}
