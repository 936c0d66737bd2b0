//! Reports and changes the members of an ordering group on Raft, for its operator.
//!
//! Only the leader carries out a request. Any other orderer replies with the name of the leader, if it knows one. Each
//! request takes one step and returns the resulting membership. The caller repeats the request, always at the current
//! leader, until the membership is as wanted. A step that took effect stays in effect.

use std::sync::Arc;

use async_trait::async_trait;
use base::ErrorKind;
use ordered_log::raft::RaftLog;
use ordered_log::{Error, OrderedLog as _};
use raft::{MemberHealth, MembershipReport, RaftTimeouts};

use super::orderers_report::{OrdererReport, OrderersReport};
use super::{ControlHandler, ControlRequest, ControlResponse, rejected};

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
            ControlRequest::Memory {}
            | ControlRequest::Node {}
            | ControlRequest::SetMemory { .. }
            | ControlRequest::SetMemoryNode { .. }
            | ControlRequest::AddMemoryNode { .. }
            | ControlRequest::RemoveMemoryNode { .. }
            | ControlRequest::Storage {}
            | ControlRequest::AddStorageCopy { .. }
            | ControlRequest::DropStorageCopy { .. }
            | ControlRequest::ForceStorageCopy { .. } => {
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
            Err(Error::Raft(raft::Error::NotLeading(leader))) => {
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
