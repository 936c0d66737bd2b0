//! Who gets an executor. Pure: it compares what a program says with what the role has.

use std::fmt;

use base::event::Counter;
use pushdown::{ProcessorFeatures, RELEASE, ROLE_VERSION, RoleHello, VERSION};

use crate::events;
use crate::settings::ExecutorsSettings;

/// What a program asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Applicant {
    /// The user that it runs as, or that owns executors of its host.
    pub(crate) owner: u32,
    /// The user that asks for a program of another host.
    pub(crate) relay: Option<u32>,
    pub(crate) hello: RoleHello,
    /// How many descriptors it has sent.
    pub(crate) descriptors: usize,
}

/// How many executors there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenExecutors {
    pub(crate) all: usize,
    pub(crate) of_owner: usize,
}

/// Why a program gets none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Stopping,
    Malformed(String),
    Version(u32),
    AreaVersion(u32),
    Release(String),
    Features(ProcessorFeatures),
    Owner(u32),
    Elsewhere(u32),
    Contexts { wanted: u32, most: u32 },
    OwnerFull { owner: u32, most: usize },
    Full { most: usize },
    Descriptors(usize),
    Area(&'static str),
    Socket(&'static str),
    Start(String),
}

impl Refusal {
    /// What counts it.
    pub(crate) fn counter(&self) -> &'static Counter {
        match self {
            Refusal::Stopping => &events::RefusedStopping,
            Refusal::Version(_) | Refusal::AreaVersion(_) | Refusal::Release(_) | Refusal::Features(_) => {
                &events::RefusedRelease
            }
            Refusal::Owner(_) | Refusal::Elsewhere(_) => &events::RefusedOwner,
            Refusal::OwnerFull { .. } | Refusal::Full { .. } => &events::RefusedFull,
            Refusal::Start(_) => &events::RefusedStart,
            Refusal::Malformed(_)
            | Refusal::Contexts { .. }
            | Refusal::Descriptors(_)
            | Refusal::Area(_)
            | Refusal::Socket(_) => &events::RefusedHello,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Stopping => write!(f, "the role is stopping; try again when it has started again"),
            Refusal::Malformed(what) => write!(f, "the hello is malformed: {what}"),
            Refusal::Version(theirs) => {
                let older = if *theirs < ROLE_VERSION { "library" } else { "role" };
                write!(
                    f,
                    "the library speaks version {theirs} and the role version {ROLE_VERSION}: upgrade the {older}"
                )
            }
            Refusal::AreaVersion(theirs) => {
                let older = if *theirs < VERSION { "library" } else { "role" };
                write!(f, "the library's area has version {theirs} and the executor's {VERSION}: upgrade the {older}")
            }
            Refusal::Release(theirs) => {
                write!(
                    f,
                    "the library is of release {theirs:?} and the role of {RELEASE}: use the same release of both"
                )
            }
            Refusal::Features(lacking) => write!(
                f,
                "this host's processors lack what the program may have chosen its instructions by: {lacking}. Run the \
                 program on a host whose processors have no more than these, or the role where they have it"
            ),
            Refusal::Owner(owner) => write!(
                f,
                "user {owner} may have no executors here: start the role with --owner {owner}, or with --any-owner"
            ),
            Refusal::Elsewhere(0) => {
                write!(
                    f,
                    "a program of another host cannot have executors of root: name another user for its organisation"
                )
            }
            Refusal::Elsewhere(relay) => {
                write!(f, "user {relay} may not ask for programs of other hosts: only the role's user and root may")
            }
            Refusal::Contexts { wanted, most } => write!(
                f,
                "{wanted} functions shall run at the same time, and the role allows {most}: set contexts in the options \
                 to at most {most}, or start the role with a larger --contexts"
            ),
            Refusal::OwnerFull { owner, most } => {
                write!(f, "user {owner} has {most} executors, as many as one owner may have (--per-owner)")
            }
            Refusal::Full { most } => {
                write!(f, "there are {most} executors, as many as there may be (--executors-max)")
            }
            Refusal::Descriptors(count) => {
                write!(f, "the hello has {count} descriptors, and not the two of area and socket")
            }
            Refusal::Area(problem) => write!(f, "the area {problem}"),
            Refusal::Socket(problem) => write!(f, "the executor's socket {problem}"),
            Refusal::Start(reason) => write!(f, "no executor can be started: {reason}"),
        }
    }
}

/// Whether a process that is to become this user would be root: the kernel means *no change* by the largest number.
fn is_root(user: u32) -> bool {
    user == 0 || user == u32::MAX
}

/// Whether a program gets an executor of a role that runs as user `own`, on a machine with these features.
///
/// # Errors
/// Why not.
pub(crate) fn admit(
    settings: &ExecutorsSettings,
    own: u32,
    features: ProcessorFeatures,
    applicant: &Applicant,
    open: OpenExecutors,
) -> Result<(), Refusal> {
    let Applicant { owner, relay, hello: RoleHello { version, area_version, contexts, .. }, .. } = *applicant;
    if version != ROLE_VERSION {
        return Err(Refusal::Version(version));
    }
    if area_version != VERSION {
        return Err(Refusal::AreaVersion(area_version));
    }
    if applicant.hello.release != RELEASE {
        return Err(Refusal::Release(applicant.hello.release.clone()));
    }
    if let Some(relay) = relay
        && (is_root(owner) || relay != 0 && relay != own)
    {
        return Err(Refusal::Elsewhere(if is_root(owner) { 0 } else { relay }));
    }
    let lacking = applicant.hello.features.lacking_in(features);
    if !lacking.is_empty() {
        return Err(Refusal::Features(lacking));
    }
    if !settings.owners.allows(owner, own) {
        return Err(Refusal::Owner(owner));
    }
    if applicant.descriptors != 2 {
        return Err(Refusal::Descriptors(applicant.descriptors));
    }
    if contexts == 0 || contexts > settings.contexts_max {
        return Err(Refusal::Contexts { wanted: contexts, most: settings.contexts_max });
    }
    if open.of_owner >= settings.per_owner_max {
        return Err(Refusal::OwnerFull { owner, most: settings.per_owner_max });
    }
    if open.all >= settings.executors_max {
        return Err(Refusal::Full { most: settings.executors_max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 7;
    const NONE: OpenExecutors = OpenExecutors { all: 0, of_owner: 0 };

    fn applicant() -> Applicant {
        Applicant { owner: OWN, relay: None, hello: hello(), descriptors: 2 }
    }

    fn hello() -> RoleHello {
        RoleHello { features: ProcessorFeatures::from_bits(0b1011), ..RoleHello::of_this_build(2) }
    }

    fn with(hello: RoleHello) -> Applicant {
        Applicant { hello, ..applicant() }
    }

    fn outcome(applicant: &Applicant, open: OpenExecutors) -> Result<(), Refusal> {
        let settings = ExecutorsSettings::new("socket".into(), "heddle-executor".into());
        admit(&settings, OWN, ProcessorFeatures::from_bits(0b1111), applicant, open)
    }

    #[test]
    fn a_program_of_this_release_gets_an_executor() {
        assert_eq!(outcome(&applicant(), NONE), Ok(()));
        for relay in [0, OWN] {
            assert_eq!(outcome(&Applicant { relay: Some(relay), ..applicant() }, NONE), Ok(()));
        }
    }

    #[test]
    fn each_thing_that_does_not_hold_is_refused_by_name() {
        for (changed, open, expected, named) in [
            (with(RoleHello { version: 9, ..hello() }), NONE, Refusal::Version(9), "upgrade the role"),
            (with(RoleHello { version: 0, ..hello() }), NONE, Refusal::Version(0), "upgrade the library"),
            (with(RoleHello { area_version: 1, ..hello() }), NONE, Refusal::AreaVersion(1), "upgrade the library"),
            (
                with(RoleHello { release: "9.9".to_owned(), ..hello() }),
                NONE,
                Refusal::Release("9.9".to_owned()),
                "same release",
            ),
            (
                with(RoleHello { features: ProcessorFeatures::from_bits(0b11_1000), ..hello() }),
                NONE,
                Refusal::Features(ProcessorFeatures::from_bits(0b11_0000)),
                "sse3, ssse3",
            ),
            (Applicant { owner: 8, ..applicant() }, NONE, Refusal::Owner(8), "--owner 8"),
            (
                Applicant { owner: 8, relay: Some(8), ..applicant() },
                NONE,
                Refusal::Elsewhere(8),
                "only the role's user and root",
            ),
            (Applicant { owner: 0, relay: Some(OWN), ..applicant() }, NONE, Refusal::Elsewhere(0), "executors of root"),
            (Applicant { owner: u32::MAX, relay: Some(0), ..applicant() }, NONE, Refusal::Elsewhere(0), "of root"),
            (Applicant { owner: 8, relay: Some(OWN), ..applicant() }, NONE, Refusal::Owner(8), "--owner 8"),
            (Applicant { descriptors: 0, ..applicant() }, NONE, Refusal::Descriptors(0), "0 descriptors"),
            (Applicant { descriptors: 3, ..applicant() }, NONE, Refusal::Descriptors(3), "3 descriptors"),
            (with(RoleHello { contexts: 5, ..hello() }), NONE, Refusal::Contexts { wanted: 5, most: 4 }, "allows 4"),
            (with(RoleHello { contexts: 0, ..hello() }), NONE, Refusal::Contexts { wanted: 0, most: 4 }, "0 functions"),
            (
                applicant(),
                OpenExecutors { all: 4, of_owner: 4 },
                Refusal::OwnerFull { owner: OWN, most: 4 },
                "--per-owner",
            ),
            (applicant(), OpenExecutors { all: 16, of_owner: 0 }, Refusal::Full { most: 16 }, "--executors-max"),
        ] {
            let refusal = outcome(&changed, open).expect_err("it does not hold");
            assert_eq!(refusal, expected);
            assert!(refusal.to_string().contains(named), "{refusal}");
        }
    }

    #[test]
    fn root_has_executors_of_any_role() {
        assert_eq!(outcome(&Applicant { owner: 0, ..applicant() }, NONE), Ok(()));
    }
}
