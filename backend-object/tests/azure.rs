//! The dialect of Azure's service, where it is another one: this answers as its documents say.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use lockcore::LockingService;
use lockcore_conformance::servers::{self, TestResult, Trial, http::Message};
use lockcore_object::ObjectLockDao;
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::ignorable_test("azure::what_is_there_is_refused_with_409_and_locks_are_kept", || {
        servers::outcome(Runtime::new()?.block_on(locks_are_kept()))
    })]
}

async fn locks_are_kept() -> TestResult {
    let (endpoint, blobs) = serve().await?;
    let builder = || {
        let builder = ObjectLockDao::<String>::builder().azure("container").endpoint(&*endpoint);
        builder.option("account_name", "account").option("account_key", "c2VjcmV0")
    };
    let (one, two) = (builder().open().await?, builder().open().await?);
    assert_eq!(blobs.lock().expect("no panic inside").len(), 0, "the objects of the probes are removed");
    let (one, two) = (LockingService::new(one), LockingService::new(two));
    let held = one.lock(["a", "b"]).await?;
    two.lock(["b", "c"]).await.expect_err("it is held");
    held.release().await?;
    two.lock(["b", "c"]).await?.release().await?;
    Ok(())
}

/// The objects by path, with their versions.
type Blobs = Arc<Mutex<BTreeMap<String, (u64, Vec<u8>)>>>;

async fn serve() -> io::Result<(String, Blobs)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let blobs = Blobs::default();
    let kept = blobs.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let blobs = kept.clone();
            tokio::spawn(async move { drop(talk(client, &blobs).await) });
        }
    });
    Ok((endpoint, blobs))
}

async fn talk(client: TcpStream, blobs: &Blobs) -> io::Result<()> {
    let mut client = BufReader::new(client);
    loop {
        let request = Message::read(&mut client, true).await?;
        let mut response = answer(&request, &mut blobs.lock().expect("no panic inside"));
        response.headers.push(("x-ms-request-id".to_owned(), "1".to_owned()));
        response.as_response(httpdate::fmt_http_date(SystemTime::now()));
        response.write(&mut client).await?;
    }
}

fn answer(request: &Message, blobs: &mut BTreeMap<String, (u64, Vec<u8>)>) -> Message {
    let mut words = request.first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_owned());
    let found = blobs.get(&path).map(|(version, _)| tag(*version));
    match method {
        "PUT" if request.header("if-none-match") == Some("*") && found.is_some() => {
            refusal(409, "BlobAlreadyExists")
        }
        "PUT" if request.header("if-match").is_some_and(|tag| found.as_deref() != Some(tag)) => {
            refusal(412, "ConditionNotMet")
        }
        "PUT" => {
            let version = blobs.values().map(|(version, _)| *version).max().unwrap_or(0) + 1;
            blobs.insert(path, (version, request.body.clone()));
            response(201, &[("etag", &tag(version))], Vec::new())
        }
        "GET" if found.is_some() && request.header("if-none-match") == found.as_deref() => {
            response(304, &[], Vec::new())
        }
        "GET" => match blobs.get(&path) {
            None => refusal(404, "BlobNotFound"),
            Some((version, content)) => {
                let modified = httpdate::fmt_http_date(SystemTime::now());
                let headers = [("etag", &*tag(*version)), ("last-modified", &*modified)];
                response(200, &headers, content.clone())
            }
        },
        "POST" if path.contains("comp=batch") => {
            let body = String::from_utf8_lossy(&request.body);
            let deleted = body.lines().filter_map(|line| line.strip_prefix("DELETE ")?.split(' ').next());
            let mut parts = String::new();
            for (id, path) in deleted.enumerate() {
                let status = if blobs.remove(path).is_some() { "202 Accepted" } else { "404 Not Found" };
                parts += &format!(
                    "--part\r\nContent-Type: application/http\r\nContent-ID: {id}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n"
                );
            }
            let content = format!("{parts}--part--\r\n").into_bytes();
            response(202, &[("content-type", "multipart/mixed; boundary=part")], content)
        }
        _ => refusal(400, "UnsupportedHttpVerb"),
    }
}

fn tag(version: u64) -> String {
    format!("\"0x{version:X}\"")
}

fn refusal(status: u16, code: &str) -> Message {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{code}</Message></Error>");
    response(status, &[("x-ms-error-code", code), ("content-type", "application/xml")], body.into_bytes())
}

fn response(status: u16, headers: &[(&str, &str)], body: Vec<u8>) -> Message {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Message { first: format!("HTTP/1.1 {status} Answer"), headers: headers.collect(), body }
}
