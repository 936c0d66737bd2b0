//! The installed contracts of a configuration, and the endorsements that each of them needs.

use contract::ContractRegistry;
use identity::policy;
use ledger::config::genesis::EndorsementRule;
use ledger::lifecycle::ContractDefinition;
use rules::definitions::{ContractDefinitions, by_channel_policy};

use crate::config::{ConfigError, ContractsConfig, HeddleConfig, rule};
use crate::network::NodeError;

/// The contracts that run outside of the peers' processes, by name.
pub(crate) fn services(config: &HeddleConfig) -> Vec<String> {
    let names = config.contracts.0.keys();
    names.filter(|name| config.chaincodes.iter().any(|chaincode| chaincode.name == **name)).cloned().collect()
}

/// The contracts that the configuration names and that are compiled in.
///
/// # Errors
/// [`NodeError::UnknownContract`].
pub(crate) fn registry(config: &HeddleConfig) -> Result<ContractRegistry, NodeError> {
    registry_without(&config.contracts, &services(config))
}

/// The contracts that are compiled in: all but `services`.
///
/// # Errors
/// [`NodeError::UnknownContract`].
pub(crate) fn registry_without(
    contracts: &ContractsConfig,
    services: &[String],
) -> Result<ContractRegistry, NodeError> {
    let native = ContractRegistry::native();
    let mut registry = ContractRegistry::empty();
    for name in contracts.0.keys().filter(|name| !services.contains(name)) {
        let contract = native.get(name).ok_or_else(|| NodeError::UnknownContract {
            name: name.clone(),
            known: native.names().collect::<Vec<_>>().join(", "),
        })?;
        registry.register(name, contract.clone()).expect("names of native contracts are valid and distinct here");
    }
    Ok(registry)
}

/// The definitions that the contracts of a configuration have until the ledger defines them.
///
/// # Errors
/// [`NodeError::UnknownContract`]; [`ConfigError::Value`] for a policy that cannot be read.
pub fn first_definitions(config: &HeddleConfig) -> Result<ContractDefinitions, NodeError> {
    Ok(definitions(config, &registry(config)?)?)
}

/// The definitions of all contracts: a contract without a policy of its own uses the channel's.
///
/// # Errors
/// [`ConfigError::Value`].
pub(crate) fn definitions(
    config: &HeddleConfig,
    registry: &ContractRegistry,
) -> Result<ContractDefinitions, ConfigError> {
    let mut definitions = ContractDefinitions::new();
    for (name, contract) in &config.contracts.0 {
        // A chaincode outside of the peers has the version that contracts have by default.
        let version = registry.get(name).map_or("1.0", |contract| contract.version()).to_owned();
        let Some(text) = &contract.policy else {
            definitions.insert(name.clone(), by_channel_policy(version));
            continue;
        };
        let wrong = |problem: String| ConfigError::Value {
            origin: "the configuration".to_owned(),
            key: "contracts",
            problem: format!("gives {name} a policy that {problem}"),
        };
        let text = match rule(text).map_err(wrong)? {
            EndorsementRule::Policy(text) => text,
            word => out_of(&word, &config.network.organizations),
        };
        let envelope = policy::parse(&text).map_err(|error| wrong(error.to_string()))?;
        definitions.insert(name.clone(), ContractDefinition::first(version, &policy::of_signature(envelope)));
    }
    Ok(definitions)
}

/// Translates a policy word into a signature policy over the organisations' peers.
fn out_of(rule: &EndorsementRule, organizations: &[String]) -> String {
    let count = match rule {
        EndorsementRule::Any => 1,
        EndorsementRule::All => organizations.len(),
        EndorsementRule::Majority | EndorsementRule::Policy(_) => organizations.len() / 2 + 1,
    };
    let peers: Vec<String> = organizations.iter().map(|name| format!("'{name}MSP.peer'")).collect();
    format!("OutOf({count}, {})", peers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ContractConfig;

    #[test]
    fn a_word_becomes_a_policy_over_all_organizations() {
        let organizations = ["A".to_owned(), "B".to_owned(), "C".to_owned()];
        assert_eq!(out_of(&EndorsementRule::Any, &organizations), "OutOf(1, 'AMSP.peer', 'BMSP.peer', 'CMSP.peer')");
        assert_eq!(
            out_of(&EndorsementRule::Majority, &organizations),
            "OutOf(2, 'AMSP.peer', 'BMSP.peer', 'CMSP.peer')"
        );
        assert_eq!(out_of(&EndorsementRule::All, &organizations), "OutOf(3, 'AMSP.peer', 'BMSP.peer', 'CMSP.peer')");
    }

    #[test]
    fn contracts_have_their_own_policy_or_the_channels() {
        let mut config = HeddleConfig::default();
        config.contracts.0.insert("basic".into(), ContractConfig { policy: Some("all".into()) });
        let registry = registry(&config).expect("native contracts");
        let definitions = definitions(&config, &registry).expect("a policy");
        assert_eq!(definitions.len(), registry.names().count());
        let channel = by_channel_policy("1.0").validation;
        assert_ne!(definitions["basic"].validation, channel);
        assert_eq!(definitions["ycsb"].validation, channel);
    }

    #[test]
    fn a_contract_that_is_not_there_is_named() {
        let mut config = HeddleConfig::default();
        config.contracts.0.insert("mine".into(), ContractConfig::default());
        let error = registry(&config).expect_err("no such contract").to_string();
        assert!(error.contains("mine") && error.contains("smallbank"), "{error}");
    }
}
