//! The attacks. Each runs as a separate process: `attack run NAME`.
//!
//! An attack has a **pace**: a number of units per second, which the [list of attacks](all) states. Before Heddle had
//! admission control, this pace broke it, or nearly broke it. When several attacks share a processor, a factor reduces
//! their paces. Each unit begins on time, whatever happened to earlier units, so a server that makes the attacker wait
//! does not slow the attack down.
//!
//! An attack **succeeds** if a newcomer at the same port is not served in time, if a process dies or grows beyond its
//! bound, if the network does not commit afterwards, or if the attack obtains something that it must not have (a
//! [`Breach`]).

mod amplification;
mod catalogue;
mod certificates;
mod connections;
mod definition;
mod followers;
mod frames;
mod memory;
mod messages;
mod streams;

pub use catalogue::all;
pub use definition::{Attack, AttackContext, Breach, run};

use definition::{CONNECT_TIME_MAX, attack, hold, unless_stalled};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_have_names_of_their_own_and_a_port() {
        let mut names: Vec<&str> = all().iter().map(|attack| attack.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(all().iter().all(|attack| !attack.kinds.is_empty() && attack.pace > 0.0));
    }
}
