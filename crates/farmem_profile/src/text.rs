//! Numbers and names as people read them.

/// A whole number with commas: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate, rounded to whole numbers.
pub(crate) fn rounded(rate: f64) -> String {
    grouped(rate.round().clamp(0.0, 1e18) as u64)
}

/// A share of 1 in percent, with one digit after the point.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The beginning of a text, with an ellipsis if something of it is missing. Control characters, which a file may have in its
/// names, are replaced.
pub(crate) fn shortened(text: &str, characters_max: usize) -> String {
    let mut characters = text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character });
    let mut short: String = characters.by_ref().take(characters_max).collect();
    if characters.next().is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// The name of a function without its parameters, and with an ellipsis for the arguments of templates: `std::vector<…>::at`.
pub(crate) fn brief(name: &str) -> String {
    let mut brief = String::new();
    let mut rest = name.chars();
    while let Some(character) = rest.next() {
        let follows_name = brief.ends_with(|last: char| last.is_alphanumeric() || "_>".contains(last));
        let is_operator = brief.ends_with("operator");
        match character {
            '<' if !is_operator && (follows_name || (brief.ends_with("::") && !rest.as_str().starts_with("impl "))) => {
                skip_brackets(&mut rest);
                brief.push_str("<…>");
            }
            '(' if !is_operator && (follows_name || follows_operator(&brief)) => skip_brackets(&mut rest),
            character => brief.push(character),
        }
    }
    brief.strip_suffix(" const").map(str::to_owned).unwrap_or(brief)
}

/// Whether a name ends as those of C++'s operators do.
fn follows_operator(name: &str) -> bool {
    name.ends_with("operator()") || name.ends_with(|last: char| "<=+-*/%&|^!~]".contains(last))
}

/// Goes on behind the bracket that closes one which was just read; to the end if none does.
fn skip_brackets(rest: &mut std::str::Chars<'_>) {
    let (mut depth, mut last) = (1, ' ');
    for character in rest.by_ref() {
        match character {
            '<' | '(' => depth += 1,
            // Not the arrow before a result.
            '>' if last == '-' => {}
            '>' | ')' => depth -= 1,
            _ => {}
        }
        last = character;
        if depth == 0 {
            return;
        }
    }
}

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brief_names_have_no_parameters() {
        for (name, text) in [
            ("scan_orders", "scan_orders"),
            ("query::scan(std::vector<int, std::allocator<int> > const&) const", "query::scan"),
            ("std::map<int, std::less<int> >::at(int const&)", "std::map<…>::at"),
            (
                "query::(anonymous namespace)::scan(int) [clone .cold]",
                "query::(anonymous namespace)::scan [clone .cold]",
            ),
            ("operator<<(std::ostream&, query::Row const&)", "operator<<"),
            ("query::Row::operator()(int)", "query::Row::operator()"),
            ("<alloc::vec::Vec<T> as query::Scan>::next", "<alloc::vec::Vec<…> as query::Scan>::next"),
            ("query::scan::<fn(u64) -> u64>::{closure#0}", "query::scan::<…>::{closure#0}"),
            (
                "query::<impl core::fmt::Display for query::Row>::fmt",
                "query::<impl core::fmt::Display for query::Row>::fmt",
            ),
            ("(no name) 0x1180..0x11f4", "(no name) 0x1180..0x11f4"),
            ("broken<(", "broken<…>"),
            ("", ""),
        ] {
            assert_eq!(brief(name), text);
        }
    }

    #[test]
    fn numbers_and_names_are_readable() {
        assert_eq!([0, 12, 123, 1234, 1_234_567].map(grouped), ["0", "12", "123", "1,234", "1,234,567"]);
        assert_eq!([0.4, 999.5, f64::NAN, f64::INFINITY].map(rounded)[..2], ["0", "1,000"]);
        assert_eq!(percent(0.12345), "12.3 %");
        assert_eq!(shortened("scan_orders", 11), "scan_orders");
        assert_eq!(shortened("scan_orders", 5), "scan…");
        assert_eq!(shortened("a\u{1b}[2J\n", 9), "a\u{fffd}[2J\u{fffd}");
        assert_eq!(file_name("/usr/bin/query"), "query");
        assert_eq!(file_name("[vdso]"), "[vdso]");
    }
}
