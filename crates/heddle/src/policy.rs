//! The endorsement policy of a new network, as the command line names it.

use clap::ValueEnum;

/// Who must endorse.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyChoice {
    /// Any one organisation
    Any,
    /// More than half of the organisations
    Majority,
    /// Every organisation
    All,
}

impl PolicyChoice {
    /// Its word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            PolicyChoice::Any => "any",
            PolicyChoice::Majority => "majority",
            PolicyChoice::All => "all",
        }
    }
}
