//! Reads and writes fault plans as text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::super::clock::CLOCK_DRIFT_PPM_MAX;
use super::{Fault, FaultPlan, FaultStep};

/// The text is not a valid plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{problem} in the step {step:?}")]
pub struct ParsePlanError {
    /// The step.
    pub step: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Units from small to large; a time is written in the largest that divides it.
const UNITS: [(&str, u64); 5] =
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000)];

impl FaultPlan {
    /// Parses a plan.
    ///
    /// # Errors
    /// Names the step that is wrong, and why.
    pub fn parse(text: &str) -> Result<FaultPlan, ParsePlanError> {
        text.parse()
    }
}

impl FromStr for FaultPlan {
    type Err = ParsePlanError;

    fn from_str(text: &str) -> Result<FaultPlan, ParsePlanError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let steps = lines.flat_map(|line| line.split(';')).map(str::trim).filter(|step| !step.is_empty());
        let parse = |step: &str| {
            parse_step(step).map_err(|problem| ParsePlanError { step: step.to_owned(), problem: problem.to_owned() })
        };
        Ok(FaultPlan { steps: steps.map(parse).collect::<Result<_, _>>()? })
    }
}

fn parse_step(step: &str) -> Result<FaultStep, &'static str> {
    let words: Vec<&str> = step.split_whitespace().collect();
    let ["at", at, words @ ..] = words.as_slice() else { return Err("no `at <time>` at the start") };
    let at = parse_time(at)?;
    let (words, lasting) = match words {
        [words @ .., "for", lasting] => (words, Some(parse_time(lasting)?)),
        words => (words, None),
    };
    let one = |node: &str| node.to_owned();
    let fault = match words {
        ["crash", node] => Fault::Crash(one(node)),
        ["restart", node] => Fault::Restart(one(node)),
        ["pause", node] => Fault::Pause(one(node)),
        ["resume", node] => Fault::Resume(one(node)),
        ["cut", a, b] => Fault::Cut(one(a), one(b)),
        ["mute", a, b] => Fault::Mute(one(a), one(b)),
        ["heal", a, b] => Fault::Heal(one(a), one(b)),
        ["break", a, b] => Fault::Break(one(a), one(b)),
        ["fill", node] => Fault::Fill(one(node)),
        ["free", node] => Fault::Free(one(node)),
        ["fail", node] => Fault::Fail(one(node)),
        ["mend", node] => Fault::Mend(one(node)),
        ["rot", node] => Fault::Rot(one(node)),
        ["drift", node, ppm] => Fault::Drift(one(node), parse_drift(ppm)?),
        _ => return Err("no such fault, or not as many nodes as it takes,"),
    };
    if lasting.is_some() && fault.undone_by().is_none() {
        return Err("`for` after a fault that nothing undoes");
    }
    Ok(FaultStep { at, fault, lasting })
}

fn parse_drift(text: &str) -> Result<i64, &'static str> {
    let within = |ppm: &i64| (-CLOCK_DRIFT_PPM_MAX..=CLOCK_DRIFT_PPM_MAX).contains(ppm);
    text.parse().ok().filter(within).ok_or("a drift that is no number of millionths within ten thousand")
}

fn parse_time(text: &str) -> Result<Duration, &'static str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "a time without a number")?;
    let unit = UNITS.iter().find(|(name, _)| *name == unit).ok_or("a time without a unit of ns, us, ms, s, m")?;
    let nanos = number.checked_mul(unit.1).ok_or("a time that is too long")?;
    Ok(Duration::from_nanos(nanos))
}

fn write_time(f: &mut fmt::Formatter<'_>, time: Duration) -> fmt::Result {
    let nanos = super::super::timer::nanos_of(time);
    let fits = |(_, size): &&(&str, u64)| nanos.is_multiple_of(*size);
    let (unit, size) = UNITS.iter().rev().find(fits).expect("every time is a whole number of nanoseconds");
    write!(f, "{}{unit}", nanos / size)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Crash(node) => write!(f, "crash {node}"),
            Fault::Restart(node) => write!(f, "restart {node}"),
            Fault::Pause(node) => write!(f, "pause {node}"),
            Fault::Resume(node) => write!(f, "resume {node}"),
            Fault::Cut(a, b) => write!(f, "cut {a} {b}"),
            Fault::Mute(a, b) => write!(f, "mute {a} {b}"),
            Fault::Heal(a, b) => write!(f, "heal {a} {b}"),
            Fault::Break(a, b) => write!(f, "break {a} {b}"),
            Fault::Fill(node) => write!(f, "fill {node}"),
            Fault::Free(node) => write!(f, "free {node}"),
            Fault::Fail(node) => write!(f, "fail {node}"),
            Fault::Mend(node) => write!(f, "mend {node}"),
            Fault::Rot(node) => write!(f, "rot {node}"),
            Fault::Drift(node, ppm) => write!(f, "drift {node} {ppm}"),
        }
    }
}

impl fmt::Display for FaultStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("at ")?;
        write_time(f, self.at)?;
        write!(f, " {}", self.fault)?;
        if let Some(lasting) = self.lasting {
            f.write_str(" for ")?;
            write_time(f, lasting)?;
        }
        Ok(())
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.steps.iter().enumerate() {
            write!(f, "{}{step}", if place > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FaultKind, FaultPlanLimits};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_plan_reads_as_it_is_written() {
        let text = "at 3s crash peer1 for 1500ms # the primary\n\nat 5s cut orderer peer2; at 61s heal orderer peer2";
        let plan = FaultPlan::parse(text).expect("the plan is well formed");
        assert_eq!(
            plan.to_string(),
            "at 3s crash peer1 for 1500ms; at 5s cut orderer peer2; at 61s heal orderer peer2"
        );
        let times: Vec<u128> = plan.timeline().iter().map(|(at, _)| at.as_millis()).collect();
        assert_eq!(times, [3000, 4500, 5000, 61000]);
        assert_eq!(plan.timeline()[1].1, Fault::Restart("peer1".into()));
    }

    #[test]
    fn a_wrong_step_is_named_with_its_problem() {
        for (text, problem) in [
            ("crash peer1", "no `at"),
            ("at soon crash peer1", "without a number"),
            ("at 3 crash peer1", "without a unit"),
            ("at 3s explode peer1", "no such fault"),
            ("at 3s cut peer1", "not as many nodes"),
            ("at 3s rot peer1 for 1s", "nothing undoes"),
            ("at 3s drift peer1 10001", "millionths"),
            ("at 3s drift peer1 0 for 1s", "nothing undoes"),
            ("at 99999999999999999999s rot peer1", "without a number"),
            ("at 9999999999999999999s rot peer1", "too long"),
        ] {
            let error = FaultPlan::parse(&format!("at 1s crash a; {text}")).expect_err(text);
            assert!(error.problem.contains(problem) && error.step == text, "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn random_plans_round_trip_through_text(seed: u64) {
            let nodes = ["a", "b", "c"].map(String::from).to_vec();
            let kinds = [FaultPlanLimits::default().kinds, vec![FaultKind::Drift; 2]].concat();
            let plan = FaultPlan::random(seed, &FaultPlanLimits { nodes, kinds, ..FaultPlanLimits::default() });
            prop_assert_eq!(FaultPlan::parse(&plan.to_string()), Ok(plan));
        }

        #[test]
        fn no_text_panics(text in "[ -~\n]{0,80}") {
            let _ = FaultPlan::parse(&text);
        }
    }
}
