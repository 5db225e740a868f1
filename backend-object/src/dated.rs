//! The HTTP client below `object_store`: notes of each response its date, its status, and what it says of the bucket's rules.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::UNIX_EPOCH,
};

use async_trait::async_trait;
use lockcore::backend::{Moment, ServiceClock};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    },
};

use crate::seen::{Rules, Seen};

/// The headers by which a response shows that it is the service's own, and not of a proxy before it.
const REQUEST_IDS: &[&str] =
    &["x-amz-request-id", "x-amzn-requestid", "x-guploader-uploadid", "x-ms-request-id"];

/// R2 documents no such header. Each response of Cloudflare's network has this one: from R2's own hosts, which no one else answers
/// for, it is R2's; from others it is a proxy's.
const REQUEST_IDS_OF_R2: &[&str] = &["cf-ray"];

/// The headers of an object whose versions are kept. Google's service numbers every object, kept or not.
const VERSION: [&str; 2] = ["x-amz-version-id", "x-ms-version-id"];

/// The headers of an object that a lifecycle rule deletes.
const EXPIRY: [&str; 2] = ["x-amz-expiration", "x-ms-expiry-time"];

/// The headers of an object that cannot be replaced or deleted for some time.
const RETENTION: [&str; 2] = ["x-amz-object-lock-mode", "x-ms-immutability-policy-mode"];

/// Returns whether a host is one of Cloudflare's R2.
pub(crate) fn is_r2(host: &str) -> bool {
    host.ends_with(".r2.cloudflarestorage.com")
}

/// Makes clients that note what they see.
#[derive(Clone, Debug)]
pub(crate) struct Dated {
    pub(crate) clock: Arc<ServiceClock>,
    pub(crate) rules: Arc<Rules>,
}

struct Client {
    inner: HttpClient,
    notes: Dated,
}

impl HttpConnector for Dated {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Client { inner, notes: self.clone() }))
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let seen = request.extensions().get::<Seen>().cloned().unwrap_or_default();
        let ids = if request.uri().host().is_some_and(is_r2) { REQUEST_IDS_OF_R2 } else { REQUEST_IDS };
        let sent = Moment::now();
        let response = self.inner.execute(request).await;
        match &response {
            Ok(response) => {
                seen.answered(response.status().as_u16());
                let headers = response.headers();
                let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
                if let Some(region) = text("x-amz-bucket-region") {
                    seen.in_region(region);
                }
                // Azure answers so to a write on condition that there is no object, and not with 412.
                if text("x-ms-error-code") == Some("BlobAlreadyExists") {
                    seen.is_there();
                }
                let has = |names: &[&str]| names.iter().any(|name| headers.contains_key(*name));
                let own = ServiceClock::is_dated_by_service(ids, |name| headers.contains_key(name));
                self.notes.rules.keep.fetch_or(has(&VERSION), Relaxed);
                self.notes.rules.expire.fetch_or(has(&EXPIRY), Relaxed);
                self.notes.rules.retain.fetch_or(has(&RETENTION), Relaxed);
                let date = text("date").and_then(|date| httpdate::parse_http_date(date).ok());
                if let (true, Some(Ok(since))) = (own, date.map(|date| date.duration_since(UNIX_EPOCH))) {
                    self.notes.clock.sample(sent, Moment::now(), since.as_secs());
                }
            }
            Err(error) if error.kind() == HttpErrorKind::Connect => seen.not_sent(),
            Err(_) => {}
        }
        response
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
