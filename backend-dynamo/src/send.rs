//! Sending writes: one request for one item or for many, sent again until it is known what became of it.

use std::{sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
    operation::{
        put_item::PutItemError, transact_write_items::TransactWriteItemsError, update_item::UpdateItemError,
    },
    types::{
        AttributeValue, CancellationReason, ConsumedCapacity, Put,
        ReturnValuesOnConditionCheckFailure::AllOld, TransactWriteItem, Update,
    },
};
use lockcore::{Backoff, Exponential};
use tokio::time::Instant;

use crate::{
    error::{Failure, StoreError},
    item::Item,
    spelling::{Change, Spelled},
    store::Store,
    write::Write,
};

/// Pauses between two tries.
const PAUSES: Exponential = Exponential { base: Duration::from_millis(10), max: Duration::from_millis(500) };

/// What became of some writes that are made together.
#[derive(Debug)]
pub(crate) enum Written {
    /// All are done.
    Done,
    /// None is: the conditions of these, by position, do not hold, for this is what stands there.
    Refused {
        found: Vec<(usize, Option<Item>)>,
        /// An earlier try had no answer and may still arrive.
        doubt: bool,
    },
}

/// What one try came to.
enum Tried {
    Done,
    Refused(Vec<(usize, Option<Item>)>),
    Failed(Failure),
}

impl Store {
    /// Makes all of these writes or none, in one request: at most a hundred, each of another item.
    ///
    /// A try without an answer is repeated as it was. If it was done after all, its own number in what is found says so.
    pub(crate) async fn write(&self, writes: &[Write<'_>], deadline: Instant) -> Result<Written, StoreError> {
        let (mut doubt, mut clock_was_told) = (false, false);
        let mut token = token();
        for attempt in 0.. {
            let client = self.clients.current()?;
            // In a box: the SDK's futures are large and deep, and would be part of every caller's.
            let failure = match Box::pin(self.try_to_write(&client, writes, &token)).await {
                Tried::Done => return Ok(Written::Done),
                Tried::Refused(found) => {
                    let is_ours = |(position, item): &(usize, Option<Item>)| {
                        let rev = item.as_ref().and_then(|item| item.get("rev")?.as_n().ok()?.parse().ok());
                        rev.is_some_and(|rev: u64| rev == writes[*position].rev())
                    };
                    // Its own number: an earlier try was done, and its answer lost on the way.
                    return Ok(match found.iter().any(is_ours) {
                        true => Written::Done,
                        false => Written::Refused { found, doubt },
                    });
                }
                Tried::Failed(failure) => failure,
            };
            if failure.is_about_the_clock() && !clock_was_told {
                clock_was_told = true;
                continue;
            }
            if !failure.in_doubt {
                // That one is over; the service would take the same token for the same outcome.
                token = self::token();
            }
            doubt |= failure.in_doubt;
            let pause = PAUSES.delay(attempt);
            if !failure.again || Instant::now() + pause >= deadline {
                return Err(failure.or_done_before(doubt).into());
            }
            tokio::time::sleep(pause).await;
        }
        unreachable!("the loop ends by returning")
    }

    async fn try_to_write(&self, client: &Arc<Client>, writes: &[Write<'_>], token: &str) -> Tried {
        self.count_request();
        if let [write] = writes {
            let Spelled { change, condition, names, values } = write.spelled(&self.spelling, self.names());
            return match change {
                Change::Update(key, expression) => {
                    let request = client
                        .update_item()
                        .table_name(&self.settings.table)
                        .key(&self.settings.names.id, AttributeValue::S(key))
                        .update_expression(expression)
                        .condition_expression(condition)
                        .set_expression_attribute_names(names)
                        .set_expression_attribute_values(values)
                        .return_values_on_condition_check_failure(AllOld)
                        .set_return_consumed_capacity(self.return_capacity());
                    let answer = request.send().await;
                    self.tried(answer.map(|output| output.consumed_capacity), |refusal| match refusal {
                        UpdateItemError::ConditionalCheckFailedException(failed) => Some(failed.item.clone()),
                        _ => None,
                    })
                }
                Change::Put(item) => {
                    let request = client
                        .put_item()
                        .table_name(&self.settings.table)
                        .set_item(Some(item))
                        .condition_expression(condition)
                        .set_expression_attribute_names(names)
                        .set_expression_attribute_values(values)
                        .return_values_on_condition_check_failure(AllOld)
                        .set_return_consumed_capacity(self.return_capacity());
                    let answer = request.send().await;
                    self.tried(answer.map(|output| output.consumed_capacity), |refusal| match refusal {
                        PutItemError::ConditionalCheckFailedException(failed) => Some(failed.item.clone()),
                        _ => None,
                    })
                }
            };
        }
        let items = writes
            .iter()
            .map(|write| self.transact_item(write.spelled(&self.spelling, self.names())))
            .collect();
        let request = client
            .transact_write_items()
            .set_transact_items(Some(items))
            .client_request_token(token)
            .set_return_consumed_capacity(self.return_capacity());
        match request.send().await {
            Ok(output) => {
                self.count_written(output.consumed_capacity.iter().flatten());
                Tried::Done
            }
            Err(error) => match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    cancelled_because(cancelled.cancellation_reasons())
                }
                _ => Tried::Failed(Failure::of(&error)),
            },
        }
    }

    /// What one write came to; `found` takes what stands there out of a refusal.
    fn tried<E>(
        &self,
        answer: Result<Option<ConsumedCapacity>, SdkError<E, HttpResponse>>,
        found: impl FnOnce(&E) -> Option<Option<Item>>,
    ) -> Tried
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        match answer {
            Ok(consumed) => {
                self.count_written(consumed.iter());
                Tried::Done
            }
            Err(error) => match error.as_service_error().and_then(found) {
                Some(item) => Tried::Refused(vec![(0, item)]),
                None => Tried::Failed(Failure::of(&error)),
            },
        }
    }

    fn transact_item(&self, write: Spelled) -> TransactWriteItem {
        const COMPLETE: &str = "all that is required is set";
        let item = TransactWriteItem::builder();
        let Spelled { change, condition, names, values } = write;
        match change {
            Change::Update(key, expression) => item.update(
                Update::builder()
                    .table_name(&self.settings.table)
                    .key(&self.settings.names.id, AttributeValue::S(key))
                    .update_expression(expression)
                    .condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(AllOld)
                    .build()
                    .expect(COMPLETE),
            ),
            Change::Put(new) => item.put(
                Put::builder()
                    .table_name(&self.settings.table)
                    .set_item(Some(new))
                    .condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(AllOld)
                    .build()
                    .expect(COMPLETE),
            ),
        }
        .build()
    }
}

/// Reads why a transaction was cancelled: by what stands there, or by others at the same time.
fn cancelled_because(reasons: &[CancellationReason]) -> Tried {
    let mut found = Vec::new();
    for (position, reason) in reasons.iter().enumerate() {
        match reason.code() {
            None | Some("None") => {}
            Some("ConditionalCheckFailed") => {
                let item = reason.item().filter(|item| !item.is_empty());
                found.push((position, item.cloned()));
            }
            // Others may be in the way of the rest; but nothing is known of this one until it is asked again.
            Some(code) => return Tried::Failed(Failure::coded(Some(code), reason.message(), 400)),
        }
    }
    match found.is_empty() {
        true => Tried::Failed(Failure::coded(Some("TransactionConflict"), None, 400)),
        false => Tried::Refused(found),
    }
}

fn token() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}
