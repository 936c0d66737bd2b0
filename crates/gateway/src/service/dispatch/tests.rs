use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use base::MspId;
use bytes::Bytes;
use chain::endorse::{Endorse, EndorseError};
use chain::view::{ChannelView, PeerView};
use proto::protos::{ProposalResponse, Response};

use super::*;
use crate::grpc::status::GrpcCode;
use crate::service::service_core::Endorser;

/// A peer without channels; its channels are known or not known yet.
#[derive(Default)]
struct Starting {
    knows_channels: AtomicBool,
}

impl PeerView for Starting {
    fn channel(&self, _name: &str) -> Option<Arc<dyn ChannelView>> {
        None
    }

    fn channels(&self) -> Vec<Arc<dyn ChannelView>> {
        Vec::new()
    }

    fn knows_channels(&self) -> bool {
        self.knows_channels.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[async_trait]
impl Endorse for Starting {
    async fn process(&self, _signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        Err(EndorseError::Stopped)
    }

    async fn describe(&self, _channel: &str) -> Result<proto::discovery::Peer, EndorseError> {
        Err(EndorseError::Stopped)
    }

    async fn evaluate(&self, _signed_proposal: Bytes) -> Result<Response, EndorseError> {
        Err(EndorseError::Stopped)
    }
}

/// The story: while a gateway was starting, Endorse and Submit answered FAILED_PRECONDITION and CommitStatus
/// PERMISSION_DENIED, which clients take as final. They gave up transactions that they only had to send again.
#[test]
fn a_channel_that_is_not_known_yet_is_unavailable_and_one_that_is_not_there_is_refused() {
    let peer = Arc::new(Starting::default());
    let local = Endorser { msp_id: MspId::new("Org1MSP"), address: "local".into(), endorse: peer.clone() };
    let port = PeerService::new(PeerServiceConfig {
        peer: peer.clone(),
        local,
        others: Vec::new(),
        orderers: Vec::new(),
        limits: CallLimits::default(),
        intake: TransactionIntake::default(),
        stop: CancellationToken::new(),
    });
    let codes = || {
        let endorse_or_submit = port.0.live_channel("ch").err().map(|status| status.code);
        let status_or_events = port.0.known_channel("ch", GrpcCode::PermissionDenied).err().map(|status| status.code);
        (endorse_or_submit, status_or_events)
    };
    assert_eq!(codes(), (Some(GrpcCode::Unavailable), Some(GrpcCode::Unavailable)));
    peer.knows_channels.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(codes(), (Some(GrpcCode::FailedPrecondition), Some(GrpcCode::PermissionDenied)));
}
