//! The table for a terminal.

use crate::report::{FunctionCount, FunctionReport, FunctionRow};
use crate::text::{brief, file_name, grouped, percent, rounded, shortened};

/// Characters of the longest name; files of several pages have the whole.
const NAME_CHARACTERS: usize = 56;
const OBJECT_CHARACTERS: usize = 28;
/// Other functions that are named below a function, and the least part of its accesses that they have.
const DETAILS: usize = 3;
const DETAIL_SHARE_MIN: f64 = 0.05;
/// Notes, and the characters of each; JSON has all of them.
const NOTES: usize = 4;
const NOTE_CHARACTERS: usize = 400;

impl FunctionReport {
    /// A table of the first `top` functions, and what its columns mean; with callers, another one of those that call the most.
    pub fn table(&self, top: usize) -> String {
        let seconds = self.time.as_secs_f64();
        let rate = if seconds > 0.0 { self.accesses as f64 / seconds } else { 0.0 };
        let mut text = format!(
            "Remote accesses by function: {} in {seconds:.1} s, {} a second of the run\n",
            grouped(self.accesses),
            rounded(rate)
        );
        let made: Vec<&FunctionRow> = self.rows.iter().filter(|row| row.accesses > 0).collect();
        let (shown, rest) = made.split_at(top.min(made.len()));
        let rows = shown.iter().map(|row| TableRow { cells: cells(row).to_vec(), details: details(row) });
        let names = ["accesses", "share", "a second", "ahead", "function", "object"].map(str::to_owned);
        write_rows(&mut text, &names, &rows.collect::<Vec<_>>());
        if !rest.is_empty() {
            let accesses: u64 = rest.iter().map(|row| row.accesses).sum();
            push(&mut text, &format!("and {} more functions, with {} accesses", rest.len(), grouped(accesses)));
        }
        push(
            &mut text,
            "accesses: page faults that far memory served. ahead: pages that came with them, ahead of streams.",
        );
        push(
            &mut text,
            "a second: of the time in which the function ran, as its accesses show it, waits for pages included.",
        );
        self.write_callers(&mut text, top);
        for note in self.notes.iter().take(NOTES) {
            push(&mut text, &shortened(note, NOTE_CHARACTERS));
        }
        if self.notes.len() > NOTES {
            push(&mut text, &format!("and {} more notes", self.notes.len() - NOTES));
        }
        text
    }

    /// The functions whose callees have made accesses.
    fn write_callers(&self, text: &mut String, top: usize) {
        let attributed: u64 = self.rows.iter().map(|row| row.accesses).sum();
        let inclusive = |row: &FunctionRow| row.inclusive.filter(|inclusive| *inclusive > row.accesses);
        let mut callers: Vec<(u64, &FunctionRow)> =
            self.rows.iter().filter_map(|row| Some((inclusive(row)?, row))).collect();
        callers.sort_by_key(|(inclusive, _)| std::cmp::Reverse(*inclusive));
        let rows = callers.iter().take(top).map(|(inclusive, row)| {
            let share = percent(*inclusive as f64 / attributed.max(1) as f64);
            let cells = [grouped(*inclusive), share, function_cell(row), object_cell(row)].to_vec();
            TableRow { cells, details: Vec::new() }
        });
        let rows: Vec<TableRow> = rows.collect();
        if !rows.is_empty() {
            text.push_str("With the functions that they call, as far as the stack shows:\n");
            write_rows(text, &["accesses", "share", "function", "object"].map(str::to_owned), &rows);
        }
    }
}

struct TableRow {
    /// Numbers, then two names.
    cells: Vec<String>,
    /// Lines below it.
    details: Vec<String>,
}

fn cells(row: &FunctionRow) -> [String; 6] {
    let rate = row.accesses_per_second.map_or_else(|| "-".to_owned(), rounded);
    let (accesses, ahead) = (grouped(row.accesses), grouped(row.pages_ahead));
    [accesses, percent(row.share), rate, ahead, function_cell(row), object_cell(row)]
}

fn function_cell(row: &FunctionRow) -> String {
    shortened(&brief(&row.function), NAME_CHARACTERS)
}

fn object_cell(row: &FunctionRow) -> String {
    shortened(file_name(&row.object), OBJECT_CHARACTERS)
}

/// What stands below a function: where its accesses happened, if not in itself, and who had called it.
fn details(row: &FunctionRow) -> Vec<String> {
    let list = |counts: &[FunctionCount], name: &dyn Fn(&FunctionCount) -> String| {
        let share = |count: &FunctionCount| count.accesses as f64 / row.accesses.max(1) as f64;
        let shown = counts.iter().filter(|count| share(count) >= DETAIL_SHARE_MIN).take(DETAILS);
        let shown: Vec<String> = shown.map(|count| format!("{} {}", name(count), percent(share(count)))).collect();
        (!shown.is_empty()).then(|| shown.join(", "))
    };
    let name = |count: &FunctionCount| shortened(&brief(&count.function), NAME_CHARACTERS);
    let runtime = |count: &FunctionCount| match count.function.starts_with('(') {
        true => file_name(&count.object).to_owned(),
        false => format!("{} of {}", name(count), file_name(&count.object)),
    };
    let runtimes = list(&row.runtimes, &runtime).map(|list| format!("in {list}"));
    let callers = list(&row.callers, &name).map(|list| format!("called by {list}"));
    runtimes.into_iter().chain(callers).collect()
}

fn write_rows(text: &mut String, head: &[String], rows: &[TableRow]) {
    let lines = || std::iter::once(head).chain(rows.iter().map(|row| &row.cells[..]));
    let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let numbers = head.len() - 2;
    let indent: usize = widths[..numbers].iter().map(|width| width + 2).sum();
    let details = std::iter::once(&[][..]).chain(rows.iter().map(|row| &row.details[..]));
    for (line, details) in lines().zip(details) {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column < numbers {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        push(text, cells.collect::<Vec<_>>().join("  ").trim_end());
        details.iter().for_each(|detail| push(text, &format!("{:indent$}    {detail}", "")));
    }
}

fn push(text: &mut String, line: &str) {
    text.push_str("  ");
    text.push_str(line);
    text.push('\n');
}
