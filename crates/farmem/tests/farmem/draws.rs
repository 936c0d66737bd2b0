//! Ranges of pages, drawn at random.

use std::collections::BTreeMap;

use base::rt::simulation::Prng;
use farmem::{GROUP_PAGES, PageNumber, PageRange};

/// A range of a region of `pages` pages.
pub fn draw_range(rng: &mut Prng, pages: u32, pages_max: u64) -> PageRange {
    let first = rng.below(u64::from(pages)) as u32;
    let pages = (1 + rng.below(pages_max) as u32).min(pages - first);
    PageRange { first: PageNumber(first), pages }
}

/// A range within one group, all of whose pages were written.
pub fn draw_written(rng: &mut Prng, model: &BTreeMap<PageNumber, u64>) -> Option<PageRange> {
    let first = *model.keys().nth(rng.index(model.len().max(1)))?;
    let most = GROUP_PAGES - first.0 % GROUP_PAGES;
    let pages = (1..=most).take_while(|pages| model.contains_key(&PageNumber(first.0 + pages - 1))).count();
    Some(PageRange { first, pages: 1 + rng.below(pages as u64) as u32 })
}
