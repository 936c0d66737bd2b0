//! The handles through which a node's tasks use listeners and links of the simulated network.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use super::super::ids::{Incarnation, LinkId};
use super::super::timer::{Sleep, TimerAction};
use super::super::world::{World, WorldCore};
use super::{CONNECT_TIMEOUT, NetEvent};
use crate::rt::channel::Closed;
use crate::rt::context::AmbientContext;

/// A listener's handle.
pub(in crate::rt) struct Listener {
    world: Arc<World>,
    incarnation: Incarnation,
    address: String,
}

/// The sending half of an end.
pub(in crate::rt) struct LinkSender(LinkHalf);

/// The receiving half of an end.
pub(in crate::rt) struct LinkReceiver(LinkHalf);

struct LinkHalf {
    world: Arc<World>,
    link: LinkId,
    side: usize,
    life: Incarnation,
}

fn halves(world: &Arc<World>, link: LinkId, side: usize, life: Incarnation) -> (LinkSender, LinkReceiver) {
    let half = || LinkHalf { world: Arc::clone(world), link, side, life };
    (LinkSender(half()), LinkReceiver(half()))
}

pub(in crate::rt) fn listen(ambient: AmbientContext, address: &str) -> io::Result<Listener> {
    let AmbientContext { world, incarnation: life } = ambient;
    world.with(|core| core.listen(address, life))?;
    Ok(Listener { world, incarnation: life, address: address.to_owned() })
}

pub(in crate::rt) async fn connect(ambient: AmbientContext, address: &str) -> io::Result<(LinkSender, LinkReceiver)> {
    let AmbientContext { world, incarnation: life } = ambient;
    let pause = |draw: fn(&mut WorldCore) -> std::time::Duration| {
        let duration = world.with(draw);
        Sleep::for_duration(&world, duration)
    };
    pause(WorldCore::message_delay).await;
    match world.with(|core| core.connect(life, address)) {
        Ok(link) => {
            // From here on dropping this future closes the link.
            let link = halves(&world, link, 0, life);
            pause(WorldCore::message_delay).await;
            Ok(link)
        }
        Err(kind) => {
            if kind == io::ErrorKind::TimedOut {
                pause(|core| core.rng.duration(&CONNECT_TIMEOUT)).await;
            } else {
                pause(WorldCore::message_delay).await;
            }
            Err(io::Error::new(kind, format!("no connection to {address}")))
        }
    }
}

impl Listener {
    pub(in crate::rt) async fn accept(&mut self) -> Result<(LinkSender, LinkReceiver), Closed> {
        std::future::poll_fn(|cx| {
            let accepted = self.world.with(|core| {
                if !core.is_alive(self.incarnation) {
                    return Poll::Ready(Err(Closed));
                }
                let listener = core.net.listeners.get_mut(&self.address).ok_or(Closed);
                let listener = match listener {
                    Ok(listener) => listener,
                    Err(closed) => return Poll::Ready(Err(closed)),
                };
                match listener.backlog.pop_front() {
                    Some(link) => Poll::Ready(Ok(link)),
                    None => {
                        let replaced = listener.waker.replace(cx.waker().clone());
                        core.deferred.extend(replaced.filter(|waker| !waker.will_wake(cx.waker())));
                        Poll::Pending
                    }
                }
            });
            accepted.map(|link| Ok(halves(&self.world, link?, 1, self.incarnation)))
        })
        .await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.world.with(|core| {
            // After a crash the address may belong to a later incarnation.
            if !core.is_alive(self.incarnation) {
                return;
            }
            let listener = core.net.listeners.remove(&self.address);
            for link in listener.into_iter().flat_map(|listener| listener.backlog) {
                core.sender_gone(link, 1);
                core.receiver_gone(link, 1);
            }
        });
    }
}

impl LinkSender {
    pub(in crate::rt) async fn send(&self, message: Bytes) -> Result<(), Closed> {
        let LinkHalf { world, link, side, life } = &self.0;
        let mut message = Some(message);
        std::future::poll_fn(|cx| {
            world.with(|core| {
                let alive = core.is_alive(*life);
                let Some(state) = core.net.links.get_mut(link) else { return Poll::Ready(Err(Closed)) };
                let end = &mut state.ends[*side];
                if !alive || end.broken || end.refused {
                    return Poll::Ready(Err(Closed));
                }
                if core.has_capacity(*link, *side) {
                    core.launch(*link, *side, message.take());
                    return Poll::Ready(Ok(()));
                }
                let end = &mut core.net.links.get_mut(link).expect("the link was just seen").ends[*side];
                if !end.room_wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    end.room_wakers.push(cx.waker().clone());
                }
                Poll::Pending
            })
        })
        .await
    }
}

impl LinkReceiver {
    pub(in crate::rt) async fn receive(&mut self) -> Result<Bytes, Closed> {
        let LinkHalf { world, link, side, life } = &self.0;
        std::future::poll_fn(|cx| {
            world.with(|core| {
                let alive = core.is_alive(*life);
                let Some(state) = core.net.links.get_mut(link) else { return Poll::Ready(Err(Closed)) };
                let end = &mut state.ends[*side];
                if let Some(message) = end.inbox.pop_front() {
                    core.deferred.extend(std::mem::take(&mut state.ends[1 - side].room_wakers));
                    return Poll::Ready(Ok(message));
                }
                if !alive || end.broken || end.finished {
                    return Poll::Ready(Err(Closed));
                }
                let replaced = end.receive_waker.replace(cx.waker().clone());
                core.deferred.extend(replaced.filter(|waker| !waker.will_wake(cx.waker())));
                Poll::Pending
            })
        })
        .await
    }
}

impl WorldCore {
    /// The sending half of a side was dropped: the messages that it sent still arrive, and then the end of its stream.
    fn sender_gone(&mut self, link: LinkId, side: usize) {
        let Some(state) = self.net.links.get_mut(&link) else { return };
        let end = &mut state.ends[side];
        if !std::mem::replace(&mut end.sender_gone, true) && !end.broken {
            self.launch(link, side, None);
        }
        self.forget_if_unused(link);
    }

    /// The receiving half of a side was dropped: the other side learns that it receives no more.
    fn receiver_gone(&mut self, link: LinkId, side: usize) {
        let Some(state) = self.net.links.get_mut(&link) else { return };
        let end = &mut state.ends[side];
        if !std::mem::replace(&mut end.receiver_gone, true) && !end.broken {
            end.inbox.clear();
            let delay = self.message_delay();
            self.after(delay, TimerAction::Net(NetEvent::Refuse { link, side: 1 - side }));
        }
        self.forget_if_unused(link);
    }
}

impl Drop for LinkSender {
    fn drop(&mut self) {
        let LinkHalf { world, link, side, life } = &self.0;
        // A crash has already ended the links of its node.
        world.with(|core| {
            if core.is_alive(*life) {
                core.sender_gone(*link, *side);
            }
        });
    }
}

impl Drop for LinkReceiver {
    fn drop(&mut self) {
        let LinkHalf { world, link, side, life } = &self.0;
        world.with(|core| {
            if core.is_alive(*life) {
                core.receiver_gone(*link, *side);
            }
        });
    }
}
