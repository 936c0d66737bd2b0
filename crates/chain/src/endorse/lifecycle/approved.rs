//! What the peer's own organisation has approved.

use base::Bytes;
use ledger::lifecycle::{ContractDefinition, DefinitionField, datatype_of, text_of_field};
use proto::lifecycle::chaincode_source::{Local, Type, Unavailable};
use proto::lifecycle::query_approved_chaincode_definitions_result::ApprovedChaincodeDefinition;
use proto::lifecycle::{
    ChaincodeSource, QueryApprovedChaincodeDefinitionArgs, QueryApprovedChaincodeDefinitionResult,
    QueryApprovedChaincodeDefinitionsResult,
};

use super::{
    CallResult, LOCAL_PACKAGE, LifecycleCall, LifecycleError, NAMESPACES, PARAMETERS, SOURCES, implicit_collection,
};

impl LifecycleCall<'_> {
    /// The organisation's approval of one sequence of a contract. Without a sequence: that of the next one if it has approved that,
    /// else of the committed one.
    pub(super) async fn query_approved(
        &mut self,
        args: QueryApprovedChaincodeDefinitionArgs,
    ) -> CallResult<QueryApprovedChaincodeDefinitionResult> {
        let name = args.name;
        let mut sequence = args.sequence;
        if sequence == 0 {
            sequence = self.state.sequence(&name).await?;
            let next = sequence.saturating_add(1);
            if self.own_row(&metadata_key(NAMESPACES, &name, next)).await?.is_some() {
                sequence = next;
            }
        }
        let found = match self.own_row(&metadata_key(NAMESPACES, &name, sequence)).await? {
            Some(metadata) => self.approved(&name, sequence, &metadata).await?,
            None => {
                let channel = self.policies.channel();
                return Err(LifecycleError::refused(format!(
                    "could not fetch approved chaincode definition (name: '{name}', sequence: '{sequence}') on channel '{channel}'"
                )));
            }
        };
        Ok(QueryApprovedChaincodeDefinitionResult {
            sequence: found.sequence,
            version: found.version,
            endorsement_plugin: found.endorsement_plugin,
            validation_plugin: found.validation_plugin,
            validation_parameter: found.validation_parameter,
            collections: found.collections,
            init_required: found.init_required,
            source: found.source,
        })
    }

    /// All approvals of the organisation.
    pub(super) async fn query_all_approved(&mut self) -> CallResult<QueryApprovedChaincodeDefinitionsResult> {
        let (start, end) = (format!("{NAMESPACES}/metadata/"), format!("{NAMESPACES}/metadata0"));
        let rows = self.state.private_range(&implicit_collection(self.own), &start, &end).await?;
        let mut found = Vec::with_capacity(rows.len());
        for (key, metadata) in rows {
            let named = key.strip_prefix(&start).and_then(|name| name.rsplit_once('#'));
            let Some((name, sequence)) = named.and_then(|(name, sequence)| Some((name, sequence.parse().ok()?))) else {
                continue;
            };
            found.push(self.approved(name, sequence, &metadata).await?);
        }
        Ok(QueryApprovedChaincodeDefinitionsResult { approved_chaincode_definitions: found })
    }

    /// A private row of the organisation.
    async fn own_row(&mut self, key: &str) -> CallResult<Option<Bytes>> {
        Ok(self.state.private_value(&implicit_collection(self.own), key).await?)
    }

    async fn approved(
        &mut self,
        name: &str,
        sequence: i64,
        metadata: &Bytes,
    ) -> CallResult<ApprovedChaincodeDefinition> {
        let unreadable = |what: &str| LifecycleError::refused(format!("the approval of {name}#{sequence}: {what}"));
        if datatype_of(metadata) != PARAMETERS {
            return Err(unreadable("its metadata name another type"));
        }
        let [_, fields @ ..] = DefinitionField::ALL;
        let mut values = [const { None }; 3];
        for (value, field) in values.iter_mut().zip(fields) {
            *value = self.own_row(&field_key(NAMESPACES, name, sequence, field.name())).await?;
        }
        let definition = ContractDefinition::of_parameters(sequence, values.each_ref().map(Option::as_ref));
        let definition = definition.map_err(|error| unreadable(&error.to_string()))?;
        match self.own_row(&metadata_key(SOURCES, name, sequence)).await? {
            Some(metadata) if datatype_of(&metadata) == LOCAL_PACKAGE => {}
            _ => return Err(unreadable("it names no source")),
        }
        let package = self.own_row(&field_key(SOURCES, name, sequence, "PackageID")).await?;
        let package = package.and_then(|row| text_of_field(&row)).unwrap_or_default();
        let source = match package.is_empty() {
            true => Type::Unavailable(Unavailable {}),
            false => Type::LocalPackage(Local { package_id: package }),
        };
        let ContractDefinition { sequence, endorsement, validation, collections } = definition;
        Ok(ApprovedChaincodeDefinition {
            name: name.to_owned(),
            sequence,
            version: endorsement.version,
            endorsement_plugin: endorsement.endorsement_plugin,
            validation_plugin: validation.validation_plugin,
            validation_parameter: validation.validation_parameter,
            collections: Some(collections),
            init_required: endorsement.init_required,
            source: Some(ChaincodeSource { r#type: Some(source) }),
        })
    }
}

fn metadata_key(table: &str, name: &str, sequence: i64) -> String {
    format!("{table}/metadata/{name}#{sequence}")
}

fn field_key(table: &str, name: &str, sequence: i64, field: &str) -> String {
    format!("{table}/fields/{name}#{sequence}/{field}")
}
