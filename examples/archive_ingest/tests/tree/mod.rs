//! A tree to copy, and the program run on it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lockcore_conformance::judge::late;
use serde_json::Value;
use tempfile::TempDir;

/// A tree, and room beside it; gone when dropped.
pub(crate) struct Tree {
    room: TempDir,
}

impl Tree {
    /// `count` files of different sizes in a few folders.
    pub(crate) fn of(count: usize) -> Self {
        let tree = Tree { room: tempfile::tempdir().unwrap() };
        fs::create_dir(tree.source()).unwrap();
        for number in 0..count {
            let content = format!("file {number}\n").repeat(number * 7);
            tree.write(&format!("{:02}/file {number}.txt", number % 7), content.as_bytes());
        }
        tree
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        let path = self.source().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn room(&self) -> &Path {
        self.room.path()
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.room().join("source")
    }

    pub(crate) fn sqlite(&self) -> String {
        format!("sqlite:{}", self.room().join("locks.db").display())
    }

    /// The program, to copy the tree; with `more` arguments.
    pub(crate) fn command(&self, to: impl AsRef<OsStr>, more: &[&str]) -> Command {
        let mut command = program();
        command.arg(self.source()).arg("--json").arg("--to").arg(to).args(more);
        command
    }
}

/// The program, in an environment that says nothing to it.
pub(crate) fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_archive-ingest"));
    program.env_remove("LOCKCORE_URL");
    program
}

/// How the program ended, and its report.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) report: Value,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn of(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).unwrap();
        // Without a report if it could not even start.
        let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Run { code: output.status.code(), report, stderr }
    }

    pub(crate) fn number(&self, field: &str) -> u64 {
        let found = self.report[field].as_u64();
        found.unwrap_or_else(|| panic!("no {field} in {} {}", self.report, self.stderr))
    }

    pub(crate) fn names(&self, field: &str) -> Vec<&str> {
        self.report[field].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
    }

    /// It ended well: all `objects` verified, no errors, no damage.
    pub(crate) fn assert_complete(&self, objects: u64) {
        let mut messages = self.report["messages"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if messages.any(|message| message.contains("it could not be renewed until")) {
            late(format_args!("the store answered too late for a lease: {}", self.report));
        }
        assert_eq!(self.code, Some(0), "{} {}", self.report, self.stderr);
        assert_eq!((self.number("objects"), self.number("verified")), (objects, objects), "{}", self.report);
        assert_eq!(self.number("errors"), 0, "{}", self.report);
        for damage in ["twice", "replaced", "mismatched"] {
            assert!(self.names(damage).is_empty(), "{}", self.report);
        }
    }
}
