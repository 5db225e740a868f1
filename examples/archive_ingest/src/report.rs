//! What is printed before and after: all of it counted, nothing assumed.

use std::{collections::HashMap, fmt, process::ExitCode, time::Duration};

use indicatif::{DecimalBytes, HumanBytes, HumanCount};
use serde::Serialize;

use crate::{audit::Audit, plan::Plan, source::Files, tally::Tally};

/// How many names of a list are printed.
const NAMES: usize = 5;

/// What came of a run.
#[derive(Serialize)]
pub(crate) struct Report {
    archive: String,
    locks: Option<String>,
    processes: u16,
    workers: u16,
    objects: u64,
    bytes: u64,
    /// How often an object was written.
    written: u64,
    written_bytes: u64,
    completed: u64,
    skipped: u64,
    /// How often a worker found an object locked.
    contended: u64,
    waited_ms: f64,
    /// Objects whose stored bytes are what their manifest says.
    verified: u64,
    gone: Vec<String>,
    changed: Vec<String>,
    passed_over: Vec<String>,
    errors: u64,
    messages: Vec<String>,
    /// Objects written more than once in this run.
    twice: Vec<String>,
    /// Objects replaced by another before they were read back.
    replaced: Vec<String>,
    /// Objects whose manifest describes another version.
    mismatched: Vec<String>,
    elapsed_ms: f64,
    audit_ms: f64,
    bytes_per_second: f64,
}

/// Says what is about to be done.
pub(crate) fn introduce(plan: &Plan, files: &Files) {
    println!("from     {}: {} files", plan.source.display(), HumanCount(files.list.len() as u64));
    println!("to       {}", plan.to_shown());
    println!("locks    {}", plan.locks_shown().as_deref().unwrap_or("none: watch it go wrong"));
    let processes = if plan.processes == 1 { "process" } else { "processes" };
    let workers = u32::from(plan.workers) * u32::from(plan.processes);
    println!("by       {workers} workers in {} {processes}, who all try to write every file", plan.processes);
    if plan.to.scheme() != "file" && plan.locks.as_deref().is_some_and(|url| url.starts_with("sqlite:")) {
        println!("note     these locks do not exclude workers on other hosts, the archive is open to them");
    }
    println!();
}

/// An error and its causes, each once: many messages have their causes in them already.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

impl Report {
    pub(crate) fn new(plan: &Plan, files: &Files, copied: Tally, audit: Audit) -> Self {
        let seconds = copied.elapsed.as_secs_f64();
        let mut messages = copied.messages;
        messages.extend(audit.errors.iter().map(|error| format!("audit: {error}")));
        Report {
            archive: plan.to_shown(),
            locks: plan.locks_shown(),
            processes: plan.processes,
            workers: plan.workers,
            objects: files.list.len() as u64,
            bytes: audit.bytes,
            written: copied.written.len() as u64,
            written_bytes: copied.written_bytes,
            completed: copied.completed.len() as u64,
            skipped: copied.skipped,
            contended: copied.contended,
            waited_ms: millis(copied.waited),
            verified: audit.verified,
            gone: audit.gone,
            changed: audit.changed,
            passed_over: files.passed_over.clone(),
            errors: copied.errors + audit.errors.len() as u64,
            messages,
            twice: more_than_once(copied.written.into_iter().chain(copied.completed)),
            replaced: copied.replaced,
            mismatched: audit.mismatched,
            elapsed_ms: millis(copied.elapsed),
            audit_ms: millis(audit.elapsed),
            bytes_per_second: copied.written_bytes as f64 / seconds.max(f64::MIN_POSITIVE),
        }
    }

    fn is_damaged(&self) -> bool {
        !(self.twice.is_empty() && self.replaced.is_empty() && self.mismatched.is_empty())
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match (self.is_damaged(), self.errors) {
            (true, _) => ExitCode::from(3),
            (false, 0) => ExitCode::SUCCESS,
            (false, _) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, figure: &dyn fmt::Display, meaning: &str| {
            writeln!(f, "{:<10} {:>12}  {meaning}", name, figure.to_string())
        };
        let millis = |millis: f64| format!("{:.2} s", millis / 1e3);
        line("objects", &HumanCount(self.objects), "")?;
        line("bytes", &HumanBytes(self.bytes), "")?;
        line("written", &HumanCount(self.written), "times an object was written")?;
        if self.completed > 0 {
            line("completed", &HumanCount(self.completed), "of which only the manifest was missing")?;
        }
        line("skipped", &HumanCount(self.skipped), "times a worker found it written")?;
        if self.locks.is_some() {
            line("contended", &HumanCount(self.contended), "times a worker found it locked by another")?;
            line("waited", &millis(self.waited_ms), "for locks, all workers together")?;
        }
        line(
            "verified",
            &HumanCount(self.verified),
            "read back from the archive: length and SHA-256 as the manifest says",
        )?;
        line("errors", &HumanCount(self.errors), "")?;
        if self.written > 0 {
            let rate = format!("{}/s", DecimalBytes(self.bytes_per_second as u64));
            line("throughput", &rate, "of what was written, all of it also read back")?;
        }
        let then = format!("and then {} for the audit of the whole archive", millis(self.audit_ms));
        line("elapsed", &millis(self.elapsed_ms), &then)?;
        names(f, "changed since they were archived, kept as they were", &self.changed)?;
        names(f, "removed before they were copied", &self.gone)?;
        names(f, "not copied", &self.passed_over)?;
        names(f, "errors", &self.messages)?;
        names(f, "DAMAGE, written more than once", &self.twice)?;
        names(f, "DAMAGE, replaced before its writer had read it back", &self.replaced)?;
        names(f, "DAMAGE, the manifest describes another version than the one stored", &self.mismatched)?;
        self.write_verdict(f)
    }
}

impl Report {
    fn write_verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\n")?;
        if self.is_damaged() {
            writeln!(
                f,
                "Damaged: the workers were in each other's way. With locks each object is written once."
            )
        } else if self.errors > 0 {
            writeln!(f, "Not complete: run it again once the errors are seen to.")
        } else if self.locks.is_none() && self.written == 0 {
            writeln!(f, "Everything was there already, so nothing was raced for: give --to an empty place.")
        } else if self.locks.is_none() {
            writeln!(f, "Lucky: no race was lost this time. Nothing prevented it.")
        } else if self.written + self.completed == 0 {
            writeln!(f, "Everything was there already and nothing was written.")
        } else if self.written + self.completed < self.objects {
            writeln!(f, "What was missing was written, each object exactly once.")
        } else {
            writeln!(f, "Each object was written exactly once.")
        }
    }
}

fn names(f: &mut fmt::Formatter<'_>, what: &str, names: &[String]) -> fmt::Result {
    if names.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{} {what}:", names.len())?;
    for name in names.iter().take(NAMES) {
        writeln!(f, "  {name}")?;
    }
    match names.len().saturating_sub(NAMES) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}

fn more_than_once(keys: impl Iterator<Item = String>) -> Vec<String> {
    let mut times: HashMap<String, u32> = HashMap::new();
    for key in keys {
        *times.entry(key).or_default() += 1;
    }
    let mut keys: Vec<String> =
        times.into_iter().filter(|(_, times)| *times > 1).map(|(key, _)| key).collect();
    keys.sort();
    keys
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
