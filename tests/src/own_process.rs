//! Tests in a process of their own: they fork, or change or count what all tests of a process share.

use std::{
    env, io,
    process::{Command, Output},
};

use crate::judge::this_test;

/// Says to this executable that it runs one test in a process of its own.
const CHILD: &str = "LOCKCORE_TEST_CHILD";

/// Returns whether this process runs one test alone. If not, it first runs the calling test of the standard harness in a process
/// that does, so that a test begins with `if !is_own() { return; }`.
///
/// # Panics
/// If the test failed there.
pub fn is_own() -> bool {
    if is_child() {
        return true;
    }
    let output = run(&this_test()).expect("this executable can be run");
    // The standard harness shows what a test prints if it fails.
    print!("{}", text(&output));
    assert!(output.status.success(), "in a process of its own: {}", output.status);
    false
}

/// Whether this process was started to run one test.
pub(crate) fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Runs one test of this executable in a process of its own.
pub(crate) fn run(test: &str) -> io::Result<Output> {
    Command::new(env::current_exe()?).args([test, "--exact", "--include-ignored"]).env(CHILD, "1").output()
}

/// What it printed.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
