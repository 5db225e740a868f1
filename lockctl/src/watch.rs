//! `lockctl watch`: what is locked, again and again; or what happens to one id.

use std::{
    io::{self, IsTerminal},
    pin::pin,
    time::{Duration, SystemTime},
};

use futures_util::StreamExt;
use lockcore::{BadRequest, Change, EndedBy, LockError, StoredContext, Target};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{admin, args::Global, exit::Failure, output::Output, session::open_existing, show};

/// Moves to the first cell, and clears what is below.
const REDRAW: &str = "\x1b[H\x1b[J";

/// Writes what is locked until it is interrupted: on a terminal as a table in place of the last one, elsewhere as a line of
/// JSON whenever a holder, a waiter or a freeze has changed.
pub(crate) async fn watch(global: &Global, every: Duration, output: Output) -> Result<u8, Failure> {
    if every.is_zero() {
        let expected = "it must be longer than zero";
        let zero = BadRequest::OutOfBounds { field: "every", value: "0s".to_owned(), expected };
        return Err(LockError::from(zero).into());
    }
    let (locks, store) = open_existing(global).await?;
    let table = io::stdout().is_terminal() && !output.is_json();
    let mut last = Value::Null;
    loop {
        let ids = admin::all(&locks).await?;
        if table {
            let now = humantime::format_rfc3339_seconds(SystemTime::now());
            output.write(
                format!("{REDRAW}{now}, every {every:?}, Ctrl-C ends\n\n{}\n", show::list(&ids, &store))
                    .as_bytes(),
            )?;
        } else {
            let seen: Vec<Value> = ids.iter().map(show::json).collect();
            let lasting = Value::Array(seen.iter().cloned().map(without_times).collect());
            if lasting != last {
                let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
                output.write(format!("{}\n", json!({ "at": at, "ids": seen })).as_bytes())?;
                last = lasting;
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Writes what happens to an id as lines of JSON, until it is interrupted.
pub(crate) async fn watch_one(
    global: &Global,
    target: &Target<String>,
    every: Duration,
    output: Output,
) -> Result<u8, Failure> {
    let (locks, _) = open_existing(global).await?;
    let admin = locks.admin();
    let mut changes = pin!(admin.watch(target, every));
    while let Some(change) = changes.next().await {
        let mut line = changed(change?);
        line.insert("id".to_owned(), show::id(target));
        let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        line.insert("at".to_owned(), at.into());
        output.write(format!("{}\n", Value::Object(line)).as_bytes())?;
    }
    Ok(0)
}

fn changed(change: Change) -> Map<String, Value> {
    let (what, mut more) = match change {
        Change::Acquired(holder) => ("acquired", show::holder(&holder)),
        Change::Ended { context, fence, by } => {
            let by = match by {
                EndedBy::Release => "release",
                EndedBy::Lease => "lease",
                EndedBy::Break => "break",
                _ => "another way",
            };
            let mut more = held_under(&context, fence);
            more.insert("by".to_owned(), by.into());
            ("ended", more)
        }
        Change::Broken { context, fence } => ("broken", held_under(&context, fence)),
        Change::Frozen => ("frozen", Map::new()),
        Change::Thawed => ("thawed", Map::new()),
        _ => ("another change", Map::new()),
    };
    more.insert("change".to_owned(), what.into());
    more
}

fn held_under(context: &StoredContext<Uuid>, fence: u64) -> Map<String, Value> {
    Map::from_iter([("context".to_owned(), context.to_string().into()), ("fence".to_owned(), fence.into())])
}

/// Removes what changes with every look.
fn without_times(mut seen: Value) -> Value {
    for holder in seen["holders"].as_array_mut().into_iter().flatten() {
        holder.as_object_mut().map(|holder| holder.remove("remaining_ms"));
    }
    seen
}
