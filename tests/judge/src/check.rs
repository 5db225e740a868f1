//! The checker: what recorded histories must satisfy. It uses nothing of lockcore.
//!
//! Fences are the order of grants of an id, so that no search is needed: each rule is one pass over operations in the order
//! of a number. What an operation *held* is what it could know:
//!
//! - from the moment its callback began, since the locks were found held after that moment was read,
//! - to the end of the callback if the call returned without a loss, else to the last moment after which the locks were
//!   found held.
//!
//! A fault by which the store may lose grants, as documented, excuses two that are inside at once: one that was granted
//! before the end of the fault, and one that was granted since it began and at most a second after it, when the first has
//! to have learnt of its loss. It excuses nothing else: fences and guarded writes stay in order.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use crate::history::{Claim, Line, Mode, Outcome, Stage};

/// One operation, put together from its lines.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its process and number.
    pub name: String,
    /// What it claimed.
    pub claims: Vec<Claim>,
    nested: bool,
    asked: u64,
    queued: Option<u64>,
    entered: Option<(u64, Vec<u64>)>,
    inside: u64,
    left: Option<u64>,
    ended: Option<(u64, Outcome)>,
    writes: Vec<(u64, String, u64)>,
}

impl Op {
    /// The time that it certainly held its locks, by what it could know.
    fn held(&self) -> Option<(u64, u64)> {
        let (entered, _) = self.entered.as_ref()?;
        let until = match (self.left, self.ended) {
            (Some(left), Some((_, Outcome::Done))) => left,
            _ => self.inside.max(*entered),
        };
        Some((*entered, until))
    }
}

/// Something that must not be in a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The rule that was broken.
    pub rule: Rule,
    /// The operations and moments.
    pub details: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.details)
    }
}

/// The rules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// No two holders that exclude each other are inside at once.
    Exclusion,
    /// At a grant no more permits are held than its own limit allows.
    Permits,
    /// No two grants of an id have one fence.
    FenceTwice,
    /// A grant that was requested after another one was seen has a higher fence.
    FenceBack,
    /// No write of a former holder is admitted after the write of a later one.
    Write,
    /// A later request is not served before one that was seen in the queue.
    Order,
    /// Each call of a process that was not killed ends.
    Stuck,
    /// Each call ends as one of the outcomes of the contract.
    Untyped,
    /// After the run each id can be locked.
    LeftLocked,
}

impl Rule {
    /// Returns whether it may be broken because the machine stood still: it says that something happens in time.
    pub fn is_of_time(self) -> bool {
        matches!(self, Rule::Stuck | Rule::LeftLocked)
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// All violations.
    pub violations: Vec<Violation>,
    /// How many operations ended how; `None` for those of killed processes.
    pub outcomes: BTreeMap<Option<Outcome>, u64>,
    /// How many operations began.
    pub operations: u64,
    /// How many began while a fault was in force, or within a second after one.
    pub under_fault: u64,
    /// The longest time from a request to its callback, in nanoseconds.
    pub longest_wait: u64,
    /// What the faults of each kind cost.
    pub faults: BTreeMap<String, Cost>,
    /// How many guarded writes were admitted, and how many refused.
    pub writes: (u64, u64),
    /// The time from the first to the last line, in nanoseconds.
    pub span: u64,
    /// How many ended per second while no fault was in force, while one was, and within a second after one.
    pub rates: [f64; 3],
}

/// What the faults of a kind cost all operations.
#[derive(Debug, Default)]
pub struct Cost {
    /// How many faults there were.
    pub times: u64,
    /// How many operations ended per second while one was in force, and within a second after one.
    pub rates: [f64; 2],
    /// The longest time to the callback of a request that was made in that time, in nanoseconds.
    pub longest_wait: u64,
}

/// How long an offer lasts at least, as the shortest lease of a run does: a waiter that was served within this time has lost no
/// turn because its process got no processor.
const OFFER: u64 = 1_000_000_000;

/// The time after a fault that counts as recovery.
const AFTER: u64 = 1_000_000_000;

/// Checks the histories of all processes of a run, by name. The operations of the process `audit` are those that lock each
/// id after the run: they must be done.
pub fn check(histories: &BTreeMap<String, Vec<Line>>) -> Report {
    let mut report = Report::default();
    let faults = faults(histories, &mut report);
    let mut ops = Vec::new();
    for (process, lines) in histories {
        collect(process, lines, &mut ops, &mut report);
    }
    let all = histories.values().flatten();
    let (first, last) =
        all.fold((u64::MAX, 0), |(first, last), line| (first.min(line.at), last.max(line.at)));
    report.span = last.saturating_sub(first);
    figures(&ops, &faults, (first, last), &mut report);
    let mut by_id: HashMap<&str, Vec<Grant<'_>>> = HashMap::new();
    for op in &ops {
        for (at, claim) in op.claims.iter().enumerate() {
            let fence = op.entered.as_ref().map(|(_, fences)| fences[at]);
            by_id.entry(&claim.id).or_default().push(Grant { op, mode: claim.mode, fence });
        }
    }
    for (id, grants) in by_id {
        fences(id, &grants, &mut report);
        exclusion(id, &grants, &faults, &mut report);
        permits(id, &grants, &faults, &mut report);
        order(id, &grants, &faults, &mut report);
        writes(id, &grants, &mut report);
    }
    report.violations.sort_by(|a, b| (a.rule, &a.details).cmp(&(b.rule, &b.details)));
    report
}

/// A claim of an operation.
struct Grant<'a> {
    op: &'a Op,
    mode: Mode,
    fence: Option<u64>,
}

fn excludes(one: Mode, other: Mode) -> bool {
    use Mode::{Shared, Slots};
    !matches!((one, other), (Shared, Shared) | (Slots { .. }, Slots { .. }))
}

/// A fault, from its begin to a second after its end.
struct Fault {
    kind: String,
    from: u64,
    until: u64,
    recovered: u64,
    worker: Option<String>,
    loses_grants: bool,
}

/// Whether the store may have lost the grant of a holder that was inside since `earlier` before it granted to one that is
/// inside since `later`.
fn may_be_lost(faults: &[Fault], earlier: u64, later: u64) -> bool {
    let excuses = |fault: &Fault| {
        fault.loses_grants && earlier <= fault.until && fault.from <= later && later <= fault.recovered
    };
    faults.iter().any(excuses)
}

fn faults(histories: &BTreeMap<String, Vec<Line>>, report: &mut Report) -> Vec<Fault> {
    let mut faults = Vec::new();
    for line in histories.values().flatten() {
        if let Stage::Fault { kind, millis, worker, loses_grants } = &line.stage {
            report.faults.entry(kind.clone()).or_default().times += 1;
            let until = line.at + millis * 1_000_000;
            let (from, recovered) = (line.at, until + AFTER);
            let (kind, worker, loses_grants) = (kind.clone(), worker.clone(), *loses_grants);
            faults.push(Fault { kind, from, until, recovered, worker, loses_grants });
        }
    }
    faults.sort_by_key(|fault| fault.from);
    faults
}

fn collect(process: &str, lines: &[Line], ops: &mut Vec<Op>, report: &mut Report) {
    let mut open: BTreeMap<u64, Op> = BTreeMap::new();
    let mut finished = false;
    for line in lines {
        if let Stage::Asked { claims, nested } = &line.stage {
            let op = Op {
                name: format!("{process}#{}", line.op),
                claims: claims.clone(),
                nested: *nested,
                asked: line.at,
                queued: None,
                entered: None,
                inside: 0,
                left: None,
                ended: None,
                writes: Vec::new(),
            };
            open.insert(line.op, op);
        }
        finished |= line.stage == Stage::Finished;
        let Some(op) = open.get_mut(&line.op) else { continue };
        match &line.stage {
            Stage::Queued => op.queued = Some(line.at),
            Stage::Entered { fences } => op.entered = Some((line.at, fences.clone())),
            Stage::Inside => op.inside = op.inside.max(line.at),
            Stage::Left => op.left = Some(line.at),
            Stage::Ended { outcome } => op.ended = Some((line.at, *outcome)),
            Stage::Wrote { id, fence, admitted: true } => op.writes.push((line.at, id.clone(), *fence)),
            Stage::Wrote { .. } => report.writes.1 += 1,
            Stage::Asked { .. } | Stage::Finished | Stage::Fault { .. } => {}
        }
    }
    for op in open.values() {
        let outcome = op.ended.map(|(_, outcome)| outcome);
        *report.outcomes.entry(outcome).or_default() += 1;
        report.operations += 1;
        report.writes.0 += op.writes.len() as u64;
        let mut violated = |rule, details| report.violations.push(Violation { rule, details });
        if outcome.is_none() && finished {
            violated(Rule::Stuck, format!("{} was asked and never ended", op.name));
        }
        if matches!(outcome, Some(Outcome::Mistaken | Outcome::Panicked)) {
            violated(Rule::Untyped, format!("{} ended as {outcome:?}", op.name));
        }
        if process == AUDIT && outcome != Some(Outcome::Done) {
            violated(
                Rule::LeftLocked,
                format!("{:?} cannot be locked after the run: {outcome:?}", op.claims),
            );
        }
    }
    ops.extend(open.into_values());
}

/// The process that locks each id after the run.
pub const AUDIT: &str = "audit";

/// What was in force in a part of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Phase<'f> {
    Calm,
    Under(&'f str),
    After(&'f str),
}

/// What was counted in all parts of a phase.
#[derive(Clone, Copy, Default)]
struct Count {
    nanos: u64,
    ended: u64,
    longest_wait: u64,
}

impl Count {
    fn plus(self, other: &Count) -> Count {
        Count {
            nanos: self.nanos + other.nanos,
            ended: self.ended + other.ended,
            longest_wait: self.longest_wait.max(other.longest_wait),
        }
    }

    fn rate(self) -> f64 {
        if self.nanos == 0 { 0.0 } else { self.ended as f64 / (self.nanos as f64 / 1e9) }
    }
}

fn figures(ops: &[Op], faults: &[Fault], (first, last): (u64, u64), report: &mut Report) {
    // Parts of ten milliseconds are enough for rates.
    const SLICE: u64 = 10_000_000;
    let slices =
        usize::try_from((last.saturating_sub(first)) / SLICE + 1).expect("a run is shorter than that");
    let slice = |at: u64| {
        usize::try_from(at.saturating_sub(first) / SLICE).map_or(slices - 1, |at| at.min(slices - 1))
    };
    let mut phases = vec![Phase::Calm; slices];
    for fault in faults {
        phases[slice(fault.until)..=slice(fault.recovered)].fill(Phase::After(&fault.kind));
    }
    for fault in faults {
        phases[slice(fault.from)..=slice(fault.until)].fill(Phase::Under(&fault.kind));
    }
    let mut counts: HashMap<Phase<'_>, Count> = HashMap::new();
    for phase in &phases {
        counts.entry(*phase).or_default().nanos += SLICE;
    }
    for op in ops {
        let asked = phases[slice(op.asked)];
        report.under_fault += u64::from(asked != Phase::Calm);
        if let Some((at, _)) = op.ended {
            counts.entry(phases[slice(at)]).or_default().ended += 1;
        }
        if let Some((entered, _)) = op.entered {
            let count = counts.entry(asked).or_default();
            count.longest_wait = count.longest_wait.max(entered - op.asked);
        }
    }
    let mut all = [Count::default(); 3];
    for (phase, count) in &counts {
        let (at, kind) = match phase {
            Phase::Calm => (0, None),
            Phase::Under(kind) => (1, Some(kind)),
            Phase::After(kind) => (2, Some(kind)),
        };
        all[at] = all[at].plus(count);
        if let Some(cost) = kind.and_then(|kind| report.faults.get_mut(*kind)) {
            cost.rates[at - 1] = count.rate();
            cost.longest_wait = cost.longest_wait.max(count.longest_wait);
        }
    }
    report.rates = all.map(Count::rate);
    report.longest_wait = all.iter().map(|count| count.longest_wait).max().unwrap_or_default();
}

fn fences(id: &str, grants: &[Grant<'_>], report: &mut Report) {
    let mut granted: Vec<_> = grants.iter().filter_map(|grant| Some((grant.fence?, grant.op))).collect();
    granted.sort_by_key(|(fence, _)| *fence);
    for pair in granted.windows(2) {
        if pair[0].0 == pair[1].0 {
            let details = format!("{id}: {} and {} have fence {}", pair[0].1.name, pair[1].1.name, pair[0].0);
            report.violations.push(Violation { rule: Rule::FenceTwice, details });
        }
    }
    // In real time: of all grants that were seen before a request, the highest.
    let mut by_asked = granted.clone();
    by_asked.sort_by_key(|(_, op)| op.asked);
    let mut by_entered = granted;
    by_entered.sort_by_key(|(_, op)| op.entered.as_ref().map(|(at, _)| *at));
    let mut seen = by_entered.iter().peekable();
    let mut highest: Option<(u64, &Op)> = None;
    for (fence, op) in by_asked {
        while let Some(before) =
            seen.next_if(|(_, before)| before.entered.as_ref().is_some_and(|(at, _)| *at < op.asked))
        {
            highest = highest.filter(|(highest, _)| *highest > before.0).or(Some(*before));
        }
        if let Some((before, earlier)) = highest.filter(|(before, _)| *before > fence) {
            let details = format!("{id}: {} has {fence}, after {} had {before}", op.name, earlier.name);
            report.violations.push(Violation { rule: Rule::FenceBack, details });
        }
    }
}

fn exclusion(id: &str, grants: &[Grant<'_>], faults: &[Fault], report: &mut Report) {
    let mut held: Vec<_> = grants.iter().filter_map(|grant| Some((grant.op.held()?, grant))).collect();
    held.sort_by_key(|((from, _), _)| *from);
    let mut inside: Vec<(u64, u64, &Grant<'_>)> = Vec::new();
    for ((from, until), grant) in held {
        inside.retain(|(_, until, _)| *until > from);
        let others = inside.iter().filter(|(_, _, other)| excludes(grant.mode, other.mode));
        for (_, _, other) in others.filter(|(earlier, ..)| !may_be_lost(faults, *earlier, from)) {
            let details =
                format!("{id}: {} was inside at {from}, and so was {}", grant.op.name, other.op.name);
            report.violations.push(Violation { rule: Rule::Exclusion, details });
        }
        inside.push((from, until, grant));
    }
}

/// Those that were granted before, and were inside when this one had been granted, were held at the grant.
fn permits(id: &str, grants: &[Grant<'_>], faults: &[Fault], report: &mut Report) {
    let mut held: Vec<_> = grants
        .iter()
        .filter_map(|grant| match grant.mode {
            Mode::Slots { permits, limit } => {
                Some((grant.op.held()?, grant.fence?, permits, limit, grant.op))
            }
            Mode::Exclusive | Mode::Shared => None,
        })
        .collect();
    held.sort_by_key(|((from, _), ..)| *from);
    let mut inside: Vec<(u64, u64, u64, u32)> = Vec::new();
    for ((from, until), fence, permits, limit, op) in held {
        inside.retain(|(_, until, ..)| *until > from);
        let before = inside
            .iter()
            .filter(|(earlier, _, other, _)| *other < fence && !may_be_lost(faults, *earlier, from));
        let before: u32 = before.map(|(.., permits)| permits).sum();
        if before + permits > limit {
            let details = format!("{id}: {} got {permits} of {limit} while {before} were held", op.name);
            report.violations.push(Violation { rule: Rule::Permits, details });
        }
        inside.push((from, until, fence, permits));
    }
}

/// An exclusive request of one id that was seen in the queue is served before any request for it that was made later, unless
/// a fault kept it from answering.
fn order(id: &str, grants: &[Grant<'_>], faults: &[Fault], report: &mut Report) {
    let undisturbed = |op: &Op, from: u64, until: u64| {
        let mut process = op.name.split('#');
        let process = process.next().expect("a split has a first part");
        !faults.iter().any(|fault| {
            fault.from < until
                && from < fault.recovered
                && fault.worker.as_deref().is_none_or(|worker| worker == process)
        })
    };
    let first_come = grants.iter().filter(|grant| !grant.op.nested);
    let mut later: Vec<_> =
        first_come.filter_map(|grant| Some((grant.op.asked, grant.fence?, grant.op))).collect();
    later.sort_by_key(|(asked, ..)| *asked);
    // The lowest fence of all requests from a position on.
    let mut lowest = vec![(u64::MAX, None); later.len() + 1];
    for (at, (_, fence, op)) in later.iter().enumerate().rev() {
        lowest[at] = if *fence < lowest[at + 1].0 { (*fence, Some(*op)) } else { lowest[at + 1] };
    }
    for grant in grants {
        let (Some(queued), Some(fence)) = (grant.op.queued, grant.fence) else { continue };
        let entered = grant.op.entered.as_ref().map_or(queued, |(at, _)| *at);
        if grant.op.claims.len() > 1
            || grant.mode != Mode::Exclusive
            || entered.saturating_sub(queued) >= OFFER
            || !undisturbed(grant.op, queued, entered)
        {
            continue;
        }
        let after = later.partition_point(|(asked, ..)| *asked <= queued);
        if let (before, Some(passed)) = lowest[after]
            && before < fence
        {
            let details =
                format!("{id}: {} was in the queue before {} was asked", grant.op.name, passed.name);
            report.violations.push(Violation { rule: Rule::Order, details });
        }
    }
}

/// The moments of writes are read while the resource is locked, so that their order is that of the writes.
fn writes(id: &str, grants: &[Grant<'_>], report: &mut Report) {
    let mut writes: Vec<_> = grants
        .iter()
        .flat_map(|grant| {
            let mine = grant.op.writes.iter().filter(|(_, written, _)| written == id);
            mine.map(|(at, _, fence)| (*at, *fence, grant.op))
        })
        .collect();
    writes.sort_by_key(|(at, ..)| *at);
    for pair in writes.windows(2) {
        if pair[1].1 < pair[0].1 {
            let details = format!(
                "{id}: the write of {} was admitted after that of {}",
                pair[1].2.name, pair[0].2.name
            );
            report.violations.push(Violation { rule: Rule::Write, details });
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        writeln!(
            f,
            "operations: {}, of them {} under faults, in {:.1} s",
            self.operations,
            self.under_fault,
            seconds(self.span)
        )?;
        for (outcome, count) in &self.outcomes {
            match outcome {
                Some(outcome) => writeln!(f, "  {outcome:?}: {count}")?,
                None => writeln!(f, "  of killed processes: {count}")?,
            }
        }
        writeln!(f, "guarded writes: {} admitted, {} refused", self.writes.0, self.writes.1)?;
        let [before, under, after] = self.rates;
        writeln!(
            f,
            "ended per second: {before:.0} without a fault, {under:.0} under one, {after:.0} in the second after"
        )?;
        writeln!(f, "longest wait for a grant: {:.1} s", seconds(self.longest_wait))?;
        for (kind, Cost { times, rates: [under, after], longest_wait }) in &self.faults {
            let wait = seconds(*longest_wait);
            writeln!(
                f,
                "  {kind} {times}: {under:.0} under it, {after:.0} after it, longest wait {wait:.1} s"
            )?;
        }
        write!(f, "violations: {}", self.violations.len())?;
        for violation in self.violations.iter().take(20) {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}
