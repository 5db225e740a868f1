//! `share:PATH`: a folder that the hosts have mounted.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_share::{CAPABILITIES, ShareBuilder, ShareLockDao};

use super::Settings;
use crate::{ConnectError, option::Plain, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "share:/mnt/team/locks";

/// See [`ShareBuilder`].
pub(super) const OPTIONS: &[&str] = &["request_timeout", "timeout"];

pub(super) fn capabilities() -> Capabilities {
    CAPABILITIES
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    let Settings { url, options } = settings;
    let builder = options
        .fill(ShareLockDao::<I, C>::builder().folder(url.path()?))
        .with(NAMESPACE, String::plain, ShareBuilder::namespace)?
        .with("timeout", parse_duration, ShareBuilder::timeout)?
        .with("request_timeout", parse_duration, ShareBuilder::request_timeout)?
        .builder;
    Ok(AnyLockDao::new(builder.open().await?))
}
