//! The look at the whole archive once all workers have ended: every object read back, in no client's favour.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};

use crate::{
    plan::Plan,
    report::describe,
    source::{File, Files},
    store::{Archive, content_of},
    tally::Tally,
};

/// What the audit found.
#[derive(Default)]
pub(crate) struct Audit {
    /// Objects whose length and hash are those of their manifest.
    pub(crate) verified: u64,
    pub(crate) bytes: u64,
    /// Files that were removed before they were copied.
    pub(crate) gone: Vec<String>,
    /// Objects whose source is another by now.
    pub(crate) changed: Vec<String>,
    /// Objects written in this run whose manifest describes another version of them.
    pub(crate) mismatched: Vec<String>,
    /// What is not in the archive as it should be, and why.
    pub(crate) errors: Vec<String>,
    pub(crate) elapsed: Duration,
}

enum Finding {
    Fine {
        bytes: u64,
        mismatched: bool,
        changed: bool,
    },
    /// Neither in the source nor in the archive.
    Gone,
}

/// Reads every object back and compares it with its manifest, and with the source.
pub(crate) async fn audit(plan: &Plan, files: &Files, archive: &Archive, copied: &Tally) -> Audit {
    let started = Instant::now();
    let written: HashSet<&str> = copied.written.iter().map(String::as_str).collect();
    let mut looks = stream::iter(&files.list)
        .map(|file| {
            let written_now = written.contains(file.key.as_ref());
            async move { (file, look(archive, file, written_now).await) }
        })
        .buffer_unordered(plan.workers.into());
    let mut audit = Audit::default();
    while let Some((file, found)) = looks.next().await {
        match found {
            Ok(Finding::Gone) => audit.gone.push(file.key.to_string()),
            Ok(Finding::Fine { bytes, mismatched, changed }) => {
                audit.verified += 1;
                audit.bytes += bytes;
                if mismatched {
                    audit.mismatched.push(file.key.to_string());
                }
                if changed {
                    audit.changed.push(file.key.to_string());
                }
            }
            Err(error) => audit.errors.push(format!("{}: {}", file.key, describe(&error))),
        }
    }
    audit.elapsed = started.elapsed();
    audit
}

async fn look(archive: &Archive, file: &File, written_now: bool) -> anyhow::Result<Finding> {
    let source = content_of(file).await?;
    let (manifest, stored) = (archive.manifest(&file.key).await?, archive.read_back(&file.key).await?);
    let (manifest, stored) = match (manifest, stored) {
        (Some(manifest), Some(stored)) => (manifest, stored),
        (None, None) if source.is_none() => return Ok(Finding::Gone),
        (None, None) => anyhow::bail!("is not in the archive"),
        (None, Some(_)) => anyhow::bail!("has no manifest"),
        (Some(_), None) => anyhow::bail!("has only a manifest"),
    };
    anyhow::ensure!(
        manifest.content == stored.content,
        "the archive has {:?}, its manifest says {:?}",
        stored.content,
        manifest.content
    );
    Ok(Finding::Fine {
        bytes: stored.content.length,
        // What was written before may have been moved since, and have other versions.
        mismatched: written_now && manifest.version != stored.version,
        changed: source.is_some_and(|source| source != stored.content),
    })
}
