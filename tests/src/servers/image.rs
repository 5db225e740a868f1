//! Which image a container of a kind is started from.

use std::time::Duration;

use testcontainers::{
    GenericImage,
    bollard::{Docker, errors::Error as DockerError},
    runners::AsyncRunner,
};

use super::{Kind, ServerError};

/// The official images, one `kind name:tag` a line; `tests/servers/ensure.sh` reads it too.
const OFFICIAL: &str = include_str!("../../servers/official-images.txt");

/// An image that the engine has.
pub(super) struct Image {
    pub(super) name: String,
    pub(super) tag: String,
}

/// A connection to the Docker engine; an error where none answers.
pub(super) async fn engine() -> Result<Docker, String> {
    let none = |why: String| format!("no Docker engine answers ({why})");
    let docker = Docker::connect_with_defaults().map_err(|error| none(error.to_string()))?;
    match tokio::time::timeout(Duration::from_secs(5), docker.ping()).await {
        Ok(Ok(_)) => Ok(docker),
        Ok(Err(error)) => Err(none(error.to_string())),
        Err(_) => Err(none("no answer in 5 s".to_owned())),
    }
}

impl Image {
    /// The image to use for `kind`, pulled if need be. Where there is none it is unavailable, but one that
    /// was asked for by name and cannot be had is a failure: another server is not what was meant.
    ///
    /// What is there already is preferred to a download: `ensure.sh` has tried the download before it
    /// builds a stand-in, and a machine that cannot pull would wait for that failure in every run.
    pub(super) async fn of(kind: Kind, docker: &Docker) -> Result<Self, ServerError> {
        if let Ok(named) = std::env::var(kind.image_variable()) {
            let image = Self::parse(&named).ensured(docker).await;
            return image.map_err(|error| ServerError::failed(kind, "start", error));
        }
        let image = Self::official_or_standin(kind, docker).await;
        image.map_err(|error| ServerError::unavailable(kind, error))
    }

    async fn official_or_standin(kind: Kind, docker: &Docker) -> Result<Self, String> {
        let official = Self::official(kind);
        let standin = Self::parse(&format!("standin/{kind}:latest"));
        if official.is_there(docker).await? {
            return Ok(official);
        }
        if standin.is_there(docker).await? {
            return Ok(standin);
        }
        // The stand-in is never asked of a registry: anyone may own that name there.
        let pulled = official.ensured(docker).await;
        pulled.map_err(|error| format!("{error}, and there is no image {standin}"))
    }

    fn official(kind: Kind) -> Self {
        let mut lines = OFFICIAL.lines().filter_map(|line| line.split_once(' '));
        let (_, image) =
            lines.find(|(name, _)| *name == kind.name()).expect("the file names an image for every kind");
        Self::parse(image)
    }

    fn parse(image: &str) -> Self {
        // A colon before a slash belongs to a registry's port.
        let (name, tag) = match image.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, tag),
            _ => (image, "latest"),
        };
        Self { name: name.to_owned(), tag: tag.to_owned() }
    }

    async fn is_there(&self, docker: &Docker) -> Result<bool, String> {
        match docker.inspect_image(&self.to_string()).await {
            Ok(_) => Ok(true),
            Err(DockerError::DockerResponseServerError { status_code: 404, .. }) => Ok(false),
            Err(error) => Err(format!("the Docker engine cannot say if {self} is there: {error}")),
        }
    }

    async fn ensured(self, docker: &Docker) -> Result<Self, String> {
        if !self.is_there(docker).await? {
            // By testcontainers, which knows the credentials of the user's registries.
            let image = GenericImage::new(&self.name, &self.tag);
            let pulled = image.pull_image().await;
            pulled.map(drop).map_err(|error| format!("{self} cannot be pulled ({error})"))?;
        }
        Ok(self)
    }
}

impl std::fmt::Display for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_tags() {
        for (text, name, tag) in [
            ("redis", "redis", "latest"),
            ("redis:7", "redis", "7"),
            ("host:5000/redis", "host:5000/redis", "latest"),
            ("host:5000/redis:7", "host:5000/redis", "7"),
        ] {
            let image = Image::parse(text);
            assert_eq!((image.name.as_str(), image.tag.as_str()), (name, tag));
        }
    }

    #[test]
    fn every_kind_has_an_official_image() {
        for kind in Kind::ALL {
            assert!(Image::official(kind).name.contains(kind.name()));
        }
    }
}
