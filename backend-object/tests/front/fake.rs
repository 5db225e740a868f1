//! Services of objects that answer as their documents say, each in its dialect: what emulators cannot show of them.
//!
//! - S3: [conditional writes](https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html),
//!   [rights of a GetObject](https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html)
//! - Google: [request preconditions](https://cloud.google.com/storage/docs/request-preconditions),
//!   [limits](https://cloud.google.com/storage/quotas)
//! - Azure: [Put Blob](https://learn.microsoft.com/en-us/rest/api/storageservices/put-blob),
//!   [error codes](https://learn.microsoft.com/en-us/rest/api/storageservices/blob-service-error-codes)
//! - R2: [error codes](https://developers.cloudflare.com/r2/api/error-codes/), [limits](https://developers.cloudflare.com/r2/platform/limits/)

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    ops::Bound,
    time::{Duration, Instant, SystemTime},
};

use lockcore_conformance::servers::http::Message;
use percent_encoding::percent_decode_str;

use super::policy::Policy;
use crate::place::BUCKET;

/// The most names in a page. Services have a thousand or more, and may return fewer.
const PAGE: usize = 20;

/// Google's store and R2 take one write of an object in this time.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// A service, by how it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    S3,
    Gcs,
    Azure,
    R2,
}

/// A service with one bucket.
pub(crate) struct Fake {
    dialect: Dialect,
    objects: BTreeMap<String, Object>,
    versions: u64,
    /// Set if writes of an object are limited in their rate, as documents say.
    pub(crate) is_limited: bool,
    /// The number of writes that were refused for their rate.
    pub(crate) throttled: usize,
    /// The rights of the client; all, without one.
    pub(crate) policy: Option<Policy>,
}

struct Object {
    content: Vec<u8>,
    /// Google's generation, and what Azure's tag is made of.
    version: u64,
    modified: SystemTime,
    written: Instant,
}

/// A request, in parts.
struct Asked {
    method: String,
    bucket: String,
    key: String,
    query: HashMap<String, String>,
}

impl Asked {
    fn of(request: &Message) -> Self {
        let mut words = request.first.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        // A client of a proxy names the host as well.
        let target = match target.split_once("://") {
            Some((_, rest)) => rest.find('/').map_or("/", |path| &rest[path..]),
            None => target,
        };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (bucket, key) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Asked {
            method: method.to_owned(),
            bucket: decoded(bucket),
            key: decoded(key.trim_end_matches('/')),
            query: pairs.map(|(key, value)| (decoded(key), decoded(&value.replace('+', " ")))).collect(),
        }
    }
}

impl Fake {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Fake { dialect, objects: BTreeMap::new(), versions: 0, is_limited: false, throttled: 0, policy: None }
    }

    /// The names of all objects.
    pub(crate) fn names(&self) -> Vec<String> {
        self.objects.keys().cloned().collect()
    }

    pub(crate) fn answer(&mut self, request: &Message, now: SystemTime) -> Message {
        let asked = Asked::of(request);
        let mut response = match (asked.method.as_str(), asked.key.as_str()) {
            _ if asked.bucket != BUCKET => match self.dialect {
                Dialect::Azure => self.refusal(404, "ContainerNotFound"),
                _ => self.refusal(404, "NoSuchBucket"),
            },
            ("GET", "") if !self.allows("s3:ListBucket", "", asked.query.get("prefix")) => {
                self.refusal(403, "AccessDenied")
            }
            ("GET", "") => self.list(&asked.query),
            ("POST", "") if self.dialect == Dialect::Azure => self.delete_batch(request),
            ("POST", "") => self.delete_all(request),
            ("PUT", key) => self.put(key, request, now),
            ("GET" | "HEAD", key) => self.get(key, request),
            ("DELETE", key) => match self.objects.remove(key) {
                Some(_) => response(204, &[], ""),
                None if self.dialect == Dialect::Gcs => self.refusal(404, "NoSuchKey"),
                None => response(204, &[], ""),
            },
            _ => self.refusal(405, "MethodNotAllowed"),
        };
        let id = format!("{:016X}", fastrand::u64(..));
        let ids: &[(&str, &str)] = match self.dialect {
            Dialect::S3 => &[("x-amz-request-id", &id), ("x-amz-id-2", "host"), ("server", "AmazonS3")],
            Dialect::Gcs => &[("x-guploader-uploadid", &id), ("server", "UploadServer")],
            Dialect::Azure => &[
                ("x-ms-request-id", &id),
                ("x-ms-version", "2023-11-03"),
                ("server", "Windows-Azure-Blob/1.0"),
            ],
            Dialect::R2 => &[("cf-ray", &id), ("server", "cloudflare")],
        };
        response.headers.extend(ids.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        response
    }

    fn allows(&self, action: &str, key: &str, prefix: Option<&String>) -> bool {
        let allowed = |policy: &Policy| policy.allows(action, BUCKET, key, prefix.map(String::as_str));
        self.policy.as_ref().is_none_or(allowed)
    }

    fn put(&mut self, key: &str, request: &Message, now: SystemTime) -> Message {
        if !self.allows("s3:PutObject", key, None) {
            return self.refusal(403, "AccessDenied");
        }
        let found = self.objects.get(key);
        if self.is_limited && found.is_some_and(|found| found.written.elapsed() < BETWEEN_WRITES) {
            self.throttled += 1;
            return match self.dialect {
                Dialect::R2 => self.refusal(429, "TooManyRequests"),
                _ => self.refusal(429, "SlowDown"),
            };
        }
        let holds = match self.dialect {
            Dialect::Gcs => {
                let generation = found.map_or(0, |found| found.version);
                request.header("x-goog-if-generation-match").is_none_or(|at| at == generation.to_string())
            }
            _ => {
                let is_new = request.header("if-none-match") != Some("*") || found.is_none();
                let tag = found.map(|found| self.tag(found));
                is_new && request.header("if-match").is_none_or(|at| Some(at) == tag.as_deref())
            }
        };
        if !holds {
            let creates = request.header("if-none-match").is_some();
            return match (self.dialect, found) {
                (Dialect::S3, None) => self.refusal(404, "NoSuchKey"),
                (Dialect::Azure, _) if creates => self.refusal(409, "BlobAlreadyExists"),
                (Dialect::Azure, _) => self.refusal(412, "ConditionNotMet"),
                _ => self.refusal(412, "PreconditionFailed"),
            };
        }
        self.versions += 1;
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // A generation is a time in microseconds, and another for each write.
        let version = since.as_micros() as u64 + self.versions;
        let content = request.body.clone();
        let object = Object { content, version, modified: now, written: Instant::now() };
        let status = if self.dialect == Dialect::Azure { 201 } else { 200 };
        let written = response(status, &self.headers(&object), "");
        self.objects.insert(key.to_owned(), object);
        written
    }

    fn get(&self, key: &str, request: &Message) -> Message {
        if !self.allows("s3:GetObject", key, None) {
            return self.refusal(403, "AccessDenied");
        }
        match self.objects.get(key) {
            // Who may not list learns nothing of what is missing.
            None if !self.allows("s3:ListBucket", "", None) => self.refusal(403, "AccessDenied"),
            None if self.dialect == Dialect::Azure => self.refusal(404, "BlobNotFound"),
            None => self.refusal(404, "NoSuchKey"),
            Some(found) if request.header("if-none-match") == Some(&self.tag(found)) => {
                response(304, &self.headers(found), "")
            }
            Some(found) => {
                let mut response = response(200, &self.headers(found), "");
                response.body =
                    if request.first.starts_with("HEAD") { Vec::new() } else { found.content.clone() };
                response
            }
        }
    }

    fn headers(&self, object: &Object) -> Vec<(&'static str, String)> {
        let mut headers = vec![("etag", self.tag(object))];
        headers.push(("last-modified", httpdate::fmt_http_date(object.modified)));
        if self.dialect == Dialect::Gcs {
            headers.push(("x-goog-generation", object.version.to_string()));
            headers.push(("x-goog-metageneration", "1".to_owned()));
        }
        headers
    }

    /// The tag: of the content, as its MD5 is, or of the write.
    fn tag(&self, object: &Object) -> String {
        if self.dialect == Dialect::Azure {
            return format!("\"0x{:X}\"", object.version);
        }
        let mut hasher = DefaultHasher::new();
        object.content.hash(&mut hasher);
        format!("\"{:032x}\"", hasher.finish())
    }

    fn list(&self, query: &HashMap<String, String>) -> Message {
        let empty = String::new();
        let prefix = query.get("prefix").unwrap_or(&empty);
        let token = query.get("continuation-token").or(query.get("marker"));
        let from = match (token.or(query.get("start-after")), query.get("startFrom")) {
            (Some(after), _) => Bound::Excluded(after.as_str()),
            (None, Some(from)) => Bound::Included(from.as_str()),
            (None, None) => Bound::Unbounded,
        };
        let of_prefix = self.objects.range::<str, _>((from, Bound::Unbounded));
        let mut of_prefix = of_prefix.filter(|(key, _)| key.starts_with(prefix.as_str())).peekable();
        let (mut entries, mut last) = (String::new(), String::new());
        for (key, object) in of_prefix.by_ref().take(PAGE) {
            let (tag, size) = (self.tag(object), object.content.len());
            entries += &match self.dialect {
                Dialect::Azure => format!(
                    "<Blob><Name>{key}</Name><Properties><Last-Modified>{}</Last-Modified><Etag>{tag}</Etag>\
                     <Content-Length>{size}</Content-Length><Content-Type>text/plain</Content-Type></Properties></Blob>",
                    httpdate::fmt_http_date(object.modified)
                ),
                _ => format!(
                    "<Contents><Key>{key}</Key><LastModified>{}</LastModified><ETag>{tag}</ETag><Size>{size}</Size></Contents>",
                    humantime::format_rfc3339_seconds(object.modified)
                ),
            };
            last.clone_from(key);
        }
        let more = of_prefix.peek().is_some();
        let next = if more { last } else { String::new() };
        let xml = match self.dialect {
            Dialect::Azure => {
                format!(
                    "<EnumerationResults><Blobs>{entries}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>"
                )
            }
            _ if more => format!(
                "<ListBucketResult>{entries}<IsTruncated>true</IsTruncated>\
                 <NextContinuationToken>{next}</NextContinuationToken></ListBucketResult>"
            ),
            _ => format!("<ListBucketResult>{entries}<IsTruncated>false</IsTruncated></ListBucketResult>"),
        };
        response(200, &[("content-type", "application/xml".to_owned())], &xml)
    }

    fn delete_all(&mut self, request: &Message) -> Message {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let keys = body.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
        let results = keys.map(|key| match self.allows("s3:DeleteObject", key, None) {
            true => {
                self.objects.remove(key);
                format!("<Deleted><Key>{key}</Key></Deleted>")
            }
            false => format!("<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>"),
        });
        let results: String = results.collect();
        let xml = format!("<DeleteResult>{results}</DeleteResult>");
        response(200, &[("content-type", "application/xml".to_owned())], &xml)
    }

    fn delete_batch(&mut self, request: &Message) -> Message {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let deleted = body.lines().filter(|line| line.starts_with("DELETE "));
        let mut parts = String::new();
        for (id, line) in deleted.enumerate() {
            let request = Message { first: line.to_owned(), headers: Vec::new(), body: Vec::new() };
            let removed = self.objects.remove(&Asked::of(&request).key).is_some();
            let status = if removed { "202 Accepted" } else { "404 The specified blob does not exist." };
            parts += &format!(
                "--part\r\nContent-Type: application/http\r\nContent-ID: {id}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n"
            );
        }
        let of_parts = "multipart/mixed; boundary=part".to_owned();
        response(202, &[("content-type", of_parts)], &format!("{parts}--part--\r\n"))
    }

    fn refusal(&self, status: u16, code: &str) -> Message {
        let mut refused = super::refusal(status, code, code);
        refused.headers.retain(|(name, _)| name != "x-amz-request-id");
        if self.dialect == Dialect::Azure {
            refused.set("x-ms-error-code", code);
        }
        refused
    }
}

fn response(status: u16, headers: &[(&str, String)], body: &str) -> Message {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    let first = format!("HTTP/1.1 {status} Answer");
    Message { first, headers: headers.collect(), body: body.as_bytes().to_vec() }
}
