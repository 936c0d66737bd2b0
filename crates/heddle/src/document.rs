//! The command lines of `heddle` and `heddle-bench`, as `docs/cli.md` shows them.

use std::fmt::Write as _;

/// The help texts of a command, which is called as `path`, and of all its subcommands but those that `is_elsewhere`.
pub fn of(command: clap::Command, path: &str, is_elsewhere: impl Fn(&str) -> bool + Copy) -> String {
    let (mut root, mut text) = (command, String::new());
    root.build();
    describe(&mut root, path, is_elsewhere, &mut text);
    text
}

fn describe(command: &mut clap::Command, path: &str, is_elsewhere: impl Fn(&str) -> bool + Copy, text: &mut String) {
    let help = command.render_long_help().to_string();
    // Values like the version differ between releases, and trailing blanks between versions of clap.
    let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    write!(text, "\n## `{path}`\n\n```text\n{}\n```\n", help.join("\n")).expect("a string takes all of it");
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        let path = format!("{path} {name}");
        if !is_elsewhere(&path) {
            describe(command.find_subcommand_mut(&name).expect("it was just listed"), &path, is_elsewhere, text);
        }
    }
}
