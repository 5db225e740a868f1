//! The conformance suite on emulators of S3, over a real connection.

mod place;

use std::{panic, process::ExitCode, sync::Mutex, thread};

use lockcore_conformance::{
    all,
    servers::{self, Completion, TestResult, Trial},
};
use place::{Bucket, emulator};

/// Most of the checks wait for leases to end, and may do so together.
const AT_ONCE: usize = 16;

fn main() -> ExitCode {
    let on_ministack = all::<Bucket>().into_iter().map(|check| {
        Trial::ignorable_test(format!("s3::{}", check.name), move || {
            match emulator(servers::Bucket::shared) {
                Ok(emulator) => {
                    lockcore_conformance::run(bucket(&emulator), check.run);
                    Ok(Completion::Completed)
                }
                Err(missing) => servers::outcome(Err(missing.into())),
            }
        })
    });
    let on_moto = Trial::ignorable_test("moto::conformance", || match emulator(servers::Bucket::moto) {
        Ok(emulator) => servers::outcome(every_check(&bucket(&emulator))),
        Err(missing) => servers::outcome(Err(missing.into())),
    });
    servers::run_many(AT_ONCE, on_ministack.chain([on_moto]))
}

fn bucket(emulator: &servers::Bucket) -> Bucket {
    Bucket { endpoint: emulator.endpoint().into(), namespace: "none".into() }
}

/// Runs all checks in this process, so that they share one server.
fn every_check(bucket: &Bucket) -> TestResult {
    let (left, failed) = (Mutex::new(all::<Bucket>()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(check) = { left.lock().expect("no thread panics inside").pop() } {
                    let run = || lockcore_conformance::run(bucket.clone(), check.run);
                    if panic::catch_unwind(panic::AssertUnwindSafe(run)).is_err() {
                        failed.lock().expect("no thread panics inside").push(check.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner()?;
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}
