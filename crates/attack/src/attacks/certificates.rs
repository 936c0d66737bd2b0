//! Links over TLS with certificates that do not belong to a node, and too many links with the certificate of one node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use time::OffsetDateTime;

use super::{Attack, AttackContext, Breach, attack, hold};
use crate::target::{TargetKind, TargetNetwork};
use crate::wire::link;
use crate::wire::rma::{Credential, RmaClient};
use crate::wire::tls::{self, ClientIdentity};

const LINKS: &[TargetKind] = &[TargetKind::Blocks, TargetKind::Intake, TargetKind::Others];

pub fn attacks() -> Vec<Attack> {
    vec![
        attack!("users-certificate", "a user's TLS certificate asks for all", LINKS, 20.0 "links", users),
        attack!("foreign-certificate", "another authority's certificate", LINKS, 20.0 "links", foreign),
        attack!("expired-certificate", "a node's certificate that has expired", LINKS, 20.0 "links", expired),
        attack!("links-of-a-user", "takes every place with a user's certificate", LINKS, 150.0 "links", many_of_user),
        attack!("links-of-a-node", "takes every place with a node's certificate", LINKS, 150.0 "links", many_of_node),
        attack!("foreign-memory", "another authority's certificate and tokens", &[TargetKind::Compute, TargetKind::PeerNodes, TargetKind::Memory, TargetKind::Storage], 50.0 "connections", foreign_memory),
    ]
}

/// How long a port may take to answer a request for data that the attacker must not have.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Makes the request that suits the port, and returns whether it was answered.
async fn ask(scene: &AttackContext, identity: &ClientIdentity) -> io::Result<bool> {
    let config = tls::config(Some(identity), &[])?;
    let mut link = scene.link(&config).await?;
    scene.pace.connected();
    match scene.port.kind {
        TargetKind::Blocks => link.send(&link::request_blocks(scene.target.channel(), 0)).await?,
        _ => link.send(&link::hello()).await?,
    }
    let answer = tokio::time::timeout(ANSWER_TIME_MAX, link.receive()).await??;
    scene.pace.sent(answer.len());
    Ok(match scene.port.kind {
        // A block does not begin with a zero; a refusal does.
        TargetKind::Blocks => answer.first().is_some_and(|byte| *byte != 0),
        _ => answer.first() == Some(&2),
    })
}

async fn ask_often(scene: Arc<AttackContext>, identity: ClientIdentity, what: &str) -> io::Result<Breach> {
    let mut breach = None;
    while scene.pace.take(1.0).await {
        if ask(&scene, &identity).await.unwrap_or(false) {
            breach = Some(format!("{what} was answered at the port of {}", scene.port.kind));
        }
    }
    Ok(breach)
}

async fn users(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let identity = scene.target.user_tls(scene.insider())?;
    ask_often(scene, identity, "a user's TLS certificate").await
}

async fn foreign(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let identity = foreign_identity()?;
    ask_often(scene, identity, "a certificate of another authority").await
}

async fn expired(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let identity = expired_identity(&scene.target)?;
    ask_often(scene, identity, "an expired certificate").await
}

async fn many_of_user(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let identity = scene.target.user_tls(scene.insider())?;
    many(scene, identity).await
}

async fn many_of_node(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let identity = scene.target.node_tls(&format!("gateway-org{}", scene.insider()))?;
    many(scene, identity).await
}

async fn many(scene: Arc<AttackContext>, identity: ClientIdentity) -> io::Result<Breach> {
    let config = tls::config(Some(&identity), &[])?;
    scene
        .each(400, move |scene, _| {
            let config = Arc::clone(&config);
            async move {
                let mut link = scene.link(&config).await?;
                scene.pace.connected();
                match scene.port.kind {
                    TargetKind::Blocks => link.send(&link::request_blocks(scene.target.channel(), 0)).await?,
                    _ => link.send(&link::hello()).await?,
                }
                hold(link).await
            }
        })
        .await
}

async fn foreign_memory(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let identity = foreign_identity()?;
    let config = tls::config(Some(&identity), &[])?;
    let mut breach = None;
    let credential = scene.target.credential(scene.port.kind, 1)?;
    let guessed = Credential { token: vec![0x5a; 32], ..credential };
    let is_tls = scene.target.memory_tls(&guessed)?.is_some();
    while scene.pace.take(1.0).await {
        let tls = is_tls.then_some(&config);
        let answer = RmaClient::connect(&scene.port.address, tls, &guessed);
        if tokio::time::timeout(ANSWER_TIME_MAX, answer).await.is_ok_and(|answer| answer.is_ok()) {
            breach = Some("a guessed token was believed".to_owned());
        }
        scene.pace.connected();
    }
    Ok(breach)
}

fn named(name: &str, not_after: Option<OffsetDateTime>) -> io::Result<CertificateParams> {
    let mut params =
        CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).map_err(io::Error::other)?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject.push(DnType::OrganizationalUnitName, "peer");
    params.distinguished_name = subject;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = OffsetDateTime::now_utc() - time::Duration::days(30);
    params.not_after = not_after.unwrap_or(OffsetDateTime::now_utc() + time::Duration::days(30));
    Ok(params)
}

/// A peer's certificate, issued by an authority that no node trusts.
fn foreign_identity() -> io::Result<ClientIdentity> {
    let authority_key = KeyPair::generate().map_err(io::Error::other)?;
    let mut authority = named("tlsca.org1.example.com", None)?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = Issuer::new(authority, authority_key);
    signed(&named("peer0.org1.example.com", None)?, &issuer)
}

/// A peer's certificate of the organisation's own authority, which expired yesterday.
fn expired_identity(target: &TargetNetwork) -> io::Result<ClientIdentity> {
    let authority = target.tls_authority(1)?;
    let text = |pem: &[u8]| String::from_utf8_lossy(pem).into_owned();
    let key = KeyPair::from_pem(&text(&authority.key_pem)).map_err(io::Error::other)?;
    let issuer = Issuer::from_ca_cert_pem(&text(&authority.certificate_pem), key).map_err(io::Error::other)?;
    let yesterday = OffsetDateTime::now_utc() - time::Duration::days(1);
    signed(&named("peer0.org1.example.com", Some(yesterday))?, &issuer)
}

fn signed(params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> io::Result<ClientIdentity> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.signed_by(&key, issuer).map_err(io::Error::other)?;
    Ok(ClientIdentity { certificate_pem: certificate.pem().into_bytes(), key_pem: key.serialize_pem().into_bytes() })
}
