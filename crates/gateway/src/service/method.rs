//! The gRPC methods of peers and orderers, by their paths.

use bytes::Bytes;
use ledger::Transaction;

use super::discovery::DiscoveryRequest;
use super::proposal::ProposalRequest;
use super::seek::SeekRequest;
use super::submit::Submission;
use crate::grpc::GrpcStatus;

/// A method of [`PeerService`](crate::service::dispatch::PeerService).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerMethod {
    /// `gateway.Gateway/Evaluate`
    Evaluate,
    /// `gateway.Gateway/Endorse`
    Endorse,
    /// `gateway.Gateway/Submit`
    Submit,
    /// `gateway.Gateway/CommitStatus`
    CommitStatus,
    /// `gateway.Gateway/ChaincodeEvents`
    ChaincodeEvents,
    /// `protos.Endorser/ProcessProposal`
    ProcessProposal,
    /// `protos.Deliver/Deliver`
    Deliver,
    /// `protos.Deliver/DeliverFiltered`
    DeliverFiltered,
    /// `protos.Deliver/DeliverWithPrivateData`
    DeliverWithPrivateData,
    /// `discovery.Discovery/Discover`
    Discover,
    /// `grpc.health.v1.Health/Check`
    HealthCheck,
    /// `grpc.health.v1.Health/Watch`
    HealthWatch,
}

/// A method of [`OrdererService`](crate::service::dispatch::OrdererService).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrdererMethod {
    /// `orderer.AtomicBroadcast/Broadcast`
    Broadcast,
    /// `orderer.AtomicBroadcast/Deliver`
    Deliver,
    /// `grpc.health.v1.Health/Check`
    HealthCheck,
    /// `grpc.health.v1.Health/Watch`
    HealthWatch,
}

impl PeerMethod {
    /// Reads a request as far as the port does before a signature is checked. For property tests and fuzzers.
    ///
    /// # Errors
    /// The refusal of the call, if it is a gRPC status.
    pub fn read(self, message: Bytes) -> Result<(), GrpcStatus> {
        match self {
            PeerMethod::Evaluate | PeerMethod::Endorse => ProposalRequest::read(&message).map(drop),
            PeerMethod::Submit => Submission::read(&message).map(drop),
            PeerMethod::CommitStatus => super::commit_status::read(message).map(drop),
            PeerMethod::ChaincodeEvents => super::events::read(message).map(drop),
            // The endorser reads it.
            PeerMethod::ProcessProposal => Ok(()),
            PeerMethod::Deliver | PeerMethod::DeliverFiltered | PeerMethod::DeliverWithPrivateData => {
                SeekRequest::read(message)
            }
            PeerMethod::Discover => DiscoveryRequest::read(&message).map(drop),
            PeerMethod::HealthCheck | PeerMethod::HealthWatch => super::health::read(message).map(drop),
        }
    }
}

impl OrdererMethod {
    /// As [`PeerMethod::read`].
    ///
    /// # Errors
    /// As [`PeerMethod::read`].
    pub fn read(self, message: Bytes) -> Result<(), GrpcStatus> {
        match self {
            OrdererMethod::Broadcast => Transaction::decode(&message)
                .map(drop)
                .map_err(|invalid| GrpcStatus::invalid_argument(invalid.reason.to_owned())),
            OrdererMethod::Deliver => SeekRequest::read(message),
            OrdererMethod::HealthCheck | OrdererMethod::HealthWatch => super::health::read(message).map(drop),
        }
    }
}
