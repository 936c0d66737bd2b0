//! The cost of TLS for the `tcp` provider: verbs of 64 KiB, alternately over a connection with TLS and over one without.
//!
//! `cargo run --profile checks -p heddle-rma --example tls_costs [ROUNDS]`

#![allow(clippy::disallowed_methods, reason = "it measures the machine's time")]

use std::sync::Arc;
use std::time::Instant;

use base::{Bytes, BytesMut};
use rma::tcp::{TcpConfig, TcpProvider, TcpTls};
use rma::{Capability, Credential, Endpoint, Host, HostConfig, NodeId, Provider, Rights, Token};

const BYTES: usize = 64 << 10;
const VERBS: usize = 200;
const TOKEN: Token = Token::new([7; 32]);

fn tls() -> TcpTls {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("keys can be made");
    let authority = rcgen::CertifiedIssuer::self_signed(params, key).expect("it is a valid authority");
    let key = rcgen::KeyPair::generate().expect("keys can be made");
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("it is a valid name");
    let certificate = params.signed_by(&key, &authority).expect("it can be signed");
    TcpTls::new(certificate.pem().as_bytes(), key.serialize_pem().as_bytes(), authority.pem().as_bytes())
        .expect("the settings are valid")
}

struct PipeEnd {
    endpoint: Endpoint,
    capability: Capability,
    _host: Arc<dyn Host>,
    _accepted: Endpoint,
}

async fn side(tls: Option<TcpTls>) -> PipeEnd {
    let provider = TcpProvider::new(TcpConfig { tls, ..TcpConfig::default() });
    let options = HostConfig { node: NodeId(1), tokens: Arc::new(|_| Some(TOKEN)) };
    let host = provider.host("127.0.0.1:0", options).await.expect("a port is free");
    let region = host.register("costs", 8 << 20).await.expect("there is memory");
    let capability = host.grant(region, Rights::ALL, "costs").expect("it is the first grant");
    let credential = Credential { name: "costs".to_owned(), token: TOKEN };
    let endpoint = provider.connect(&host.address(), &credential).await.expect("the token is right");
    let accepted = host.accept().await.expect("it was connected");
    PipeEnd { endpoint, capability, _host: host, _accepted: accepted }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(41);
    base::rt::production::run(async move {
        let tls = tls();
        for verb in ["read", "write"] {
            let (mut times, mut ratios) = ([vec![], vec![]], vec![]);
            for round in 0..rounds {
                // Connections over loopback differ by a third, so each round uses a new pair.
                let mut pair = [0.0; 2];
                for place in 0..2 {
                    let which = (round + place) % 2;
                    let side = side((which == 1).then(|| tls.clone())).await;
                    let payload = [Bytes::from(vec![7; BYTES])];
                    let mut into = BytesMut::with_capacity(BYTES);
                    let mut samples = Vec::new();
                    for number in 0..VERBS + 20 {
                        let begin = Instant::now();
                        match verb {
                            "read" => {
                                let read = side.endpoint.read(&side.capability, 4096, BYTES, into).await;
                                into = read.expect("it is granted");
                                into.clear();
                            }
                            _ => side.endpoint.write(&side.capability, 4096, &payload).await.expect("it is granted"),
                        }
                        if number >= 20 {
                            samples.push(begin.elapsed().as_nanos() as f64);
                        }
                    }
                    pair[which] = median(samples);
                    times[which].push(pair[which]);
                }
                ratios.push(pair[1] / pair[0]);
            }
            let [plain, with] = times.map(median);
            println!("{verb} of {BYTES} bytes: {plain:.0} ns, with TLS {with:.0}, x {:.2}", median(ratios));
        }
    });
}
