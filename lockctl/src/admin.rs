//! The administrator's commands: look, break, freeze, sweep, migrate.

use std::time::Duration;

use lockcore::{
    BreakMode, Broken, Finding, Inspection, LockingService, Page, Severity,
    election::{Election, Leader},
};
use serde_json::{Map, Value, json};

use crate::{
    args::{Global, TargetArg},
    exit::{Code, Failure},
    output::Output,
    session::{self, open_existing},
    show,
    text::people,
    why::{HolderWaits, Why},
};

/// Lists everything.
pub(crate) async fn list(global: &Global, output: Output) -> Result<u8, Failure> {
    let (locks, store) = open_existing(global).await?;
    let ids = all(&locks).await?;
    output.result(|| show::list(&ids, &store), || ids.iter().map(show::json).collect()).map(|()| 0)
}

/// Lists all ids, page by page.
pub(crate) async fn all(locks: &LockingService) -> Result<Vec<Inspection>, Failure> {
    let (mut ids, mut page) = (Vec::new(), Page::default());
    loop {
        let listing = locks.admin().list(&page).await?;
        ids.extend(listing.ids);
        match listing.next {
            Some(next) => page.after = Some(next),
            None => return Ok(ids),
        }
    }
}

/// Waits until no id is held.
pub(crate) async fn wait(
    global: &Global,
    ids: &[String],
    limit: Option<Duration>,
    every: Duration,
) -> Result<u8, Failure> {
    let (locks, _) = open_existing(global).await?;
    let admin = locks.admin();
    let free = admin.until_free(ids, every);
    match limit {
        None => free.await?,
        Some(limit) => match tokio::time::timeout(limit, free).await {
            Ok(free) => free?,
            Err(_) => {
                let message = format!("still held after {}", people(limit));
                return Err(Failure::new(Code::TimedOut, message));
            }
        },
    }
    Ok(0)
}

/// Shows who leads.
pub(crate) async fn leader(global: &Global, name: String, output: Output) -> Result<u8, Failure> {
    let (locks, _) = open_existing(global).await?;
    let leader = Election::new(&locks, name).leader().await?;
    let Some(Leader { term, value, context }) = leader else {
        return Err(Failure::new(Code::NotAcquired, "there is no leader"));
    };
    let machine = || {
        let mut shown = Map::from_iter([
            ("value".to_owned(), value.label().into()),
            ("term".to_owned(), term.into()),
            ("context".to_owned(), context.to_string().into()),
        ]);
        shown.extend(show::data(&value).map(|data| ("data".to_owned(), data)));
        Value::Object(shown)
    };
    output.result(|| show::with_data(&value), machine).map(|()| 0)
}

/// Shows why an id cannot be had.
pub(crate) async fn why(
    global: &Global,
    target: &TargetArg,
    dot: bool,
    output: Output,
) -> Result<u8, Failure> {
    let (locks, _) = open_existing(global).await?;
    let asked = locks.admin().inspect(&target.target()).await?;
    let why = Why::follow(asked, &all(&locks).await?);
    if dot {
        return output.write(why.to_dot().as_bytes()).map(|()| 0);
    }
    let machine = || {
        let waits = |HolderWaits { id, holder, waits_for }: &HolderWaits| json!({ "id": id, "holder": holder, "waits_for": waits_for });
        json!({
            "ids": why.ids.iter().map(show::json).collect::<Vec<_>>(),
            "waits": why.waits.iter().map(waits).collect::<Vec<_>>(),
            "cycle": why.cycle(),
            "cut_off": why.is_cut_off,
        })
    };
    output.result(|| why.to_string(), machine).map(|()| 0)
}

/// Shows one id.
pub(crate) async fn show(global: &Global, target: &TargetArg, output: Output) -> Result<u8, Failure> {
    let (locks, store) = open_existing(global).await?;
    let seen = locks.admin().inspect(&target.target()).await?;
    output.result(|| show::one(&seen, &store), || show::json(&seen)).map(|()| 0)
}

/// Breaks a lock.
pub(crate) async fn break_lock(
    global: &Global,
    target: &TargetArg,
    fence: u64,
    now: bool,
    output: Output,
) -> Result<u8, Failure> {
    let target = target.target();
    let how = if now { BreakMode::Now } else { BreakMode::AfterLease };
    let (locks, store) = open_existing(global).await?;
    let (word, within) = match locks.admin().break_lock(&target, fence, how).await? {
        Broken::NotHeld => {
            return Err(Failure::new(
                Code::NotHeld,
                format!("--fence: {target} is not held under fence {fence} in {store}, so nothing was done"),
            ));
        }
        Broken::Freed => ("freed", None),
        Broken::Within(within) => ("broken", within),
    };
    let human = || match (word, within) {
        ("freed", _) => format!("{target} is free; its former holder may still be at work"),
        (_, Some(within)) => {
            format!("{target} will be free when its holder has stopped, in {} at the latest", people(within))
        }
        (_, None) => format!("{target} will be free when its holder has stopped"),
    };
    output.result(human, || json!({ "outcome": word, "within_ms": show::millis(within) })).map(|()| 0)
}

/// Freezes or thaws an id.
pub(crate) async fn freeze(
    global: &Global,
    target: &TargetArg,
    frozen: bool,
    output: Output,
) -> Result<u8, Failure> {
    let target = target.target();
    let (locks, _) = open_existing(global).await?;
    locks.admin().freeze(&target, frozen).await?;
    let word = if frozen { "frozen" } else { "thawed" };
    output.result(|| format!("{target} is {word}"), || json!({ "frozen": frozen })).map(|()| 0)
}

/// Removes everything that expired.
pub(crate) async fn sweep(global: &Global, batch: usize, output: Output) -> Result<u8, Failure> {
    let (locks, _) = open_existing(global).await?;
    let mut removed = 0;
    loop {
        let swept = locks.admin().sweep(batch).await?;
        removed += swept.removed;
        if !swept.more {
            break;
        }
    }
    output.result(|| format!("{removed} removed"), || json!({ "removed": removed })).map(|()| 0)
}

/// Creates or migrates the schema, or prints what would.
pub(crate) async fn migrate(global: &Global, print: Option<&str>, output: Output) -> Result<u8, Failure> {
    if let Some(language) = print {
        let schema = session::config(global, None, None)?.schema(language)?;
        return output.result(|| schema.trim_end().to_owned(), || json!({ "schema": schema })).map(|()| 0);
    }
    session::migrate(global).await?;
    output.result(|| "the schema is current".to_owned(), || json!({ "current": true })).map(|()| 0)
}

/// Looks for what would weaken a promise.
pub(crate) async fn doctor(global: &Global, verify: Option<Duration>, output: Output) -> Result<u8, Failure> {
    let (locks, store) = open_existing(global).await?;
    let mut findings = vec![Finding { severity: Severity::Ok, check: "store", detail: store }];
    findings.extend(locks.admin().doctor().await?);
    if let Some(time) = verify {
        findings.extend(locks.admin().verify(time).await?);
    }
    let machine = || {
        let finding = |finding: &Finding| {
            json!({
                "severity": finding.severity.to_string(),
                "check": finding.check,
                "detail": finding.detail,
            })
        };
        findings.iter().map(finding).collect()
    };
    output.result(|| show::findings(&findings), machine)?;
    let bad = findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if bad { Code::Other as u8 } else { 0 })
}
