//! Requests beside the backend: what administrators and other programs do.

use std::io;

use base64::{Engine, prelude::BASE64_STANDARD};
use lockcore_conformance::{eventually, servers::http::Message};
use serde_json::{Value, json};
use tokio::{io::BufReader, net::TcpStream};

/// Posts a request; returns the status and the body.
pub(crate) async fn try_post(
    address: &str,
    path: &str,
    body: &Value,
    token: Option<&str>,
) -> io::Result<(u16, Value)> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    let body = body.to_string().into_bytes();
    let mut headers = vec![
        ("host".to_owned(), address.to_owned()),
        ("connection".to_owned(), "close".to_owned()),
        ("content-length".to_owned(), body.len().to_string()),
    ];
    headers.extend(token.map(|token| ("authorization".to_owned(), token.to_owned())));
    Message { first: format!("POST {path} HTTP/1.1"), headers, body }.write(&mut stream).await?;
    let answer = Message::read(&mut stream, true).await?;
    let status = answer.first.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)))
}

/// Posts a request that has to be done, now or soon.
pub(crate) async fn post(address: &str, path: &str, body: Value) -> Value {
    eventually(&format!("{path} is done"), async || {
        let answer = try_post(address, path, &body, None).await;
        answer.ok().filter(|(status, _)| *status == 200).map(|(_, answer)| answer)
    })
    .await
}

/// Writes a key of some other program; returns whether there is room for it.
pub(crate) async fn put(address: &str, bytes: usize) -> bool {
    let value = BASE64_STANDARD.encode(vec![0; bytes]);
    let body = json!({ "key": BASE64_STANDARD.encode("other"), "value": value });
    let (status, answer) = try_post(address, "/v3/kv/put", &body, None).await.expect("the member answers");
    assert!(status == 200 || answer["code"] == 8, "{status} {answer}");
    status == 200
}

/// Returns a number, which the gateway writes as a text.
pub(crate) fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).expect("a number as text")
}

/// Returns the value of a metric.
pub(crate) async fn metric(address: &str, name: &str) -> Option<f64> {
    let mut stream = BufReader::new(TcpStream::connect(address).await.ok()?);
    let headers = [("host", address), ("connection", "close")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let request = Message { first: "GET /metrics HTTP/1.1".to_owned(), headers, body: Vec::new() };
    request.write(&mut stream).await.ok()?;
    let answer = Message::read(&mut stream, true).await.ok()?;
    let text = String::from_utf8(answer.body).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
