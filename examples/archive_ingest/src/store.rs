//! The archive: files and their manifests in an object store, written one after the other and read back.
//!
//! Nothing here locks, and all writes are unconditional, as on a store that knows no other: that an object is written
//! once is the work of who calls [`Archive::store_once`].

use std::{io, sync::Arc, time::Duration};

use anyhow::{Context, bail, ensure};
use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt, PutResult, WriteMultipart, path::Path as Key};
use tokio::{fs, io::AsyncReadExt};
use url::Url;

use crate::{
    manifest::{Content, Manifest, Meter},
    meeting::Meeting,
    plan::Plan,
    source::File,
};

/// How much of a file is read, and sent in one request.
const PART: usize = 8 << 20;
/// How many parts of one object are on their way at once.
const PARTS_AT_ONCE: usize = 4;

/// An archive in an object store.
pub(crate) struct Archive {
    store: Arc<dyn ObjectStore>,
    url: Url,
    root: Key,
    pause: Duration,
    meeting: Option<Meeting>,
}

/// What became of one visit to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    /// It was not there, and is now.
    Written { bytes: u64, replaced: bool },
    /// The file was there without its manifest: a writer had died between the two.
    Completed,
    /// It was there.
    Skipped,
    /// The source is gone.
    Vanished,
}

/// An object as the store gave it back.
pub(crate) struct ReadBack {
    pub(crate) content: Content,
    pub(crate) version: Option<String>,
}

impl Archive {
    pub(crate) fn open(plan: &Plan) -> anyhow::Result<Self> {
        #[cfg(feature = "s3")]
        // Fails if it was done before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();

        // Only what is meant for object stores: their builders would also take a plain `TOKEN` or `TIMEOUT`.
        let options = std::env::vars_os().filter_map(|(key, value)| {
            let (key, value) = (key.into_string().ok()?, value.into_string().ok()?);
            ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|known| key.starts_with(known)).then_some((key, value))
        });
        let (store, root) = object_store::parse_url_opts(&plan.to, options)
            .with_context(|| format!("cannot use {} as an archive", plan.to_shown()))?;
        let (pause, meeting) = (plan.pause, plan.meeting());
        Ok(Archive { store: store.into(), url: plan.to.clone(), root, pause, meeting })
    }

    /// The name of an object that is the same for all clients who uses this archive: what is locked.
    pub(crate) fn id(&self, file: &File) -> String {
        format!("{}://{}/{}/{}", self.url.scheme(), self.url.host_str().unwrap_or(""), self.root, file.key)
    }

    /// Writes the object and then its manifest and reads the object back, unless they are there: look, then write.
    ///
    /// Never replaces an object - as long as no other is between the look and the write.
    pub(crate) async fn store_once(&self, file: &File, writer: &str) -> anyhow::Result<Stored> {
        let (object, manifest) = (self.object_key(&file.key), self.manifest_key(&file.key));
        match (self.manifest(&file.key).await?, self.exists(&object).await?) {
            (Some(_), true) => return Ok(Stored::Skipped),
            (None, true) => return self.complete(file, writer).await,
            (_, false) => {}
        }
        self.met(file, writer).await?;
        if let Some(meeting) = &self.meeting {
            meeting.wait_for_all(&file.key).await?;
        }
        tokio::time::sleep(self.pause).await;
        let Some((content, put)) = self.copy(file, &object).await? else { return Ok(Stored::Vanished) };
        tokio::time::sleep(self.pause).await;
        let described = Manifest { content, version: put.e_tag, writer: writer.to_owned() };
        self.store.put(&manifest, serde_json::to_vec_pretty(&described)?.into()).await?;

        let found = self.read_back(&file.key).await?.context("gone right after it was written")?;
        ensure!(
            found.content == described.content,
            "read back {:?}, written was {described:?}",
            found.content
        );
        let replaced = found.version != described.version;
        Ok(Stored::Written { bytes: described.content.length, replaced })
    }

    /// Lets the other workers know, if they meet, that this one has come to the object: it found it missing, or locked.
    pub(crate) async fn met(&self, file: &File, worker: &str) -> io::Result<()> {
        match &self.meeting {
            Some(meeting) => meeting.come(&file.key, worker).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn manifest(&self, key: &Key) -> anyhow::Result<Option<Manifest>> {
        let bytes = match self.store.get(&self.manifest_key(key)).await {
            Ok(found) => found.bytes().await?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(serde_json::from_slice(&bytes).context("the manifest is not readable")?))
    }

    pub(crate) async fn read_back(&self, key: &Key) -> anyhow::Result<Option<ReadBack>> {
        let found = match self.store.get(&self.object_key(key)).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let version = found.meta.e_tag.clone();
        let mut meter = Meter::default();
        let mut stream = found.into_stream();
        while let Some(bytes) = stream.try_next().await? {
            meter.add(&bytes);
        }
        Ok(Some(ReadBack { content: meter.finish(), version }))
    }

    fn object_key(&self, key: &Key) -> Key {
        self.under_root(&format!("files/{key}"))
    }

    fn manifest_key(&self, key: &Key) -> Key {
        self.under_root(&format!("manifests/{key}.json"))
    }

    fn under_root(&self, key: &str) -> Key {
        Key::parse(format!("{}/{key}", self.root)).expect("made of the parts of valid keys")
    }

    async fn exists(&self, key: &Key) -> anyhow::Result<bool> {
        match self.store.head(key).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the manifest that is missing, if the object is what it is to be.
    async fn complete(&self, file: &File, writer: &str) -> anyhow::Result<Stored> {
        let Some(content) = content_of(file).await? else { return Ok(Stored::Vanished) };
        let found = self.read_back(&file.key).await?.context("gone while it was read")?;
        if found.content != content {
            bail!("the archive has another object there, without a manifest: left as it is");
        }
        let described = Manifest { content, version: found.version, writer: writer.to_owned() };
        self.store.put(&self.manifest_key(&file.key), serde_json::to_vec_pretty(&described)?.into()).await?;
        Ok(Stored::Completed)
    }

    /// Copies the file; `None` if it is gone.
    async fn copy(&self, file: &File, to: &Key) -> anyhow::Result<Option<(Content, PutResult)>> {
        let Some(mut reader) = open(file).await? else { return Ok(None) };
        let mut meter = Meter::default();
        let first = next_part(&mut reader).await?;
        meter.add(&first);
        if first.len() < PART {
            let put = self.store.put(to, first.into()).await?;
            return Ok(Some((meter.finish(), put)));
        }
        let mut upload = WriteMultipart::new_with_chunk_size(self.store.put_multipart(to).await?, PART);
        let mut part = first;
        while !part.is_empty() {
            upload.wait_for_capacity(PARTS_AT_ONCE).await?;
            upload.put(part.into());
            part = match next_part(&mut reader).await {
                Ok(part) => part,
                Err(error) => {
                    upload.abort().await?;
                    return Err(error.into());
                }
            };
            meter.add(&part);
        }
        Ok(Some((meter.finish(), upload.finish().await?)))
    }
}

/// Length and hash of the source; `None` if it is gone.
pub(crate) async fn content_of(file: &File) -> anyhow::Result<Option<Content>> {
    let Some(mut reader) = open(file).await? else { return Ok(None) };
    let mut meter = Meter::default();
    loop {
        let part = next_part(&mut reader).await?;
        if part.is_empty() {
            return Ok(Some(meter.finish()));
        }
        meter.add(&part);
    }
}

async fn open(file: &File) -> anyhow::Result<Option<fs::File>> {
    match fs::File::open(&file.path).await {
        Ok(mut opened) => {
            opened.set_max_buf_size(PART);
            Ok(Some(opened))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.path.display())),
    }
}

/// As much as there is, at most [`PART`]; nothing at the end.
async fn next_part(reader: &mut fs::File) -> io::Result<Vec<u8>> {
    let mut part = Vec::new();
    reader.take(PART as u64).read_to_end(&mut part).await?;
    Ok(part)
}
