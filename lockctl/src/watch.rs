//! `lockctl watch`: what is locked, again and again.

use std::{
    io::{self, IsTerminal},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use crate::{admin, args::Global, exit::Failure, output::Output, session::open_existing, show};

/// Moves to the first cell, and clears what is below.
const REDRAW: &str = "\x1b[H\x1b[J";

/// Writes what is locked until it is interrupted: on a terminal as a table in place of the last one, elsewhere as a line of
/// JSON whenever a holder, a waiter or a freeze has changed.
pub(crate) async fn watch(global: &Global, every: Duration, output: Output) -> Result<u8, Failure> {
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

/// Removes what changes with every look.
fn without_times(mut seen: Value) -> Value {
    for holder in seen["holders"].as_array_mut().into_iter().flatten() {
        holder.as_object_mut().map(|holder| holder.remove("remaining_ms"));
    }
    seen
}
