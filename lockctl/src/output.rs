//! Output: results to stdout, one line about what went wrong to stderr.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use serde_json::{Value, json};

use crate::exit::{Code, Failure};

/// The form in which a command's result is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Output { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Writes a result: `human` or `machine`, each made only if it is wanted.
    pub(crate) fn result(
        self,
        human: impl FnOnce() -> String,
        machine: impl FnOnce() -> Value,
    ) -> Result<(), Failure> {
        let text = if self.json { machine().to_string() } else { human() };
        match text.is_empty() {
            true => Ok(()),
            false => self.write(format!("{text}\n").as_bytes()),
        }
    }

    /// Writes bytes to stdout.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(Failure::new(Code::ClosedPipe, String::new()))
            }
            Err(error) => Err(Failure::other(format!("stdout: {error}"))),
        }
    }

    /// Prints what went wrong.
    pub(crate) fn fail(self, failure: &Failure) -> ExitCode {
        match self.json {
            // The reader closed the pipe: it wants no more.
            _ if failure.code == Code::ClosedPipe => {}
            false => say(&failure.message),
            true => {
                let Failure { code, message, conflicts } = failure;
                let mut error = json!({ "kind": code.word(), "code": *code as u8, "message": message });
                if let Some(conflicts) = conflicts {
                    error["conflicts"] = conflicts.clone();
                }
                line(&json!({ "error": error }).to_string());
            }
        }
        ExitCode::from(failure.code as u8)
    }
}

/// Writes one line to stderr.
pub(crate) fn say(message: &str) {
    line(&format!("lockctl: {}", message.replace('\n', " ")));
}

fn line(text: &str) {
    // There is no other place to report that stderr is closed.
    let _ = writeln!(io::stderr(), "{text}");
}
