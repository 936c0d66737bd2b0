//! The ids of open queries, and the pages that a history query returns.

use base::{Bytes, TxId};

/// One change of a key by a valid transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyModification {
    /// The transaction.
    pub tx_id: TxId,
    /// Its client's time.
    pub timestamp: Timestamp,
    /// What the key had from then on; `None` where it was deleted.
    pub value: Option<Bytes>,
}

/// Some changes of a key, in the history's order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistoryPage {
    /// At most [`PAGE_ENTRIES_MAX`]; empty only when nothing is left.
    pub modifications: Vec<KeyModification>,
    /// Whether another page follows. When false the query is closed already.
    pub has_more: bool,
}

/// The most entries in one [`StatePage`](crate::StatePage): what Fabric's peers send at once.
pub const PAGE_ENTRIES_MAX: usize = 100;

/// The client's time of the proposal; the same for every endorser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds since the Unix epoch.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanos: i32,
}

impl Timestamp {
    /// The time as RFC 3339 writes it, in UTC, with as many digits of a second as it needs.
    pub fn to_rfc3339(self) -> String {
        let (days, second) = (self.seconds.div_euclid(86_400), self.seconds.rem_euclid(86_400));
        // Years begin in March here, so that a leap day is the last of its year; 400 of them have 146,097 days.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let fraction = match self.nanos {
            0 => String::new(),
            nanos => format!(".{nanos:09}").trim_end_matches('0').to_owned(),
        };
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
    }
}

/// An open query of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);
