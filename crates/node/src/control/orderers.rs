//! Reports and changes the members of an ordering group on Raft, for its operator.
//!
//! Only the leader carries out a request. Any other orderer replies with the name of the leader, as far as it knows it.
//! Each request takes one step and returns the resulting state. The caller repeats the request, always at the current
//! leader, until the state is as wanted. A step that took effect stays in effect.

use std::sync::Arc;

use async_trait::async_trait;
use base::ErrorKind;
use consensus::Error;
use consensus::ordered::OrderedLog as _;
use consensus::raft::{MemberHealth, MembershipReport, RaftLog, RaftTimeouts};
use serde::{Deserialize, Serialize};

use super::{ControlHandler, ControlRequest, ControlResponse, rejected};
use crate::network::layout::orderer_name;

/// The orderers of a group, as one of them knows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderersReport {
    /// The orderer that reports.
    pub name: String,
    /// Its number.
    pub number: u64,
    /// The newest term that this orderer knows.
    pub term: u64,
    /// The leader of that term, as far as this orderer knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<u64>,
    /// The block height that this orderer shows.
    pub height: u64,
    /// All members, by number.
    pub orderers: Vec<OrdererReport>,
}

/// One of the orderers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrdererReport {
    /// Its number.
    pub number: u64,
    /// The address at which it answers the others.
    pub address: String,
    /// Whether it votes, or still learns.
    pub votes: bool,
    /// Entries of the leader's log that it is not known to have; only the leader reports this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
    /// Milliseconds since the leader last heard from it. Only the leader reports this, and not for an orderer that it
    /// has never heard from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<u64>,
}

impl OrderersReport {
    /// Whether the reporting orderer leads.
    pub fn is_leader(&self) -> bool {
        self.leader == Some(self.number)
    }

    /// The member with this number.
    pub fn orderer(&self, number: u64) -> Option<&OrdererReport> {
        self.orderers.iter().find(|orderer| orderer.number == number)
    }
}

/// An orderer with a control socket.
pub(crate) struct OrdererControl {
    pub name: String,
    pub log: Arc<RaftLog>,
}

impl OrdererControl {
    fn response(&self, report: MembershipReport) -> ControlResponse {
        let orderer = |standing: MemberHealth| OrdererReport {
            number: standing.member.id,
            address: standing.member.address,
            votes: !standing.member.is_learner,
            behind: standing.behind,
            heard_ms: standing.heard.map(|heard| heard.elapsed().as_millis() as u64),
        };
        ControlResponse::Orderers(Box::new(OrderersReport {
            name: self.name.clone(),
            number: self.log.raft().node(),
            term: report.status.term.0,
            leader: report.status.leader,
            height: *self.log.deliverable().borrow(),
            orderers: report.members.into_iter().map(orderer).collect(),
        }))
    }

    async fn execute(&self, request: ControlRequest) -> Result<ControlResponse, Error> {
        let raft = self.log.raft();
        match request {
            ControlRequest::Orderers {} => {}
            ControlRequest::AdmitOrderer { number, address } => {
                self.log.admit(number, &address).await?;
            }
            ControlRequest::RemoveOrderer { number } => {
                // A deposed leader finds out here.
                raft.barrier().await?;
                let members = raft.members();
                let votes = members.iter().filter(|member| !member.is_learner).count();
                match members.iter().find(|member| member.id == number) {
                    // It was removed already.
                    None => {}
                    Some(member) if !member.is_learner && votes == 1 => {
                        let reason = "it is the last orderer with a vote; admit another one before you remove it";
                        return Err(Error::Invalid(reason.to_owned()));
                    }
                    Some(_) => raft.remove(number).await?,
                }
            }
            ControlRequest::HandOver {} => {
                raft.barrier().await?;
                if raft.members().iter().filter(|member| !member.is_learner).count() == 1 {
                    let reason = "it is the last orderer with a vote, so that no other can lead; admit another first";
                    return Err(Error::Invalid(reason.to_owned()));
                }
                raft.transfer_leadership(&RaftTimeouts::of_busy_machines());
            }
            ControlRequest::Memory {} | ControlRequest::Node {} | ControlRequest::SetMemory { .. } => {
                return Err(Error::Invalid("this is an orderer; ask a compute node for that".to_owned()));
            }
        }
        Ok(self.response(raft.membership().await?))
    }
}

#[async_trait]
impl ControlHandler for OrdererControl {
    async fn handle(&self, request: ControlRequest) -> ControlResponse {
        match self.execute(request).await {
            Ok(reply) => reply,
            Err(Error::NotLeading(leader)) => {
                let members = self.log.raft().members();
                let address = members.into_iter().find(|member| Some(member.id) == leader).map(|member| member.address);
                ControlResponse::NotLeading { leader: leader.filter(|_| address.is_some()), address }
            }
            Err(error) if error.kind() == ErrorKind::Ambiguous => ControlResponse::Ambiguous {
                message: format!(
                    "{} does not know whether the change took effect: it lost leadership or its majority meanwhile",
                    self.name
                ),
            },
            Err(Error::Busy) => ControlResponse::Busy {},
            Err(error) => rejected(error.to_string()),
        }
    }
}

/// The name of the orderer with this number.
pub fn orderer_of(number: u64) -> String {
    orderer_name(number.saturating_sub(1) as usize)
}
