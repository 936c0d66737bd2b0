//! Reports of profiles that no program has made.

use std::num::NonZeroU32;

use farmem::{AccessRun, CodeAddress, CodeObject, CodeSite, ProfileConfig, ReturnAddress, SiteAccesses};

use super::*;

const MILLI: Duration = Duration::from_millis(1);

fn address(object: u32, offset: u64) -> CodeAddress {
    CodeAddress { object, offset }
}

fn site(leaf: CodeAddress, callers: &[ReturnAddress], accesses: u64) -> SiteAccesses {
    SiteAccesses { site: CodeSite { leaf, callers: callers.to_vec() }, accesses, pages_ahead: accesses * 2 }
}

fn run(from: u32, to: u32, time: Duration, short_time: Duration) -> AccessRun {
    AccessRun { from, to, time, short_time }
}

/// Three objects that have no symbols: each block of 4 KiB of the program is a function.
fn profile() -> AccessProfile {
    let file = |path: &str| CodeObject::File { path: path.to_owned(), inode: 1 };
    let objects =
        vec![CodeObject::Unknown, file("/nonexistent/query"), file("/nonexistent/libc.so.6"), CodeObject::Anonymous];
    let sites = vec![
        site(address(0, 0), &[], 0),
        site(address(1, 0x1010), &[], 600),
        site(address(1, 0x1020), &[], 200),
        site(address(1, 0x2000), &[], 100),
        site(address(2, 0x5000), &[ReturnAddress { address: address(1, 0x2100), target: None }], 50),
        site(address(3, 0), &[], 50),
    ];
    let accesses = 1000;
    AccessProfile { objects, sites, accesses, samples: accesses, ..AccessProfile::default() }
}

fn named<'a>(report: &'a FunctionReport, name: &str) -> &'a FunctionRow {
    let mut rows = report.rows.iter().filter(|row| row.function.contains(name));
    rows.next().unwrap_or_else(|| panic!("{name} is missing: {report:?}"))
}

#[test]
fn functions_are_ranked_by_their_accesses_and_those_of_the_runtime_are_their_callers() {
    let report = FunctionReport::new(&profile(), Duration::from_secs(2));
    let rows: Vec<(&str, u64, u64)> =
        report.rows.iter().map(|row| (row.function.as_str(), row.accesses, row.pages_ahead)).collect();
    assert_eq!(
        rows,
        [
            ("(no name) file offsets 0x1000..0x2000", 800, 1600),
            ("(no name) file offsets 0x2000..0x3000", 150, 300),
            ("(code made at run time)", 50, 100),
        ]
    );
    let copied = &report.rows[1].runtimes;
    assert_eq!((copied[0].object.as_str(), copied[0].accesses), ("/nonexistent/libc.so.6", 50));
    assert!((report.rows[0].share - 0.8).abs() < 1e-9);
    assert!(report.notes.iter().any(|note| note.contains("/nonexistent/query")), "{:?}", report.notes);
    assert!(report.rows.iter().all(|row| row.inclusive.is_none() && row.accesses_per_second.is_none()));
}

#[test]
fn a_function_runs_from_one_of_its_accesses_to_the_next() {
    let mut profile = profile();
    // Times between accesses of one function, from it to another one, and back after a long pause.
    profile.runs = vec![run(1, 2, 300 * MILLI, 9 * MILLI), run(1, 1, 100 * MILLI, MILLI)];
    profile.runs.extend([run(2, 3, 40 * MILLI, 40 * MILLI), run(3, 1, 10_000 * MILLI, MILLI)]);
    let report = FunctionReport::new(&profile, Duration::from_secs(20));
    let (scan, probe) = (named(&report, "0x1000.."), named(&report, "0x2000.."));
    assert_eq!((scan.time, probe.time), (420 * MILLI + MILLI / 2, 20 * MILLI + MILLI / 2));
    let rate = scan.accesses_per_second.expect("its time is known");
    assert!((rate - 800.0 / 0.4205).abs() < 1.0, "{rate}");
    assert_eq!(named(&report, "run time").accesses_per_second, None);
}

#[test]
fn callers_are_those_whose_calls_lead_to_the_function() {
    let mut profile = profile();
    profile.config = ProfileConfig { every: NonZeroU32::MIN, callers: true };
    let caller = |offset, target: Option<u64>| ReturnAddress {
        address: address(1, offset),
        target: target.map(|target| address(1, target)),
    };
    // Nothing has symbols here, so no address is known to be a function's start, and every target is that of a block.
    let stack =
        [caller(0x7100, None), caller(0x3100, Some(0x1800)), caller(0x4100, Some(0x3000)), caller(0x3200, None)];
    profile.sites[1] = site(address(1, 0x1010), &stack, 600);
    let report = FunctionReport::new(&profile, Duration::from_secs(2));
    let scan = named(&report, "0x1000..");
    // What calls through a register is passed over where a call of the function itself follows.
    assert_eq!(scan.callers.iter().map(|caller| caller.accesses).collect::<Vec<_>>(), [600]);
    assert!(scan.callers[0].function.contains("0x3000"));
    assert_eq!((named(&report, "0x3000..").inclusive, named(&report, "0x3000..").accesses), (Some(600), 0));
    assert_eq!((named(&report, "0x4000..").inclusive, scan.inclusive), (Some(600), Some(800)));
    assert!(report.rows.iter().all(|row| !row.function.contains("0x7000")));
    assert_eq!(report.rows[0].function, scan.function, "the most accesses of its own");
    let table = report.table(20);
    let (own, callers) = table.split_once("With the functions that they call").expect("there are callers");
    assert!(
        !own.contains("0x3000..0x4000  ") && callers.contains("600  60.0 %  (no name) file offsets 0x3000..0x4000"),
        "{table}"
    );
}

#[test]
fn the_table_names_what_is_left_out_and_fits_a_terminal() {
    let mut profile = profile();
    profile.runs = vec![run(1, 1, Duration::from_secs(1), MILLI)];
    let table = FunctionReport::new(&profile, Duration::from_secs(2)).table(2);
    assert!(table.starts_with("Remote accesses by function: 1,000 in 2.0 s, 500 a second of the run\n"), "{table}");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[2][..6], ["800", "80.0", "%", "800", "1,600", "(no"], "{table}");
    assert!(table.contains("in libc.so.6 33.3 %"), "{table}");
    assert!(table.contains("and 1 more functions, with 50 accesses"), "{table}");
}

#[test]
fn the_picture_has_a_bar_for_each_function_that_made_more_than_a_few_accesses() {
    let mut profile = profile();
    profile.objects.push(CodeObject::File { path: "/opt/a<b>&\"\u{1}".to_owned(), inode: 1 });
    profile.sites.push(site(address(4, 0), &[], 40));
    profile.sites.push(site(address(1, 0x9000), &[], 2));
    profile.runs = [(1, 80), (3, 10), (6, 1), (7, 1)].map(|(site, time)| run(site, site, time * MILLI, MILLI)).to_vec();
    let report = FunctionReport::new(&profile, Duration::from_secs(2));
    let picture = report.picture(20);
    let names = |picture: &str| -> Vec<String> {
        let bars = picture.lines().filter(|line| line.contains("class=\"bar\""));
        bars.map(|bar| bar.split("<title>").nth(1).unwrap_or_default().to_owned()).collect()
    };
    let bars = names(&picture);
    // 40,000, 15,000 and 10,000 accesses a second; that with two accesses is left out.
    let order = ["a&lt;b&gt;&amp;&quot;", "0x2000..0x3000", "0x1000..0x2000"];
    assert_eq!(bars.len(), 3, "{picture}");
    assert!(bars.iter().zip(order).all(|(bar, name)| bar.contains(name)), "{bars:?}");
    let first = names(&report.picture(1));
    assert!(first.len() == 1 && first[0].contains("0x1000..0x2000"), "the one with the most accesses: {first:?}");
    for line in picture.lines().filter(|line| line.contains("class=\"bar\"")) {
        let width = line.split("width=\"").nth(1).and_then(|width| width.split('"').next()?.parse::<f64>().ok());
        assert!(width.is_some_and(|width| (0.0..=470.0).contains(&width)), "{line}");
    }
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    let empty = FunctionReport::new(&AccessProfile::default(), Duration::ZERO);
    assert!(empty.picture(20).contains("no function made enough remote accesses"));
    assert!(empty.table(20).contains("0 in 0.0 s"));
}

#[test]
fn the_json_has_the_fields_of_its_document() {
    let json = FunctionReport::new(&profile(), Duration::from_secs(2)).to_json();
    assert_eq!((json["version"].as_u64(), json["accesses"].as_u64()), (Some(1), Some(1000)));
    let function = &json["functions"][1];
    assert_eq!(function["object"], "/nonexistent/query");
    assert_eq!(function["runtimes"][0]["accesses"], 50);
    assert!(function["accesses_per_second"].is_null() && function["inclusive_accesses"].is_null());
    let document = include_str!("../../../../docs/formats/farmem-profile.md");
    let names = json.as_object().into_iter().chain(function.as_object()).flat_map(|object| object.keys());
    for name in names {
        assert!(document.contains(&format!("`{name}`")), "{name} is not documented");
    }
}
