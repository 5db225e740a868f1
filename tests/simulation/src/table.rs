//! A history as a table that a person can read.

use std::{collections::BTreeSet, fmt::Write, sync::Arc};

use lockcore_judge::history::{Claim, Line, Mode, Stage};

use crate::run::Run;

/// The most lines that are shown.
const MOST: usize = 120;

/// Writes down what happened around the first failure: all lines about its ids, and the faults, the last first if there are too many.
pub fn around_failure(run: &Run) -> String {
    let Some(failure) = run.failures.first() else { return String::new() };
    let named = |process: &str, op: u64| {
        let name = format!("{process}#{op}");
        failure.details.split(|c: char| c.is_whitespace() || c == ',').any(|word| word == name)
    };
    let mut ids: BTreeSet<&str> = BTreeSet::new();
    let mut last = 0;
    for (process, line) in &run.history {
        if named(process, line.op) {
            last = last.max(line.at);
            if let Stage::Asked { claims, .. } = &line.stage {
                ids.extend(claims.iter().map(|claim| &*claim.id));
            }
        }
    }
    if let Some(id) = failure.details.split(':').next().filter(|id| ids.contains(id)) {
        ids = BTreeSet::from([id]);
    }
    let mut concerned: BTreeSet<(&str, u64)> = BTreeSet::new();
    for (process, line) in &run.history {
        if let Stage::Asked { claims, .. } = &line.stage
            && claims.iter().any(|claim| ids.is_empty() || ids.contains(&*claim.id))
        {
            concerned.insert((process, line.op));
        }
    }
    let rows: Vec<_> = run
        .history
        .iter()
        .filter(|(_, line)| last == 0 || line.at <= last)
        .filter(|(process, line)| concerned.contains(&(&**process, line.op)) || is_fault(line))
        .collect();
    let skipped = rows.len().saturating_sub(MOST);
    table(&rows[skipped..], skipped)
}

fn is_fault(line: &Line) -> bool {
    matches!(line.stage, Stage::Fault { .. })
}

fn table(rows: &[&(Arc<str>, Line)], skipped: usize) -> String {
    let mut text = String::new();
    if skipped > 0 {
        // Writing to text does not fail.
        let _ = writeln!(text, "({skipped} earlier lines are left out)");
    }
    let _ = writeln!(text, "{:>12}  {:<8} {:>5}  what", "seconds", "process", "op");
    for (process, line) in rows {
        let seconds = line.at as f64 / 1e9;
        let op = if line.op == 0 { String::new() } else { format!("#{}", line.op) };
        let _ = writeln!(text, "{seconds:>12.6}  {process:<8} {op:>5}  {}", what(&line.stage));
    }
    text
}

fn what(stage: &Stage) -> String {
    match stage {
        Stage::Asked { claims, nested } => {
            let claims: Vec<_> = claims.iter().map(claim).collect();
            format!("asks for {}{}", claims.join(", "), if *nested { ", nested" } else { "" })
        }
        Stage::Queued => "is seen in the queue".to_owned(),
        Stage::Entered { fences } => format!("holds, fences {fences:?}"),
        Stage::Inside => "still holds".to_owned(),
        Stage::Wrote { id, fence, admitted } => {
            format!(
                "its write to {id} with fence {fence} is {}",
                if *admitted { "admitted" } else { "refused" }
            )
        }
        Stage::Left => "its callback ends".to_owned(),
        Stage::Ended { outcome } => format!("its call ends: {outcome:?}"),
        Stage::Finished => "has ended all calls".to_owned(),
        Stage::Fault { kind, millis, worker, .. } => {
            let of = worker.as_deref().map(|worker| format!(" of {worker}")).unwrap_or_default();
            format!("FAULT {kind}{of} for {millis} ms")
        }
    }
}

fn claim(Claim { id, mode }: &Claim) -> String {
    match mode {
        Mode::Exclusive => id.clone(),
        Mode::Shared => format!("{id} shared"),
        Mode::Slots { permits, limit } => format!("{id} {permits} of {limit}"),
    }
}
