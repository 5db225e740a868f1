//! The table: its description for people and their tools, its creation, and whether one that is there will do.

use std::time::Duration;

use aws_sdk_dynamodb::{
    error::ProvideErrorMetadata,
    types::{
        AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
        MultiRegionConsistency, Projection, ProjectionType, ReplicaStatus, ScalarAttributeType,
        TableDescription, TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
    },
};
use lockcore::{Backoff, Exponential};
use tokio::time::Instant;

use crate::{
    config::{Names, Settings},
    error::{Failure, StoreError},
    store::Store,
};

/// The time that a table may take to come into being.
const CREATION: Duration = Duration::from_secs(120);

const PAUSES: Exponential = Exponential { base: Duration::from_millis(50), max: Duration::from_secs(2) };

/// The table as these settings need it, in the languages of infrastructure tools.
///
/// Billing is on demand; expired items, and those kept for the fence of a free id, are collected by TTL.
#[derive(Clone, Debug)]
pub struct Schema {
    table: String,
    names: Names,
}

impl Schema {
    pub(crate) fn new(settings: &Settings) -> Self {
        Schema { table: settings.table.clone(), names: settings.names.clone() }
    }

    /// Returns a CloudFormation template in YAML.
    pub fn cloud_formation(&self) -> String {
        let Schema { table, names: Names { id, context, expires, index, .. } } = self;
        let (attribute, indexes) = match index {
            None => (String::new(), String::new()),
            Some(index) => (
                format!("        - AttributeName: {}\n          AttributeType: S\n", quoted(context)),
                format!(
                    "      GlobalSecondaryIndexes:\n        - IndexName: {}\n          KeySchema:\n            - \
                     AttributeName: {}\n              KeyType: HASH\n          Projection:\n            \
                     ProjectionType: KEYS_ONLY\n",
                    quoted(index),
                    quoted(context)
                ),
            ),
        };
        let (table, id, expires) = (quoted(table), quoted(id), quoted(expires));
        format!(
            "AWSTemplateFormatVersion: '2010-09-09'\nResources:\n  Locks:\n    Type: AWS::DynamoDB::Table\n    \
             DeletionPolicy: Retain\n    UpdateReplacePolicy: Retain\n    Properties:\n      TableName: {table}\n      \
             BillingMode: PAY_PER_REQUEST\n      AttributeDefinitions:\n        - AttributeName: {id}\n          \
             AttributeType: S\n{attribute}      KeySchema:\n        - AttributeName: {id}\n          KeyType: HASH\n\
             {indexes}      TimeToLiveSpecification:\n        AttributeName: {expires}\n        Enabled: true\n"
        )
    }

    /// Returns a Terraform resource of the AWS provider.
    pub fn terraform(&self) -> String {
        let Schema { table, names: Names { id, context, expires, index, .. } } = self;
        let attribute =
            |name: &str| format!("\n  attribute {{\n    name = {}\n    type = \"S\"\n  }}\n", quoted(name));
        let mut attributes = attribute(id);
        let mut indexes = String::new();
        if let Some(index) = index {
            attributes += &attribute(context);
            indexes = format!(
                "\n  global_secondary_index {{\n    name            = {}\n    hash_key        = {}\n    \
                 projection_type = \"KEYS_ONLY\"\n  }}\n",
                quoted(index),
                quoted(context)
            );
        }
        let (table, id, expires) = (quoted(table), quoted(id), quoted(expires));
        format!(
            "resource \"aws_dynamodb_table\" \"locks\" {{\n  name         = {table}\n  billing_mode = \
             \"PAY_PER_REQUEST\"\n  hash_key     = {id}\n{attributes}{indexes}\n  ttl {{\n    attribute_name = \
             {expires}\n    enabled        = true\n  }}\n}}\n"
        )
    }

    /// Returns the least IAM policy with which programs lock, as JSON; `DescribeTable` lets them check the table when they
    /// connect. Administration needs `dynamodb:Scan` too, and `migrate` `CreateTable`, `UpdateTimeToLive` and
    /// `DescribeTimeToLive`.
    pub fn iam_policy(&self) -> String {
        let arn = match self.table.starts_with("arn:") {
            true => self.table.clone(),
            false => format!("arn:aws:dynamodb:*:*:table/{}", self.table),
        };
        let actions = ["BatchGetItem", "DescribeTable", "GetItem", "UpdateItem"];
        let actions: Vec<String> =
            actions.iter().map(|action| format!("        \"dynamodb:{action}\"")).collect();
        format!(
            "{{\n  \"Version\": \"2012-10-17\",\n  \"Statement\": [\n    {{\n      \"Effect\": \"Allow\",\n      \
             \"Action\": [\n{}\n      ],\n      \"Resource\": {}\n    }}\n  ]\n}}\n",
            actions.join(",\n"),
            quoted(&arn)
        )
    }
}

/// The text as JSON, YAML and Terraform all quote it. The names are checked to hold nothing that Terraform expands but
/// attributes, where a `${` would be strange enough to be refused there.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Store {
    /// Checks the table, which also brings the service's time. One that is missing, or that may not be described, is no
    /// error here.
    pub(crate) async fn check_table(&self) -> Result<(), StoreError> {
        if let Some(table) = self.describe().await? {
            self.check(&table)?;
        }
        Ok(())
    }

    /// The table's description; `None` if it is missing, or if that may not be asked.
    pub(crate) async fn describe(&self) -> Result<Option<TableDescription>, StoreError> {
        let deadline = self.deadline();
        for attempt in 0.. {
            let answer =
                self.clients.current()?.describe_table().table_name(&self.settings.table).send().await;
            let failure = match answer {
                Ok(output) => return Ok(output.table),
                Err(error) => match error.as_service_error().and_then(ProvideErrorMetadata::code) {
                    Some("ResourceNotFoundException") => return Ok(None),
                    Some("AccessDeniedException") if self.clock.now().is_some() => return Ok(None),
                    _ => Failure::of(&error),
                },
            };
            if failure.is_about_the_clock() && attempt == 0 {
                continue;
            }
            let pause = PAUSES.delay(attempt);
            if !failure.again || Instant::now() + pause >= deadline {
                return Err(failure.of_reading().into());
            }
            tokio::time::sleep(pause).await;
        }
        unreachable!("the loop ends by returning")
    }

    fn check(&self, table: &TableDescription) -> Result<(), StoreError> {
        const EVENTUAL: &str = "it has replicas in other regions that are eventually consistent: two regions could grant the same lock";
        // Nor does the service's clean-up by TTL work there.
        const STRONG: &str = "it has replicas in other regions that are strongly consistent: the service makes no \
                              transactions on such tables, which sets of ids need";
        let problem = |problem: String| Err(StoreError::Table(problem));
        let id = &self.names().id;
        let is_key =
            matches!(table.key_schema(), [key] if key.attribute_name == *id && key.key_type == KeyType::Hash);
        let is_string = table.attribute_definitions().iter().any(|attribute| {
            attribute.attribute_name == *id && attribute.attribute_type == ScalarAttributeType::S
        });
        if !(is_key && is_string) {
            let key: Vec<String> = table
                .key_schema()
                .iter()
                .map(|key| format!("{} ({})", key.attribute_name, key.key_type.as_str()))
                .collect();
            let found = key.join(", ");
            return problem(format!(
                "its key must be {id:?}, a string, as hash key, and nothing else; it is {found}"
            ));
        }
        // Of this version the replicas are not listed.
        if table.global_table_version() == Some("2017.11.29") {
            return problem(EVENTUAL.to_owned());
        }
        let live = |status: Option<&ReplicaStatus>| !matches!(status, Some(ReplicaStatus::Deleting));
        let replicas = table.replicas().iter().filter(|replica| live(replica.replica_status())).count();
        let strong = table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
        if replicas > 0 {
            return problem(if strong { STRONG } else { EVENTUAL }.to_owned());
        }
        Ok(())
    }

    /// Creates the table where it is missing, switches TTL on, and waits until it can be used.
    pub(crate) async fn migrate(&self) -> Result<(), StoreError> {
        let deadline = Instant::now() + CREATION;
        for attempt in 0.. {
            match self.describe().await? {
                None => self.create().await?,
                Some(table) => {
                    self.check(&table)?;
                    if table.table_status() == Some(&TableStatus::Active) {
                        return self.switch_ttl_on().await;
                    }
                }
            }
            let pause = PAUSES.delay(attempt);
            if Instant::now() + pause >= deadline {
                return Err(StoreError::Table(format!("it was not active after {} s", CREATION.as_secs())));
            }
            tokio::time::sleep(pause).await;
        }
        unreachable!("the loop ends by returning")
    }

    async fn create(&self) -> Result<(), StoreError> {
        const COMPLETE: &str = "all that is required is set";
        let Names { id, context, index, .. } = self.names();
        let attribute = |name: &str| {
            let attribute = AttributeDefinition::builder().attribute_name(name);
            attribute.attribute_type(ScalarAttributeType::S).build().expect(COMPLETE)
        };
        let key = |name: &str| {
            let key = KeySchemaElement::builder().attribute_name(name).key_type(KeyType::Hash);
            key.build().expect(COMPLETE)
        };
        let client = self.clients.current()?;
        let mut request = client
            .create_table()
            .table_name(&self.settings.table)
            .attribute_definitions(attribute(id))
            .key_schema(key(id))
            .billing_mode(BillingMode::PayPerRequest);
        if let Some(index) = index {
            let index = GlobalSecondaryIndex::builder()
                .index_name(index)
                .key_schema(key(context))
                .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build());
            request = request
                .attribute_definitions(attribute(context))
                .global_secondary_indexes(index.build().expect(COMPLETE));
        }
        match Box::pin(request.send()).await {
            Ok(_) => Ok(()),
            Err(error) => match error.as_service_error().and_then(ProvideErrorMetadata::code) {
                // Another program was faster.
                Some("ResourceInUseException" | "TableAlreadyExistsException") => Ok(()),
                _ => Err(Failure::of(&error).into()),
            },
        }
    }

    async fn switch_ttl_on(&self) -> Result<(), StoreError> {
        let client = self.clients.current()?;
        if self.has_ttl().await? == Some(true) {
            return Ok(());
        }
        let ttl = TimeToLiveSpecification::builder().attribute_name(&self.names().expires).enabled(true);
        let request = client
            .update_time_to_live()
            .table_name(&self.settings.table)
            .time_to_live_specification(ttl.build().expect("both are set"));
        match Box::pin(request.send()).await {
            Ok(_) => Ok(()),
            // Another program was faster, or TTL was changed within the hour: `doctor` reports whether it is on.
            Err(error)
                if error.as_service_error().and_then(ProvideErrorMetadata::code)
                    == Some("ValidationException") =>
            {
                Ok(())
            }
            Err(error) => Err(Failure::of(&error).into()),
        }
    }

    /// Returns whether TTL goes by the right attribute; `None` if that may not be asked.
    pub(crate) async fn has_ttl(&self) -> Result<Option<bool>, StoreError> {
        let request = self.clients.current()?.describe_time_to_live().table_name(&self.settings.table);
        let answer = Box::pin(request.send()).await;
        match answer {
            Ok(output) => {
                let ttl = output.time_to_live_description;
                Ok(Some(ttl.is_some_and(|ttl| {
                    let on = [TimeToLiveStatus::Enabled, TimeToLiveStatus::Enabling];
                    ttl.attribute_name() == Some(&self.names().expires)
                        && ttl.time_to_live_status().is_some_and(|status| on.contains(status))
                })))
            }
            Err(error) => match error.as_service_error().and_then(ProvideErrorMetadata::code) {
                Some("AccessDeniedException" | "UnknownOperationException") => Ok(None),
                _ => Err(Failure::of(&error).into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(index: Option<&str>) -> Schema {
        let names = Names { index: index.map(str::to_owned), ..Names::default() };
        Schema { table: "locks".to_owned(), names }
    }

    #[test]
    fn the_template_names_table_key_and_ttl() {
        let template = names(None).cloud_formation();
        for line in [
            "      TableName: \"locks\"",
            "      BillingMode: PAY_PER_REQUEST",
            "        - AttributeName: \"id\"\n          KeyType: HASH",
            "      TimeToLiveSpecification:\n        AttributeName: \"expires\"\n        Enabled: true",
        ] {
            assert!(template.contains(line), "{line} in\n{template}");
        }
        assert!(!template.contains("contextId"));
        let template = names(Some("context-ids-index")).cloud_formation();
        assert!(template.contains("        - IndexName: \"context-ids-index\"\n          KeySchema:\n            - AttributeName: \"contextId\"\n              KeyType: HASH\n"), "{template}");
    }

    #[test]
    fn the_resource_names_table_key_and_ttl() {
        let resource = names(Some("context-ids-index")).terraform();
        for line in [
            "  hash_key     = \"id\"\n",
            "    name            = \"context-ids-index\"\n",
            "    attribute_name = \"expires\"\n",
        ] {
            assert!(resource.contains(line), "{line} in\n{resource}");
        }
        assert_eq!(resource.matches('{').count(), resource.matches('}').count());
    }

    #[test]
    fn the_policy_is_of_the_table_only() {
        let policy = names(None).iam_policy();
        assert!(policy.contains("\"Resource\": \"arn:aws:dynamodb:*:*:table/locks\""), "{policy}");
        assert!(!policy.contains('*'.to_string().repeat(2).as_str()) && !policy.contains("Scan"));
    }
}
