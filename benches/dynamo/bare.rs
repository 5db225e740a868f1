//! The SDK by itself, with the configuration that ours has: the very writes of ours, and the least that any lock would
//! write.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{
        BehaviorVersion, Credentials, Region, StalledStreamProtectionConfig, retry::RetryConfig,
        timeout::TimeoutConfig,
    },
    types::{AttributeValue, ReturnValuesOnConditionCheckFailure::AllOld, TransactWriteItem, Update},
};
use lockcore::FreshContext;
use uuid::Uuid;

use crate::{Outcome, TABLE};

pub(crate) fn client(endpoint: &str) -> Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1))
        .operation_attempt_timeout(Duration::from_secs(2));
    let config = Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts.build())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "bench"))
        .endpoint_url(endpoint);
    Client::from_conf(config.build())
}

/// Takes the ids and frees them by the writes that ours makes.
pub(crate) async fn same(client: &Client, ids: &[String]) -> Outcome<()> {
    let context = Uuid::fresh().to_string();
    // An engine may collect what ended by its TTL.
    let now = now();
    let micros = now * 1_000_000;
    let fence = fence();
    let take = || {
        let entry = HashMap::from([
            ("is".to_owned(), text(format!("exclusive {fence} {micros} bench"))),
            ("fence".to_owned(), number(fence)),
            ("lease".to_owned(), number(30_000_000)),
            ("ends".to_owned(), number(micros + 30_000_000)),
        ]);
        let holders = HashMap::from([(context.clone(), AttributeValue::M(entry))]);
        [
            (":c", text(&context)),
            (":t", number(now)),
            (":e", number(now + 31)),
            (":f", number(fence)),
            (":r", number(fence)),
            (":h", AttributeValue::M(holders)),
            (":n", AttributeValue::N(format!("{now}.123456"))),
        ]
    };
    let free = || {
        let past = number(now - 24 * 3600);
        [(":e", past), (":r", number(fence)), (":f", number(fence)), (":n", number(micros))]
    };
    write(
        client,
        ids,
        "SET contextId=:c,created=:t,expires=:e,fence=:f,rev=:r,holders=:h",
        "(attribute_not_exists(contextId) OR expires<:n) AND (attribute_not_exists(fence) OR fence<:f) \
         AND attribute_not_exists(frozen) AND attribute_not_exists(marks)",
        &[],
        take,
    )
    .await?;
    write(
        client,
        ids,
        "SET expires=:e,rev=:r REMOVE contextId,created,holders,slots",
        "holders.#h.fence=:f AND holders.#h.ends>=:n AND attribute_not_exists(frozen) \
         AND attribute_not_exists(marks)",
        &[("#h", &context)],
        free,
    )
    .await
}

/// Takes the ids and frees them by conditional writes of what the table's other clients know, and no more.
pub(crate) async fn least(client: &Client, ids: &[String]) -> Outcome<()> {
    const NAMES: [(&str, &str); 3] = [("#c", "contextId"), ("#t", "created"), ("#e", "expires")];
    let context = Uuid::fresh().to_string();
    let take = || [(":c", text(&context)), (":t", number(1_795_000_000)), (":e", number(1_795_000_030))];
    let free = || [(":c", text(&context)), (":t", number(1_795_000_000))];
    write(client, ids, "SET #c=:c,#t=:t,#e=:e", "attribute_not_exists(#c) OR #e<:t", &NAMES, take).await?;
    write(client, ids, "SET #e=:t REMOVE #c,#t", "#c=:c", &NAMES, free).await
}

async fn write<const N: usize>(
    client: &Client,
    ids: &[String],
    change: &str,
    condition: &str,
    names: &[(&str, &str)],
    values: impl Fn() -> [(&'static str, AttributeValue); N],
) -> Outcome<()> {
    let names = || {
        let all: HashMap<_, _> = names.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        Some(all).filter(|all| !all.is_empty())
    };
    let values = || Some(values().map(|(name, value)| (name.to_owned(), value)).into());
    let key = |id: &String| text(format!("bare/{id}"));
    if let [id] = ids {
        let request = client.update_item().table_name(TABLE).key("id", key(id)).update_expression(change);
        let request = request.condition_expression(condition).set_expression_attribute_names(names());
        let request = request.set_expression_attribute_values(values());
        request.return_values_on_condition_check_failure(AllOld).send().await?;
        return Ok(());
    }
    let mut request = client.transact_write_items();
    for id in ids {
        let update = Update::builder().table_name(TABLE).key("id", key(id)).update_expression(change);
        let update = update.condition_expression(condition).set_expression_attribute_names(names());
        let update = update.set_expression_attribute_values(values());
        let update = update.return_values_on_condition_check_failure(AllOld).build()?;
        request = request.transact_items(TransactWriteItem::builder().update(update).build());
    }
    request.send().await?;
    Ok(())
}

/// In seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Above all before.
fn fence() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(1_795_000_000_000_000);
    LAST.fetch_add(1, Relaxed)
}

fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}
