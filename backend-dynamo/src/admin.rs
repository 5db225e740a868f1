//! Administration: listing, inspecting, breaking, freezing.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockcore::{
    BreakMode, BreakRecord, Broken, ContextId, HeldBy, Ident, Inspection, Listing, Mode, Owner, Page,
    StoredContext, Target, backend::ServiceTime,
};

use crate::{
    error::StoreError,
    row::{Break, Row, left},
    send::Written,
    store::Store,
    write::Write,
};

/// An item, unless it cannot be read, and the stored form of its id.
pub(crate) type Found = (String, Result<Row, StoreError>);

impl Store {
    /// One page of what is held or frozen, in order of id. The service keeps no order: every page reads the whole table.
    pub(crate) async fn list(
        &self,
        page: &Page,
    ) -> Result<(Vec<Found>, Option<String>, ServiceTime), StoreError> {
        let filter = "attribute_exists(#c) OR attribute_exists(frozen)";
        let mut rows = self.scan(filter, None).await?;
        let now = self.now()?;
        for row in rows.iter_mut().filter_map(|(_, row)| row.as_mut().ok()) {
            row.prune(now);
        }
        rows.retain(|(stored, row)| {
            let is_shown = |row: &Row| row.frozen || row.foreign.is_some() || !row.holders.is_empty();
            row.as_ref().map_or(true, is_shown)
                && page.after.as_ref().is_none_or(|after| stored.as_bytes() > after.as_bytes())
        });
        rows.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
        let more = rows.len() > page.limit;
        rows.truncate(page.limit);
        let next = rows.last().filter(|_| more).map(|(stored, _)| stored.clone());
        Ok((rows, next, now))
    }

    /// All that is known of one id.
    pub(crate) async fn inspect(&self, stored: &str) -> Result<(Found, ServiceTime), StoreError> {
        let keys = [self.keys.lock(stored)];
        let mut row = match self.read(&keys, self.deadline()).await {
            Ok(mut rows) => rows.pop().flatten().unwrap_or_default(),
            Err(error @ StoreError::Unreadable { .. }) => {
                return Ok(((stored.to_owned(), Err(error)), self.now()?));
            }
            Err(error) => return Err(error),
        };
        let now = self.now()?;
        row.prune(now);
        Ok(((stored.to_owned(), Ok(row)), now))
    }

    /// Breaks the lock held under `fence`, and records that `by` did.
    pub(crate) async fn break_lock(
        &self,
        stored: &str,
        fence: u64,
        how: BreakMode,
        by: &str,
    ) -> Result<Broken, StoreError> {
        let at_once = how == BreakMode::Now;
        self.edit(stored, |row, now| {
            let Some(context) = row.context_under(fence) else { return (Broken::NotHeld, false) };
            let is_news = row.holder(&context).is_none_or(|own| !own.broken);
            if at_once || is_news {
                row.record(Break {
                    context: context.clone(),
                    fence,
                    by: by.into(),
                    at: now.lo,
                    now: at_once,
                });
            }
            if at_once {
                row.remove(&context);
                row.foreign = None;
                return (Broken::Freed, true);
            }
            if let Some(own) = row.holder_mut(&context) {
                own.broken = true;
                return (Broken::Within(Some(own.left(now))), true);
            }
            let until = row.foreign.as_ref().and_then(|foreign| foreign.until);
            (Broken::Within(until.map(|until| left(until, now))), true)
        })
        .await
    }

    /// Freezes an id, or thaws it.
    pub(crate) async fn freeze(&self, stored: &str, frozen: bool) -> Result<(), StoreError> {
        let set = |row: &mut Row, _| ((), std::mem::replace(&mut row.frozen, frozen) != frozen);
        self.edit(stored, set).await
    }

    /// Frees all that a context holds: finds it by a consistent scan, never by the index, which lags behind. Fails for an item that
    /// cannot be read once all others are freed.
    pub(crate) async fn release_context(&self, context: &str) -> Result<Vec<String>, StoreError> {
        let filter = "#c=:c OR attribute_exists(holders.#h)";
        let found = self.scan(filter, Some(context)).await?;
        let (mut freed, mut unreadable) = (Vec::new(), None);
        for (stored, row) in found {
            if let Err(error) = row {
                unreadable = Some(error);
                continue;
            }
            let was_held = self
                .edit(&stored, |row, now| {
                    let foreign = row.foreign.take_if(|foreign| foreign.context == context);
                    let own = row.remove(context);
                    let lasted = own.as_ref().is_some_and(|own| !own.certainly_ended(now))
                        || foreign.as_ref().is_some_and(|foreign| !foreign.certainly_ended(now));
                    (lasted, own.is_some() || foreign.is_some())
                })
                .await?;
            if was_held {
                freed.push(stored);
            }
        }
        unreadable.map_or(Ok(freed), Err)
    }

    /// Changes one item as `change` says, which is asked again with what stands there if others were faster. Its second
    /// answer is whether there is anything to write.
    async fn edit<T>(
        &self,
        stored: &str,
        change: impl Fn(&mut Row, ServiceTime) -> (T, bool),
    ) -> Result<T, StoreError> {
        let deadline = self.deadline();
        let key = self.keys.lock(stored);
        let mut old = self.read(std::slice::from_ref(&key), deadline).await?.pop().flatten();
        for round in 0.. {
            let now = self.now()?;
            let mut row = old.clone().unwrap_or_default();
            row.prune(now);
            let (answer, changed) = change(&mut row, now);
            if !changed {
                return Ok(answer);
            }
            let write = Write::replace(&key, old.as_ref(), &row, now);
            match self.write(vec![write], deadline).await? {
                Written::Done => return Ok(answer),
                Written::Refused { found, .. } => {
                    let item = found.into_iter().next().and_then(|(_, item)| item);
                    old = item.map(|item| Row::read(item, self.names())).transpose()?;
                }
            }
            self.rest(round, deadline, false).await?;
        }
        unreachable!("the loop ends by returning")
    }
}

impl Row {
    /// Returns the holder under this fence; 0 stands for another client's lock, which has none.
    fn context_under(&self, fence: u64) -> Option<String> {
        match &self.foreign {
            Some(foreign) => (fence == 0).then(|| foreign.context.clone()),
            None => {
                let held = self.holders.iter().find(|(_, entry)| entry.fence == fence);
                held.map(|(context, _)| context.clone())
            }
        }
    }
}

/// An item for the caller's types; what is over was pruned before.
pub(crate) fn typed<I: Ident, C: ContextId>((stored, row): Found, now: ServiceTime) -> Inspection<I, C> {
    let (row, unreadable) = match row {
        Ok(row) => (row, None),
        Err(error) => (Row::default(), Some(error.to_string())),
    };
    let mut holders: Vec<HeldBy<C>> = row
        .holders
        .into_iter()
        .map(|(context, entry)| HeldBy {
            remaining: Some(entry.left(now)),
            context: StoredContext::read(&context),
            owner: entry.owner,
            mode: entry.mode,
            permits: entry.permits,
            fence: entry.fence,
            since: time(entry.since),
            lease: Some(Duration::from_micros(entry.lease)),
            broken: entry.broken,
        })
        .collect();
    holders.extend(row.foreign.map(|foreign| HeldBy {
        context: StoredContext::read(&foreign.context),
        owner: Owner::default(),
        mode: Mode::Exclusive,
        permits: Vec::new(),
        fence: 0,
        since: time(foreign.since),
        lease: foreign.until.map(|until| Duration::from_micros(until.saturating_sub(foreign.since))),
        remaining: foreign.until.map(|until| left(until, now)),
        broken: false,
    }));
    holders.sort_by_key(|holder| holder.fence);
    let breaks = row.breaks.into_iter().map(|broken| BreakRecord {
        context: StoredContext::read(&broken.context),
        fence: broken.fence,
        by: broken.by,
        at: time(broken.at),
        now: broken.now,
    });
    Inspection {
        target: Target::from_stored(&stored).ok_or(stored),
        holders,
        waiters: Vec::new(),
        frozen: row.frozen,
        breaks: breaks.collect(),
        unreadable,
    }
}

/// Items for the caller's types.
pub(crate) fn listing<I: Ident, C: ContextId>(
    found: Vec<Found>,
    next: Option<String>,
    now: ServiceTime,
) -> Listing<I, C> {
    Listing { ids: found.into_iter().map(|found| typed(found, now)).collect(), next }
}

fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}
