//! The version of a namespace's items, and of the programs that may use them.

use aws_sdk_dynamodb::{error::ProvideErrorMetadata, types::AttributeValue};
use lockcore::{
    BackendErrorKind, Finding,
    backend::{StoreFit, StoreVersion},
};

use crate::{
    error::{Failure, StoreError},
    row::VERSION,
    store::Store,
};

/// The attributes of the record.
const NUMBERS: [&str; 2] = ["version", "oldestProgram"];

impl Store {
    /// Refuses a namespace that is for newer programs, and migrates one that is older than this program.
    pub(crate) async fn admit(&self) -> Result<(), StoreError> {
        let program = self.settings.program;
        loop {
            let record = self.record().await?;
            let found = record.unwrap_or(VERSION);
            let fit = program.fit(Some(found));
            if fit.map_err(StoreError::TooOld)? == StoreFit::Ready {
                return Ok(());
            }
            self.replace(record, program.after_migration(Some(found))).await?;
        }
    }

    /// Reports the version for `doctor`.
    pub(crate) async fn version_finding(&self) -> Result<Finding, StoreError> {
        Ok(self.settings.program.finding(self.record().await?.unwrap_or(VERSION)))
    }

    /// Reads the record; `None` if there is none.
    async fn record(&self) -> Result<Option<StoreVersion>, StoreError> {
        let item = match self.read_one(&self.keys.version(), self.deadline()).await {
            // There is no table yet.
            Err(StoreError::Service(failure)) if failure.kind == BackendErrorKind::Misconfigured => {
                return Ok(None);
            }
            item => item?,
        };
        let Some(item) = item else { return Ok(None) };
        let number = |name: &str| item.get(name)?.as_n().ok()?.parse().ok();
        match NUMBERS.map(number) {
            [Some(version), Some(oldest_program)] => Ok(Some(StoreVersion { version, oldest_program })),
            _ => Err(StoreError::Corrupt("the version of the namespace")),
        }
    }

    /// Writes the record if it is still as it was read.
    async fn replace(&self, found: Option<StoreVersion>, new: StoreVersion) -> Result<(), StoreError> {
        let number = |number: u32| AttributeValue::N(number.to_string());
        let id = AttributeValue::S(self.keys.version());
        let update = self
            .clients
            .current()?
            .update_item()
            .table_name(&self.settings.table)
            .key(&self.names().id, id)
            .update_expression("SET #v = :v, #o = :o")
            .expression_attribute_names("#v", NUMBERS[0])
            .expression_attribute_names("#o", NUMBERS[1])
            .expression_attribute_values(":v", number(new.version))
            .expression_attribute_values(":o", number(new.oldest_program));
        let update = match found {
            None => update.condition_expression("attribute_not_exists(#v)"),
            Some(found) => update
                .condition_expression("#v = :f")
                .expression_attribute_values(":f", number(found.version)),
        };
        match Box::pin(update.send()).await {
            Ok(_) => Ok(()),
            Err(error) => match error.as_service_error().and_then(ProvideErrorMetadata::code) {
                // Another program did; it is read again.
                Some("ConditionalCheckFailedException") => Ok(()),
                _ => Err(Failure::of(&error).into()),
            },
        }
    }
}
