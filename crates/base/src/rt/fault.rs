//! Faults that tests inject into the code under test: the one registry of fail points and planted mistakes.
//!
//! * A **fault point** ([`fault_point`]) is a named place where a step may fail. [`hold_up`] delays a step, and
//!   [`crash_point`] crashes the node, at such a place. Names have the form `crate.module.step`. A simulation draws
//!   which points are hit, and counts how often each was reached and how often it was hit; a test of real processes
//!   activates one with [`inject_fault`].
//! * A **mutant** is a mistake that a test [plants](plant), to show that its checkers find it. A module declares its mutants
//!   with [`mutants!`](crate::mutants), and asks `mutant(Mutant::Name)` where the mistake would be made.
//!
//! All of it exists only where this crate is compiled with debug assertions: in the profiles `checks`, `dev` and `fuzz`. In the
//! product (`--release`) a fault point is the constant `false`, a delay is a future that is ready, `plant` and the names do not
//! exist, and nothing can switch a rule off ([ADR 36](../../../../docs/adr/0036-no-faults-in-the-product.md)). The list of all
//! points and mutants is [docs/faults.md](../../../../docs/faults.md); a test keeps it complete.

#[cfg(debug_assertions)]
pub use injected::{crash_point, fault_point, hold_up, hold_up_at_most, inject_fault, is_planted, plant, unplant};
#[cfg(not(debug_assertions))]
pub use product::{crash_point, fault_point, hold_up, hold_up_at_most};

/// In tests and simulations.
#[cfg(debug_assertions)]
mod injected {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use crate::rt::simulation::SimNode;
    use crate::rt::{context, random_below, sleep};

    /// The faults that a test of a whole process has requested; each happens once.
    static REQUESTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    /// Whether there are any.
    static HAS_REQUESTED: AtomicBool = AtomicBool::new(false);

    /// Whether a mutant was ever planted on any thread.
    static HAS_PLANTED: AtomicBool = AtomicBool::new(false);

    thread_local! {
        /// The mutant that is planted on this thread.
        static PLANTED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// A named place where a test may inject a fault: true when the caller is to behave as if the fault happened.
    ///
    /// A simulation counts how often each name was reached and how often it was injected. In the product this is the constant
    /// `false`.
    #[inline]
    pub fn fault_point(name: &'static str) -> bool {
        (context::is_simulation() && reached(name)) || (HAS_REQUESTED.load(Ordering::Relaxed) && take_requested(name))
    }

    #[cold]
    fn reached(name: &'static str) -> bool {
        context::world().is_some_and(|world| world.fault_point(name))
    }

    /// Has the fault of this name happen once in this process, where it is reached next. For tests of real processes;
    /// simulations inject their own.
    pub fn inject_fault(name: &str) {
        REQUESTED.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        HAS_REQUESTED.store(true, Ordering::Relaxed);
    }

    #[cold]
    fn take_requested(name: &str) -> bool {
        let mut asked = REQUESTED.lock().unwrap_or_else(PoisonError::into_inner);
        let place = asked.iter().position(|fault| fault == name);
        place.map(|place| asked.swap_remove(place)).is_some()
    }

    /// A fault point at which the step waits for `duration`, so that crashes and other nodes' steps fall between two steps. In
    /// the product this is a future that is ready.
    pub async fn hold_up(name: &'static str, duration: Duration) {
        if fault_point(name) {
            sleep(duration).await;
        }
    }

    /// As [`hold_up`], for a random time below `duration_max`.
    pub async fn hold_up_at_most(name: &'static str, duration_max: Duration) {
        if fault_point(name) {
            sleep(Duration::from_nanos(random_below(duration_max.as_nanos() as u64))).await;
        }
    }

    /// A fault point at which the caller's node crashes; this future then never completes. In the product, and outside
    /// simulations, it is ready.
    pub async fn crash_point(name: &'static str) {
        if fault_point(name)
            && let Some(node) = SimNode::current()
        {
            node.crash();
            std::future::pending::<()>().await;
        }
    }

    /// Plants the mutant of this full name on this thread, which runs whole simulations, in place of an earlier one. The `plant`
    /// of each module that [`mutants!`](crate::mutants) makes calls this.
    pub fn plant(mutant: &'static str) {
        HAS_PLANTED.store(true, Ordering::Relaxed);
        PLANTED.set(Some(mutant));
    }

    /// Removes the planted mutant if it is one of `module`: each module removes only its own.
    pub fn unplant(module: &str) {
        let of_planted = PLANTED.get().and_then(|name| name.rsplit_once('.'));
        if of_planted.is_some_and(|(its, _)| its == module) {
            PLANTED.set(None);
        }
    }

    /// Whether the mutant of this full name is planted on this thread.
    #[inline]
    pub fn is_planted(mutant: &str) -> bool {
        // First, since code that may not use thread-local variables has mutants too.
        HAS_PLANTED.load(Ordering::Relaxed) && is_planted_here(mutant)
    }

    /// A function of its own, so that the compiler does not read the variable before it is known to be needed.
    #[cold]
    #[inline(never)]
    fn is_planted_here(mutant: &str) -> bool {
        PLANTED.get().is_some_and(|planted| planted == mutant)
    }
}

/// In the product: constants, which the compiler removes together with the names.
#[cfg(not(debug_assertions))]
mod product {
    use std::future::{Ready, ready};
    use std::time::Duration;

    /// Never a fault.
    #[inline(always)]
    pub const fn fault_point(_name: &'static str) -> bool {
        false
    }

    /// Never a delay.
    #[inline(always)]
    pub fn hold_up(_name: &'static str, _duration: Duration) -> Ready<()> {
        ready(())
    }

    /// Never a delay.
    #[inline(always)]
    pub fn hold_up_at_most(_name: &'static str, _duration_max: Duration) -> Ready<()> {
        ready(())
    }

    /// Never a crash.
    #[inline(always)]
    pub fn crash_point(_name: &'static str) -> Ready<()> {
        ready(())
    }
}

/// Declares the mutants of a module: an enumeration `Mutant` with the variant `None` and one for each mistake, a function `plant`
/// for tests, and a function `mutant` for the module, which the product's compiler replaces by `false`.
///
/// A mutant's full name is the module's, a dot and the variant's. One mutant is planted on a thread at a time; `plant` replaces
/// that of any module, and `plant(Mutant::None)` removes only one of its own module.
///
/// ```
/// mod fault {
///     base::mutants! {
///         "till" {
///             /// A payment is counted twice.
///             CountTwice,
///         }
///     }
/// }
/// use fault::{Mutant, mutant, plant};
///
/// fn count(total: u64, payment: u64) -> u64 {
///     total + if mutant(Mutant::CountTwice) { 2 * payment } else { payment }
/// }
///
/// assert_eq!(count(1, 5), 6);
/// plant(Mutant::CountTwice);
/// assert_eq!(count(1, 5), 11, "the checker would see this");
/// plant(Mutant::None);
/// ```
#[cfg(debug_assertions)]
#[macro_export]
macro_rules! mutants {
    ($module:literal { $($(#[$doc:meta])* $name:ident),+ $(,)? }) => {
        /// A planted mistake. Only tests of the tests plant one.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant {
            /// None.
            None,
            $($(#[$doc])* $name,)+
        }

        /// Plants a mistake on this thread, on which a simulation runs whole.
        pub fn plant(mutant: Mutant) {
            match mutant {
                Mutant::None => $crate::rt::fault::unplant($module),
                $(Mutant::$name => $crate::rt::fault::plant(concat!($module, ".", stringify!($name))),)+
            }
        }

        /// Whether this mistake is planted.
        #[inline]
        pub(crate) fn mutant(mutant: Mutant) -> bool {
            match mutant {
                Mutant::None => false,
                $(Mutant::$name => $crate::rt::fault::is_planted(concat!($module, ".", stringify!($name))),)+
            }
        }
    };
}

/// Declares the mutants of a module. In the product none can be planted, and `mutant` is the constant `false`.
#[cfg(not(debug_assertions))]
#[macro_export]
macro_rules! mutants {
    ($module:literal { $($(#[$doc:meta])* $name:ident),+ $(,)? }) => {
        /// The names of planted mistakes. The product has none of the mistakes.
        #[derive(Clone, Copy)]
        pub enum Mutant {
            $($(#[$doc])* $name,)+
        }

        /// No mistake is planted.
        #[inline(always)]
        pub(crate) const fn mutant(_mutant: Mutant) -> bool {
            false
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    mod till {
        crate::mutants! {
            "base.till" {
                /// A payment is counted twice.
                CountTwice,
                /// A payment is not counted.
                Forget,
            }
        }
    }

    mod safe {
        crate::mutants! {
            "base.till.safe" {
                /// The door stays open.
                StayOpen,
            }
        }
    }

    #[test]
    fn a_fault_that_was_asked_for_happens_once_and_no_other_does() {
        assert!(!fault_point("base.test.asked"));
        inject_fault("base.test.asked");
        assert!(!fault_point("base.test.other"));
        assert!(fault_point("base.test.asked"));
        assert!(!fault_point("base.test.asked"));
    }

    #[test]
    fn one_mutant_is_planted_at_a_time_and_a_module_removes_only_its_own() {
        use till::Mutant;
        let planted =
            || [till::mutant(Mutant::CountTwice), till::mutant(Mutant::Forget), safe::mutant(safe::Mutant::StayOpen)];
        assert_eq!(planted(), [false; 3]);
        till::plant(Mutant::Forget);
        assert_eq!(planted(), [false, true, false]);
        assert!(!till::mutant(Mutant::None));
        safe::plant(safe::Mutant::None);
        assert_eq!(planted(), [false, true, false], "it is another module's");
        safe::plant(safe::Mutant::StayOpen);
        assert_eq!(planted(), [false, false, true]);
        till::plant(Mutant::None);
        assert_eq!(planted(), [false, false, true], "a module within is another one");
        safe::plant(safe::Mutant::None);
        assert_eq!(planted(), [false; 3]);
    }

    #[test]
    fn a_mutant_is_planted_on_its_own_thread_alone() {
        till::plant(till::Mutant::CountTwice);
        let elsewhere = std::thread::spawn(|| till::mutant(till::Mutant::CountTwice)).join();
        assert!(!elsewhere.expect("it does not panic"));
        till::plant(till::Mutant::None);
    }
}
