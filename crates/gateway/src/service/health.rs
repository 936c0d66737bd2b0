//! `grpc.health.v1.Health`: a port reports SERVING. When it stops, it reports NOT_SERVING to the clients that watch it.

use base::rt::CancellationToken;
use bytes::Bytes;

use crate::grpc::message::{decode, frame};
use crate::grpc::{GrpcCode, GrpcStatus, IncomingCall};

pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

/// Services that may be asked about; the empty name is the whole port.
const SERVICES: [&str; 5] = ["", "gateway.Gateway", "protos.Deliver", "protos.Endorser", "orderer.AtomicBroadcast"];

#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(int32, tag = "1")]
    status: i32,
}

fn is_known(service: &str) -> bool {
    SERVICES.contains(&service)
}

/// Reads a request; returns the service that it asks about.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(super) fn read(message: Bytes) -> Result<String, GrpcStatus> {
    Ok(decode::<Request>(message)?.service)
}

pub(super) async fn check(message: Bytes) -> Result<Bytes, GrpcStatus> {
    let service = read(message)?;
    if !is_known(&service) {
        return Err(GrpcStatus::new(GrpcCode::NotFound, format!("there is no service {service}")));
    }
    Ok(frame(&Response { status: SERVING }))
}

pub(super) async fn watch(call: IncomingCall, stop: &CancellationToken) {
    call.streaming(async |messages, responder| {
        let service = match messages.only().await.and_then(read) {
            Ok(service) => service,
            Err(status) => return status,
        };
        messages.release();
        let now = if is_known(&service) { SERVING } else { SERVICE_UNKNOWN };
        if responder.send(frame(&Response { status: now })).await.is_err() {
            return GrpcStatus::ok();
        }
        if stop.run_until_cancelled(responder.gone()).await.is_none() {
            // If sending fails, the client has gone.
            let _ = responder.send(frame(&Response { status: NOT_SERVING })).await;
        }
        GrpcStatus::ok()
    })
    .await;
}
