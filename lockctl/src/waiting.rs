//! The line that shows what a request waits for.

use std::{
    convert::Infallible,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use lockcore::{Claim, Inspection, LockDao, LockingService};
use uuid::Uuid;

use crate::{
    output::say,
    text::{ago, harmless, people},
};

/// A shorter wait is not worth a line: on a terminal, and in a log.
const BEFORE_THE_FIRST: Duration = Duration::from_millis(250);
const BEFORE_THE_FIRST_IN_A_LOG: Duration = Duration::from_secs(10);

/// The interval at which the line is written: on a terminal in place of the last one, and in a log.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_IN_A_LOG: Duration = Duration::from_secs(600);

/// Shows who is in the way of the claims until it is dropped.
pub(crate) async fn show(locks: &LockingService, claims: &[Claim<String>]) -> Infallible {
    if !locks.dao().capabilities().listing {
        return std::future::pending().await;
    }
    let terminal = io::stderr().is_terminal();
    let (first, every) = match terminal {
        true => (BEFORE_THE_FIRST, EVERY),
        false => (BEFORE_THE_FIRST_IN_A_LOG, EVERY_IN_A_LOG),
    };
    let started = Instant::now();
    let mut line = Line { shown: false };
    tokio::time::sleep(first).await;
    loop {
        for claim in claims {
            // A failure of the store is reported by the call that waits.
            let Ok(seen) = locks.admin().inspect(&claim.target).await else { continue };
            if let Some(reason) = reason(&seen) {
                let text =
                    format!("waiting for {}, for {}: {reason}", claim.target, people(started.elapsed()));
                match terminal {
                    true => line.write(&text),
                    false => say(&text),
                }
                break;
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Returns who has the id.
fn reason(seen: &Inspection<String, Uuid>) -> Option<String> {
    if seen.frozen {
        return Some("frozen by an administrator".to_owned());
    }
    let holder = seen.holders.first()?;
    let who = match holder.owner.label() {
        "" => harmless(&holder.context.to_string()),
        label => harmless(label),
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
