//! A short run under faults on each backend, and each way to cheat. `docs/src/reliability.md` has long ones.

use std::{future::Future, path::PathBuf, process::ExitCode, time::Duration};

use lockcore_chaos::{
    backend::Backend,
    check::{Report, Rule},
    driver::Run,
    faults::Kind,
    worker::Cheat,
};
use lockcore_conformance::{
    judge::LATE,
    servers::{self, TestResult, Trial},
};

fn main() -> ExitCode {
    let mut trials = vec![
        local("memory", "faults_break_no_promise", || faults_break_no_promise(Backend::Memory)),
        local("sqlite", "faults_break_no_promise", || faults_break_no_promise(Backend::Sqlite)),
        local("share", "faults_break_no_promise", || faults_break_no_promise(Backend::Share)),
        local("memory", "a_run_without_faults_is_clean", a_run_without_faults_is_clean),
    ];
    trials.extend(Cheat::ALL.map(|cheat| {
        local("memory", &format!("a_cheat_is_found::{cheat:?}"), move || a_cheat_is_found(cheat))
    }));
    trials.extend(servers::Kind::ALL.map(|kind| {
        servers::trial(kind, "faults_break_no_promise", move || {
            faults_break_no_promise(Backend::Server(kind))
        })
    }));
    for (kind, backend) in [
        (servers::Kind::Postgres, Backend::Statements(servers::Kind::Postgres)),
        (servers::Kind::Postgres, Backend::Replicated),
        (servers::Kind::Redis, Backend::Sentinel),
        (servers::Kind::Redis, Backend::Cluster),
    ] {
        let name = format!("faults_break_no_promise::{backend}");
        trials.push(servers::trial(kind, &name, move || faults_break_no_promise(backend)));
    }
    let on_a_bucket = || faults_break_no_promise(Backend::Bucket);
    trials.push(servers::trial(servers::Kind::DynamoDb, "faults_break_no_promise::s3", on_a_bucket));
    let members = "faults_break_no_promise::etcd-cluster";
    trials.push(servers::trial(servers::Kind::Etcd, members, faults_of_members_break_no_promise));
    trials.push(servers::trial(servers::Kind::Redis, "lost_data_breaks_no_fence", lost_data_breaks_no_fence));
    // Each has a server and three processes, which are busy between the faults and wait for the end of each.
    servers::run(trials.into_iter().map(|trial| trial.thorough().at_once("chaos", 2)))
}

/// A test that needs no server.
fn local<F>(backend: &str, name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    Trial::on_runtime(format!("{backend}::{name}"), test)
}

async fn run(
    backend: Backend,
    faults: &[Kind],
    cheat: Option<Cheat>,
) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    let folder = tempfile::tempdir()?;
    let run = Run {
        backend,
        seed: fastrand::u64(..1_000_000),
        operations: match backend {
            // Some ten a second.
            Backend::Bucket | Backend::Share => 300,
            // Its emulator takes a processor for itself.
            Backend::Server(servers::Kind::DynamoDb) => 600,
            // Of 5,000, one run in 20 has none that is seen to pass another.
            _ if cheat == Some(Cheat::Jump) => 20_000,
            _ if cheat.is_some() => 5_000,
            Backend::Memory | Backend::Sqlite => 2_000,
            // They share the machine with their servers and all other tests: some minutes each.
            _ => 1_000,
        },
        workers: 3,
        actors: 8,
        // A cheat shows only where others are in the way.
        ids: if cheat.is_some() { 6 } else { 24 },
        faults: faults.to_vec(),
        every: Duration::from_millis(500),
        dropped: 10,
        cheat,
        program: PathBuf::from(env!("CARGO_BIN_EXE_lockcore-chaos")),
        folder: folder.path().to_owned(),
    };
    println!("seed {}", run.seed);
    let report = run.run().await?;
    println!("{report}");
    Ok(report)
}

fn clean(report: &Report) -> TestResult {
    match &report.violations[..] {
        [] => Ok(()),
        // No promise of safety is broken.
        violations if violations.iter().all(|violation| violation.rule == Rule::Stuck) => {
            Err(format!("{LATE}{report}").into())
        }
        _ => Err(report.to_string().into()),
    }
}

/// All promises hold under all faults that the backend can have.
async fn faults_break_no_promise(backend: Backend) -> TestResult {
    disturbed(&run(backend, &Kind::usual(), None).await?)
}

/// Members, the leader too, are killed, stopped and started again, and processes are killed beside them.
async fn faults_of_members_break_no_promise() -> TestResult {
    disturbed(&run(Backend::Members, &[Kind::Failover, Kind::Pause, Kind::Restart, Kind::Kill], None).await?)
}

/// A server that forgets all that it granted still gives fences in order.
async fn lost_data_breaks_no_fence() -> TestResult {
    disturbed(&run(Backend::Server(servers::Kind::Redis), &[Kind::Forget], None).await?)
}

fn disturbed(report: &Report) -> TestResult {
    if report.faults.is_empty() {
        return Err("no fault was caused".into());
    }
    clean(report)
}

/// The control of the cheats.
async fn a_run_without_faults_is_clean() -> TestResult {
    clean(&run(Backend::Memory, &[], None).await?)
}

/// The checker finds what each cheat breaks.
async fn a_cheat_is_found(cheat: Cheat) -> TestResult {
    let expected = match cheat {
        Cheat::NoLock | Cheat::Overstay => Rule::Exclusion,
        Cheat::OldFence => Rule::FenceTwice,
        Cheat::FallingFence => Rule::FenceBack,
        Cheat::Overbook => Rule::Permits,
        Cheat::Leak => Rule::LeftLocked,
        Cheat::Stuck => Rule::Stuck,
        Cheat::Jump => Rule::Order,
        Cheat::Unguarded => Rule::Write,
        Cheat::Untyped => Rule::Untyped,
    };
    let report = run(Backend::Memory, &[], Some(cheat)).await?;
    match report.violations.iter().any(|violation| violation.rule == expected) {
        true => Ok(()),
        false => Err(format!("{cheat:?} was not found: {report}").into()),
    }
}
