//! Clients of other programs, in their language.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use lockcore_conformance::servers::{Kind, ServerError};

/// The Python that `tests/servers/ensure.sh` makes, with other clients of DynamoDB.
pub(crate) fn python() -> Result<PathBuf, ServerError> {
    let python = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/servers/bin/python");
    if python.is_file() {
        return Ok(python);
    }
    let reason = format!("no {}: tests/servers/ensure.sh makes it", python.display());
    Err(ServerError::missing(Kind::DynamoDb.name(), reason))
}

/// Runs a program of the other clients' language, and gives what it prints.
pub(crate) async fn run_python(
    program: &str,
    arguments: impl IntoIterator<Item = String>,
) -> Result<String, ServerError> {
    let mut command = Command::new(python()?);
    command.args(["-c", program]).args(arguments).stderr(Stdio::inherit());
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("it does not panic").expect("Python runs");
    assert!(output.status.success(), "the other client failed");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
