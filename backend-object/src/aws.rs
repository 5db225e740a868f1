//! The settings that a client of S3 needs before it asks: otherwise the library guesses a region, or waits for a
//! service of the instance that is not there.

use std::{env, time::Duration};

use lockcore::{BackendError, BackendErrorKind};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
use tokio::{net::TcpStream, time::timeout};

use crate::error::missing;

/// The metadata service answers from the same machine.
const METADATA_WITHIN: Duration = Duration::from_secs(1);

const METADATA: &str = "http://169.254.169.254";

/// Returns the address that the client asks, where it is not the region's own.
pub(crate) fn endpoint(builder: &AmazonS3Builder) -> Option<String> {
    value(builder, Key::S3Endpoint).or_else(|| value(builder, Key::Endpoint))
}

/// Refuses what the client could only guess.
pub(crate) fn check(builder: &AmazonS3Builder) -> Result<(), BackendError> {
    // To another service the region is a name in the signature, for which most take the library's us-east-1.
    if value(builder, Key::Region).is_none() && endpoint(builder).is_none() {
        let expected = "name the bucket's, as `?region=eu-central-1` in the URL or by AWS_REGION";
        return Err(missing("region", expected));
    }
    let profile = env::var_os("AWS_PROFILE").is_some_and(|name| !name.is_empty());
    if profile && uses_instance(builder) {
        let expected = "S3 reads no profiles; `eval \"$(aws configure export-credentials --format env)\"` sets the variables \
                        that it reads";
        return Err(missing("AWS_ACCESS_KEY_ID", expected));
    }
    Ok(())
}

/// Returns an error if the credentials are those of the instance, and it has no service to give them.
pub(crate) async fn check_credentials(builder: &AmazonS3Builder) -> Result<(), BackendError> {
    if !uses_instance(builder) {
        return Ok(());
    }
    let metadata = value(builder, Key::MetadataEndpoint).unwrap_or_else(|| METADATA.to_owned());
    let authority = metadata.rsplit("://").next().unwrap_or_default().trim_end_matches('/');
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().unwrap_or(80)),
        _ => (authority, 80),
    };
    let host = host.trim_matches(['[', ']']);
    let why = match timeout(METADATA_WITHIN, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {METADATA_WITHIN:?}"),
    };
    let what = format!(
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles are not read), or give the instance a \
         role; its metadata service {host}:{port} cannot be reached: {why}"
    );
    let kind = BackendErrorKind::Denied;
    Err(BackendError::new(kind, what))
}

/// Returns whether nothing but the instance's metadata service can give credentials.
fn uses_instance(builder: &AmazonS3Builder) -> bool {
    let has = |key| value(builder, key).is_some();
    let is_signed = value(builder, Key::SkipSignature).is_none_or(|skip| skip != "true");
    let by_keys = has(Key::AccessKeyId) || has(Key::SecretAccessKey);
    let by_token = has(Key::WebIdentityTokenFile) && has(Key::RoleArn);
    let by_container = has(Key::ContainerCredentialsRelativeUri)
        || (has(Key::ContainerCredentialsFullUri) && has(Key::ContainerAuthorizationTokenFile));
    is_signed && !by_keys && !by_token && !by_container
}

fn value(builder: &AmazonS3Builder, key: Key) -> Option<String> {
    builder.get_config_value(&key).filter(|value| !value.is_empty())
}
