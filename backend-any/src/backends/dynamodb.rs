//! `dynamodb://REGION/TABLE`, with `?endpoint=http://127.0.0.1:8000` for an emulator; `dynamodb:///TABLE` where the SDK's
//! usual chain knows the region.

use lockcore::{AnyLockDao, Capabilities, ContextId, Ident};
use lockcore_dynamo::{CAPABILITIES, DynamoBuilder, DynamoLockDao};

use super::Settings;
use crate::{ConfigError, ConnectError, option::Plain, parse_duration, url::NAMESPACE};

pub(super) const EXAMPLE: &str = "dynamodb://eu-central-1/locks";

/// See [`DynamoBuilder`].
pub(super) const OPTIONS: &[&str] = &[
    "access_key_id",
    "attempt_timeout",
    "context_attribute",
    "context_index",
    "created_attribute",
    "endpoint",
    "expires_attribute",
    "id_attribute",
    "profile",
    "secret_access_key",
    "session_token",
    "strict_fence",
    "timeout",
];

pub(super) fn capabilities() -> Capabilities {
    CAPABILITIES
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

/// The languages in which the schema can be written down.
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
    let key = options.read("access_key_id", String::plain)?;
    let secret = options.read("secret_access_key", String::plain)?;
    match (key, secret, options.read("session_token", String::plain)?) {
        (Some(key), Some(secret), token) => builder = builder.credentials(key, secret, token),
        (None, None, None) => {}
        _ => {
            let field = "access_key_id".to_owned();
            let expected = "access_key_id and secret_access_key go together, session_token beside both".to_owned();
            return Err(ConfigError::Value { field, value: "alone".to_owned(), expected }.into());
        }
    }
    let builder = options
        .fill(builder)
        .with(NAMESPACE, String::plain, DynamoBuilder::namespace)?
        .with("endpoint", String::plain, DynamoBuilder::endpoint)?
        .with("profile", String::plain, DynamoBuilder::profile)?
        .with("timeout", parse_duration, DynamoBuilder::timeout)?
        .with("attempt_timeout", parse_duration, DynamoBuilder::attempt_timeout)?
        .with("strict_fence", bool::plain, DynamoBuilder::strict_fence)?
        // The names that other clients of the table have for its parts.
        .with("id_attribute", String::plain, DynamoBuilder::id_attribute)?
        .with("context_attribute", String::plain, DynamoBuilder::context_attribute)?
        .with("created_attribute", String::plain, DynamoBuilder::created_attribute)?
        .with("expires_attribute", String::plain, DynamoBuilder::expires_attribute)?
        .with("context_index", String::plain, DynamoBuilder::context_index)?
        .builder;
    Ok(builder)
}
