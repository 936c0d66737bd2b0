use proptest::prelude::*;

use super::*;

fn decode(bytes: &[u8]) -> Result<PageList, Malformed> {
    let mut reader = Reader::new(Bytes::copy_from_slice(bytes));
    let list = PageList::read(&mut reader)?;
    reader.end()?;
    Ok(list)
}

fn encoded(list: &PageList) -> Bytes {
    let mut writer = Writer::new();
    list.write(&mut writer);
    writer.done()
}

#[test]
fn a_list_has_the_documented_layout() {
    let mut rights = RunMap::default();
    rights.insert(3..5, Right::Write);
    rights.insert(5..6, Right::Read);
    rights.insert(1000..1300, Right::Read);
    let list = PageList::of_rights(&rights).expect("it has three runs");
    assert_eq!(encoded(&list)[..], [3, 0, 0, 0, 7, 1, 0, 0, 0xc4, 0x0f, 0xab, 0x02]);
}

#[test]
fn bytes_that_are_no_list_are_malformed() {
    let cases: &[(&[u8], &str)] = &[
        (&[1, 0, 0], "the bytes end early"),
        (&[2, 0, 0, 0, 7, 1], "a count exceeds its limit or the bytes behind it"),
        (&[1, 0, 1, 0, 7, 1], "a count exceeds its limit or the bytes behind it"),
        (&[2, 0, 0, 0, 7, 1, 1, 1], "two runs of pages are one"),
        (&[1, 0, 0, 0, 0x87, 0, 1], "a number has needless bytes"),
        (&[1, 0, 0, 0, 0x87, 0x80, 0x80, 0x80, 0x80, 0x80, 1], "a number is too long"),
        (&[1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "a run of pages ends behind the last page"),
        (&[1, 0, 0, 0, 7, 1, 9], "bytes behind the end of the message"),
    ];
    for (bytes, what) in cases {
        assert_eq!(decode(bytes).expect_err("it is malformed").what, *what, "{bytes:?}");
    }
}

#[test]
fn a_set_of_too_many_runs_is_refused_as_rights_and_several_lists_of_written_pages() {
    let (mut rights, mut written) = (RunMap::default(), RunMap::default());
    for page in 0..=RUNS_MAX as u64 {
        rights.set(crate::PageNumber(7 + 2 * page), Right::Read);
        written.set(crate::PageNumber(7 + 2 * page), ());
    }
    assert_eq!(PageList::of_rights(&rights), None);
    let all: Vec<_> = PageList::that_covers(&written).runs().collect();
    assert_eq!(all, [(7..8 + 2 * RUNS_MAX as u64, Right::Write)]);
    let lists = PageList::of_written(&written);
    assert_eq!(lists.iter().map(|list| list.runs().count()).collect::<Vec<_>>(), [RUNS_MAX, 1]);
    assert!(lists.iter().flat_map(PageList::runs).map(|(pages, _)| pages).eq(written.runs().map(|(pages, ())| pages)));
    assert_eq!(PageList::of_written(&RunMap::default()), [PageList::default()]);
}

/// A cache of 1 GiB (262,144 pages): scans and heaps that were filled in order leave long runs, random accesses single
/// pages. Here half of the pages are in runs of 64 to 512, three eighths in runs of 8 to 32, the rest in runs of 1 to 4. A flat
/// list has eight bytes a page, of which the right takes a bit.
#[test]
fn a_typical_resident_set_takes_a_twentieth_of_a_flat_list() {
    let mut random = base::rt::simulation::Prng::new(1);
    let mut draw = |from: u64, to: u64| from + random.number() % (to - from + 1);
    let (mut rights, mut at, mut pages) = (RunMap::default(), 1 << 24, 0);
    for (share, from, to) in [(131_072, 64, 512), (98_304, 8, 32), (32_768, 1, 4)] {
        let end = pages + share;
        while pages < end {
            at += draw(1, 200);
            let count = draw(from, to);
            rights.insert(at..at + count, if draw(0, 2) == 0 { Right::Write } else { Right::Read });
            (at, pages) = (at + count, pages + count);
        }
    }
    let list = PageList::of_rights(&rights).expect("it has few runs");
    let flat = 8 * pages as usize;
    println!("{pages} pages: {} bytes, flat {flat}", list.encoded_bytes());
    assert!(list.encoded_bytes() * 20 < flat, "{} bytes for {pages} pages", list.encoded_bytes());
    // A call of a process with a contiguous gibibyte costs no more than one with a single page.
    let mut whole = RunMap::default();
    whole.insert(0..262_144, Right::Write);
    assert!(PageList::of_rights(&whole).expect("one run").encoded_bytes() < 16);
}

proptest! {
    #[test]
    fn a_list_decodes_to_the_rights_that_were_encoded(runs in prop::collection::vec((0_u64..1000, 1_u64..300, any::<bool>()), 0..60)) {
        let mut rights = RunMap::default();
        for (start, count, is_writable) in runs {
            rights.insert(start..start + count, if is_writable { Right::Write } else { Right::Read });
        }
        let list = PageList::of_rights(&rights).expect("it has few runs");
        let decoded = decode(&encoded(&list)).expect("it was encoded");
        prop_assert_eq!(&decoded, &list);
        prop_assert!(decoded.runs().eq(rights.runs()));
    }

    #[test]
    fn bytes_that_decode_are_the_only_encoding(bytes in prop::collection::vec(any::<u8>(), 0..40), runs in 0_u8..8) {
        let bytes = [&[runs, 0, 0, 0][..], &bytes[..]].concat();
        if let Ok(list) = decode(&bytes) {
            prop_assert_eq!(&encoded(&list)[..], &bytes[..]);
        }
    }
}
