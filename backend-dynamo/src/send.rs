//! Sending writes: one request for one item or for many, sent again until it is known what became of it.

use aws_sdk_dynamodb::{
    Client,
    operation::{transact_write_items::TransactWriteItemsError, update_item::UpdateItemError},
    types::{CancellationReason, TransactWriteItem, Update},
};
use lockcore::{Backoff, backend::unique_name};
use tokio::time::Instant;

use crate::{
    error::{Failure, StoreError},
    item::Item,
    store::{PAUSES, Store},
    write::Write,
};

/// The result of writes in one request.
#[derive(Debug)]
pub(crate) enum Written {
    /// All are done.
    Done,
    /// None is done, as the conditions of some do not hold.
    Refused {
        /// The positions of those, each with the item that stands there.
        found: Vec<(usize, Option<Item>)>,
        /// The failure of an earlier try that may have been executed, or may still arrive.
        doubt: Option<Failure>,
    },
}

/// The result of one try.
enum Tried {
    Done,
    Refused(Vec<(usize, Option<Item>)>),
    Failed(Failure),
}

impl Store {
    /// Makes all of these writes or none, in one request: at most a hundred, each of another item.
    ///
    /// A try without an answer is repeated as it was. If it was done after all, its own number in what is found says so.
    pub(crate) async fn write(&self, writes: Vec<Write>, deadline: Instant) -> Result<Written, StoreError> {
        let (mut doubt, mut clock_was_told) = (None, false);
        let mut token = unique_name();
        // Made once: a repeat is the same to the byte, as what follows the service's model may ask for under the same token.
        let revs: Vec<u64> = writes.iter().map(Write::rev).collect();
        let updates: Vec<Update> = writes.into_iter().map(|write| write.update(&self.settings)).collect();
        for attempt in 0.. {
            let client = self.clients.current()?;
            // In a box: the SDK's futures are large and deep, and would be part of every caller's.
            let failure = match Box::pin(try_to_write(&client, &updates, &token)).await {
                Tried::Done => return Ok(Written::Done),
                Tried::Refused(found) => {
                    let is_ours = |(position, item): &(usize, Option<Item>)| {
                        let rev = item.as_ref().and_then(|item| item.get("rev")?.as_n().ok()?.parse().ok());
                        rev.is_some_and(|rev: u64| rev == revs[*position])
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
                // That transaction has ended; the service would repeat its outcome for the same token.
                token = unique_name();
            }
            let pause = PAUSES.delay(attempt);
            if !failure.again || Instant::now() + pause >= deadline {
                return Err(failure.or_done_before(doubt.is_some()).into());
            }
            if failure.in_doubt {
                doubt.get_or_insert(failure);
            }
            tokio::time::sleep(pause).await;
        }
        unreachable!("the loop ends by returning")
    }
}

async fn try_to_write(client: &Client, updates: &[Update], token: &str) -> Tried {
    if let [update] = updates {
        let update = update.clone();
        let request = client
            .update_item()
            .table_name(update.table_name)
            .set_key(Some(update.key))
            .update_expression(update.update_expression)
            .set_condition_expression(update.condition_expression)
            .set_expression_attribute_names(update.expression_attribute_names)
            .set_expression_attribute_values(update.expression_attribute_values)
            .set_return_values_on_condition_check_failure(update.return_values_on_condition_check_failure);
        return match request.send().await {
            Ok(_) => Tried::Done,
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    Tried::Refused(vec![(0, failed.item.clone())])
                }
                _ => Tried::Failed(Failure::of(&error)),
            },
        };
    }
    let items = updates.iter().map(|update| TransactWriteItem::builder().update(update.clone()).build());
    let request =
        client.transact_write_items().client_request_token(token).set_transact_items(Some(items.collect()));
    match request.send().await {
        Ok(_) => Tried::Done,
        Err(error) => match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                cancelled_because(cancelled.cancellation_reasons())
            }
            _ => Tried::Failed(Failure::of(&error)),
        },
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
