//! Handles of listeners and links, as tasks hold them.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use super::super::ids::{Life, LinkId};
use super::super::timer::{Alarm, Sleep};
use super::super::world::{Core, World};
use super::{CONNECT_GIVE_UP, NetEvent};
use crate::rt::channel::Closed;
use crate::rt::context::Ambient;

/// A listener's handle.
pub(in crate::rt) struct Listener {
    world: Arc<World>,
    life: Life,
    address: String,
}

/// The sending half of an end.
pub(in crate::rt) struct LinkSender(Half);

/// The receiving half of an end.
pub(in crate::rt) struct LinkReceiver(Half);

struct Half {
    world: Arc<World>,
    link: LinkId,
    side: usize,
    life: Life,
}

fn halves(world: &Arc<World>, link: LinkId, side: usize, life: Life) -> (LinkSender, LinkReceiver) {
    let half = || Half { world: Arc::clone(world), link, side, life };
    (LinkSender(half()), LinkReceiver(half()))
}

pub(in crate::rt) fn listen(ambient: Ambient, address: &str) -> io::Result<Listener> {
    let Ambient { world, life } = ambient;
    world.with(|core| core.listen(address, life))?;
    Ok(Listener { world, life, address: address.to_owned() })
}

pub(in crate::rt) async fn connect(ambient: Ambient, address: &str) -> io::Result<(LinkSender, LinkReceiver)> {
    let Ambient { world, life } = ambient;
    let pause = |draw: fn(&mut Core) -> std::time::Duration| {
        let duration = world.with(draw);
        Sleep::for_duration(&world, duration)
    };
    pause(Core::message_delay).await;
    match world.with(|core| core.connect(life, address)) {
        Ok(link) => {
            // From here on dropping this future closes the link.
            let link = halves(&world, link, 0, life);
            pause(Core::message_delay).await;
            Ok(link)
        }
        Err(kind) => {
            if kind == io::ErrorKind::TimedOut {
                pause(|core| core.chance.duration(&CONNECT_GIVE_UP)).await;
            } else {
                pause(Core::message_delay).await;
            }
            Err(io::Error::new(kind, format!("no connection to {address}")))
        }
    }
}

impl Listener {
    pub(in crate::rt) async fn accept(&mut self) -> Result<(LinkSender, LinkReceiver), Closed> {
        std::future::poll_fn(|cx| {
            let accepted = self.world.with(|core| {
                if !core.is_alive(self.life) {
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
            accepted.map(|link| Ok(halves(&self.world, link?, 1, self.life)))
        })
        .await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.world.with(|core| {
            // After a crash the address may belong to a later life.
            if !core.is_alive(self.life) {
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
        let Half { world, link, side, life } = &self.0;
        let mut message = Some(message);
        std::future::poll_fn(|cx| {
            world.with(|core| {
                let alive = core.is_alive(*life);
                let Some(state) = core.net.links.get_mut(link) else { return Poll::Ready(Err(Closed)) };
                let end = &mut state.ends[*side];
                if !alive || end.broken || end.refused {
                    return Poll::Ready(Err(Closed));
                }
                if core.has_room(*link, *side) {
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
        let Half { world, link, side, life } = &self.0;
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

impl Core {
    /// The sending half of a side was dropped: what it sent still arrives, and then its farewell.
    fn sender_gone(&mut self, link: LinkId, side: usize) {
        let Some(state) = self.net.links.get_mut(&link) else { return };
        let end = &mut state.ends[side];
        if !std::mem::replace(&mut end.sender_gone, true) && !end.broken {
            self.launch(link, side, None);
        }
        self.forget_if_unused(link);
    }

    /// The receiving half of a side was dropped: the other side learns that nobody receives.
    fn receiver_gone(&mut self, link: LinkId, side: usize) {
        let Some(state) = self.net.links.get_mut(&link) else { return };
        let end = &mut state.ends[side];
        if !std::mem::replace(&mut end.receiver_gone, true) && !end.broken {
            end.inbox.clear();
            let delay = self.message_delay();
            self.after(delay, Alarm::Net(NetEvent::Refuse { link, side: 1 - side }));
        }
        self.forget_if_unused(link);
    }
}

impl Drop for LinkSender {
    fn drop(&mut self) {
        let Half { world, link, side, life } = &self.0;
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
        let Half { world, link, side, life } = &self.0;
        world.with(|core| {
            if core.is_alive(*life) {
                core.receiver_gone(*link, *side);
            }
        });
    }
}
