//! Changes of the channel's configuration, as members propose them.
//!
//! A change sets the maximum number of envelopes in a block, or the number of organisations that must endorse. The
//! number of endorsing organisations never exceeds the scenario's, so that honest clients always have enough
//! endorsements. Some changes lack a signature that they need.

use base::Bytes;
use base::rt::simulation::Prng;
use identity::Signer;
use identity::policy::{MetaRule, implicit_meta_to_wire};
use ledger::ChannelConfig;
use ledger::config::sign_update;
use prost::Message as _;
use proto::common::ConfigGroup;
use proto::orderer::BatchSize;

/// Who signs changes, and how far they may go.
#[derive(Clone, Copy)]
pub struct Reconfigurers<'a> {
    /// An administrator of each organisation.
    pub admins: &'a [Signer],
    /// An administrator of the orderers' organisation.
    pub orderer_admin: &'a Signer,
    /// The most organisations that a change may have endorse.
    pub endorsements_max: usize,
}

/// An update of a configuration, signed and in its envelope.
#[derive(Clone, Debug)]
pub struct Reconfiguration {
    /// The envelope, of type CONFIG_UPDATE.
    pub envelope: Bytes,
    /// Whether it has the signatures that it needs.
    pub is_authorized: bool,
    /// What it sets, for display.
    pub text: String,
}

/// Draws a change of this configuration.
pub fn draw(rng: &mut Prng, members: Reconfigurers<'_>, config: &ChannelConfig) -> Reconfiguration {
    let is_authorized = !rng.one_in(4);
    loop {
        let mut root = config.decode_root().expect("a peer has read it");
        let (text, signers) = match rng.one_in(3) {
            true => set_messages_max(rng, members, &mut root, is_authorized),
            false => set_endorsements(rng, members, &mut root, is_authorized),
        };
        // What it sets may be what is set already.
        if let Some(update) = config.update_to(&root).expect("a peer has read it") {
            return Reconfiguration { envelope: sign_update(&update, &signers), is_authorized, text };
        }
    }
}

fn set_messages_max<'a>(
    rng: &mut Prng,
    members: Reconfigurers<'a>,
    root: &mut ConfigGroup,
    is_authorized: bool,
) -> (String, Vec<&'a Signer>) {
    let orderer = root.groups.get_mut("Orderer").expect("every channel has it");
    let value = orderer.values.get_mut("BatchSize").expect("every channel has it");
    let size = BatchSize::decode(value.value.clone()).expect("a peer has read it");
    let max_message_count = 2 + rng.below(9) as u32;
    value.value = BatchSize { max_message_count, ..size }.encode_to_vec().into();
    let signers = if is_authorized { vec![members.orderer_admin] } else { members.admins.iter().collect() };
    (format!("at most {max_message_count} envelopes a block"), signers)
}

fn set_endorsements<'a>(
    rng: &mut Prng,
    members: Reconfigurers<'a>,
    root: &mut ConfigGroup,
    is_authorized: bool,
) -> (String, Vec<&'a Signer>) {
    let count = 1 + rng.index(members.endorsements_max);
    let rule = match count {
        1 => MetaRule::Any,
        all if all == members.admins.len() => MetaRule::All,
        _ => MetaRule::Majority,
    };
    let application = root.groups.get_mut("Application").expect("every channel has it");
    let policy = application.policies.get_mut("Endorsement").expect("every channel has it");
    policy.policy = Some(implicit_meta_to_wire(rule, "Endorsement"));
    // A majority of the organisations' administrators must sign.
    let admins = members.admins.iter().skip(rng.index(2));
    let signers = if is_authorized { admins.take(2).collect() } else { admins.take(1).collect() };
    (format!("{count} organisations must endorse"), signers)
}
