//! What remains of the simulated world in the product: types without values, so that the compiler removes every branch
//! that would run in a simulation.
//!
//! The modules of the runtime are written once, against the modules `context` and `simulation`. In the product both
//! names stand for this module: no thread is in a simulation, and nothing makes a [`World`], so that no function that
//! needs one is ever called.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use super::channel::Closed;
use super::task::TaskAborted;
use crate::collections::Map;
use crate::event::EventValue;

/// There is no simulated world.
pub(super) struct World(Infallible);

/// There is no node of a simulated world.
pub(super) struct Incarnation {
    pub(super) node: Infallible,
}

/// No thread is in a simulation.
pub(super) struct AmbientContext {
    pub(super) world: Arc<World>,
    pub(super) incarnation: Incarnation,
}

pub(super) const WALL_START_NANOS: u64 = 0;
pub(super) const BLOCKING_DELAY_MAX: Duration = Duration::ZERO;

/// Whether the caller runs inside a simulation: never in the product.
#[inline(always)]
pub const fn is_simulation() -> bool {
    false
}

#[inline(always)]
pub(super) const fn ambient() -> Option<AmbientContext> {
    None
}

#[inline(always)]
pub(super) const fn world() -> Option<Arc<World>> {
    None
}

#[inline(always)]
pub(crate) fn simulated_events<T>(_access: impl FnOnce(&mut Map<&'static str, EventValue>) -> T) -> Option<T> {
    None
}

impl World {
    pub(super) fn clock_of(&self, _node: Infallible) -> u64 {
        match self.0 {}
    }

    pub(super) fn fill_random(&self, _bytes: &mut [u8]) {
        match self.0 {}
    }
}

/// A directory, file, listener or half of a link of a simulation.
#[derive(Clone)]
pub(super) enum Absent {}

pub(super) type Directory = Absent;
pub(super) type File = Absent;
pub(super) type Listener = Absent;
pub(super) type LinkSender = Absent;
pub(super) type LinkReceiver = Absent;

pub(super) fn listen(ambient: AmbientContext, _address: &str) -> io::Result<Listener> {
    match ambient.incarnation.node {}
}

pub(super) async fn connect(ambient: AmbientContext, _address: &str) -> io::Result<(LinkSender, LinkReceiver)> {
    match ambient.incarnation.node {}
}

pub(super) async fn yield_once() {}

impl Absent {
    pub(super) async fn open(ambient: AmbientContext, _path: PathBuf) -> io::Result<Directory> {
        match ambient.incarnation.node {}
    }

    pub(super) fn path(&self) -> &Path {
        match *self {}
    }

    pub(super) fn list(&self) -> io::Result<Vec<String>> {
        match *self {}
    }

    pub(super) fn open_file(&self, _name: &str, _create: bool) -> io::Result<File> {
        match *self {}
    }

    pub(super) fn remove(&self, _name: &str) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        match *self {}
    }

    pub(super) fn read_at(&self, _offset: u64, _len: usize) -> io::Result<Bytes> {
        match *self {}
    }

    pub(super) fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn write_vectored_at(&self, _offset: u64, _parts: &[Bytes]) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn truncate(&self, _len: u64) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn try_lock(&self) -> io::Result<bool> {
        match *self {}
    }

    pub(super) async fn sync(&self) -> io::Result<()> {
        match *self {}
    }

    pub(super) async fn accept(&mut self) -> Result<(LinkSender, LinkReceiver), Closed> {
        match *self {}
    }

    pub(super) async fn send(&self, _message: Bytes) -> Result<(), Closed> {
        match *self {}
    }

    pub(super) async fn receive(&mut self) -> Result<Bytes, Closed> {
        match *self {}
    }
}

/// No task runs in a simulation.
pub(super) struct Task<T> {
    absent: Absent,
    output: std::marker::PhantomData<fn() -> T>,
}

pub(super) fn spawn<F: Future>(_: &Arc<World>, life: Incarnation, _future: F, _: &'static str) -> Task<F::Output> {
    match life.node {}
}

impl<T> Task<T> {
    pub(super) fn abort(&self) {
        match self.absent {}
    }

    pub(super) fn is_finished(&self) -> bool {
        match self.absent {}
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskAborted>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.absent {}
    }
}

/// Nothing waits for a simulated clock.
pub(super) struct Sleep(Absent);

impl Sleep {
    pub(super) fn until(_world: Arc<World>, node: Infallible, _deadline: u64) -> Sleep {
        match node {}
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        match self.0 {}
    }
}
