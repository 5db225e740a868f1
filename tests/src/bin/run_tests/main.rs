//! Runs the test executables of the workspace, on test servers of which there is one of each kind:
//!
//! ```text
//! cargo test --no-run --message-format json | run-tests [--all] [FILTER]
//! run-tests stop       ends the test servers that a run left for the next one
//! ```
//!
//! Every executable runs its tests in one process, some of them at once; some executables run at once. The output shows what runs
//! and how many are left, then each failure as it comes, and in the end the slowest tests, and each that was void or skipped with
//! the reason. A void run (`judge.rs`) is repeated alone when all others are done.
//!
//! `--all` also runs what takes long or repeats what another test shows. A filter is part of the name of a test.

mod executables;
mod keeper;
mod progress;

use std::{
    env,
    error::Error,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
    thread,
};

use executables::Executable;
use keeper::Servers;
use progress::Progress;

type Failure = Box<dyn Error + Send + Sync>;

/// Executables that run at once.
const AT_ONCE: usize = 2;

fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let folder = keeper::folder()?;
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [keeper::COMMAND, key] => {
            keeper::keep(&folder, key)?;
            Ok(ExitCode::SUCCESS)
        }
        ["stop"] => {
            Servers::stop(&folder)?;
            Ok(ExitCode::SUCCESS)
        }
        ["--all"] => run(&folder, true, None),
        ["--all", filter] => run(&folder, true, Some(filter)),
        [] => run(&folder, false, None),
        [filter] => run(&folder, false, Some(filter)),
        _ => Err("one FILTER at most: the harness of most executables takes one".into()),
    }
}

fn run(folder: &Path, all: bool, filter: Option<&str>) -> Result<ExitCode, Failure> {
    let mut executables = executables::read(io::stdin().lock())?;
    if executables.is_empty() {
        return Err("no test executable on standard input".into());
    }
    let servers = Servers::get(folder)?;
    let journals = tempfile::tempdir()?;
    let progress = Progress::default();
    // What waits most begins first: the executables with tests on servers.
    executables.sort_by_key(|executable| executable.of_library);
    for executable in &executables {
        progress.expect(executable.list(all, filter)?);
    }

    let queue = Mutex::new(executables.iter());
    let next = || queue.lock().expect("no thread panics").next();
    let run_one = |executable: &Executable| executable.run(all, filter, &servers, journals.path(), &progress);
    thread::scope(|scope| {
        let shown = scope.spawn(|| progress.show(|| servers.in_use()));
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(executable) = next() {
                        if let Err(error) = run_one(executable) {
                            progress.broken(executable, &error);
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("no thread panics");
        }
        progress.repeat_voids(|void| void.run_alone(&executables, &servers));
        progress.finish();
        shown.join().expect("no thread panics");
    });
    servers.leave()?;
    Ok(if progress.summary() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The folder of the checkout.
fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
