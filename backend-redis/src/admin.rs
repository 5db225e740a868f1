//! Administration: listing, inspecting, breaking, freezing, releasing a context.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockcore::{
    BackendError, BackendErrorKind, BreakMode, BreakRecord, Broken, ContextId, HeldBy, Ident, Inspection,
    Listing, Page, StoredContext, Target, WaitingFor,
};

use crate::{
    error::unexpected,
    reply::{Reply, indexes},
    scripts::Call,
    store::Store,
};

/// The most ids of one call of the script: other clients need the server too.
const BATCH: usize = 100;

pub(crate) async fn inspect<I: Ident, C: ContextId>(
    store: &Arc<Store>,
    id: &str,
) -> Result<Inspection<I, C>, BackendError> {
    let found = inspect_all(store, step(store, "inspect").arg(id)).await?.pop();
    found.ok_or_else(|| unexpected("no answer about the id"))
}

/// Calls `inspect`, and reads ids with too many holders or waiters for one script by several more.
async fn inspect_all<I: Ident, C: ContextId>(
    store: &Arc<Store>,
    inspect: Call,
) -> Result<Vec<Inspection<I, C>>, BackendError> {
    let mut found = Reply::of(call(store, inspect).await?)?;
    let mut inspections = Vec::new();
    while !found.is_empty() {
        let mut reply = found.list()?;
        let id = reply.text()?;
        let read = match inspection(&id, reply) {
            Ok((mut inspection, false)) => {
                add_the_rest(store, &id, &mut inspection).await.map(|()| inspection)
            }
            read => read.map(|(inspection, _)| inspection),
        };
        inspections.push(match read {
            // Another program's keys stop nothing that is about other ids.
            Err(error) if error.kind() == BackendErrorKind::Corrupt => unreadable(&id, error.to_string()),
            read => read?,
        });
    }
    Ok(inspections)
}

async fn add_the_rest<I, C: ContextId>(
    store: &Arc<Store>,
    id: &str,
    inspection: &mut Inspection<I, C>,
) -> Result<(), BackendError> {
    add_holders(store, id, &mut inspection.holders).await?;
    inspection.waiters = all_waiters(store, id).await?;
    Ok(())
}

fn unreadable<I: Ident, C: ContextId>(id: &str, why: String) -> Inspection<I, C> {
    Inspection {
        target: Target::from_stored(id).ok_or_else(|| id.to_owned()),
        holders: Vec::new(),
        waiters: Vec::new(),
        frozen: false,
        breaks: Vec::new(),
        unreadable: Some(why),
    }
}

async fn add_holders<C: ContextId>(
    store: &Arc<Store>,
    id: &str,
    holders: &mut Vec<HeldBy<C>>,
) -> Result<(), BackendError> {
    let mut cursor = "0".to_owned();
    loop {
        let mut reply = Reply::of(call(store, step(store, "sharers").arg(id).arg(cursor)).await?)?;
        cursor = reply.text()?;
        holders.extend(reply.list()?.lists(held_by)?);
        if cursor == "0" {
            // While a hash grows, its scan may return an entry twice.
            holders.sort_by_key(|holder| holder.fence);
            holders.dedup_by_key(|holder| holder.fence);
            return Ok(());
        }
    }
}

async fn all_waiters<C: ContextId>(store: &Arc<Store>, id: &str) -> Result<Vec<WaitingFor<C>>, BackendError> {
    let (mut line, mut ticket, mut waiters) = (String::new(), "0".to_owned(), Vec::new());
    loop {
        let mut reply = Reply::of(call(store, step(store, "waiters").arg(id).arg(line).arg(ticket)).await?)?;
        (line, ticket) = (reply.text()?, reply.text()?);
        waiters.extend(reply.list()?.lists(waiting_for)?);
        if line.is_empty() {
            return Ok(in_order(waiters));
        }
    }
}

fn in_order<C>(mut waiters: Vec<(u64, WaitingFor<C>)>) -> Vec<WaitingFor<C>> {
    waiters.sort_by_key(|(ticket, _)| *ticket);
    waiters.into_iter().map(|(_, waiter)| waiter).collect()
}

/// Lists one page. Every page scans all keys of the database: Redis keeps them in no order.
pub(crate) async fn list<I: Ident, C: ContextId>(
    store: &Arc<Store>,
    page: &Page,
) -> Result<Listing<I, C>, BackendError> {
    let all = all_ids(store).await?;
    let mut candidates =
        all.into_iter().filter(|id| page.after.as_ref().is_none_or(|after| id > after)).peekable();
    let mut ids = Vec::new();
    while candidates.peek().is_some() {
        let room = page.limit.saturating_sub(ids.len()).min(BATCH);
        let mut inspect = step(store, "inspect");
        let mut last = None;
        for id in candidates.by_ref().take(room) {
            inspect.add(id.as_bytes());
            last = Some(id);
        }
        let found = inspect_all(store, inspect).await?;
        ids.extend(found.into_iter().filter(|id| {
            !id.holders.is_empty() || !id.waiters.is_empty() || id.frozen || id.unreadable.is_some()
        }));
        if ids.len() >= page.limit {
            return Ok(Listing { ids, next: candidates.peek().and(last) });
        }
    }
    Ok(Listing { ids, next: None })
}

pub(crate) async fn break_lock(
    store: &Arc<Store>,
    id: &str,
    fence: u64,
    how: BreakMode,
    by: &str,
) -> Result<Broken, BackendError> {
    let how = if how == BreakMode::Now { "now" } else { "after" };
    let request = step(store, "break").arg(id).arg(fence.to_string()).arg(how).arg(by);
    let mut reply = Reply::of(call(store, request).await?)?;
    Ok(match reply.text()?.as_str() {
        "freed" => Broken::Freed,
        "within" => Broken::Within(reply.span()?),
        _ => Broken::NotHeld,
    })
}

pub(crate) async fn freeze(store: &Arc<Store>, id: &str, frozen: bool) -> Result<(), BackendError> {
    call(store, step(store, "freeze").arg(id).arg(if frozen { "1" } else { "0" })).await.map(drop)
}

/// Scans all keys. Locks that the context takes meanwhile may be missed; those that it held before are not. What cannot be
/// read of an id does not say that the context holds it: it is logged, and listed. Fails for an id whose slot is moving, once
/// all others are freed.
pub(crate) async fn release_context<I: Ident>(
    store: &Arc<Store>,
    context: &str,
) -> Result<Vec<Target<I>>, BackendError> {
    let all: Vec<_> = all_ids(store).await?.into_iter().collect();
    let (mut freed, mut again) = (Vec::new(), None);
    for ids in all.chunks(BATCH) {
        let mut dismiss = step(store, "dismiss").arg(context);
        for id in ids {
            dismiss.add(id.as_bytes());
        }
        let mut reply = Reply::of(call(store, dismiss).await?)?;
        let mut held = reply.list()?;
        while !held.is_empty() {
            freed.extend(Target::from_stored(&held.text()?));
        }
        let why = reply.text()?;
        if !why.is_empty() {
            tracing::warn!(%why, "what stands in the place of an id cannot be read, and was not released");
        }
        again = Some(reply.text()?).filter(|why| !why.is_empty()).or(again);
    }
    match again {
        None => Ok(freed),
        Some(why) => Err(BackendError::new(BackendErrorKind::Busy, format!("redis: {why}"))),
    }
}

/// Returns every id that has a key, in order.
async fn all_ids(store: &Arc<Store>) -> Result<BTreeSet<String>, BackendError> {
    let (mut all, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let scan = step(store, "scan").arg(cursor).arg(store.scripts.pattern());
        let mut reply = Reply::of(call(store, scan).await?)?;
        cursor = reply.text()?;
        let mut ids = reply.list()?;
        while !ids.is_empty() {
            all.insert(ids.text()?);
        }
        if cursor == "0" {
            return Ok(all);
        }
    }
}

fn step(store: &Store, name: &str) -> Call {
    store.scripts.call_anywhere().arg(name)
}

/// Calls the script, and once more if the connection ended: while it was idle, the server or a router on the way may have closed
/// it.
async fn call(store: &Arc<Store>, call: Call) -> Result<redis::Value, BackendError> {
    match store.session().await?.call(&call).await {
        Err(error) if error.kind() == BackendErrorKind::Unavailable && error.in_doubt() => {
            store.session().await?.call(&call).await
        }
        answer => answer,
    }
}

/// Reads the inspection of an id, and whether that is complete.
fn inspection<I: Ident, C: ContextId>(
    id: &str,
    mut reply: Reply,
) -> Result<(Inspection<I, C>, bool), BackendError> {
    if reply.len() == 1 {
        return Ok((unreadable(id, reply.text()?), true));
    }
    let frozen = reply.int()? == 1;
    let mut holders = reply.list()?.lists(held_by)?;
    holders.sort_by_key(|holder| holder.fence);
    let waiters = in_order(reply.list()?.lists(waiting_for)?);
    let mut records = reply.list()?;
    let mut breaks = Vec::new();
    while !records.is_empty() {
        let record = records.text()?;
        breaks.push(break_record(&record).ok_or_else(|| unexpected("a record of a break"))?);
    }
    let complete = reply.int()? == 0;
    let target = Target::from_stored(id).ok_or_else(|| id.to_owned());
    Ok((Inspection { target, holders, waiters, frozen, breaks, unreadable: None }, complete))
}

fn held_by<C: ContextId>(mut reply: Reply) -> Result<HeldBy<C>, BackendError> {
    let (context, owner, mode) = (reply.text()?, reply.text()?, reply.mode()?);
    let permits: Vec<u32> = indexes(&reply.text()?)?;
    let fence = reply.number()?;
    Ok(HeldBy {
        context: StoredContext::read(&context),
        owner: owner.into(),
        mode,
        permits,
        fence,
        // A new grant's fence is the time, unless the clock was set back.
        since: SystemTime::UNIX_EPOCH + Duration::from_micros(fence),
        lease: reply.span()?,
        remaining: reply.span()?,
        broken: reply.int()? == 1,
    })
}

fn waiting_for<C: ContextId>(mut reply: Reply) -> Result<(u64, WaitingFor<C>), BackendError> {
    let (context, owner, mode) = (reply.text()?, reply.text()?, reply.mode()?);
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(reply.number()?);
    let waiter = WaitingFor { context: StoredContext::read(&context), owner: owner.into(), mode, since };
    Ok((reply.number()?, waiter))
}

/// Parses `fence|at once|when (ms)|length:context`, followed by the name of the administrator.
fn break_record<C: ContextId>(record: &str) -> Option<BreakRecord<C>> {
    let mut parts = record.splitn(4, '|');
    let (fence, now, at) = (parts.next()?.parse().ok()?, parts.next()? == "1", parts.next()?.parse().ok()?);
    let (length, rest) = parts.next()?.split_once(':')?;
    let (context, by) = rest.split_at_checked(length.parse().ok()?)?;
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(at);
    Some(BreakRecord { context: StoredContext::read(context), fence, by: by.into(), at, now })
}
