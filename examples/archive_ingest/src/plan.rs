//! What is copied, where to, and under which locks: the command line with every default filled in.

use std::{
    env, io,
    path::{Path, PathBuf, absolute},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use lockcore_any::BackendUrl;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

use crate::{
    args::Args,
    manifest::hex,
    meeting::Meeting,
    source::{self, Files},
};

/// What every process of a run is told.
#[derive(Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) source: PathBuf,
    /// Paths under the source that are not copied.
    pub(crate) leave_out: Vec<PathBuf>,
    pub(crate) to: Url,
    /// `None` for a run without locks.
    pub(crate) locks: Option<String>,
    pub(crate) wait: Duration,
    pub(crate) pause: Duration,
    /// Where the workers meet.
    pub(crate) meet: Option<PathBuf>,
    pub(crate) workers: u16,
    pub(crate) processes: u16,
}

impl Plan {
    pub(crate) fn new(args: &Args) -> anyhow::Result<Self> {
        let here = env::current_dir().context("the current directory")?;
        let checkout = source::checkout_around(&here);
        let source = match (&args.source, &checkout) {
            (Some(folder), _) => folder,
            (None, Some(checkout)) => &checkout.git,
            (None, None) => bail!("no checkout around {}: name the folder to copy", here.display()),
        };
        let source = source.canonicalize().with_context(|| format!("cannot copy {}", source.display()))?;
        let leave_out = if args.source.is_none() { vec![source.join("config")] } else { vec![] };
        ensure!(source.is_dir(), "cannot copy {}: it is not a folder", source.display());

        let project = checkout.map(|checkout| checkout.root).filter(|root| root.join("Cargo.toml").is_file());
        let base = project.map_or_else(env::temp_dir, |root| root.join("target")).join("archive");
        let to = match &args.to {
            Some(to) => archive_url(to)?,
            None if args.no_locks => folder_url(&fresh_folder(&base.join("no-locks"))?)?,
            None => folder_url(&base.join(name_of(&source)))?,
        };
        let folder = to.to_file_path().ok().filter(|_| to.scheme() == "file");
        // The walk of one process would meet what another one writes, and copy it again as an object of its own.
        if let Some(folder) = folder.as_ref().filter(|folder| folder.starts_with(&source)) {
            let (folder, source) = (folder.display(), source.display());
            bail!("the archive {folder} is inside the source {source}: name a folder elsewhere by --to");
        }

        let locks = match &args.locks {
            _ if args.no_locks => None,
            Some(url) => Some(url.parse::<BackendUrl>()?.expose().to_owned()),
            None => Some(sqlite_url(&beside(folder.as_deref(), &base))?),
        };
        let in_memory =
            to.scheme() == "memory" || locks.as_deref().is_some_and(|url| url.starts_with("memory:"));
        let processes = args.processes.unwrap_or(if in_memory { 1 } else { 2 });
        ensure!(
            processes == 1 || !in_memory,
            "--processes {processes}: what is in memory is seen by one process only"
        );
        let Args { wait, pause, workers, .. } = *args;
        let meet = args.meet.clone();
        Ok(Plan { source, leave_out, to, locks, wait, pause, meet, workers, processes })
    }

    /// Where the workers meet, if they do.
    pub(crate) fn meeting(&self) -> Option<Meeting> {
        let workers = usize::from(self.workers) * usize::from(self.processes);
        self.meet.clone().map(|folder| Meeting { folder, workers })
    }

    pub(crate) fn scan(&self) -> anyhow::Result<Files> {
        source::scan(&self.source, &self.leave_out)
    }

    /// How often an object is looked at by all workers together, for all objects.
    pub(crate) fn visits(&self, files: &Files) -> u64 {
        files.list.len() as u64 * u64::from(self.workers) * u64::from(self.processes)
    }

    /// The URL of the archive without what is secret in it.
    pub(crate) fn to_shown(&self) -> String {
        let mut shown = self.to.clone();
        // Fails for URLs that can have neither, which is as good.
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        shown.set_query(None);
        shown.into()
    }

    /// The URL of the locks without what is secret in it.
    pub(crate) fn locks_shown(&self) -> Option<String> {
        self.locks
            .as_ref()
            .map(|url| url.parse::<BackendUrl>().map_or_else(|_| "?".to_owned(), |url| url.to_string()))
    }
}

fn archive_url(to: &str) -> anyhow::Result<Url> {
    match Url::parse(to) {
        Ok(url) => match url.to_file_path() {
            Ok(folder) if url.scheme() == "file" => folder_url(&folder),
            _ => Ok(url),
        },
        Err(url::ParseError::RelativeUrlWithoutBase) => folder_url(Path::new(to)),
        Err(error) => Err(error).with_context(|| format!("--to {to}")),
    }
}

/// The URL of a folder that is the same whichever way it is named: what is locked begins with it.
fn folder_url(folder: &Path) -> anyhow::Result<Url> {
    let folder = canonical(folder).with_context(|| format!("the folder {}", folder.display()))?;
    match Url::from_file_path(&folder) {
        Ok(url) => Ok(url),
        Err(()) => bail!("the folder {} cannot be written as a URL", folder.display()),
    }
}

/// The path without links and dots, also of what does not exist yet.
fn canonical(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = absolute(path)?;
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => Ok(canonical(parent)?.join(name)),
                _ => Err(error),
            }
        }
        found => found,
    }
}

/// The folder of the last run without locks, emptied: nothing races for what is there already.
fn fresh_folder(folder: &Path) -> anyhow::Result<PathBuf> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot empty {}", folder.display()))
        }
        _ => Ok(folder.to_owned()),
    }
}

/// A name for the archive of `source` that no other source has: `git-5e884898`.
fn name_of(source: &Path) -> String {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let digest = Sha256::digest(source.as_os_str().as_encoded_bytes());
    format!("{}-{}", name.trim_start_matches('.'), &hex(&digest)[..8])
}

/// The file of the locks: beside an archive in a folder, so that all who write there find it.
fn beside(archive: Option<&Path>, base: &Path) -> PathBuf {
    let mut file = archive.map_or_else(|| base.join("remote"), Path::to_owned).into_os_string();
    file.push(".locks.db");
    file.into()
}

fn sqlite_url(file: &Path) -> anyhow::Result<String> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(format!("sqlite:{}", folder_url(file)?.path())) // with `?` and `%` encoded
}
