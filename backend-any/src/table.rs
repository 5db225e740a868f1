//! The promises of each backend of this build, as a table.

use std::{fmt::Write, time::Duration};

use lockcore::Capabilities;

use crate::backends::capabilities;

/// A backend of this build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Backend {
    /// A URL of it.
    pub example: &'static str,
    /// Its promises.
    pub capabilities: Capabilities,
}

/// Returns the backends of this build.
pub fn backends() -> Vec<Backend> {
    let all = capabilities().into_iter();
    all.map(|(example, capabilities)| Backend { example, capabilities }).collect()
}

/// [`backends`] as a Markdown table: a line for each promise, a column for each backend.
pub fn markdown_table() -> String {
    let backends = backends();
    let mut table = String::new();
    line(&mut table, "", backends.iter().map(|backend| heading(backend.capabilities.backend)));
    line(&mut table, "---", backends.iter().map(|_| "---".to_owned()));
    line(&mut table, "URL", backends.iter().map(|backend| format!("`{}`", backend.example)));
    for (promise, show) in PROMISES {
        line(&mut table, promise, backends.iter().map(|backend| show(&backend.capabilities)));
    }
    table
}

type Show = fn(&Capabilities) -> String;

const PROMISES: [(&str, Show); 14] = [
    ("excludes other processes", |it| yes(it.shared_store)),
    ("whole sets, fences, renewal, safe cancellation", |_| yes(true)),
    ("shared locks", |it| yes(it.shared)),
    ("slots", |it| yes(it.slots)),
    ("waiters in order of arrival", |it| yes(it.fifo)),
    ("waiters are notified, no polling", |it| yes(it.push)),
    ("`keep_for` cuts a longer lease short", |it| yes(it.shortening)),
    ("a dead process's locks are free at once", |it| yes(it.dead_holders)),
    ("locks without a lease", |it| yes(it.permanent)),
    ("list, inspect", |it| yes(it.listing)),
    ("break, freeze", |it| yes(it.breaking)),
    ("default lease", |it| it.default_lease.map_or_else(|| "none: until released".to_owned(), duration)),
    ("shortest lease", |it| duration(it.min_lease)),
    ("ids in one step, at most", |it| {
        if it.max_ids == usize::MAX { "any number".to_owned() } else { it.max_ids.to_string() }
    }),
];

/// The backends whose promises are known to fail in some cases, or were not tried in all, which their pages list.
const EXPERIMENTAL: [&str; 3] = ["etcd", "s3", "share"];

fn heading(backend: &str) -> String {
    let is_experimental = EXPERIMENTAL.contains(&backend);
    format!("{backend}{}", if is_experimental { " (experimental)" } else { "" })
}

fn yes(promised: bool) -> String {
    if promised { "yes" } else { "no" }.to_owned()
}

fn duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

fn line(table: &mut String, first: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<_> = cells.collect();
    writeln!(table, "| {first} | {} |", cells.join(" | ")).expect("a string takes everything");
}
