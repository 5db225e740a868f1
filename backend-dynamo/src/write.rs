//! Conditional writes: one request for one item or for many, sent again until it is known what became of it.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    error::SdkError,
    operation::{
        put_item::PutItemError, transact_write_items::TransactWriteItemsError, update_item::UpdateItemError,
    },
    types::{
        AttributeValue, CancellationReason, Put, ReturnValuesOnConditionCheckFailure::AllOld,
        TransactWriteItem, Update,
    },
};
use lockcore::{Backoff, Exponential, Mode};
use tokio::time::Instant;

use crate::{
    clock::Now,
    config::Names,
    decide::Asker,
    error::{Failure, StoreError},
    row::{self, Entry, Item, Row, fraction, n, up},
    store::Store,
};

/// Pauses between two tries.
const PAUSES: Exponential = Exponential { base: Duration::from_millis(10), max: Duration::from_millis(500) };

/// One conditional write of one item.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    key: String,
    /// What makes this write known again; 0 for items without.
    rev: u64,
    change: Change,
    condition: Cow<'static, str>,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

#[derive(Clone, Debug)]
enum Change {
    Update(Cow<'static, str>),
    Put(Item),
}

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

impl Write {
    /// Takes an id that nobody holds, without having read it: free, or with a lease that is over, neither frozen nor the
    /// attempt withdrawn, under a fence above the last one.
    pub(crate) fn take(key: &str, names: &Names, asker: Asker<'_>, entry: &Entry, now: Now) -> Self {
        let rev = fastrand::u64(1..);
        let context = match entry.mode {
            Mode::Exclusive => asker.context,
            _ => row::MANY,
        };
        let holders = HashMap::from([(asker.context.to_owned(), entry.write())]);
        let slots =
            matches!(entry.mode, Mode::Slots { .. }).then(|| (":s".to_owned(), row::slots(&entry.permits)));
        Write {
            key: key.to_owned(),
            rev,
            change: Change::Update(match entry.mode {
                Mode::Slots { .. } => "SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h,slots=:s".into(),
                // Slots that are over would count with those that come.
                Mode::Shared => "SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h REMOVE slots".into(),
                Mode::Exclusive => "SET #c=:c,#t=:t,#e=:e,fence=:f,rev=:r,holders=:h".into(),
            }),
            condition: "(attribute_not_exists(#c) OR #e<:n) AND (attribute_not_exists(fence) OR fence<:f) \
                        AND attribute_not_exists(frozen) AND attribute_not_exists(marks.#x)"
                .into(),
            names: HashMap::from([
                ("#c".to_owned(), names.context.clone()),
                ("#t".to_owned(), names.created.clone()),
                ("#e".to_owned(), names.expires.clone()),
                ("#x".to_owned(), row::mark(asker.attempt)),
            ]),
            values: [
                (":c".to_owned(), AttributeValue::S(context.to_owned())),
                (":t".to_owned(), n(entry.since / 1_000_000)),
                (":e".to_owned(), n(up(entry.until))),
                (":f".to_owned(), n(entry.fence)),
                (":r".to_owned(), n(rev)),
                (":h".to_owned(), AttributeValue::M(holders)),
                (":n".to_owned(), fraction(now.lo)),
            ]
            .into_iter()
            .chain(slots)
            .collect(),
        }
    }

    /// Extends what a context certainly still holds under a fence, whoever else does, if nobody's end is later.
    pub(crate) fn renew(key: &str, names: &Names, context: &str, fence: u64, lease: u64, now: Now) -> Self {
        let rev = fastrand::u64(1..);
        let until = now.hi.saturating_add(lease);
        Write {
            key: key.to_owned(),
            rev,
            change: Change::Update("SET holders.#h.#u=:u,holders.#h.#l=:l,#e=:e,rev=:r".into()),
            condition: "holders.#h.fence=:f AND holders.#h.#u>=:n AND #e<=:e \
                        AND attribute_not_exists(holders.#h.broken) AND attribute_not_exists(frozen)"
                .into(),
            names: HashMap::from([
                ("#h".to_owned(), context.to_owned()),
                ("#u".to_owned(), "until".to_owned()),
                ("#l".to_owned(), "lease".to_owned()),
                ("#e".to_owned(), names.expires.clone()),
            ]),
            values: HashMap::from([
                (":u".to_owned(), n(until)),
                (":l".to_owned(), n(lease)),
                (":e".to_owned(), n(up(until))),
                (":r".to_owned(), n(rev)),
                (":f".to_owned(), n(fence)),
                (":n".to_owned(), n(now.hi)),
            ]),
        }
    }

    /// Frees what a context holds alone under a fence; the item stays for its fence.
    pub(crate) fn free(key: &str, names: &Names, context: &str, fence: u64, now: Now) -> Self {
        let rev = fastrand::u64(1..);
        Write {
            key: key.to_owned(),
            rev,
            change: Change::Update("SET #e=:e,rev=:r REMOVE #c,#t,holders,slots".into()),
            condition: "holders.#h.fence=:f AND holders.#h.#u>=:n AND size(holders)=:o \
                        AND attribute_not_exists(frozen)"
                .into(),
            names: HashMap::from([
                ("#h".to_owned(), context.to_owned()),
                ("#u".to_owned(), "until".to_owned()),
                ("#c".to_owned(), names.context.clone()),
                ("#t".to_owned(), names.created.clone()),
                ("#e".to_owned(), names.expires.clone()),
            ]),
            values: HashMap::from([
                (":e".to_owned(), n(row::free_since(now))),
                (":r".to_owned(), n(rev)),
                (":f".to_owned(), n(fence)),
                (":n".to_owned(), n(now.lo)),
                (":o".to_owned(), n(1)),
            ]),
        }
    }

    /// Joins those who hold an id together, whoever comes and goes meanwhile: of slots the permits must still be free, and
    /// no more taken than leave room for them.
    pub(crate) fn join(key: &str, names: &Names, old: &Row, asker: Asker<'_>, entry: &Entry) -> Self {
        let rev = fastrand::u64(1..);
        let mut change = "SET holders.#h=:h,fence=:f,rev=:r".to_owned();
        let mut condition =
            "#c=:c AND attribute_not_exists(holders.#h) AND fence<:f AND attribute_not_exists(frozen) \
                             AND attribute_not_exists(marks.#x)"
                .to_owned();
        let mut named = HashMap::from([
            ("#c".to_owned(), names.context.clone()),
            ("#e".to_owned(), names.expires.clone()),
            ("#h".to_owned(), asker.context.to_owned()),
            ("#x".to_owned(), row::mark(asker.attempt)),
        ]);
        let mut values = HashMap::from([
            (":c".to_owned(), AttributeValue::S(row::MANY.to_owned())),
            (":h".to_owned(), entry.write()),
            (":f".to_owned(), n(entry.fence)),
            (":r".to_owned(), n(rev)),
            (":e".to_owned(), n(up(entry.until))),
        ]);
        // No end that others see ever moves to an earlier time but where all is known.
        if old.seen_until().is_none_or(|seen| seen <= up(entry.until)) {
            change += ",#e=:e";
            condition += " AND #e<=:e";
        } else {
            condition += " AND #e>=:e";
        }
        if let Mode::Slots { permits, limit } = entry.mode {
            if old.has_slots {
                for (position, permit) in entry.permits.iter().enumerate() {
                    change += &format!(",slots.#p{position}=:p");
                    condition += &format!(" AND attribute_not_exists(slots.#p{position})");
                    named.insert(format!("#p{position}"), permit.to_string());
                }
                condition += " AND size(slots)<=:m";
                values.insert(":p".to_owned(), AttributeValue::Bool(true));
                values.insert(":m".to_owned(), n(u64::from(limit - permits)));
            } else {
                change += ",slots=:p";
                condition += " AND attribute_not_exists(slots)";
                values.insert(":p".to_owned(), row::slots(&entry.permits));
            }
        }
        let (change, condition) = (Change::Update(change.into()), condition.into());
        Write { key: key.to_owned(), rev, change, condition, names: named, values }
    }

    /// Extends what a context certainly still holds under a fence where somebody's end, or a freeze, is later anyway.
    pub(crate) fn renew_within(
        key: &str,
        names: &Names,
        context: &str,
        fence: u64,
        lease: u64,
        now: Now,
    ) -> Self {
        let mut write = Write::renew(key, names, context, fence, lease, now);
        write.change = Change::Update("SET holders.#h.#u=:u,holders.#h.#l=:l,rev=:r".into());
        write.condition = "holders.#h.fence=:f AND holders.#h.#u>=:n AND #e>=:e \
                           AND attribute_not_exists(holders.#h.broken)"
            .into();
        write
    }

    /// Leaves an id to those who hold it too, whoever comes and goes meanwhile. Others may see it held until what was
    /// the last end so far.
    pub(crate) fn leave(key: &str, context: &str, own: &Entry) -> Self {
        let rev = fastrand::u64(1..);
        let mut change = "SET rev=:r REMOVE holders.#h".to_owned();
        let mut named = HashMap::from([("#h".to_owned(), context.to_owned())]);
        for (position, permit) in own.permits.iter().enumerate() {
            change += &format!(",slots.#p{position}");
            named.insert(format!("#p{position}"), permit.to_string());
        }
        Write {
            key: key.to_owned(),
            rev,
            change: Change::Update(change.into()),
            condition: "holders.#h.fence=:f AND size(holders)>:o".into(),
            names: named,
            values: HashMap::from([
                (":r".to_owned(), n(rev)),
                (":f".to_owned(), n(own.fence)),
                (":o".to_owned(), n(1)),
            ]),
        }
    }

    /// Puts `new` where `old` was read, if that still stands there.
    pub(crate) fn replace(key: &str, names: &Names, old: Option<&Row>, new: &Row, now: Now) -> Self {
        let rev = fastrand::u64(1..);
        let mut named = HashMap::new();
        let mut values = HashMap::new();
        let condition = match old {
            None => {
                named.insert("#i".to_owned(), names.id.clone());
                "attribute_not_exists(#i)"
            }
            Some(Row { rev: Some(seen), .. }) => {
                values.insert(":g".to_owned(), n(*seen));
                // Another client may have changed what it knows and left the rest.
                let (context, expires) = old.map(Row::seen).unwrap_or_default();
                if let Some(expires) = expires {
                    named.insert("#e".to_owned(), names.expires.clone());
                    values.insert(":e".to_owned(), expires.clone());
                }
                match (context, expires) {
                    (_, None) => "rev=:g",
                    (None, Some(_)) => "rev=:g AND #e=:e",
                    (Some(context), Some(_)) => {
                        named.insert("#c".to_owned(), names.context.clone());
                        values.insert(":c".to_owned(), AttributeValue::S(context.clone()));
                        "rev=:g AND #e=:e AND #c=:c"
                    }
                }
            }
            Some(foreign) => {
                named.insert("#c".to_owned(), names.context.clone());
                named.insert("#e".to_owned(), names.expires.clone());
                named.insert("#i".to_owned(), names.id.clone());
                let (context, expires) = foreign.seen();
                let mut value = |name: &str, value: Option<AttributeValue>| {
                    values.extend(value.map(|value| (name.to_owned(), value)));
                };
                value(":c", context.map(|context| AttributeValue::S(context.clone())));
                value(":e", expires.cloned());
                match (context.is_some(), expires.is_some()) {
                    (true, true) => "attribute_exists(#i) AND attribute_not_exists(rev) AND #c=:c AND #e=:e",
                    (true, false) => {
                        "attribute_exists(#i) AND attribute_not_exists(rev) AND #c=:c AND attribute_not_exists(#e)"
                    }
                    (false, true) => {
                        "attribute_exists(#i) AND attribute_not_exists(rev) AND attribute_not_exists(#c) AND #e=:e"
                    }
                    (false, false) => {
                        "attribute_exists(#i) AND attribute_not_exists(rev) AND attribute_not_exists(#c) \
                         AND attribute_not_exists(#e)"
                    }
                }
            }
        };
        let change = Change::Put(new.write(key, names, rev, now));
        Write { key: key.to_owned(), rev, change, condition: condition.into(), names: named, values }
    }

    /// Notes a fence in the item that is for nothing else.
    pub(crate) fn fence(key: String, fence: u64) -> Self {
        Write {
            key,
            rev: 0,
            change: Change::Update("SET fence=:f".into()),
            condition: "attribute_not_exists(fence) OR fence<:f".into(),
            names: HashMap::new(),
            values: HashMap::from([(":f".to_owned(), n(fence))]),
        }
    }
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
    pub(crate) async fn write(&self, writes: &[Write], deadline: Instant) -> Result<Written, StoreError> {
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
                        rev.is_some_and(|rev: u64| rev == writes[*position].rev)
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

    async fn try_to_write(&self, client: &Arc<Client>, writes: &[Write], token: &str) -> Tried {
        self.count_request();
        if let [write] = writes {
            return match &write.change {
                Change::Update(expression) => self.update(client, write, expression).await,
                Change::Put(item) => self.put(client, write, item).await,
            };
        }
        let items = writes.iter().map(|write| self.transact_item(write)).collect();
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

    async fn update(&self, client: &Client, write: &Write, expression: &str) -> Tried {
        let request = client
            .update_item()
            .table_name(&self.settings.table)
            .key(&self.settings.names.id, AttributeValue::S(write.key.clone()))
            .update_expression(expression)
            .condition_expression(&*write.condition)
            .set_expression_attribute_names(some(&write.names))
            .set_expression_attribute_values(some(&write.values))
            .return_values_on_condition_check_failure(AllOld)
            .set_return_consumed_capacity(self.return_capacity());
        match request.send().await {
            Ok(output) => {
                self.count_written(output.consumed_capacity.iter());
                Tried::Done
            }
            Err(SdkError::ServiceError(refusal)) if refusal.err().is_conditional_check_failed_exception() => {
                match refusal.into_err() {
                    UpdateItemError::ConditionalCheckFailedException(failed) => {
                        Tried::Refused(vec![(0, failed.item)])
                    }
                    _ => unreachable!("just asked"),
                }
            }
            Err(error) => Tried::Failed(Failure::of(&error)),
        }
    }

    async fn put(&self, client: &Client, write: &Write, item: &Item) -> Tried {
        let request = client
            .put_item()
            .table_name(&self.settings.table)
            .set_item(Some(item.clone()))
            .condition_expression(&*write.condition)
            .set_expression_attribute_names(some(&write.names))
            .set_expression_attribute_values(some(&write.values))
            .return_values_on_condition_check_failure(AllOld)
            .set_return_consumed_capacity(self.return_capacity());
        match request.send().await {
            Ok(output) => {
                self.count_written(output.consumed_capacity.iter());
                Tried::Done
            }
            Err(SdkError::ServiceError(refusal)) if refusal.err().is_conditional_check_failed_exception() => {
                match refusal.into_err() {
                    PutItemError::ConditionalCheckFailedException(failed) => {
                        Tried::Refused(vec![(0, failed.item)])
                    }
                    _ => unreachable!("just asked"),
                }
            }
            Err(error) => Tried::Failed(Failure::of(&error)),
        }
    }

    fn transact_item(&self, write: &Write) -> TransactWriteItem {
        const COMPLETE: &str = "all that is required is set";
        let item = TransactWriteItem::builder();
        match &write.change {
            Change::Update(expression) => item.update(
                Update::builder()
                    .table_name(&self.settings.table)
                    .key(&self.settings.names.id, AttributeValue::S(write.key.clone()))
                    .update_expression(&**expression)
                    .condition_expression(&*write.condition)
                    .set_expression_attribute_names(some(&write.names))
                    .set_expression_attribute_values(some(&write.values))
                    .return_values_on_condition_check_failure(AllOld)
                    .build()
                    .expect(COMPLETE),
            ),
            Change::Put(new) => item.put(
                Put::builder()
                    .table_name(&self.settings.table)
                    .set_item(Some(new.clone()))
                    .condition_expression(&*write.condition)
                    .set_expression_attribute_names(some(&write.names))
                    .set_expression_attribute_values(some(&write.values))
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

/// The service refuses what is empty.
fn some<K: Clone, V: Clone>(map: &HashMap<K, V>) -> Option<HashMap<K, V>> {
    (!map.is_empty()).then(|| map.clone())
}

fn token() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}
