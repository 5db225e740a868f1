//! The store's contents, as tables for people and as JSON for programs.

use std::time::{Duration, SystemTime};

use comfy_table::{Table, presets};
use lockcore::{ConflictReason, Failure, Finding, HeldBy, Holder, Inspection, Mode, Owner, Target};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::text::{self, ago, harmless, people};

type Seen = Inspection<String, Uuid>;

/// Many ids of a store, a line for each holder.
pub(crate) fn list(ids: &[Seen], store: &str) -> String {
    if ids.is_empty() {
        return format!("nothing is locked in {store}");
    }
    let mut table = table(&["ID", "MODE", "OWNER", "FENCE", "HELD FOR", "LEASE LEFT", "WAITING", ""]);
    for seen in ids {
        let frozen = if seen.frozen { "frozen" } else { "" };
        let waiting = seen.waiters.len();
        for holder in &seen.holders {
            let state = if holder.broken { "broken" } else { frozen };
            table.add_row([
                name(seen),
                holder.mode.to_string(),
                owner(holder.owner.label(), holder.context.to_string()),
                holder.fence.to_string(),
                ago(holder.since),
                left(holder.remaining),
                waiting.to_string(),
                state.to_owned(),
            ]);
        }
        let rest = match &seen.unreadable {
            Some(unreadable) => Some(harmless(&format!("cannot be read: {unreadable}"))),
            None => seen.holders.is_empty().then(|| frozen.to_owned()),
        };
        if let Some(rest) = rest {
            let row = [name(seen), dash(), dash(), dash(), dash(), dash(), waiting.to_string(), rest];
            table.add_row(row);
        }
    }
    table.trim_fmt()
}

/// One id of a store, all that is known of it.
pub(crate) fn one(seen: &Seen, store: &str) -> String {
    let state = match (seen.frozen, seen.holders.is_empty()) {
        (true, true) => "free, but frozen: not granted to any caller".to_owned(),
        (true, false) => "held, and frozen: not granted to other callers".to_owned(),
        (false, true) => format!("free in {store}"),
        (false, false) => "held".to_owned(),
    };
    let mut text = format!("{} is {state}", name(seen));
    if let Some(unreadable) = &seen.unreadable {
        text = format!("{} is not free: something that cannot be read: {}", name(seen), harmless(unreadable));
    }
    if !seen.holders.is_empty() {
        let mut table =
            table(&["HELD BY", "MODE", "PERMITS", "FENCE", "FOR", "LEASE", "LEFT", "CONTEXT", ""]);
        for holder in &seen.holders {
            table.add_row([
                with_data(&holder.owner),
                holder.mode.to_string(),
                permits(holder),
                holder.fence.to_string(),
                ago(holder.since),
                left(holder.lease),
                left(holder.remaining),
                harmless(&holder.context.to_string()),
                if holder.broken { "broken" } else { "" }.to_owned(),
            ]);
        }
        text.push_str(&format!("\n\n{}", table.trim_fmt()));
    }
    if !seen.waiters.is_empty() {
        let mut table = table(&["WAITING", "MODE", "FOR", "CONTEXT"]);
        for waiter in &seen.waiters {
            table.add_row([
                with_data(&waiter.owner),
                waiter.mode.to_string(),
                ago(waiter.since),
                harmless(&waiter.context.to_string()),
            ]);
        }
        text.push_str(&format!("\n\n{}", table.trim_fmt()));
    }
    if !seen.breaks.is_empty() {
        let mut table = table(&["BROKEN BY", "AT", "FENCE", "HOW", "CONTEXT"]);
        for record in &seen.breaks {
            table.add_row([
                harmless(&record.by),
                text::time(record.at),
                record.fence.to_string(),
                if record.now { "at once" } else { "after its lease" }.to_owned(),
                harmless(&record.context.to_string()),
            ]);
        }
        text.push_str(&format!("\n\n{}", table.trim_fmt()));
    }
    text
}

/// Formats the findings of `doctor`.
pub(crate) fn findings(findings: &[Finding]) -> String {
    let mut table = table(&["", "CHECK", "FOUND"]);
    for finding in findings {
        table.add_row([finding.severity.to_string(), finding.check.to_owned(), finding.detail.clone()]);
    }
    table.trim_fmt()
}

/// A holder as JSON.
pub(crate) fn holder(holder: &HeldBy<Uuid>) -> Map<String, Value> {
    let mut shown = mode(holder.mode, &holder.permits);
    shown.insert("context".to_owned(), holder.context.to_string().into());
    insert_owner(&mut shown, &holder.owner);
    shown.insert("fence".to_owned(), holder.fence.into());
    shown.insert("since".to_owned(), time(holder.since));
    shown.insert("lease_ms".to_owned(), millis(holder.lease));
    shown.insert("remaining_ms".to_owned(), millis(holder.remaining));
    shown.insert("broken".to_owned(), holder.broken.into());
    shown
}

/// One id as JSON.
pub(crate) fn json(seen: &Seen) -> Value {
    let holders = seen.holders.iter().map(holder);
    let waiters = seen.waiters.iter().map(|waiter| {
        let mut shown = mode(waiter.mode, &[]);
        shown.insert("context".to_owned(), waiter.context.to_string().into());
        insert_owner(&mut shown, &waiter.owner);
        shown.insert("since".to_owned(), time(waiter.since));
        shown
    });
    let breaks = seen.breaks.iter().map(|record| {
        json!({
            "context": record.context.to_string(),
            "fence": record.fence,
            "by": &*record.by,
            "at": time(record.at),
            "now": record.now,
        })
    });
    json!({
        "id": match &seen.target { Ok(target) => id(target), Err(stored) => json!(stored) },
        "frozen": seen.frozen,
        "holders": holders.collect::<Vec<_>>(),
        "waiters": waiters.collect::<Vec<_>>(),
        "breaks": breaks.collect::<Vec<_>>(),
        "unreadable": seen.unreadable,
    })
}

/// A holder that was in the way of a request as JSON.
pub(crate) fn holder_in_the_way(holder: &Holder<Uuid>) -> Map<String, Value> {
    let mut shown = mode(holder.mode, &[]);
    shown.insert("context".to_owned(), holder.context.to_string().into());
    insert_owner(&mut shown, &holder.owner);
    shown.insert("fence".to_owned(), holder.fence.into());
    shown.insert("remaining_ms".to_owned(), millis(holder.remaining));
    shown
}

/// Returns the conflicts in the way of a request as JSON; `None` if they are not known.
pub(crate) fn conflicts(failures: &[Failure]) -> Option<Value> {
    let conflict = |failure: &Failure| {
        let Failure::Conflict(conflict) = failure else { return None };
        let mut shown = json!({ "id": id(&conflict.target) });
        match &conflict.reason {
            ConflictReason::Held { holders, count, in_use } => {
                let holders = holders.iter().map(holder_in_the_way);
                shown["reason"] = "held".into();
                shown["holders"] = holders.collect::<Vec<_>>().into();
                shown["holder_count"] = (*count).into();
                shown["in_use"] = (*in_use).into();
            }
            ConflictReason::QueuedBehind { head, count } => {
                shown["reason"] = "queued_behind".into();
                shown["head"] = head.to_string().into();
                shown["waiter_count"] = (*count).into();
            }
            ConflictReason::Frozen => shown["reason"] = "frozen".into(),
            _ => {}
        }
        Some(shown)
    };
    let shown: Vec<_> = failures.iter().filter_map(conflict).collect();
    (!shown.is_empty()).then(|| shown.into())
}

/// An id as JSON; the global lock is `null`.
pub(crate) fn id(target: &Target<String>) -> Value {
    target.id().map_or(Value::Null, |id| json!(id))
}

/// A mode as JSON, with what belongs to slots only for them.
pub(crate) fn mode(mode: Mode, indexes: &[u32]) -> Map<String, Value> {
    let mut shown = Map::new();
    let word = match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Slots { permits, limit } => {
            shown.insert("permits".to_owned(), permits.into());
            shown.insert("limit".to_owned(), limit.into());
            if !indexes.is_empty() {
                shown.insert("indexes".to_owned(), json!(indexes));
            }
            "slots"
        }
    };
    shown.insert("mode".to_owned(), word.into());
    shown
}

/// A duration as JSON; `null` is for ever.
pub(crate) fn millis(duration: Option<Duration>) -> Value {
    duration.map_or(Value::Null, |duration| json!(duration.as_millis() as u64))
}

pub(crate) fn time(time: SystemTime) -> Value {
    humantime::format_rfc3339_millis(time).to_string().into()
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Quoted, so that nothing in it moves the cursor.
fn name(seen: &Seen) -> String {
    match &seen.target {
        Ok(target) => target.to_string(),
        Err(stored) => format!("{stored:?}"),
    }
}

/// The label, and the data that it carries; that is text, if it is not JSON.
fn insert_owner(shown: &mut Map<String, Value>, owner: &Owner) {
    shown.insert("owner".to_owned(), owner.label().into());
    shown.extend(data(owner).map(|data| ("data".to_owned(), data)));
}

pub(crate) fn data(owner: &Owner) -> Option<Value> {
    owner.data().map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into()))
}

/// The label and its data on one line.
pub(crate) fn with_data(owner: &Owner) -> String {
    let data = owner.data().map(|data| format!(" {data}")).unwrap_or_default();
    harmless(&format!("{}{data}", owner.label()))
}

fn owner(label: &str, context: String) -> String {
    harmless(if label.is_empty() { &context } else { label })
}

fn left(left: Option<Duration>) -> String {
    left.map_or_else(|| "for ever".to_owned(), people)
}

fn permits(holder: &HeldBy<Uuid>) -> String {
    let indexes: Vec<_> = holder.permits.iter().map(ToString::to_string).collect();
    if indexes.is_empty() { dash() } else { indexes.join(",") }
}

fn dash() -> String {
    "-".to_owned()
}
