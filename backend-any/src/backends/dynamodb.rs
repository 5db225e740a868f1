//! `dynamodb://REGION/TABLE`, with `?endpoint=http://127.0.0.1:8000` for an emulator; `dynamodb:///TABLE` where the SDK's
//! usual chain knows the region.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_dynamo::{DynamoBuilder, DynamoLockDao, LargeSets};

use super::Settings;
use crate::{ConfigError, ConnectError, option::Options, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "dynamodb://eu-central-1/locks";

/// See [`DynamoBuilder`]; `large_sets` is the most ids of a set that is taken in chunks.
pub(super) const OPTIONS: &[&str] = &[
    "access_key_id",
    "attempt_timeout",
    "context_attribute",
    "context_index",
    "created_attribute",
    "endpoint",
    "expires_attribute",
    "id_attribute",
    "large_sets",
    "profile",
    "secret_access_key",
    "session_token",
    "strict_fence",
    "timeout",
];

pub(super) fn capabilities() -> Capabilities {
    DynamoLockDao::<String>::declared()
}

pub(super) async fn open<I: Ident, C: ContextId>(
    settings: Settings,
) -> Result<AnyLockDao<I, C>, ConnectError> {
    Ok(AnyLockDao::new(builder::<I, C>(&settings)?.open().await?))
}

/// The text that creates the table elsewhere, in one of the languages of [`SCHEMAS`].
pub(super) fn schema(settings: &Settings, language: &str) -> Result<Option<String>, ConnectError> {
    let schema = builder::<String, uuid::Uuid>(settings)?.schema()?;
    Ok(match language {
        "cloudformation" => Some(schema.cloud_formation()),
        "terraform" => Some(schema.terraform()),
        "iam" => Some(schema.iam_policy()),
        _ => None,
    })
}

/// In what the schema can be written down.
pub(super) const SCHEMAS: &[&str] = &["cloudformation", "terraform", "iam"];

fn builder<I: Ident, C: ContextId>(settings: &Settings) -> Result<DynamoBuilder<I, C>, ConnectError> {
    let Settings { url, options } = settings;
    let path = url.path()?;
    let (region, table) = path.split_once('/').unwrap_or((&path, ""));
    let mut builder = DynamoLockDao::<I, C>::builder();
    if !region.is_empty() {
        builder = builder.region(region);
    }
    if !table.is_empty() {
        builder = builder.table(table);
    }
    builder = names(builder, options)?;
    if let Some(namespace) = options.read(NAMESPACE, any)? {
        builder = builder.namespace(namespace);
    }
    if let Some(endpoint) = options.read("endpoint", any)? {
        builder = builder.endpoint(endpoint);
    }
    if let Some(profile) = options.read("profile", any)? {
        builder = builder.profile(profile);
    }
    let key = options.read("access_key_id", any)?;
    let secret = options.read("secret_access_key", any)?;
    match (key, secret, options.read("session_token", any)?) {
        (Some(key), Some(secret), token) => builder = builder.credentials(key, secret, token),
        (None, None, None) => {}
        _ => {
            let field = "access_key_id".to_owned();
            let expected = "access_key_id and secret_access_key go together, session_token beside both".to_owned();
            return Err(ConfigError::Value { field, value: "alone".to_owned(), expected }.into());
        }
    }
    if let Some(timeout) = options.read("timeout", parse_duration)? {
        builder = builder.timeout(timeout);
    }
    if let Some(timeout) = options.read("attempt_timeout", parse_duration)? {
        builder = builder.attempt_timeout(timeout);
    }
    if let Some(max) = options.read("large_sets", number)? {
        builder = builder.large_sets(LargeSets::Chunks { max });
    }
    if let Some(strict) = options.read("strict_fence", yes_or_no)? {
        builder = builder.strict_fence(strict);
    }
    Ok(builder)
}

/// How other clients of the table call its parts.
fn names<I: Ident, C: ContextId>(
    mut builder: DynamoBuilder<I, C>,
    options: &Options,
) -> Result<DynamoBuilder<I, C>, ConnectError> {
    if let Some(name) = options.read("id_attribute", any)? {
        builder = builder.id_attribute(name);
    }
    if let Some(name) = options.read("context_attribute", any)? {
        builder = builder.context_attribute(name);
    }
    if let Some(name) = options.read("created_attribute", any)? {
        builder = builder.created_attribute(name);
    }
    if let Some(name) = options.read("expires_attribute", any)? {
        builder = builder.expires_attribute(name);
    }
    if let Some(name) = options.read("context_index", any)? {
        builder = builder.context_index(name);
    }
    Ok(builder)
}

/// What the builder checks itself.
fn any(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it must be a whole number".to_owned())
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("it must be true or false".to_owned()),
    }
}
