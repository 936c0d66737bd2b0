//! Which world the current thread is in.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::simulation::{Life, World};
use crate::collections::Map;
use crate::event::Value;

/// The simulation that the current thread runs, and the life of the node whose task it runs.
#[derive(Clone)]
pub(super) struct Ambient {
    pub(super) world: Arc<World>,
    pub(super) life: Life,
}

thread_local! {
    static AMBIENT: RefCell<Option<Ambient>> = const { RefCell::new(None) };
    /// Says whether `AMBIENT` is set: production pays for one load and no more.
    static SIMULATED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs inside a simulation.
#[inline]
pub fn is_simulation() -> bool {
    // A thread that is going down is in no simulation.
    SIMULATED.try_with(Cell::get).unwrap_or(false)
}

/// Where the caller is, when that is in a simulation.
#[inline]
pub(super) fn ambient() -> Option<Ambient> {
    if !is_simulation() {
        return None;
    }
    AMBIENT.with_borrow(Clone::clone)
}

/// The current simulation.
#[inline]
pub(super) fn world() -> Option<Arc<World>> {
    ambient().map(|ambient| ambient.world)
}

/// Makes a simulation the thread's world until the guard is dropped, which brings back what was before.
pub(super) fn enter(ambient: Ambient) -> Entered {
    SIMULATED.set(true);
    Entered { before: AMBIENT.replace(Some(ambient)) }
}

pub(super) struct Entered {
    before: Option<Ambient>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        SIMULATED.set(before.is_some());
        // What was set is dropped only after the cell is free again.
        let _replaced = AMBIENT.replace(before);
    }
}

/// Runs `access` on the event values of the current simulation; `None` outside of one.
#[inline]
pub(crate) fn simulated_events<T>(access: impl FnOnce(&mut Map<&'static str, Value>) -> T) -> Option<T> {
    world().map(|world| world.with_events(access))
}
