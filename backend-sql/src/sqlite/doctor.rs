//! Looking for what would weaken a promise.

use std::time::Instant;

use lockcore::{Finding, Severity, backend::StoreFit};

use super::{
    error::StoreError,
    file::{self, FileSystem},
    schema,
    step::{Liveness, Step},
    worker::Worker,
};

/// The size of the log from which it is a finding, in MiB.
const LOG: u64 = 16;

/// All checks.
pub(super) fn examine(worker: &mut Worker, deadline: Option<Instant>) -> Result<Vec<Finding>, StoreError> {
    let found = schema::version(&worker.store().opened)?;
    let fits = matches!(schema::fit(&worker.store().opened, found), Ok(StoreFit::Ready));
    let program = worker.store().opened.settings.program.version;
    let (version, oldest) = found.map_or((0, 0), |found| (found.version, found.oldest_program));
    let in_memory = worker.store().opened.settings.in_memory();
    let boot_clock = worker.store().opened.clock.is_real();
    let mut findings = vec![
        Finding::new(
            if fits { Severity::Ok } else { Severity::Error },
            "schema version",
            format!("{version}, for programs of version {oldest} or later; this one has version {program}"),
        ),
        Finding::new(
            if boot_clock { Severity::Ok } else { Severity::Warning },
            "clock",
            match boot_clock {
                true => "time since boot, of this boot only".to_owned(),
                false => "no boot id: leases run by the wall clock and outlive a reboot".to_owned(),
            },
        ),
        writable(worker, deadline),
    ];
    findings.extend(file(worker));
    findings.extend(log(worker));
    findings.extend(worker.read(deadline, |step| settings(step, in_memory))?);
    findings.extend(worker.read(deadline, sessions)?);
    Ok(findings)
}

/// Reports which file it is, and on what it lies; nothing of a store in memory.
fn file(worker: &Worker) -> Option<Finding> {
    let opened = &worker.store().opened;
    opened.files.as_ref()?;
    let path = &opened.settings.path;
    if let Some(name) = file::other_name(path).ok().flatten() {
        return Some(Finding::new(Severity::Error, "file", format!("{}: {name}", path.display())));
    }
    let (severity, kind) = match file::file_system(path) {
        Ok(FileSystem::Local) => (Severity::Ok, "local".to_owned()),
        Ok(FileSystem::Network(name)) => (Severity::Error, name.to_owned()),
        Ok(FileSystem::Fuse) => {
            (Severity::Warning, "FUSE: no other host may use it, nor another mount of the same".to_owned())
        }
        Err(error) => (Severity::Error, error.to_string()),
    };
    Some(Finding::new(severity, "file", format!("{}, file system: {kind}", path.display())))
}

/// Reports how much the log has grown, which checkpoints keep at some megabytes; nothing of a store in memory.
fn log(worker: &Worker) -> Option<Finding> {
    let opened = &worker.store().opened;
    opened.files.as_ref()?;
    let mut log = opened.settings.path.canonicalize().ok()?.into_os_string();
    log.push("-wal");
    let size = std::fs::metadata(log).map_or(0, |log| log.len()) / (1024 * 1024);
    let advice = "a reader keeps an old snapshot, as a backup or a shell with BEGIN does, and until it ends the log grows";
    Some(match size > LOG {
        true => Finding::new(Severity::Warning, "log", format!("{size} MiB: {advice}")),
        false => Finding::new(Severity::Ok, "log", format!("{size} MiB")),
    })
}

fn writable(worker: &mut Worker, deadline: Option<Instant>) -> Finding {
    let begun = Instant::now();
    match worker.write_and_notify(deadline, |step| step.next_number()) {
        Ok(_) => Finding::new(Severity::Ok, "write", format!("a commit took {:.1?}", begun.elapsed())),
        Err(error) => Finding::new(Severity::Error, "write", error.to_string()),
    }
}

fn settings(step: &mut Step<'_>, in_memory: bool) -> Result<Vec<Finding>, StoreError> {
    let journal: String = step.conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    let synchronous: i64 = step.conn.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
    let wal = journal == "wal" || in_memory;
    let advice = "switch it back to WAL: otherwise readers block writers and every commit waits for the disk";
    Ok(vec![
        Finding::new(
            if wal { Severity::Ok } else { Severity::Error },
            "journal mode",
            if wal { journal } else { format!("{journal}: {advice}") },
        ),
        Finding::new(
            Severity::Ok,
            "synchronous",
            match synchronous {
                1 => "NORMAL: a crash of the host may lose the last commits, and voids all locks".to_owned(),
                2 => "FULL: every commit is on the disk".to_owned(),
                other => format!("level {other}"),
            },
        ),
        Finding::new(Severity::Ok, "sqlite version", rusqlite::version().to_owned()),
    ])
}

/// The other programs at this namespace.
fn sessions(step: &mut Step<'_>) -> Result<Vec<Finding>, StoreError> {
    let mut sessions = step.conn.prepare_cached(&step.sql.sessions)?;
    let sessions: Vec<(i64, String)> =
        sessions.query_map([step.ns], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let own = env!("CARGO_PKG_VERSION");
    let (mut live, mut ended, mut unseen, mut other_boots, mut versions) = (0, 0, 0, 0, Vec::new());
    for (session, version) in sessions {
        if matches!(step.liveness(session)?, Liveness::Gone | Liveness::Closed) {
            ended += 1;
            continue;
        }
        live += 1;
        let (boot, space) = origin(step, session)?;
        unseen += usize::from(space != step.process.space);
        other_boots += usize::from(boot != step.now.boot);
        if version != own && !versions.contains(&version) {
            versions.push(version);
        }
    }
    Ok(vec![
        Finding::new(
            if ended > 0 { Severity::Warning } else { Severity::Ok },
            "sessions",
            format!("{live} open, {ended} of processes that ended without closing: a sweep removes those"),
        ),
        Finding::new(
            if unseen > 0 { Severity::Warning } else { Severity::Ok },
            "process namespaces",
            match unseen {
                0 => "every process is seen from here".to_owned(),
                count => {
                    format!("{count} sessions of other containers: if they die, their leases have to end")
                }
            },
        ),
        Finding::new(
            if other_boots > 0 { Severity::Warning } else { Severity::Ok },
            "boot ids",
            match other_boots {
                0 => "all sessions have the same".to_owned(),
                count => format!(
                    "{count} sessions with another one, of containers or of an earlier boot: \
                     their leases count until they end, and only the wall clock can tell a reboot"
                ),
            },
        ),
        Finding::new(
            if versions.is_empty() { Severity::Ok } else { Severity::Warning },
            "program versions",
            match versions.is_empty() {
                true => format!("{own} everywhere"),
                false => format!("{own} here, also {}", versions.join(", ")),
            },
        ),
    ])
}

/// The boot id and the namespaces of a session.
fn origin(step: &Step<'_>, session: i64) -> Result<(i64, Option<String>), StoreError> {
    let mut read = step.conn.prepare_cached(&step.sql.session)?;
    Ok(read.query_row([session], |row| Ok((row.get(0)?, row.get(1)?)))?)
}
