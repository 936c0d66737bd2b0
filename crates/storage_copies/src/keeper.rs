//! The task that changes the view: steps 5 to 11.

use std::sync::{Arc, PoisonError};

use base::ErrorKind;
use base::rt::channel::{OneshotReceiver, TryReceiveError, oneshot};
use base::rt::{self, AbortOnDrop, Backoff};
use storage::Error;
use storage::node::{COPIES_MAX, ChannelCopy, View, ViewId};

use crate::build::{Prepared, build, prepare};
use crate::copies_core::{CopiesCore, CopiesState, Learner, Wish};
use crate::election::install_everywhere;
use crate::limits::{KEEPER_PERIOD, LEARN_PAUSES};
use crate::member::Member;

/// A learner, and the task that builds it.
struct Building {
    name: String,
    outcome: OneshotReceiver<Result<(), Error>>,
    _task: AbortOnDrop<()>,
}

impl Building {
    /// The outcome, if the task has ended.
    fn ended(&mut self) -> Option<Result<(), Error>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryReceiveError::Empty) => None,
            Err(TryReceiveError::Closed) => Some(Err(Error::Invalid("the task that built it was ended"))),
        }
    }
}

/// Leaves lost copies out, builds missing ones and executes operators' requests, until the session fails or is dropped.
pub(crate) async fn keep(core: Arc<CopiesCore>) {
    let mut backoff = Backoff::new(LEARN_PAUSES.0, LEARN_PAUSES.1);
    let (mut building, mut next_try): (Option<Building>, _) = (None, rt::now());
    // The node to try next, and a node that an operator has added.
    let (mut turn, mut extra): (usize, Option<String>) = (0, None);
    while core.failure().is_none() {
        let _ = rt::timeout(KEEPER_PERIOD, core.work.notified()).await;
        if let Some(error) = fatal(&core) {
            return core.fail(error);
        }
        if leave_out_lost(&core).await {
            continue;
        }
        let wishes = std::mem::take(&mut *core.wishes.lock().unwrap_or_else(PoisonError::into_inner));
        for wish in wishes {
            match wish {
                Wish::Add(name) => {
                    core.lock().dropped.remove(&name);
                    (extra, next_try) = (Some(name), rt::now());
                }
                Wish::Drop(name) => {
                    core.lock().dropped.insert(name.clone());
                    let (is_learner, others) = {
                        let state = core.lock();
                        let is_learner = state.learner.as_ref().is_some_and(|learner| learner.member.name() == name);
                        (is_learner, state.members.iter().filter(|member| member.name() != name).count())
                    };
                    if is_learner || others > 0 {
                        leave_out(&core, &[name]).await;
                    }
                }
            }
        }
        if let Some(current) = &mut building {
            let is_learner = core.lock().learner.as_ref().is_some_and(|learner| learner.member.name() == current.name);
            if !is_learner {
                // It was left out.
                building = None;
                next_try = rt::now() + backoff.next_pause();
            } else if let Some(outcome) = current.ended() {
                let name = current.name.clone();
                building = None;
                match outcome {
                    Ok(()) if promote(&core).await => {
                        tracing::info!(channel = core.channel, copy = name, "a copy is complete");
                        backoff = Backoff::new(LEARN_PAUSES.0, LEARN_PAUSES.1);
                        if extra.as_ref() == Some(&name) {
                            extra = None;
                        }
                    }
                    Ok(()) => next_try = rt::now() + backoff.next_pause(),
                    Err(error) => {
                        tracing::warn!(channel = core.channel, copy = name, %error, "a copy is not built");
                        leave_out(&core, &[name]).await;
                        next_try = rt::now() + backoff.next_pause();
                    }
                }
            }
            continue;
        }
        if rt::now() >= next_try
            && let Some(name) = candidate(&core, extra.as_deref(), &mut turn)
        {
            next_try = rt::now() + backoff.next_pause();
            match begin_building(&core, &name).await {
                Ok(begun) => building = Some(begun),
                Err(error) => {
                    tracing::debug!(channel = core.channel, copy = name, %error, "a copy cannot be built yet")
                }
            }
        }
    }
}

/// The error after which this primary cannot go on.
fn fatal(core: &CopiesCore) -> Option<Error> {
    let members = core.members();
    let fenced = members.iter().find_map(|member| member.fatal());
    // The last copy cannot be left out.
    let last = || match &members[..] {
        [only] => only.lasting(),
        _ => None,
    };
    fenced.or_else(last)
}

/// Step 7: leaves lost copies out. Returns whether there were any.
async fn leave_out_lost(core: &Arc<CopiesCore>) -> bool {
    let (members, learner) = {
        let state = core.lock();
        (state.members.clone(), state.learner.clone())
    };
    let lost = |member: &Arc<Member>| {
        let trouble = member.trouble()?;
        tracing::warn!(channel = core.channel, copy = member.name(), trouble, "a copy is lost");
        Some(member.name().to_owned())
    };
    let mut names: Vec<String> = if members.len() > 1 { members.iter().filter_map(lost).collect() } else { Vec::new() };
    // If all seem lost, the fault is more likely at this node. One of them stays in any case.
    if names.len() == members.len() {
        names.remove(0);
    }
    names.extend(learner.iter().filter_map(|learner| lost(&learner.member)));
    if names.is_empty() {
        return false;
    }
    leave_out(core, &names).await;
    true
}

/// Makes a view without these copies. Leaves out further ones that fail meanwhile, until a view is in force.
async fn leave_out(core: &Arc<CopiesCore>, names: &[String]) {
    let mut out: Vec<String> = names.to_vec();
    while core.failure().is_none() {
        let (kept, learner): (Vec<String>, Option<String>) = {
            let state = core.lock();
            let kept = state.members.iter().map(|member| member.name().to_owned()).filter(|name| !out.contains(name));
            let learner = state.learner.as_ref().map(|learner| learner.member.name().to_owned());
            (kept.collect(), learner.filter(|name| !out.contains(name)))
        };
        if kept.is_empty() {
            // No member answers. The channel waits until one is back.
            rt::sleep(KEEPER_PERIOD).await;
            let members = core.members();
            out.retain(|name| members.iter().all(|member| member.name() != name));
            continue;
        }
        match core.change_view(kept, learner).await {
            Ok(()) => return,
            Err((failed, error)) => {
                tracing::warn!(channel = core.channel, copy = failed, %error, "a copy does not take over a view");
                out.push(failed);
            }
        }
    }
}

/// The node at which a copy is to be built next.
fn candidate(core: &CopiesCore, extra: Option<&str>, turn: &mut usize) -> Option<String> {
    let state = core.lock();
    let has = |name: &str| state.members.iter().any(|member| member.name() == name);
    if let Some(name) = extra.filter(|name| !has(name)) {
        return (state.members.len() < COPIES_MAX).then(|| name.to_owned());
    }
    if state.members.len() >= core.set.wanted.min(core.set.nodes.len()) {
        return None;
    }
    let free: Vec<_> =
        core.set.nodes.iter().filter(|node| !has(&node.name) && !state.dropped.contains(&node.name)).collect();
    *turn += 1;
    Some(free.get(*turn % free.len().max(1))?.name.clone())
}

/// Step 8, and the start of steps 9 and 10.
async fn begin_building(core: &Arc<CopiesCore>, name: &str) -> Result<Building, Error> {
    let prepared = prepare(core, name).await?;
    let members = core.lock().members.iter().map(|member| member.name().to_owned()).collect();
    if let Err((failed, error)) = core.change_view_with(members, Some(name.to_owned()), Some(prepared)).await {
        if failed != name {
            // Some members may have the view already.
            leave_out(core, &[name.to_owned()]).await;
        }
        return Err(error);
    }
    let learner = match crate::build::open_learner(core, name).await {
        Ok(learner) => Arc::new(learner),
        Err(error) => {
            leave_out(core, &[name.to_owned()]).await;
            return Err(error);
        }
    };
    core.lock().learner = Some(Learner { member: Arc::clone(&learner), is_attached: false, private_rows: 0 });
    core.follow(&learner);
    let (done, outcome) = oneshot();
    let (building, name) = (build(Arc::clone(core), learner), name.to_owned());
    let task = rt::spawn(async move {
        let _ = done.send(building.await);
    });
    Ok(Building { name, outcome, _task: task.abort_on_drop() })
}

/// Step 11: makes the learner a member. Returns whether it is one now.
async fn promote(core: &Arc<CopiesCore>) -> bool {
    let (mut members, learner) = {
        let state = core.lock();
        let members: Vec<String> = state.members.iter().map(|member| member.name().to_owned()).collect();
        (members, state.learner.clone())
    };
    let Some(learner) = learner else { return false };
    members.push(learner.member.name().to_owned());
    match core.change_view(members, None).await {
        Ok(()) => true,
        Err((failed, error)) => {
            tracing::warn!(channel = core.channel, copy = failed, %error, "a copy does not take over a view");
            leave_out(core, &[failed, learner.member.name().to_owned()]).await;
            false
        }
    }
}

impl CopiesCore {
    /// Steps 5 and 6: puts a view of these members and this learner in force.
    ///
    /// # Errors
    /// The copy that failed, and why. The caller must then make another view.
    pub async fn change_view(&self, members: Vec<String>, learner: Option<String>) -> Result<(), (String, Error)> {
        self.change_view_with(members, learner, None).await
    }

    async fn change_view_with(
        &self,
        members: Vec<String>,
        learner: Option<String>,
        new_learner: Option<Prepared>,
    ) -> Result<(), (String, Error)> {
        let copy = |is_learner| move |name: &String| ChannelCopy { name: name.clone(), is_learner };
        let copies: Vec<_> = members.iter().map(copy(false)).chain(learner.iter().map(copy(true))).collect();
        let (number, in_force) = {
            let mut state = self.lock();
            state.attempted += 1;
            (state.attempted, state.view.clone())
        };
        let view = View { id: ViewId { number, epoch: self.epoch }, copies };
        // Copies that are new in the view come first: `install_everywhere` follows this order.
        let mut order = view.clone();
        order.copies.sort_by_key(|copy| in_force.is_member(&copy.name));
        let installed = match rt::fault_point("storage.copies.mutant.view_not_durable") {
            // The mutant of the simulation: the view counts and no node has it.
            true => Ok(()),
            false => self.install(&view, &order, new_learner).await,
        };
        if let Err((name, error)) = installed {
            if error.kind() == ErrorKind::Fenced {
                self.fail(error.clone());
            }
            return Err((name, error));
        }
        self.enter(view);
        Ok(())
    }

    async fn install(&self, view: &View, order: &View, new: Option<Prepared>) -> Result<(), (String, Error)> {
        if let Some(prepared) = new {
            let name = prepared.name.clone();
            prepared.install(self, view).await.map_err(|error| (name, error))?;
        }
        install_everywhere(&self.set, &self.channel, self.epoch, view, order).await
    }

    /// Takes over a view that is in force.
    fn enter(&self, view: View) {
        let mut left_out = Vec::new();
        {
            let mut state = self.lock();
            let CopiesState { members, learner, .. } = &mut *state;
            members.retain(|member| {
                let stays = view.is_member(member.name());
                if !stays {
                    left_out.push(Arc::clone(member));
                }
                stays
            });
            if let Some(known) = learner.take() {
                match view.copy(known.member.name()) {
                    None => left_out.push(known.member),
                    Some(copy) if copy.is_learner => *learner = Some(known),
                    Some(_) => members.push(known.member),
                }
            }
            state.view = view;
        }
        left_out.iter().for_each(|member| member.left_out.cancel());
        self.advance();
    }
}
