//! Nodes that cannot be reached under the address that another server gave: behind a NAT, or in a container's own network.

use std::{fmt, time::Duration};

use lockcore::BackendError;
use redis::{Client, Cmd, ConnectionAddr, Value, from_redis_value};

/// A host that takes longer to answer is named as one that does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// A node that cannot be reached.
pub(crate) struct Unreachable {
    node: String,
    announced_by: String,
    why: String,
}

impl Unreachable {
    /// Asks servers, one after the other, which nodes there are, and looks for one that cannot be reached.
    pub(crate) async fn find(servers: impl Iterator<Item = Client>, question: &Cmd) -> Option<Self> {
        for server in servers {
            let asked = async {
                let mut connection = server.get_multiplexed_async_connection().await?;
                question.query_async::<Value>(&mut connection).await
            };
            let Ok(Ok(reply)) = tokio::time::timeout(PATIENCE, asked).await else { continue };
            for (host, port) in masters(&reply) {
                if let Err(why) = dial(&host, port).await {
                    let announced_by = server.get_connection_info().addr().to_string();
                    return Some(Unreachable {
                        node: ConnectionAddr::Tcp(host, port).to_string(),
                        announced_by,
                        why,
                    });
                }
            }
        }
        None
    }

    /// Returns the error, which names no node, with this one.
    pub(crate) fn explain(self, error: BackendError) -> BackendError {
        let cause = error.to_string();
        let cause = cause.strip_prefix("redis: ").unwrap_or(&cause);
        let message = format!("redis: {self}: {cause}");
        error.with_message(message)
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unreachable { node, announced_by, why } = self;
        write!(f, "node {node} (announced by {announced_by}) cannot be reached, {why}")
    }
}

async fn dial(host: &str, port: u16) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, tokio::net::TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

/// Returns the masters of a reply to `CLUSTER SLOTS` or `SENTINEL GET-MASTER-ADDR-BY-NAME`. One without a host is at the address
/// that was asked, which answered.
fn masters(reply: &Value) -> Vec<(String, u16)> {
    let list = |value: &Value| match value {
        Value::Array(items) => items.clone(),
        _ => Vec::new(),
    };
    let address = |items: &[Value]| {
        let [host, port, ..] = items else { return None };
        let host: Option<String> = from_redis_value(host.clone()).ok()?;
        Some((host.filter(|host| !host.is_empty())?, from_redis_value(port.clone()).ok()?))
    };
    let items = list(reply);
    if let Some(master) = address(&items) {
        return vec![master];
    }
    let mut masters: Vec<_> = items.iter().filter_map(|range| address(&list(list(range).get(2)?))).collect();
    masters.dedup();
    masters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn both_replies_are_read() {
        let sentinel = Value::Array(vec![text("10.0.0.1"), text("6379")]);
        assert_eq!(masters(&sentinel), [("10.0.0.1".to_owned(), 6379)]);
        let range = |host: Value| {
            let node = Value::Array(vec![host, Value::Int(6470), text("id")]);
            Value::Array(vec![Value::Int(0), Value::Int(5), node])
        };
        let ranges = [text("10.0.0.2"), text("10.0.0.2"), text(""), Value::Nil].map(range);
        assert_eq!(masters(&Value::Array(ranges.to_vec())), [("10.0.0.2".to_owned(), 6470)]);
        assert_eq!(masters(&Value::Nil), []);
    }
}
