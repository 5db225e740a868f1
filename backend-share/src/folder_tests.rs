use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    time::{Duration, Instant, SystemTime},
};

use lockcore::BackendErrorKind;
use tempfile::TempDir;

use super::*;

const NAME: &str = "session/a";

fn folder() -> (TempDir, Folder) {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(root.path(), "n").expect("it is there");
    (root, folder)
}

/// Writes a cell for so many times; returns all versions.
fn written(folder: &Folder, times: usize) -> Vec<Version> {
    let mut versions: Vec<Version> = Vec::new();
    for number in 0..times {
        let content = number.to_string();
        let written = folder.replace(NAME, versions.last(), content.as_bytes()).expect("it can be written");
        versions.push(written.expect("it is the newest"));
    }
    versions
}

fn content(folder: &Folder) -> Vec<u8> {
    match folder.read(NAME, None).expect("it can be read") {
        Found::Changed(_, content) => content.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn cell(folder: &Folder) -> PathBuf {
    folder.namespace.join(NAME)
}

/// Another folder of the same place, as another process has it.
fn again(root: &TempDir) -> Folder {
    Folder::open(root.path(), "n").expect("it is there")
}

fn files(folder: &Folder) -> usize {
    disk::names(&cell(folder)).expect("it can be listed").len()
}

/// A writer that stood still between its look and its link, while others wrote more versions than are kept (S2).
#[test]
fn a_late_writer_replaces_nothing() {
    let (_root, folder) = folder();
    let versions = written(&folder, 20);
    for (number, version) in versions.iter().enumerate() {
        let late = folder.link_after(&cell(&folder), version, b"late");
        match (late, versions.len() - number) {
            (Ok(Some(_)), 1) => {}
            (Ok(None), 2..) => {}
            (Err(error), 2..) => assert!(error.in_doubt() && error.is_retryable(), "{error}"),
            (other, before) => panic!("{before} before the end: {other:?}"),
        }
        let expected: &[u8] = if number + 1 == versions.len() { b"late" } else { b"19" };
        assert_eq!(content(&folder), expected, "after a late write of {number}");
    }
}

/// Files of writers that came late, and died before they knew: readers and writers go by none of them (S3), and they go with those of their
/// number.
#[test]
fn what_came_late_is_read_by_none() {
    let (root, folder) = folder();
    let versions = written(&folder, 20);
    // With a gap behind each.
    for version in versions[..8].iter().step_by(2) {
        folder.link_after(&cell(&folder), version, b"late").expect_err("it is old");
    }
    for known in versions.iter().map(Some).chain([None]) {
        for folder in [&folder, &again(&root)] {
            let Found::Changed(found, content) = folder.read(NAME, known).expect("it can be read") else {
                assert_eq!(known, versions.last());
                continue;
            };
            assert_eq!((Some(&found), &content[..]), (versions.last(), &b"19"[..]), "by {known:?}");
        }
    }
    let last = folder.replace(NAME, versions.last(), b"20").expect("it can be written");
    let mut last = last.expect("it is the newest");
    for number in 21..=24 {
        last = folder
            .replace(NAME, Some(&last), number.to_string().as_bytes())
            .expect("it can be written")
            .expect("so");
    }
    let left = super::versions(&cell(&folder)).expect("it can be listed");
    let left: Vec<u64> = left.into_iter().map(|(_, number)| number).collect();
    assert_eq!(left, (17..=24).collect::<Vec<_>>());
}

/// A writer that stood still while the cell was removed, and made again by another.
#[test]
fn a_late_writer_finds_no_cell_of_another_life() {
    let (_root, folder) = folder();
    let old = written(&folder, 3);
    folder.remove(NAME).expect("it can be removed");
    assert_eq!(folder.read(NAME, None).expect("it can be read"), Found::Absent);
    assert!(!cell(&folder).exists(), "nothing is left");
    written(&folder, 3);
    for version in &old {
        let late = folder.link_after(&cell(&folder), version, b"late").expect_err("its life is over");
        assert!(late.in_doubt(), "{late}");
        assert_eq!(folder.replace(NAME, Some(version), b"late").expect("it is refused"), None);
    }
    assert_eq!(content(&folder), b"2");
}

/// A reader that knows a version which was removed since finds the newest one (S3).
#[test]
fn a_late_reader_finds_the_newest() {
    let (_root, folder) = folder();
    let versions = written(&folder, 20);
    for version in &versions {
        match folder.read(NAME, Some(version)).expect("it can be read") {
            Found::Unchanged => assert_eq!(Some(version), versions.last()),
            Found::Changed(found, content) => {
                assert_eq!((Some(&found), &content[..]), (versions.last(), &b"19"[..]));
            }
            Found::Absent => panic!("it is there"),
        }
    }
}

/// Files of a process that died in the middle of a step: its own, and versions that are older than those kept.
#[test]
fn what_the_dead_leave_is_removed() {
    let (_root, folder) = folder();
    let versions = written(&folder, 20);
    let (cell, old) = (cell(&folder), SystemTime::now() - 2 * LEFT_BEHIND);
    let leave = |name: &str| {
        fs::write(cell.join(name), "left").expect("it can be written");
        fs::File::options()
            .write(true)
            .open(cell.join(name))
            .and_then(|file| file.set_modified(old))
            .expect("it can be dated");
    };
    let others = ["syslog.1", "notes.tmp", "another-life.3"];
    let young = temporary();
    for name in [temporary(), format!("{}.3", "a".repeat(32))].iter().map(String::as_str).chain(others) {
        leave(name);
    }
    let folder_of_the_dead = cell.join(temporary());
    fs::create_dir(&folder_of_the_dead).expect("it can be made");
    fs::File::open(&folder_of_the_dead).and_then(|folder| folder.set_modified(old)).expect("it can be dated");
    fs::write(cell.join(&young), "young").expect("it can be written");
    fs::write(folder.namespace.join("session/README"), "of others").expect("it can be written");
    fs::create_dir(folder.namespace.join("session/b")).expect("it can be made");
    fs::write(folder.namespace.join("session/b").join(ORIGIN), "garbage").expect("it can be written");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs();
    let page = folder
        .list("session", None, now, Instant::now() + Duration::from_secs(60))
        .expect("it can be listed");
    assert_eq!(page.cells.len(), 1);
    let mut expected: Vec<_> = versions[12..].iter().map(Version::file_name).collect();
    expected.extend([young, ORIGIN.to_owned()].into_iter().chain(others.map(str::to_owned)));
    expected.sort();
    let mut found = disk::names(&cell).expect("it can be listed");
    found.sort();
    assert_eq!(found, expected);
    assert_eq!(content(&folder), b"19");
}

/// The folder at the path is another one: its share was unmounted, or it was replaced.
#[test]
fn a_folder_that_is_replaced_is_refused() {
    let (root, folder) = folder();
    folder.check().expect("it is the same");
    let aside = root.path().with_extension("aside");
    fs::rename(root.path(), &aside).expect("it can be moved");
    let gone = folder.check().expect_err("it is not there");
    assert_eq!(gone.kind(), BackendErrorKind::Unavailable, "{gone}");
    fs::create_dir(root.path()).expect("it can be made");
    let other = folder.check().expect_err("it is another one");
    assert!(other.is_retryable(), "{other}");
    // Neither is it an empty store, nor is anything made in it.
    folder.read("table", None).expect_err("it is not there");
    folder.replace("table", None, b"x").expect_err("it is not there");
    folder.time().expect_err("it is not there");
    assert_eq!(disk::names(root.path()).expect("it can be listed"), [""; 0]);
    Folder::open(root.path(), "n").expect("it is opened again");
    let other = folder.check().expect_err("it is another one");
    assert!(other.is_retryable() && other.to_string().contains("another one"), "{other}");
    folder.read("table", None).expect_err("it is another one");
    fs::remove_dir_all(root.path()).expect("it is ours");
    fs::rename(&aside, root.path()).expect("it can be moved back");
    folder.check().expect("it is the same again");
}

#[test]
fn a_folder_that_is_not_there_is_not_made() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("not mounted");
    let refused = Folder::open(&path, "n").expect_err("it is not there");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
    assert!(refused.to_string().contains("not mounted"), "{refused}");
    assert!(!path.exists());
    fs::write(&path, "a file").expect("it can be written");
    let refused = Folder::open(&path, "n").expect_err("it is a file");
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured, "{refused}");
}

/// Whatever the umask is: who may write the folder may use its locks.
#[test]
fn what_is_made_has_the_permissions_of_the_folder() {
    for mode in [0o700, 0o2770, 0o755, 0o1777] {
        let root = tempfile::tempdir().expect("a folder");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
        let folder = Folder::open(root.path(), "n").expect("it is there");
        written(&folder, 2);
        let mode_of = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o7777;
        for made in ["", "session", NAME] {
            assert_eq!(
                mode_of(&folder.namespace.join(made)),
                mode & OF_FOLDERS,
                "{made} in a folder of {mode:o}"
            );
        }
        for name in disk::names(&cell(&folder)).expect("it can be listed") {
            assert_eq!(mode_of(&cell(&folder).join(&name)), mode & 0o666, "{name} in a folder of {mode:o}");
        }
    }
}

/// A file that others put there is no version, and no step follows a link out of the folder or waits for a pipe.
#[test]
fn what_is_not_ours_is_refused_and_left() {
    let (root, folder) = folder();
    let versions = written(&folder, 2);
    let next = cell(&folder).join(versions[1].next().file_name());
    let secret = root.path().join("secret");
    fs::write(&secret, "of others").expect("it can be written");
    for put in 0..3 {
        match put {
            0 => fs::write(&next, "garbage").expect("it can be written"),
            1 => symlink(&secret, &next).expect("it can be linked"),
            _ => fs::write(&next, format!("lockcore-cell-1 {0} 2 {0} {0} 100\nshort", "a".repeat(32)))
                .expect("so"),
        }
        folder.read(NAME, None).expect_err("it is not in our form");
        let written = folder.replace(NAME, Some(&versions[1]), b"x");
        assert!(!matches!(written, Ok(Some(_))), "its name is taken: {written:?}");
        assert!(next.symlink_metadata().is_ok(), "it is left");
        fs::remove_file(&next).expect("it is there");
    }
    let origin = cell(&folder).join(ORIGIN);
    let head = fs::read_to_string(&origin).expect("it is text");
    fs::remove_file(&origin).expect("it is there");
    fs::write(&origin, head.replacen(&versions[0].life, "../../../secret", 1)).expect("it can be written");
    folder.read(NAME, None).expect_err("its life is no name");
    folder.remove(NAME).expect_err("its life is no name");
    fs::write(&origin, head).expect("it can be written");
    assert_eq!(fs::read(&secret).expect("it is there"), b"of others");
    assert_eq!(content(&folder), b"1");
}

/// Writers at once, each as fast as it can. Each counts its own writes in the content, so that it finds one that was in doubt: others may
/// have written more versions than are kept while it stood still.
#[test]
fn no_write_is_lost_among_many() {
    const WRITERS: usize = 4;
    const TIMES: u32 = 100;
    type Counts = [u32; WRITERS];
    let counts = |content: &[u8]| -> Counts {
        let text = std::str::from_utf8(content).expect("it is text");
        let counts: Vec<u32> = text.split(' ').map(|count| count.parse().expect("a number")).collect();
        counts.try_into().expect("one of each writer")
    };
    let (_root, folder) = folder();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let folder = &folder;
            scope.spawn(move || {
                let mut known: Option<(Version, Counts)> = None;
                let mut done = 0;
                while done < TIMES {
                    known = match folder.read(NAME, known.as_ref().map(|(version, _)| version)) {
                        Ok(Found::Changed(version, content)) => Some((version, counts(&content))),
                        Ok(Found::Unchanged) => known,
                        Ok(Found::Absent) => None,
                        Err(error) if error.is_retryable() => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let mut next = known.as_ref().map_or(Counts::default(), |(_, counts)| *counts);
                    assert!(next[writer] >= done, "{} of {done} writes are there", next[writer]);
                    done = next[writer];
                    next[writer] += 1;
                    let text = next.map(|count| count.to_string()).join(" ");
                    let at = known.as_ref().map(|(version, _)| version);
                    match folder.replace(NAME, at, text.as_bytes()) {
                        Ok(Some(version)) => {
                            known = Some((version, next));
                            done += 1;
                        }
                        Ok(None) => {}
                        Err(error) => assert!(error.in_doubt() && error.is_retryable(), "{error}"),
                    }
                }
            });
        }
    });
    // One write more than a writer that was in doubt needed is none that is lost.
    assert!(counts(&content(&folder)).iter().all(|count| *count >= TIMES), "{:?}", content(&folder));
    assert!(files(&folder) <= 2 + 2 * KEPT as usize + WRITERS, "{}", files(&folder));
}
