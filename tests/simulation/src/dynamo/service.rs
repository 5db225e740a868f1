//! The service: what it answers to a request that has arrived, and which of its promises it breaks.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    Outcome, Reply, Request, Stored, TABLE, Table,
    expression::{Item, assert_all_used, holds, updated},
    refusal,
};
use crate::{
    net::{START, State, Step, Store},
    plan::Broken,
};

/// Requests for an item so close to each other conflict if one of them is a transaction, in microseconds.
const CONFLICT: u64 = 5_000;

/// No item is collected within that time after it was written, in microseconds: the fence after it comes from the estimate of the
/// clock alone, and two processes agree on that to three seconds.
const COLLECTED_AFTER: u64 = 5 * SECOND;

/// Nor within that time after the clock was set: a process that was cut off, or stood still, does not know of it yet, and its fences
/// are lower by as much.
const KNOWN_AFTER: u64 = 120 * SECOND;

const SECOND: u64 = 1_000_000;

/// A write that a broken service undoes: the key, and the version that it wrote.
pub(crate) struct Undone(String, u64);

impl Store for Table {
    type Request = Request;
    type Reply = Reply;
    type Event = Undone;

    fn writes(request: &Request) -> bool {
        matches!(request.operation.as_str(), "UpdateItem" | "TransactWriteItems")
    }

    fn is_done(reply: &Reply) -> bool {
        reply.is_done
    }

    fn reply(state: &mut State<Table>, process: u32, request: &Request) -> Reply {
        state.collect();
        let date = state.date(process);
        // A host of the service fails before it has done it, or after.
        let fails = state.noise > state.now && state.one_in(40);
        let failure = if state.one_in(2) {
            refusal(500, "InternalServerError")
        } else {
            refusal(503, "ServiceUnavailable")
        };
        if fails && state.one_in(2) {
            state.reached.count("failed before it was done");
            return Reply { outcome: failure, is_done: false, date };
        }
        let outcome = state.answer(&request.operation, &request.body);
        let is_done = Table::writes(request) && outcome.is_ok();
        let (now, time) = (state.now as f64 / 1e6, state.time());
        if let Some(trace) = state.trace.as_mut().filter(|_| Table::writes(request)) {
            let Request { operation, body } = request;
            *trace += &format!("{now:.6} (store {time}) process {process} {operation} {body}: {outcome:?}\n");
        }
        if fails && is_done {
            state.reached.count("failed after it was done");
        }
        Reply { outcome: if fails { failure } else { outcome }, is_done, date }
    }

    fn happen(state: &mut State<Table>, Undone(key, version): Undone) {
        let Some(stored) = state.store.items.get_mut(&key).filter(|stored| stored.version == version) else {
            return;
        };
        match stored.before.take() {
            Some(before) => stored.item = before,
            None => drop(state.store.items.remove(&key)),
        }
    }
}

impl State<Table> {
    /// Returns what a host of the service takes for the time, in seconds.
    pub(super) fn date(&mut self, process: u32) -> u64 {
        let off = self.store.off;
        let mut time = self.time() + self.rng.u64(0..=2 * off) - off;
        if self.broken == Some(Broken::WrongTime) {
            time += u64::from(process % 3) * 30 * SECOND;
        }
        time / SECOND
    }

    fn answer(&mut self, operation: &str, body: &Value) -> Outcome {
        match operation {
            "DescribeTable" => Ok(json!({ "Table": {
                "TableName": TABLE,
                "TableStatus": "ACTIVE",
                "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }],
                "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }],
            }})),
            "GetItem" => Ok(self.read(body, body).map_or(json!({}), |item| json!({ "Item": item }))),
            "BatchGetItem" => Ok(self.read_batch(&body["RequestItems"][TABLE])),
            "Scan" => Ok(self.scan(body)),
            "UpdateItem" => self.update(body),
            "TransactWriteItems" => self.transact(body),
            _ => panic!("{operation} is not simulated: {body}"),
        }
    }

    fn read(&mut self, request: &Value, of: &Value) -> Option<Item> {
        assert_eq!(request["ConsistentRead"], true, "only consistent reads are simulated: {request}");
        let Stored { item, written, before, .. } = self.store.items.get(&key(&of["Key"]))?.clone();
        let is_stale = self.broken == Some(Broken::StaleReads) && written + SECOND > self.now;
        if is_stale && self.one_in(4) { before } else { Some(item) }
    }

    fn read_batch(&mut self, request: &Value) -> Value {
        let (mut items, mut left) = (Vec::new(), Vec::new());
        for key in request["Keys"].as_array().into_iter().flatten() {
            if self.noise > self.now && self.one_in(10) {
                self.reached.count("key of a batch left unprocessed");
                left.push(key);
                continue;
            }
            items.extend(self.read(request, &json!({ "Key": key })));
        }
        let left = match left.is_empty() {
            true => json!({}),
            false => json!({ TABLE: { "Keys": left, "ConsistentRead": true } }),
        };
        json!({ "Responses": { TABLE: items }, "UnprocessedKeys": left })
    }

    fn scan(&mut self, body: &Value) -> Value {
        assert_eq!(body["ConsistentRead"], true, "only consistent reads are simulated: {body}");
        let filter = body["FilterExpression"].as_str().expect("a filter");
        let most = self.rng.usize(1..=5);
        let after = body.get("ExclusiveStartKey").map(key);
        let mut used = BTreeSet::new();
        let rest = self.store.items.iter().filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
        let page: Vec<_> = rest.take(most).collect();
        let last = page.last().filter(|_| page.len() == most).map(|(key, _)| json!({ "id": { "S": key } }));
        let items = page.iter().map(|(_, stored)| &stored.item);
        let items: Vec<_> = items.filter(|item| holds(filter, body, item, &mut used)).collect();
        let mut answer = json!({ "Items": items });
        if let Some(last) = last {
            answer["LastEvaluatedKey"] = last;
            self.reached.count("scan in several pages");
        }
        answer
    }

    fn update(&mut self, body: &Value) -> Outcome {
        let key = key(&body["Key"]);
        if self.conflicts(&key, false) {
            return refusal(400, "TransactionConflictException");
        }
        match self.check(&key, body) {
            Ok(new) => {
                self.put(key, new, false);
                Ok(json!({}))
            }
            Err(found) => {
                self.reached.count("update refused");
                refusal(400, "ConditionalCheckFailedException").map_err(|(status, mut body)| {
                    body["Item"] = found.map_or(Value::Null, Value::Object);
                    (status, body)
                })
            }
        }
    }

    fn transact(&mut self, body: &Value) -> Outcome {
        let token = body["ClientRequestToken"].as_str().expect("the transaction has a token");
        if let Some((sent, outcome)) = self.store.transactions.get(token).cloned() {
            assert_eq!(sent, *body, "another transaction had the token {token}");
            if self.noise > self.now && self.one_in(4) {
                self.reached.count("transaction still in progress");
                return refusal(400, "TransactionInProgressException");
            }
            if outcome.is_ok() || self.store.remembers_all {
                self.reached.count("transaction repeated by its token");
                return outcome;
            }
        }
        let (mut reasons, mut writes) = (Vec::new(), Vec::new());
        for item in body["TransactItems"].as_array().into_iter().flatten() {
            let update = item.get("Update").expect("only updates are simulated");
            let key = key(&update["Key"]);
            assert!(writes.iter().all(|(other, _)| *other != key), "{key} is twice in {body}");
            let (conflicts, checked) = (self.conflicts(&key, true), self.check(&key, update));
            reasons.push(match &checked {
                _ if conflicts => json!({ "Code": "TransactionConflict", "Message": "simulated" }),
                Ok(_) => json!({ "Code": "None" }),
                Err(found) => {
                    json!({ "Code": "ConditionalCheckFailed", "Message": "simulated", "Item": found })
                }
            });
            writes.push((key, checked.ok().filter(|_| !conflicts)));
        }
        assert!((2..=100).contains(&writes.len()), "{} writes in {body}", writes.len());
        let outcome = if writes.iter().all(|(_, new)| new.is_some()) {
            self.reached.count("transaction done");
            for (key, new) in writes {
                self.put(key, new.unwrap_or_default(), true);
            }
            Ok(json!({}))
        } else {
            self.reached.count("transaction cancelled");
            refusal(400, "TransactionCanceledException").map_err(|(status, mut body)| {
                body["CancellationReasons"] = Value::Array(reasons);
                (status, body)
            })
        };
        self.store.transactions.insert(token.to_owned(), (body.clone(), outcome.clone()));
        outcome
    }

    /// Returns whether another request for the item is still under way, and this one must not pass it.
    fn conflicts(&mut self, key: &str, in_transaction: bool) -> bool {
        let Some(stored) = self.store.items.get(key) else { return false };
        let is_near = stored.written + CONFLICT > self.now;
        let conflicts = is_near && (in_transaction || stored.in_transaction) && self.one_in(3);
        if conflicts {
            self.reached.count("conflict with a transaction");
        }
        conflicts
    }

    /// Returns the item after an update, or the one for which its condition does not hold.
    fn check(&mut self, key: &str, update: &Value) -> Result<Item, Option<Item>> {
        let text = |name: &str| update[name].as_str().unwrap_or_else(|| panic!("no {name} in {update}"));
        let found = self.store.items.get(key).map(|stored| stored.item.clone());
        let old = found.clone().unwrap_or_default();
        let mut used = BTreeSet::new();
        let holds = holds(text("ConditionExpression"), update, &old, &mut used);
        let ignores = self.broken == Some(Broken::IgnoresConditions) && self.one_in(5);
        if !(holds || ignores) {
            return Err(found);
        }
        match updated(text("UpdateExpression"), update, &old, &mut used) {
            Some(mut new) => {
                assert_all_used(update, &used);
                new.insert("id".to_owned(), json!({ "S": key }));
                Ok(new)
            }
            None if holds => panic!("the service refuses the path of an update: {update}"),
            None => Err(found),
        }
    }

    fn put(&mut self, key: String, item: Item, in_transaction: bool) {
        self.store.versions += 1;
        let (version, written) = (self.store.versions, self.now);
        let before = self.store.items.remove(&key).map(|stored| stored.item);
        self.store.items.insert(key.clone(), Stored { item, version, written, in_transaction, before });
        if self.broken == Some(Broken::ForgetsWrites) && self.one_in(20) {
            self.push(1, Step::Happens(Undone(key, version)));
        }
    }

    /// Removes an item whose time to live is over, now and then: the service does it at any time after.
    fn collect(&mut self) {
        let (now, seconds) = (self.now, self.time() / SECOND);
        if self.time() - now != self.store.stepped.0 {
            self.store.stepped = (self.time() - now, now);
        }
        let (set, stepped) = self.store.stepped;
        let may_be_unknown = set != START && stepped + KNOWN_AFTER > now;
        if !self.store.collects || may_be_unknown || !self.one_in(10) {
            return;
        }
        let is_over = |stored: &Stored| {
            let expires = stored.item.get("expires").and_then(|expires| expires["N"].as_str()?.parse().ok());
            // What ended five years ago or earlier is left, as the service does.
            let is_expired = |expires: u64| expires < seconds && expires > seconds - 5 * 365 * 86_400;
            expires.is_some_and(is_expired) && stored.written + COLLECTED_AFTER <= now
        };
        let over = self.store.items.iter().filter(|(_, stored)| is_over(stored));
        let over: Vec<_> = over.map(|(key, _)| key.clone()).collect();
        if let Some(key) = self.rng.choice(over) {
            self.store.items.remove(&key);
            self.reached.count("expired item collected");
        }
    }
}

/// Returns the key of an item as its text.
fn key(key: &Value) -> String {
    let key = key["id"]["S"].as_str();
    key.expect("the key is a string").to_owned()
}
