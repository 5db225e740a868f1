//! An archive in a folder, looked at without the program.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::tree::{Run, Tree};

impl Tree {
    pub(crate) fn archive(&self) -> PathBuf {
        self.room().join("archive")
    }

    /// Copies the tree into its archive.
    pub(crate) fn run(&self, more: &[&str]) -> Run {
        Run::of(self.command(self.archive(), more).output().unwrap())
    }

    /// Every file of the source is in the archive, equal, and nothing else is.
    pub(crate) fn assert_archived(&self) {
        let (source, archived) = (contents(&self.source()), stored(&self.archive().join("files")));
        assert_eq!(source.keys().collect::<Vec<_>>(), archived.keys().collect::<Vec<_>>());
        for (name, content) in &source {
            assert!(archived[name] == *content, "{name} differs");
        }
        let manifests = stored(&self.archive().join("manifests"));
        let expected: Vec<String> = source.keys().map(|name| format!("{name}.json")).collect();
        assert_eq!(manifests.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    }
}

/// The objects under a folder: without what object_store leaves of a write that was killed, `name#1`, which is none.
fn stored(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = contents(folder);
    files.retain(|name, _| {
        let staged = name.rsplit_once('#').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
        !staged
    });
    files
}

/// Relative names and contents of all files under a folder, which may change meanwhile.
pub(crate) fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = walkdir::WalkDir::new(folder).into_iter().filter_map(Result::ok);
    let files = entries.filter(|entry| entry.file_type().is_file());
    files
        .filter_map(|entry| {
            let name = entry.path().strip_prefix(folder).unwrap().to_str()?.to_owned();
            Some((name, fs::read(entry.path()).ok()?))
        })
        .collect()
}
