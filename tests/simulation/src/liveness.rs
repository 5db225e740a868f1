//! What the judge of safety does not look at: who waits is served, a healthy holder keeps its locks, and a store without a fault
//! fails no call. By what was recorded alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lockcore_judge::{
    check::AUDIT,
    history::{Claim, Line, Outcome, Stage},
};

use crate::{
    history::{WORLD, nanos},
    plan::Plan,
    reached::Reached,
    run::Failure,
};

/// A dead waiter costs those behind it at most five seconds, and a run sees that a second later.
const DEAD_WAITER: Duration = Duration::from_secs(6);

/// The time for which no call may be served though none is in the way. Requests have to be sent, repeated and answered meanwhile.
const UNSERVED: Duration = Duration::from_secs(10);

/// The time that a release may take after its call returned, and the hand-over.
const RELEASED: Duration = Duration::from_secs(3);

/// The time after a fault for which its consequences are excused: pauses and tries that began under it.
const AFTER: Duration = Duration::from_secs(30);

/// Whether a line of a fault says what a task was asked to do: what is frozen, and what is kept.
pub(crate) fn is_note(stage: &Stage) -> bool {
    let Stage::Fault { kind, .. } = stage else { return false };
    ["freeze ", "thaw ", "kept "].iter().any(|note| kind.starts_with(note))
}

struct Op<'a> {
    name: String,
    process: &'a str,
    claims: &'a [Claim],
    asked: u64,
    entered: Option<u64>,
    ended: Option<(u64, Outcome)>,
}

struct Fault<'a> {
    kind: &'a str,
    from: u64,
    until: u64,
    process: Option<&'a str>,
}

pub(crate) fn check(
    plan: &Plan,
    histories: &BTreeMap<String, Vec<Line>>,
    reached: &mut Reached,
) -> Vec<Failure> {
    let (mut faults, mut kept) = (Vec::new(), BTreeMap::new());
    for line in histories.get(WORLD).into_iter().flatten() {
        if let Stage::Fault { kind, millis, worker, .. } = &line.stage {
            let until = line.at.saturating_add(millis.saturating_mul(1_000_000));
            if let Some(id) = kind.strip_prefix("thaw ") {
                let is_this = |fault: &&mut Fault<'_>| fault.kind.strip_prefix("freeze ") == Some(id);
                let frozen = faults.iter_mut().filter(is_this);
                frozen.for_each(|fault: &mut Fault<'_>| fault.until = fault.until.min(line.at));
                continue;
            }
            if let Some(op) = kind.strip_prefix("kept ") {
                kept.insert(op, millis * 1_000_000);
                continue;
            }
            faults.push(Fault { kind, from: line.at, until, process: worker.as_deref() });
        }
    }
    let mut ops = Vec::new();
    for (process, lines) in histories.iter().filter(|(process, _)| *process != WORLD) {
        collect(process, lines, &mut ops);
    }
    let mut deaths: BTreeMap<&str, u64> = BTreeMap::new();
    for fault in faults.iter().filter(|fault| fault.kind == "kill") {
        deaths.extend(fault.process.map(|process| (process, fault.from)));
    }
    branches(&ops, &deaths, reached);
    let mut failures = Vec::new();
    for op in ops.iter().filter(|op| op.process != AUDIT) {
        let excused = |from: u64, until: u64| {
            faults.iter().any(|fault| {
                let concerns = fault.process.is_none_or(|process| process == op.process);
                // A frozen id is refused, and no call fails by it.
                concerns
                    && !fault.kind.starts_with("freeze")
                    && fault.from <= until
                    && from <= fault.until.saturating_add(nanos(AFTER))
            })
        };
        let Some((ended, outcome)) = op.ended else { continue };
        let mut failed = |rule: &str, what: &str| {
            let details = format!("{} {what} at {ended}, and no fault was near", op.name);
            failures.push(Failure { rule: rule.to_owned(), details });
        };
        match outcome {
            Outcome::Lost if !excused(op.asked, ended) => failed("LostInCalm", "lost its locks"),
            Outcome::Failed if !excused(op.asked, ended) => failed("FailedInCalm", "failed"),
            _ => {}
        }
    }
    unserved(plan, &ops, &faults, &deaths, &kept, &mut failures);
    failures
}

fn collect<'a>(process: &'a str, lines: &'a [Line], ops: &mut Vec<Op<'a>>) {
    let mut open: BTreeMap<u64, Op<'a>> = BTreeMap::new();
    for line in lines {
        if let Stage::Asked { claims, .. } = &line.stage {
            let name = format!("{process}#{}", line.op);
            let (asked, entered, ended) = (line.at, None, None);
            open.insert(line.op, Op { name, process, claims, asked, entered, ended });
        }
        let Some(op) = open.get_mut(&line.op) else { continue };
        match &line.stage {
            Stage::Entered { .. } => op.entered = Some(line.at),
            Stage::Ended { outcome } => op.ended = Some((line.at, *outcome)),
            _ => {}
        }
    }
    ops.extend(open.into_values());
}

fn branches(ops: &[Op<'_>], deaths: &BTreeMap<&str, u64>, reached: &mut Reached) {
    for dead in ops.iter().filter(|op| op.ended.is_none()) {
        let Some(died) = deaths.get(dead.process) else { continue };
        match dead.entered {
            None => reached.count("process died while it waited"),
            Some(_) => {
                reached.count("process died while it held");
                let ids: BTreeSet<_> = dead.claims.iter().map(|claim| &claim.id).collect();
                let takes_over = |op: &&Op<'_>| {
                    op.entered.is_some_and(|entered| entered > *died)
                        && op.claims.iter().any(|claim| ids.contains(&claim.id))
                };
                if ops.iter().any(|op| takes_over(&op)) {
                    reached.count("take-over after a death");
                }
            }
        }
    }
}

/// A call that waits for ids that no living process wants or holds is served: the times of its wait in which others were there, or
/// a fault was, leave no long gap.
fn unserved(
    plan: &Plan,
    ops: &[Op<'_>],
    faults: &[Fault<'_>],
    deaths: &BTreeMap<&str, u64>,
    kept: &BTreeMap<&str, u64>,
    failures: &mut Vec<Failure>,
) {
    let lease = nanos(plan.lease);
    let most = nanos(UNSERVED);
    let last = ops.iter().filter_map(|op| op.ended).map(|(at, _)| at).max().unwrap_or_default();
    let mut by_id: BTreeMap<&str, Vec<(u64, u64, &str)>> = BTreeMap::new();
    for op in ops {
        let until = match (op.ended, deaths.get(op.process)) {
            (Some((ended, Outcome::Done | Outcome::Refused)), _) => {
                // What is kept has a lease of its own, of the shortest that the store allows at least.
                let kept = kept.get(&*op.name).map_or(0, |kept| lease.max(*kept));
                ended + kept + nanos(RELEASED)
            }
            // What was dropped is withdrawn, or runs out.
            (Some((ended, _)), _) => ended + lease * 2,
            // A waiter may have been granted the set just before.
            (None, Some(died)) => died + lease + nanos(DEAD_WAITER),
            (None, None) => u64::MAX,
        };
        for claim in op.claims {
            by_id.entry(&claim.id).or_default().push((op.asked, until, &op.name));
        }
    }
    for op in ops {
        let until = op.entered.or(op.ended.map(|(at, _)| at)).unwrap_or(last);
        if deaths.contains_key(op.process) && op.ended.is_none() || until - op.asked <= most {
            continue;
        }
        let mut busy: Vec<(u64, u64)> = Vec::new();
        for claim in op.claims {
            let all = by_id.get(&*claim.id).into_iter().flatten();
            let others = all.filter(|(from, to, name)| *name != op.name && *from < until && *to > op.asked);
            busy.extend(others.map(|(from, to, _)| (*from, *to)));
        }
        for fault in faults {
            let concerns = fault.process.is_none_or(|process| process == op.process);
            let spoils = matches!(fault.kind, "forget" | "garble");
            let frozen = fault.kind.strip_prefix("freeze ");
            if frozen.is_some_and(|frozen| op.claims.iter().all(|claim| claim.id != frozen)) {
                continue;
            }
            if concerns && fault.kind != "kill" || spoils {
                busy.push((fault.from, fault.until.saturating_add(nanos(AFTER))));
            }
        }
        busy.sort_unstable();
        let (mut free_from, mut gap) = (op.asked, (0, 0));
        for (from, to) in busy.into_iter().chain([(until, until)]) {
            let free = from.min(until).saturating_sub(free_from);
            if free > gap.1 {
                gap = (free_from, free);
            }
            free_from = free_from.max(to);
        }
        if gap.1 > most {
            let seconds = gap.1 / 1_000_000_000;
            let details =
                format!("{} waited for {seconds} s from {} on, with no other in the way", op.name, gap.0);
            failures.push(Failure { rule: "Unserved".to_owned(), details });
        }
    }
}
