//! The rule for commit subjects: one line of at most 72 characters, in the imperative, and a body that says why.

use std::process::Command;

/// Commits up to this one are older than the rule.
const RULE_SINCE: &str = "eb1a7e5";
const SUBJECT_CHARACTERS_MAX: usize = 72;

/// Checks the commits since the rule. Where the history does not reach back so far, as in a shallow clone, the last one alone.
pub fn check() -> Result<(), String> {
    let range = format!("{RULE_SINCE}..HEAD");
    let commits = log(&[&range]).or_else(|_| log(&["-1"]))?;
    let broken: Vec<String> = commits.iter().filter_map(|(subject, body)| problem(subject, body)).collect();
    if broken.is_empty() { Ok(()) } else { Err(broken.join("; ")) }
}

/// Subjects and bodies.
fn log(arguments: &[&str]) -> Result<Vec<(String, String)>, String> {
    let mut command = Command::new("git");
    command.args(["log", "--no-merges", "--format=%s%x00%b%x01"]).args(arguments);
    let output = command.output().map_err(|error| format!("git log: {error}"))?;
    if !output.status.success() {
        return Err(format!("git log: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let commits = text.split('\u{1}').filter_map(|commit| commit.trim_start().split_once('\0'));
    Ok(commits.map(|(subject, body)| (subject.to_owned(), body.trim().to_owned())).collect())
}

fn problem(subject: &str, body: &str) -> Option<String> {
    let characters = subject.chars().count();
    let first = subject.split_whitespace().next().unwrap_or_default();
    // A prefix such as `consensus:` is not how subjects begin here, and verbs in other forms are no imperatives.
    let is_past = first.ends_with("ed") && first.len() > 5;
    let is_imperative = first.starts_with(|letter: char| letter.is_ascii_uppercase())
        && ![":", "ing"].iter().any(|ending| first.ends_with(ending))
        && !is_past;
    if characters > SUBJECT_CHARACTERS_MAX {
        return Some(format!("\"{subject}\" has {characters} characters, {SUBJECT_CHARACTERS_MAX} are allowed"));
    }
    if !is_imperative {
        return Some(format!("\"{subject}\" does not begin with an imperative such as \"Reject\""));
    }
    body.is_empty().then(|| format!("\"{subject}\" has no body that says why"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_short_imperatives_with_a_reason() {
        assert_eq!(problem("Reject a configuration that is too large", "It would take memory."), None);
        assert!(problem("Reject it", "").is_some());
        assert!(problem("Rejected it", "Why.").is_some());
        assert!(problem("consensus: reject it", "Why.").is_some());
        assert!(problem(&"Reject ".repeat(20), "Why.").is_some());
    }
}
