//! What is written, and where: results to stdout, one line about what went wrong to stderr.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use crate::exit::{Code, Failure};

/// Where a command's result goes.
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

    /// Tells what went wrong.
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

/// A duration for people: whole seconds from ten on, else one more digit.
pub(crate) fn people(duration: Duration) -> String {
    let rounded = if duration >= Duration::from_secs(10) {
        Duration::from_secs((duration.as_millis() as u64 + 500) / 1000)
    } else {
        Duration::from_millis((duration.as_millis() as u64 + 50) / 100 * 100)
    };
    humantime::format_duration(rounded).to_string()
}

/// How long ago something was.
pub(crate) fn ago(since: SystemTime) -> String {
    people(since.elapsed().unwrap_or_default())
}

/// A label that another program wrote, with everything escaped that moves the cursor or changes the order of what is
/// shown after it.
pub(crate) fn harmless(label: &str) -> String {
    let escaped = |c: char| if is_harmful(c) { c.escape_default().collect() } else { vec![c] };
    label.chars().flat_map(escaped).collect()
}

/// Control characters, line separators, and the marks and overrides of the bidirectional algorithm (UAX #9).
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_disturb_the_terminal() {
        assert_eq!(harmless("na\u{ef}ve 漢字 'x'"), "na\u{ef}ve 漢字 'x'");
        assert_eq!(harmless("a\n\u{1b}[31mb"), r"a\n\u{1b}[31mb");
        for mark in ['\u{61c}', '\u{200f}', '\u{2028}', '\u{202e}', '\u{2066}', '\u{2069}'] {
            assert_eq!(harmless(&format!("a{mark}b")), format!("a{}b", mark.escape_default()));
        }
    }
}
