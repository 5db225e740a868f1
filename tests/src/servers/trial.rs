//! Tests that show as ignored where the server they need is not to be had.

use std::{env, error::Error, future::Future, process::ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

use super::{Kind, Server, ServerError, Way, forget_shared};

/// What a test that needs a server returns.
pub type TestResult = Result<(), Box<dyn Error + Send + Sync>>;

/// The test `<kind>::<name>`, on a runtime of its own with two workers.
///
/// Returning [`ServerError::Unavailable`], as `?` on [`Server::start`](super::Server::start) does,
/// makes it show as ignored with the reason; see [`outcome`].
pub fn trial<F>(kind: Kind, name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    Trial::ignorable_test(format!("{kind}::{name}"), move || outcome(runtime()?.block_on(test())))
}

/// The test `<kind>::<name>` with a server got in one particular way. A machine need not have every way: where this one
/// is missing the test shows as ignored, also where servers are required.
pub fn trial_by<F>(kind: Kind, way: Way, name: &str, test: impl FnOnce(Server) -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    Trial::ignorable_test(format!("{kind}::{name}"), move || {
        runtime()?.block_on(async {
            match Server::start_by(kind, way).await {
                Ok(server) => outcome(test(server).await),
                Err(missing @ ServerError::Unavailable { .. }) => Ok(Completion::ignored_with(missing)),
                Err(error) => Err(error.into()),
            }
        })
    })
}

/// What a test's result means to the harness: a server that is unavailable is no failure, unless
/// `LOCKCORE_REQUIRE_SERVERS` is `1`.
///
/// # Errors
/// When the test failed.
pub fn outcome(result: TestResult) -> Result<Completion, Failed> {
    let error = match result {
        Ok(()) => return Ok(Completion::Completed),
        Err(error) => error,
    };
    let required = env::var_os("LOCKCORE_REQUIRE_SERVERS").is_some_and(|value| value == "1");
    match error.downcast_ref() {
        Some(ServerError::Unavailable { .. }) if !required => Ok(Completion::ignored_with(error)),
        _ => Err(error.into()),
    }
}

/// Tests that run at once by default. They wait far more than they compute, so that the number of cores plays no part.
const ABREAST: usize = 32;

/// Runs the tests as the arguments of this process say, then removes the servers that this process started.
///
/// For `fn main() -> ExitCode` of a test with `harness = false`.
pub fn run(trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    run_many(ABREAST, trials)
}

/// As [`run`], with at most `threads` tests at once unless the arguments say otherwise.
pub fn run_many(threads: usize, trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    let trials = trials.into_iter().collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Ok(runtime) = runtime() {
        runtime.block_on(forget_shared());
    }
    conclusion.exit_code()
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).enable_all().build()
}
