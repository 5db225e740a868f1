//! What is copied: the checkout around a directory, and the files of a tree.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use object_store::path::Path as Key;
use walkdir::WalkDir;

/// A checkout.
pub(crate) struct Checkout {
    pub(crate) root: PathBuf,
    /// Where its objects are; of a linked worktree that of the main one.
    pub(crate) git: PathBuf,
}

/// A file of the source, and the object it becomes.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// Relative to the archive.
    pub(crate) key: Key,
}

/// The files of the source.
pub(crate) struct Files {
    pub(crate) list: Vec<File>,
    /// What else is there, and why it is not copied.
    pub(crate) passed_over: Vec<String>,
}

/// The checkout that `folder` is in.
pub(crate) fn checkout_around(folder: &Path) -> Option<Checkout> {
    folder.ancestors().find_map(|root| Some(Checkout { git: git_folder(root)?, root: root.to_owned() }))
}

/// The regular files under `folder`, in the order of their names. Links are not followed.
pub(crate) fn scan(folder: &Path, leave_out: &[PathBuf]) -> anyhow::Result<Files> {
    let mut files = Files { list: vec![], passed_over: vec![] };
    let walk = WalkDir::new(folder).sort_by_file_name().into_iter();
    for entry in walk.filter_entry(|entry| !leave_out.iter().any(|out| out == entry.path())) {
        let entry = match entry {
            Ok(entry) => entry,
            // What is removed while we look is not to be copied.
            Err(error) if is_not_found(&error) && error.depth() > 0 => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", folder.display())),
        };
        let relative = entry.path().strip_prefix(folder).expect("the walk stays under its root");
        match relative.to_str() {
            _ if entry.file_type().is_dir() => {}
            _ if !entry.file_type().is_file() => {
                files.passed_over.push(format!("{}: no regular file", relative.display()));
            }
            None => files.passed_over.push(format!("{}: the name is not UTF-8", relative.display())),
            Some(_) => {
                let parts = relative.iter().map(|part| part.to_str().expect("the whole is UTF-8"));
                files.list.push(File { path: entry.path().to_owned(), key: Key::from_iter(parts) });
            }
        }
    }
    Ok(files)
}

fn git_folder(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    // A linked worktree: a file that names its folder, in which another names the common one.
    let named = fs::read_to_string(&git).ok()?;
    let own = root.join(named.strip_prefix("gitdir: ")?.trim_end());
    match fs::read_to_string(own.join("commondir")) {
        Ok(common) => Some(own.join(common.trim_end())),
        Err(_) => Some(own),
    }
}

fn is_not_found(error: &walkdir::Error) -> bool {
    error.io_error().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}
