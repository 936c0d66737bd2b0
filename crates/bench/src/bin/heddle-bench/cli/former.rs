//! Flags that were renamed in this release. For one release the old names still work, hidden from the help text.

use std::ffi::OsString;

/// Old flags and the new ones; both are declared at the same argument.
const FLAGS: [(&str, &str); 2] = [("--processor-percent", "--cpu-percent"), ("--coded", "--erasure-coded")];

/// Prints a warning to standard error for each old flag on a command line.
pub fn warn(arguments: impl Iterator<Item = OsString>) {
    for (old, new) in used(arguments) {
        eprintln!("heddle: warning: {old} is now {new}; the old name works until the next release");
    }
}

fn used(arguments: impl Iterator<Item = OsString>) -> Vec<(&'static str, &'static str)> {
    let given: Vec<OsString> = arguments.collect();
    let flag = |argument: &OsString| argument.to_str().map(|text| text.split('=').next().unwrap_or(text).to_owned());
    let given: Vec<String> = given.iter().filter_map(flag).collect();
    FLAGS.into_iter().filter(|(old, _)| given.iter().any(|argument| argument == old)).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn old_flags_are_understood_and_noticed() {
        let lines = ["heddle-bench sift-fig7 --processor-percent 50", "heddle-bench sift-fig11 --coded"];
        for line in lines {
            let words = || line.split_whitespace();
            Cli::try_parse_from(words()).expect(line);
            assert_eq!(used(words().map(OsString::from)).len(), 1, "{line}");
        }
        let new = ["heddle-bench", "sift-fig7", "--cpu-percent=50"];
        Cli::try_parse_from(new).expect("the new name");
        assert!(used(new.into_iter().map(OsString::from)).is_empty());
    }
}
