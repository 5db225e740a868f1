//! The members of a cluster, and how one of them is asked.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use lockcore::{
    BackendError,
    backend::{Moment, ServiceClock, ServiceTime, shared_runtime},
};
use reqwest::{
    Response,
    header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use crate::{
    address::Address,
    config::Settings,
    error::{Failure, Next},
    message::{Answer, Authenticated, Header, Status, path},
};

/// The header of the gateway by which a member without a leader refuses a request at once, and ends a watch.
const HAS_LEADER: &str = "grpc-metadata-hasleader";

/// The client of a cluster.
pub(crate) struct Client {
    http: reqwest::Client,
    members: Vec<Member>,
    /// The position of the member that is asked first.
    current: AtomicUsize,
    login: Option<(String, SecretString)>,
    /// Locked while one caller gets a new one.
    token: Mutex<Option<Token>>,
    /// Set if etcd asks for no user and password.
    pub(crate) is_open: AtomicBool,
    /// The identity of the cluster that answered first.
    cluster: OnceLock<String>,
    /// The highest revision that it was seen to have.
    revision: AtomicU64,
    /// Set if a member was found to be of another one, or of an earlier state.
    is_mixed: AtomicBool,
    /// For one request, whatever member answers it.
    timeout: Duration,
}

struct Member {
    /// `HOST:PORT`.
    host: String,
    url: String,
    clock: Arc<ServiceClock>,
}

/// The right to ask, for which user and password were exchanged.
#[derive(Clone, PartialEq)]
enum Token {
    Is(HeaderValue),
    /// etcd asks for none.
    IsNotNeeded,
}

impl Client {
    pub(crate) fn new(settings: &Settings, address: Address) -> Result<Self, BackendError> {
        let scheme = if address.is_tls { "https" } else { "http" };
        let members = address.members.into_iter().map(|host| {
            let url = format!("{scheme}://{host}");
            // All DAOs of this process estimate it together.
            let clock = ServiceClock::of(&format!("etcd {url}"));
            Member { host, url, clock }
        });
        Ok(Client {
            http: http(settings)?,
            members: members.collect(),
            current: AtomicUsize::new(0),
            is_open: AtomicBool::new(address.login.is_none()),
            login: address.login,
            token: Mutex::default(),
            cluster: OnceLock::new(),
            revision: AtomicU64::new(0),
            is_mixed: AtomicBool::new(false),
            timeout: settings.request_timeout(),
        })
    }

    /// Returns the time by the clock of the current member, if it told it lately: a write is dated by the member that it is sent to.
    pub(crate) fn time(&self) -> Option<ServiceTime> {
        self.members[self.current()].clock.fresh()
    }

    /// Returns the time by the clock of a member that told it when it was asked at `asked` or later.
    pub(crate) fn time_since(&self, asked: Moment) -> Option<ServiceTime> {
        self.in_turn().find_map(|position| self.members[position].clock.since(asked))
    }

    /// Returns a fence of this process.
    pub(crate) fn fence(&self, now: ServiceTime) -> u64 {
        self.members[0].clock.fence(now, 0)
    }

    /// Returns by how much the clocks of two members differ at least, in microseconds, as far as they are known.
    pub(crate) fn apart(&self, known: impl Fn(&ServiceClock) -> Option<ServiceTime>) -> u64 {
        let known: Vec<ServiceTime> = self.members.iter().filter_map(|member| known(&member.clock)).collect();
        let (highest, lowest) = (known.iter().map(|now| now.lo).max(), known.iter().map(|now| now.hi).min());
        highest.zip(lowest).map_or(0, |(highest, lowest)| highest.saturating_sub(lowest))
    }

    /// Returns the position of the member that is asked first.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Relaxed) % self.members.len()
    }

    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.current(), self.members.len());
        (first..first + count).map(move |position| position % count)
    }

    /// Has further requests begin with the next member, unless they do already.
    fn leave(&self, position: usize) {
        let next = (position + 1) % self.members.len();
        let _ = self.current.compare_exchange(position, next, Relaxed, Relaxed);
    }

    /// Sends a request to one member after another until one takes it (E1), within the time for one.
    pub(crate) async fn ask<A: Answer>(&self, path: &str, request: &Value) -> Result<A, Failure> {
        if self.is_mixed.load(Relaxed) {
            return Err(Failure::other_cluster().before_request());
        }
        let (body, deadline) = (Bytes::from(request.to_string()), Instant::now() + self.timeout);
        let least = self.revision.load(SeqCst);
        let (mut answer, mut turns) = (None, self.in_turn());
        while let Some(position) = turns.next().filter(|_| Instant::now() < deadline) {
            let asked = self.ask_member(position, path, &body, deadline).await;
            let goes_on = asked.as_ref().is_err_and(|failed| failed.next == Next::Member);
            // A fault of one member that passes is told rather than one of another that does not.
            let passes = |failed: &Failure| failed.kind.is_retryable();
            if !goes_on
                || !answer.as_ref().is_some_and(|before: &Result<_, _>| before.as_ref().is_err_and(passes))
            {
                answer = Some(asked);
            }
            if !goes_on {
                break;
            }
        }
        let answer = answer.unwrap_or_else(|| Err(Failure::timed_out("etcd").before_request()));
        self.read(&answer?, least)
    }

    /// Reads: what one member did not answer is asked of the next one. A member that is frozen accepts connections, so that a process
    /// which begins with it would never get on.
    pub(crate) async fn ask_to_read<A: Answer>(&self, path: &str, request: &Value) -> Result<A, Failure> {
        let answer = match self.ask(path, request).await {
            Err(failed) if failed.is_of_member() && self.members.len() > 1 => self.ask(path, request).await,
            answer => answer,
        };
        answer.map_err(Failure::before_request)
    }

    /// Asks each other member for its state, and does not wait for it: so its clock is known, and that it is of the same cluster,
    /// before it is asked for more (E4).
    pub(crate) fn look_at_others(self: &Arc<Self>) {
        for position in self.in_turn().skip(1) {
            let (client, deadline) = (self.clone(), Instant::now() + self.timeout);
            shared_runtime().spawn(async move {
                let answer = client.ask_member(position, path::STATUS, &"{}".into(), deadline).await;
                // One that does not answer is passed over when it is its turn.
                drop(answer.and_then(|answer| client.read::<Status>(&answer, 0)));
            });
        }
    }

    /// Reads an answer; refuses one of another cluster than the first, or of an earlier state than the revision `least`, which was known
    /// when it was asked for (E4).
    fn read<A: Answer>(&self, answer: &[u8], least: u64) -> Result<A, Failure> {
        let answer: A = serde_json::from_slice(answer).map_err(Failure::of_body)?;
        let Header { cluster_id, revision } = answer.header();
        let is_same = self.cluster.get_or_init(|| cluster_id.clone()) == cluster_id;
        if is_same && !A::IS_LINEARIZABLE {
            return Ok(answer);
        }
        if is_same && *revision >= least {
            self.revision.fetch_max(*revision, SeqCst);
            return Ok(answer);
        }
        self.is_mixed.store(true, Relaxed);
        Err(Failure::other_cluster())
    }

    /// Opens a stream of the member that is asked first; returns its position, too.
    pub(crate) async fn open(&self, path: &str, body: &Bytes) -> Result<(Response, usize), Failure> {
        let (position, deadline) = (self.current(), Instant::now() + self.timeout);
        let token = self.token(position, None, deadline).await?;
        let response = self.send(position, path, body, token.as_ref(), deadline).await;
        // A proxy before the members may pass on all but streams.
        if response.as_ref().is_err_and(Failure::is_of_all_requests) {
            self.leave(position);
        }
        Ok((response?, position))
    }

    async fn ask_member(
        &self,
        position: usize,
        path: &str,
        body: &Bytes,
        deadline: Instant,
    ) -> Result<Bytes, Failure> {
        let asked = async {
            let token = self.token(position, None, deadline).await?;
            match self.ask_with(position, path, body, token.as_ref(), deadline).await {
                Err(failed) if failed.next == Next::Token && self.login.is_some() => {
                    // Once: nothing was done so far.
                    let token = self.token(position, token, deadline).await?;
                    let answer = self.ask_with(position, path, body, token.as_ref(), deadline).await;
                    answer.map_err(Failure::after_login)
                }
                answer => answer,
            }
        };
        let answer = asked.await;
        self.judged(position, answer)
    }

    fn judged<T>(&self, position: usize, answer: Result<T, Failure>) -> Result<T, Failure> {
        if answer.as_ref().is_err_and(Failure::is_of_member) {
            self.leave(position);
        }
        answer
    }

    /// Returns the token that is known; gets one if there is none, or if it is the one that was `refused`.
    async fn token(
        &self,
        position: usize,
        refused: Option<Token>,
        deadline: Instant,
    ) -> Result<Option<Token>, Failure> {
        let Some((user, password)) = &self.login else { return Ok(None) };
        let before = |failed: Failure| failed.before_request();
        let Ok(mut token) = timeout_at(deadline, self.token.lock()).await else {
            return Err(before(Failure::timed_out(&self.members[position].host)));
        };
        if token.is_none() || *token == refused {
            let body = json!({ "name": user, "password": password.expose_secret() }).to_string().into();
            *token = match self.ask_with(position, path::AUTHENTICATE, &body, None, deadline).await {
                Ok(answer) => Some(Token::Is(authenticated(&answer).map_err(before)?)),
                Err(failed) if failed.next == Next::NoToken => Some(Token::IsNotNeeded),
                Err(failed) => return Err(before(failed)),
            };
            self.is_open.store(*token == Some(Token::IsNotNeeded), Relaxed);
        }
        Ok(token.clone())
    }

    async fn ask_with(
        &self,
        position: usize,
        path: &str,
        body: &Bytes,
        token: Option<&Token>,
        deadline: Instant,
    ) -> Result<Bytes, Failure> {
        let host = &self.members[position].host;
        let response = self.send(position, path, body, token, deadline).await?;
        match timeout_at(deadline, response.bytes()).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(error)) => Err(Failure::of_transport(host, &error)),
            Err(_) => Err(Failure::timed_out(host)),
        }
    }

    /// Sends a request to a member; returns its response if that is a good one.
    async fn send(
        &self,
        position: usize,
        path: &str,
        body: &Bytes,
        token: Option<&Token>,
        deadline: Instant,
    ) -> Result<Response, Failure> {
        let Member { host, url, clock } = &self.members[position];
        let mut request = self.http.post(format!("{url}{path}")).body(body.clone());
        if let Some(Token::Is(token)) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let sent = Moment::now();
        let response = match timeout_at(deadline, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(Failure::of_transport(host, &error)),
            Err(_) => return Err(Failure::timed_out(host)),
        };
        let received = Moment::now();
        if response.status().is_success() {
            if let Some(date) = date(response.headers()) {
                clock.sample(sent, received, date);
            }
            return Ok(response);
        }
        let status = response.status().as_u16();
        match timeout_at(deadline, response.bytes()).await {
            Ok(Ok(body)) => Err(Failure::of_response(host, status, &body)),
            _ => Err(Failure::timed_out(host)),
        }
    }
}

/// Returns when a response was made, in seconds since 1970, if the member itself says so: etcd names no server.
fn date(headers: &HeaderMap) -> Option<u64> {
    if ["age", "via", "server"].iter().any(|of_proxy| headers.contains_key(*of_proxy)) {
        return None;
    }
    let date = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

fn authenticated(answer: &[u8]) -> Result<HeaderValue, Failure> {
    let Authenticated { token } = serde_json::from_slice(answer).map_err(Failure::of_body)?;
    let mut token = HeaderValue::try_from(token).map_err(|_| Failure::no_token())?;
    token.set_sensitive(true);
    Ok(token)
}

/// Makes the client of HTTP.
fn http(settings: &Settings) -> Result<reqwest::Client, BackendError> {
    // If the program has chosen another one, that stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let headers = [(HAS_LEADER, "true"), (CONTENT_TYPE.as_str(), "application/json")];
    let headers = headers
        .map(|(name, value)| (name.parse().expect("a name of a header"), HeaderValue::from_static(value)));
    let mut builder = reqwest::Client::builder()
        .default_headers(HeaderMap::from_iter(headers))
        // A request by itself, or none: what is sent again has to be known here.
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .http1_only()
        // Of a member that cannot be reached there is time left for another one.
        .connect_timeout(settings.request_timeout() / 2)
        .tcp_keepalive(Duration::from_secs(10));
    // No error of these is shown: a key may be part of it.
    if let Some(pem) = &settings.root_certificate {
        let refused =
            || BackendError::bad_setting("root_certificate", "..", "it must have certificates in PEM");
        let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(|_| refused())?;
        if certificates.is_empty() {
            return Err(refused());
        }
        builder = builder.tls_certs_only(certificates);
    }
    if let Some((certificate, key)) = &settings.client_certificate {
        let pem = [certificate.as_slice(), b"\n", key].concat();
        let refused = |_| {
            BackendError::bad_setting(
                "client_certificate",
                "..",
                "it must be a certificate and its key in PEM",
            )
        };
        builder = builder.identity(reqwest::Identity::from_pem(&pem).map_err(refused)?);
    }
    let named = match (&settings.client_certificate, &settings.root_certificate) {
        (Some(_), _) => "client_certificate",
        (None, Some(_)) => "root_certificate",
        (None, None) => "url",
    };
    builder.build().map_err(|_| BackendError::bad_setting(named, "..", "TLS cannot be set up with it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_member_dates_tells_the_time() {
        let of = |headers: &[(&'static str, &'static str)]| {
            let headers = headers
                .iter()
                .map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)));
            date(&HeaderMap::from_iter(headers))
        };
        let dated = ("date", "Thu, 01 Jan 1970 00:01:40 GMT");
        assert_eq!(of(&[dated]), Some(100));
        assert_eq!(of(&[("date", "yesterday")]), None);
        assert_eq!(of(&[dated, ("age", "7")]), None);
        assert_eq!(of(&[dated, ("via", "1.1 proxy")]), None);
        assert_eq!(of(&[dated, ("server", "nginx")]), None);
        assert_eq!(of(&[]), None);
    }
}
