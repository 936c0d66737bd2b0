//! The task that changes the view: steps 5 to 11.

use std::sync::{Arc, PoisonError};

use base::ErrorKind;
use base::rt::channel::{OneshotReceiver, TryReceiveError, oneshot};
use base::rt::{self, AbortOnDrop};
use storage::Error;
use storage::node::{COPIES_MAX, ChannelCopy, View, ViewId};

use crate::attempts::Attempts;
use crate::build::{Prepared, build, prepare};
use crate::copies_core::{CopiesCore, CopiesState, Learner, Wish};
use crate::election::install_everywhere;
use crate::limits::KEEPER_PERIOD;
use crate::member::Member;

/// A task at one node, which ends when this is dropped.
struct NodeTask<T> {
    name: String,
    outcome: OneshotReceiver<Result<T, Error>>,
    _task: AbortOnDrop<()>,
}

impl<T: Send + 'static> NodeTask<T> {
    fn start(name: &str, work: impl Future<Output = Result<T, Error>> + Send + 'static) -> NodeTask<T> {
        let (done, outcome) = oneshot();
        let task = rt::spawn(async move {
            let _ = done.send(work.await);
        });
        NodeTask { name: name.to_owned(), outcome, _task: task.abort_on_drop() }
    }

    /// The outcome, if the task has ended.
    fn ended(&mut self) -> Option<Result<T, Error>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryReceiveError::Empty) => None,
            Err(TryReceiveError::Closed) => Some(Err(Error::Invalid("its task was ended"))),
        }
    }
}

/// Leaves lost copies out, builds missing ones and executes operators' requests, until the session fails or is dropped.
pub(crate) async fn keep(core: Arc<CopiesCore>) {
    let mut attempts = Attempts::default();
    // Probes of candidate nodes, and the build in progress.
    let (mut probes, mut building): (Vec<NodeTask<Prepared>>, Option<NodeTask<()>>) = (Vec::new(), None);
    // A node that an operator has added.
    let mut extra: Option<String> = None;
    while core.failure().is_none() {
        let _ = rt::timeout(KEEPER_PERIOD, core.work.notified()).await;
        if let Some(error) = fatal(&core) {
            return core.fail(error);
        }
        if leave_out_lost(&core, &mut attempts).await {
            continue;
        }
        let wishes = std::mem::take(&mut *core.wishes.lock().unwrap_or_else(PoisonError::into_inner));
        for wish in wishes {
            match wish {
                Wish::Add(name) => {
                    core.lock().dropped.remove(&name);
                    attempts.forget(&name);
                    extra = Some(name);
                }
                Wish::Drop(name) => {
                    core.lock().dropped.insert(name.clone());
                    extra = extra.filter(|added| *added != name);
                    let (is_learner, others) = {
                        let state = core.lock();
                        let is_learner = state.learner.as_ref().is_some_and(|learner| learner.member.name() == name);
                        (is_learner, state.members.iter().filter(|member| member.name() != name).count())
                    };
                    if is_learner || others > 0 {
                        leave_out(&core, &[name], &mut attempts).await;
                    }
                }
            }
        }
        if let Some(build) = building.take() {
            building = go_on_building(&core, build, &mut attempts).await;
        } else {
            let names = candidates(&core, extra.as_deref());
            probes.retain(|probe| names.contains(&probe.name));
            for name in names.iter().filter(|name| attempts.is_due(name)) {
                if probes.iter().all(|probe| probe.name != *name) {
                    let (core, at) = (Arc::clone(&core), name.clone());
                    probes.push(NodeTask::start(name, async move { prepare(&core, &at).await }));
                }
            }
            if let Some(prepared) = first_answer(&core, &mut probes, &mut attempts) {
                probes.clear();
                let name = prepared.name.clone();
                match begin_building(&core, prepared, &mut attempts).await {
                    Ok(build) => building = Some(build),
                    Err(error) => {
                        tracing::debug!(channel = core.channel, copy = name, %error, "a copy cannot be built yet");
                    }
                }
            }
        }
        if extra.as_ref().is_some_and(|name| core.lock().members.iter().any(|member| member.name() == name)) {
            extra = None;
        }
    }
}

/// The answer of the first node that has said what it has.
fn first_answer(core: &CopiesCore, probes: &mut Vec<NodeTask<Prepared>>, attempts: &mut Attempts) -> Option<Prepared> {
    let mut answer = None;
    probes.retain_mut(|probe| match probe.ended() {
        None => true,
        Some(Ok(prepared)) => {
            answer.get_or_insert(prepared);
            false
        }
        Some(Err(error)) => {
            tracing::debug!(channel = core.channel, copy = probe.name, %error, "a node does not say what it has");
            attempts.probe_failed(&probe.name);
            false
        }
    });
    answer
}

/// Looks after the copy that is being built. Returns it while it goes on.
async fn go_on_building(
    core: &Arc<CopiesCore>,
    mut build: NodeTask<()>,
    attempts: &mut Attempts,
) -> Option<NodeTask<()>> {
    let name = build.name.clone();
    let is_learner = core.lock().learner.as_ref().is_some_and(|learner| learner.member.name() == name);
    if !is_learner {
        // It was left out.
        return None;
    }
    match build.ended() {
        None => return Some(build),
        Some(Ok(())) if promote(core, attempts).await => {
            tracing::info!(channel = core.channel, copy = name, "a copy is complete");
            attempts.build_completed(&name);
        }
        // Another view is in force, and the node that failed was charged.
        Some(Ok(())) => {}
        Some(Err(error)) => {
            tracing::warn!(channel = core.channel, copy = name, %error, "a copy is not built");
            attempts.build_failed(&name);
            leave_out(core, std::slice::from_ref(&name), attempts).await;
        }
    }
    None
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
async fn leave_out_lost(core: &Arc<CopiesCore>, attempts: &mut Attempts) -> bool {
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
    names.iter().for_each(|name| attempts.build_failed(name));
    leave_out(core, &names, attempts).await;
    true
}

/// Makes a view without these copies. Leaves out further ones that fail meanwhile, until a view is in force.
async fn leave_out(core: &Arc<CopiesCore>, names: &[String], attempts: &mut Attempts) {
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
                attempts.build_failed(&failed);
                out.push(failed);
            }
        }
    }
}

/// The nodes at one of which a copy is to be built.
fn candidates(core: &CopiesCore, extra: Option<&str>) -> Vec<String> {
    let state = core.lock();
    let has = |name: &str| state.members.iter().any(|member| member.name() == name);
    let added = extra.filter(|name| !has(name) && state.members.len() < COPIES_MAX);
    let mut names: Vec<String> = added.map(str::to_owned).into_iter().collect();
    if state.members.len() < core.set.wanted.min(core.set.nodes.len()) {
        let free = core.set.nodes.iter().map(|node| &node.name).filter(|name| !has(name) && added != Some(name));
        names.extend(free.filter(|name| !state.dropped.contains(*name)).cloned());
    }
    names
}

/// Step 8, and the start of steps 9 and 10.
async fn begin_building(
    core: &Arc<CopiesCore>,
    prepared: Prepared,
    attempts: &mut Attempts,
) -> Result<NodeTask<()>, Error> {
    let name = prepared.name.clone();
    let members = core.lock().members.iter().map(|member| member.name().to_owned()).collect();
    if let Err((failed, error)) = core.change_view_with(members, Some(name.clone()), Some(prepared)).await {
        attempts.build_failed(&failed);
        if failed != name {
            // It has done nothing wrong, and is tried again after a short pause.
            attempts.probe_failed(&name);
            // Some members may have the view already.
            leave_out(core, &[name], attempts).await;
        }
        return Err(error);
    }
    let learner = match crate::build::open_learner(core, &name).await {
        Ok(learner) => Arc::new(learner),
        Err(error) => {
            attempts.build_failed(&name);
            leave_out(core, &[name], attempts).await;
            return Err(error);
        }
    };
    core.lock().learner = Some(Learner { member: Arc::clone(&learner), is_attached: false, private_rows: 0 });
    core.follow(&learner);
    Ok(NodeTask::start(&name, build(Arc::clone(core), learner)))
}

/// Step 11: makes the learner a member. Returns whether it is one now.
async fn promote(core: &Arc<CopiesCore>, attempts: &mut Attempts) -> bool {
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
            attempts.build_failed(&failed);
            leave_out(core, &[failed, learner.member.name().to_owned()], attempts).await;
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
