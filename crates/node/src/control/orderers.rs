//! The members of a group of orderers on Raft, as their operator is shown them, and changes of them.
//!
//! What is asked is done by whichever orderer leads; another one says who that is. Each request does one step and says how things are
//! then: whoever asks repeats it until they are as wanted, at another orderer when that leads by then. A step that was done stays done.

use std::sync::Arc;

use async_trait::async_trait;
use base::ErrorKind;
use consensus::Error;
use consensus::ordered::OrderedLog as _;
use consensus::raft::{RaftLog, Report, Standing, Timing};
use serde::{Deserialize, Serialize};

use super::{Operated, Reply, Request, refused};
use crate::network::layout::orderer_name;

/// The orderers of a group, as one of them knows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderersReport {
    /// The one that says so.
    pub name: String,
    /// Its number.
    pub number: u64,
    /// The newest term that it knows.
    pub term: u64,
    /// Who leads in it, as far as it knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<u64>,
    /// Blocks that it shows.
    pub height: u64,
    /// All of them, by their numbers.
    pub orderers: Vec<OrdererReport>,
}

/// One of the orderers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrdererReport {
    /// Its number.
    pub number: u64,
    /// Where it answers the others.
    pub address: String,
    /// Whether it has a vote, or only learns yet.
    pub votes: bool,
    /// Entries of the leader's log that it is not known to have; said by the leader alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
    /// Milliseconds since the leader heard of it; said by the leader alone, and not of one that it has not heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<u64>,
}

impl OrderersReport {
    /// Whether the one that says so leads.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.number)
    }

    /// One of them.
    pub fn orderer(&self, number: u64) -> Option<&OrdererReport> {
        self.orderers.iter().find(|orderer| orderer.number == number)
    }
}

/// An orderer that can be asked.
pub(crate) struct Orderer {
    pub name: String,
    pub log: Arc<RaftLog>,
}

impl Orderer {
    fn told(&self, report: Report) -> Reply {
        let orderer = |standing: Standing| OrdererReport {
            number: standing.member.id,
            address: standing.member.address,
            votes: !standing.member.learns,
            behind: standing.behind,
            heard_ms: standing.heard.map(|heard| heard.elapsed().as_millis() as u64),
        };
        Reply::Orderers(Box::new(OrderersReport {
            name: self.name.clone(),
            number: self.log.raft().node(),
            term: report.role.term.0,
            leader: report.role.leader,
            height: *self.log.safe().borrow(),
            orderers: report.members.into_iter().map(orderer).collect(),
        }))
    }

    async fn done(&self, request: Request) -> Result<Reply, Error> {
        let raft = self.log.raft();
        match request {
            Request::Orderers {} => {}
            Request::AdmitOrderer { number, address } => {
                self.log.admit(number, &address).await?;
            }
            Request::RemoveOrderer { number } => {
                // A leader that is none any more finds out.
                raft.barrier().await?;
                let members = raft.members();
                let votes = members.iter().filter(|member| !member.learns).count();
                match members.iter().find(|member| member.id == number) {
                    // It has gone already.
                    None => {}
                    Some(member) if !member.learns && votes == 1 => {
                        let reason = "it is the last orderer with a vote: without it nothing is ordered any more";
                        return Err(Error::Invalid(reason.to_owned()));
                    }
                    Some(_) => raft.remove(number).await?,
                }
            }
            Request::HandOver {} => {
                raft.barrier().await?;
                if raft.members().iter().filter(|member| !member.learns).count() == 1 {
                    let reason = "it is the last orderer with a vote: nobody is there to hand over to";
                    return Err(Error::Invalid(reason.to_owned()));
                }
                raft.hand_over(&Timing::of_busy_machines());
            }
            Request::Memory {} | Request::Node {} | Request::SetMemory { .. } => {
                return Err(Error::Invalid("this is an orderer; ask a compute node for that".to_owned()));
            }
        }
        Ok(self.told(raft.report().await?))
    }
}

#[async_trait]
impl Operated for Orderer {
    async fn answer(&self, request: Request) -> Reply {
        match self.done(request).await {
            Ok(reply) => reply,
            Err(Error::NotLeading(leader)) => {
                let members = self.log.raft().members();
                let address = members.into_iter().find(|member| Some(member.id) == leader).map(|member| member.address);
                Reply::NotLeading { leader: leader.filter(|_| address.is_some()), address }
            }
            Err(error) if error.kind() == ErrorKind::Ambiguous => Reply::Ambiguous {
                message: format!(
                    "{} cannot tell whether it was done: it lost the lead, or a majority, meanwhile",
                    self.name
                ),
            },
            Err(Error::Busy) => Reply::Busy {},
            Err(error) => refused(error.to_string()),
        }
    }
}

/// The name of an orderer of this number.
pub fn orderer_of(number: u64) -> String {
    orderer_name(number.saturating_sub(1) as usize)
}
