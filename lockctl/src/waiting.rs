//! The line that tells an interactive user who holds what is waited for.

use std::{
    convert::Infallible,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use lockcore::{Claim, Inspection, LockDao, LockingService};
use uuid::Uuid;

use crate::output::{ago, harmless, people};

/// A shorter wait is not worth a line.
const BEFORE_THE_FIRST: Duration = Duration::from_millis(250);

/// How often the line is written anew.
const EVERY: Duration = Duration::from_secs(1);

/// Shows who is in the way of the claims until it is dropped, if somebody is there to see it.
pub(crate) async fn show(locks: &LockingService, claims: &[Claim<String>]) -> Infallible {
    if !io::stderr().is_terminal() || !locks.dao().capabilities().listing {
        return std::future::pending().await;
    }
    let started = Instant::now();
    let mut line = Line { shown: false };
    tokio::time::sleep(BEFORE_THE_FIRST).await;
    loop {
        for claim in claims {
            // The call that waits tells if the store fails.
            let Ok(seen) = locks.admin().inspect(&claim.target).await else { continue };
            if let Some(reason) = reason(&seen) {
                line.write(&format!(
                    "waiting for {}, since {}: {reason}",
                    claim.target,
                    people(started.elapsed())
                ));
                break;
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Who has the id.
fn reason(seen: &Inspection<String, Uuid>) -> Option<String> {
    if seen.frozen {
        return Some("frozen by an administrator".to_owned());
    }
    let holder = seen.holders.first()?;
    let who = match holder.owner.is_empty() {
        true => harmless(&holder.context.to_string()),
        false => harmless(&holder.owner),
    };
    let more = match seen.holders.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let left = holder.remaining.map(|left| format!(", lease {}", people(left))).unwrap_or_default();
    Some(format!("held by {who}{more} for {}{left}", ago(holder.since)))
}

/// One line of the terminal that is written over and over, and removed at the end.
struct Line {
    shown: bool,
}

impl Line {
    fn write(&mut self, text: &str) {
        self.shown = true;
        // Wrapping off meanwhile: a second line could not be removed.
        let _ = write!(io::stderr(), "\r\x1b[K\x1b[?7l{text}\x1b[?7h");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
