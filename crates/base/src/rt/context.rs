//! The world (production or one simulation) to which the current thread belongs.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::simulation::{Incarnation, World};
use crate::collections::Map;
use crate::event::EventValue;

/// The simulation that the current thread runs, and the incarnation of the node whose task it runs.
#[derive(Clone)]
pub(super) struct AmbientContext {
    pub(super) world: Arc<World>,
    pub(super) incarnation: Incarnation,
}

thread_local! {
    static AMBIENT: RefCell<Option<AmbientContext>> = const { RefCell::new(None) };
    /// Whether `AMBIENT` is set: production pays only for one load.
    static SIMULATED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs inside a simulation.
#[inline]
pub fn is_simulation() -> bool {
    // A thread that is ending is in no simulation.
    SIMULATED.try_with(Cell::get).unwrap_or(false)
}

/// The caller's simulation and node, if it is in a simulation.
#[inline]
pub(super) fn ambient() -> Option<AmbientContext> {
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

/// Makes a simulation the thread's world until the guard is dropped, which restores the previous one.
pub(super) fn enter(ambient: AmbientContext) -> ContextGuard {
    SIMULATED.set(true);
    ContextGuard { before: AMBIENT.replace(Some(ambient)) }
}

pub(super) struct ContextGuard {
    before: Option<AmbientContext>,
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        let before = self.before.take();
        SIMULATED.set(before.is_some());
        // The old value is dropped only after the cell is free again.
        let _replaced = AMBIENT.replace(before);
    }
}

/// Runs `access` on the event values of the current simulation; `None` outside one.
#[inline]
pub(crate) fn simulated_events<T>(access: impl FnOnce(&mut Map<&'static str, EventValue>) -> T) -> Option<T> {
    world().map(|world| world.with_events(access))
}
