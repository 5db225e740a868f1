//! The table: the state that every step needs, and reads.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use lockcore::{
    BackendError, Backoff, Exponential,
    backend::{ServiceClock, ServiceTime},
};
use tokio::time::Instant;

use crate::{
    clients::Clients,
    config::{Names, Settings, TRANSACTION},
    error::{Failure, StoreError},
    item::Item,
    key::Keys,
    refused::Refused,
    row::{FUTURE, Row},
};

/// Pauses between two tries.
pub(crate) const PAUSES: Exponential =
    Exponential { base: Duration::from_millis(10), max: Duration::from_millis(500) };

/// Pauses between two rounds of a race with others.
const RACES: Exponential = Exponential { base: Duration::from_millis(2), max: Duration::from_millis(8) };

/// The table as this process reaches it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    pub(crate) clients: Clients,
    pub(crate) clock: Arc<ServiceClock>,
    /// The table's name and its region or endpoint, for errors.
    place: String,
    /// Attempts that were refused and may ask again: these look before they write, which costs less.
    refused: Mutex<Refused>,
}

impl Store {
    pub(crate) async fn open(settings: Settings) -> Result<Self, BackendError> {
        let (clients, clock, location) = Clients::new(&settings).await.map_err(|error| error.report(None))?;
        let store = Store {
            keys: Keys::new(&settings.namespace),
            place: format!("table {:?} {location}", settings.table),
            settings,
            clients,
            clock,
            refused: Mutex::default(),
        };
        store.check_table().await.map_err(|error| store.report(error))?;
        store.admit().await.map_err(|error| store.report(error))?;
        Ok(store)
    }

    /// Returns the error as it leaves this crate, with the table and its location.
    pub(crate) fn report(&self, error: StoreError) -> BackendError {
        error.report(Some(&self.place))
    }

    pub(crate) fn names(&self) -> &Names {
        &self.settings.names
    }

    /// Returns until when a step that begins now is tried.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// The service's time, from the last answers.
    pub(crate) fn now(&self) -> Result<ServiceTime, StoreError> {
        let now = self.clock.now().ok_or(StoreError::NoTime)?;
        Ok(ServiceTime { lo: now.lo + self.ahead(), hi: now.hi + self.ahead() })
    }

    /// Returns a fence that is at least the service's clock, above `above`, and above every other of this process but those
    /// from the future.
    pub(crate) fn fence(&self, now: ServiceTime, above: u64) -> u64 {
        // The fences of a namespace whose time a test sets forward do not count for others.
        let ahead = self.ahead();
        let real = ServiceTime { lo: now.lo.saturating_sub(ahead), hi: now.hi.saturating_sub(ahead) };
        // Nor does a fence of before the service's clock was set back: other ids would get fences as far ahead, which other
        // processes would not reach once their items are collected.
        let near = above.saturating_sub(ahead).min(real.hi.saturating_add(FUTURE));
        (ahead + self.clock.fence(real, near)).max(above.saturating_add(1))
    }

    /// Returns by how much a test sets the service's time forward, in microseconds.
    fn ahead(&self) -> u64 {
        #[cfg(feature = "testing")]
        return self.settings.hooks.service_ahead();
        #[cfg(not(feature = "testing"))]
        0
    }

    /// Waits briefly before the same items are tried again, or ends at the deadline. The pause stays short after many rounds: the
    /// loser of a race has read the current items, and would lose again after a longer pause.
    pub(crate) async fn rest(&self, round: u32, deadline: Instant, in_doubt: bool) -> Result<(), StoreError> {
        let pause = RACES.delay(round);
        if Instant::now() + pause >= deadline {
            return Err(StoreError::Contended { in_doubt });
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Reads the items of these keys, in their order; consistently, but each on its own.
    pub(crate) async fn read(
        &self,
        keys: &[String],
        deadline: Instant,
    ) -> Result<Vec<Option<Row>>, StoreError> {
        if let [key] = keys {
            let item = self.read_one(key, deadline).await?;
            return Ok(vec![item.map(|item| Row::read(item, self.names())).transpose()?]);
        }
        let mut found = HashMap::with_capacity(keys.len());
        for chunk in keys.chunks(TRANSACTION) {
            self.read_batch(chunk, deadline, &mut found).await?;
        }
        let row = |key: &String| found.remove(key).map(|item| Row::read(item, self.names())).transpose();
        keys.iter().map(row).collect()
    }

    pub(crate) async fn read_one(&self, key: &str, deadline: Instant) -> Result<Option<Item>, StoreError> {
        for attempt in 0.. {
            let request = self
                .clients
                .current()?
                .get_item()
                .table_name(&self.settings.table)
                .key(&self.names().id, AttributeValue::S(key.to_owned()))
                .consistent_read(true);
            match Box::pin(request.send()).await {
                Ok(output) => {
                    return Ok(output.item);
                }
                Err(error) => self.rest_after(Failure::of(&error), attempt, deadline).await?,
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Reads at most a hundred items; requests those again that the service left unprocessed.
    async fn read_batch(
        &self,
        keys: &[String],
        deadline: Instant,
        found: &mut HashMap<String, Item>,
    ) -> Result<(), StoreError> {
        let of = |key: &String| Item::from([(self.names().id.clone(), AttributeValue::S(key.clone()))]);
        let mut wanted: Vec<Item> = keys.iter().map(of).collect();
        for attempt in 0.. {
            let batch =
                KeysAndAttributes::builder().set_keys(Some(wanted.clone())).consistent_read(true).build();
            let request = self
                .clients
                .current()?
                .batch_get_item()
                .request_items(&self.settings.table, batch.expect("the keys are set"));
            match Box::pin(request.send()).await {
                Ok(output) => {
                    for item in output.responses.into_iter().flatten().flat_map(|(_, items)| items) {
                        if let Some(AttributeValue::S(key)) = item.get(&self.names().id) {
                            found.insert(key.clone(), item);
                        }
                    }
                    let left = output.unprocessed_keys.into_iter().flatten();
                    wanted = left.flat_map(|(_, left)| left.keys).collect();
                    if wanted.is_empty() {
                        return Ok(());
                    }
                    self.rest(attempt, deadline, false).await?;
                }
                Err(error) => self.rest_after(Failure::of(&error), attempt, deadline).await?,
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Reads all items of this namespace that `filter` accepts (`#c` is the context's attribute, `#h` and `:c` the wanted context),
    /// consistently, page by page. Reads the whole table.
    pub(crate) async fn scan(
        &self,
        filter: &str,
        of: Option<&str>,
    ) -> Result<Vec<(String, Result<Row, StoreError>)>, StoreError> {
        let (mut rows, mut start, mut attempt) = (Vec::new(), None, 0);
        let prefix = self.keys.common_prefix();
        let mut deadline = self.deadline();
        loop {
            let mut request = self
                .clients
                .current()?
                .scan()
                .table_name(&self.settings.table)
                .consistent_read(true)
                .set_exclusive_start_key(start.clone());
            let mut named = HashMap::from([("#c".to_owned(), self.names().context.clone())]);
            let mut values = HashMap::new();
            if let Some(context) = of {
                named.insert("#h".to_owned(), context.to_owned());
                values.insert(":c".to_owned(), AttributeValue::S(context.to_owned()));
            }
            let mut filter = filter.to_owned();
            if !prefix.is_empty() {
                filter = format!("begins_with(#i,:p) AND ({filter})");
                named.insert("#i".to_owned(), self.names().id.clone());
                values.insert(":p".to_owned(), AttributeValue::S(prefix.to_string()));
            }
            request = request.filter_expression(filter).set_expression_attribute_names(Some(named));
            if !values.is_empty() {
                request = request.set_expression_attribute_values(Some(values));
            }
            let output = match Box::pin(request.send()).await {
                Ok(output) => output,
                Err(error) => {
                    self.rest_after(Failure::of(&error), attempt, deadline).await?;
                    attempt += 1;
                    continue;
                }
            };
            for item in output.items.into_iter().flatten() {
                let Some(AttributeValue::S(key)) = item.get(&self.names().id) else { continue };
                if let Some(stored) = self.keys.stored(key) {
                    rows.push((stored.to_owned(), Row::read(item, self.names())));
                }
            }
            start = output.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                return Ok(rows);
            }
            (attempt, deadline) = (0, self.deadline());
        }
    }

    /// Waits before a read is repeated, if that may help.
    async fn rest_after(&self, failure: Failure, attempt: u32, deadline: Instant) -> Result<(), StoreError> {
        if failure.is_about_the_clock() && attempt == 0 {
            return Ok(());
        }
        let pause = PAUSES.delay(attempt);
        if !failure.again || Instant::now() + pause >= deadline {
            // Reading changes nothing.
            return Err(failure.of_reading().into());
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Returns whether the attempt was refused before.
    pub(crate) fn was_refused(&self, attempt: u64) -> bool {
        self.refused().contains(attempt)
    }

    pub(crate) fn remember_refusal(&self, attempt: u64, remembered: bool) {
        match remembered {
            true => self.refused().insert(attempt),
            false => self.refused().remove(attempt),
        }
    }

    fn refused(&self) -> std::sync::MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
