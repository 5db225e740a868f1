//! Sending writes: one request for one item or for many, sent again until it is known what became of it.

use std::{sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    config::http::HttpRequest,
    operation::{transact_write_items::TransactWriteItemsError, update_item::UpdateItemError},
    types::{AttributeValue, CancellationReason, ReturnConsumedCapacity, TransactWriteItem, Update},
};
use aws_smithy_json::serialize::JsonObjectWriter;
use aws_smithy_types::body::SdkBody;
use lockcore::{Backoff, Exponential};
use tokio::time::Instant;

use crate::{
    error::{Failure, StoreError},
    item::Item,
    store::Store,
    write::Write,
};

/// Pauses between two tries.
const PAUSES: Exponential = Exponential { base: Duration::from_millis(10), max: Duration::from_millis(500) };

/// The result of writes in one request.
#[derive(Debug)]
pub(crate) enum Written {
    /// All are done.
    Done,
    /// None is: the conditions of these, by position, do not hold, for this is what stands there.
    Refused {
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
    pub(crate) async fn write(&self, writes: &[Write<'_>], deadline: Instant) -> Result<Written, StoreError> {
        let (mut doubt, mut clock_was_told) = (None, false);
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
                // That transaction has ended; the service would repeat its outcome for the same token.
                token = self::token();
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

    async fn try_to_write(&self, client: &Arc<Client>, writes: &[Write<'_>], token: &str) -> Tried {
        self.count_request();
        let capacity = self.return_capacity();
        let body = self.body(writes, token, capacity.as_ref());
        let table = &self.settings.table;
        if writes.len() == 1 {
            let key = AttributeValue::S("-".to_owned());
            let request = client.update_item().table_name(table).key(&self.names().id, key);
            let answer = request.customize().mutate_request(with_body(body)).send().await;
            return match answer {
                Ok(output) => {
                    self.count_written(output.consumed_capacity.iter());
                    Tried::Done
                }
                Err(error) => match error.as_service_error() {
                    Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                        Tried::Refused(vec![(0, failed.item.clone())])
                    }
                    _ => Tried::Failed(Failure::of(&error)),
                },
            };
        }
        // Some endpoints depend on the table.
        let update =
            Update::builder().table_name(table).key(&self.names().id, AttributeValue::S("-".to_owned()));
        let update = update.update_expression("-").build().expect("all that is required is set");
        let request = client.transact_write_items().client_request_token(token);
        let request = request.transact_items(TransactWriteItem::builder().update(update).build());
        match request.customize().mutate_request(with_body(body)).send().await {
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

    /// The body of the request, written straight: as values of the SDK the hundred items of a set cost several times what
    /// the rest of the request does.
    fn body(&self, writes: &[Write<'_>], token: &str, capacity: Option<&ReturnConsumedCapacity>) -> String {
        let mut body = String::with_capacity(800 * writes.len());
        let mut request = JsonObjectWriter::new(&mut body);
        if let [write] = writes {
            self.spelling.write(&write.spelled(&self.spelling), &mut request);
        } else {
            let mut items = request.key("TransactItems").start_array();
            for write in writes {
                let mut item = items.value().start_object();
                let mut update = item.key("Update").start_object();
                self.spelling.write(&write.spelled(&self.spelling), &mut update);
                update.finish();
                item.finish();
            }
            items.finish();
            request.key("ClientRequestToken").string_unchecked(token);
        }
        if let Some(capacity) = capacity {
            request.key("ReturnConsumedCapacity").string_unchecked(capacity.as_str());
        }
        request.finish();
        body
    }
}

/// Puts the body into a request before it is signed.
fn with_body(body: String) -> impl Fn(&mut HttpRequest) + Send + Sync + 'static {
    let body = SdkBody::from(body);
    move |request| {
        let body = body.try_clone().expect("it is in memory");
        let length = body.content_length().expect("it is in memory");
        request.headers_mut().insert("content-length", length.to_string());
        *request.body_mut() = body;
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
