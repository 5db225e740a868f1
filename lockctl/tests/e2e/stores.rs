//! The stores that the tests run on, and what a test needs of one.

use std::{error::Error, sync::Arc};

use lockcore::Capabilities;
use lockcore_conformance::servers::{self, Kind, Server, Trial};
use tokio::runtime::Builder;

use crate::store::Store;

/// A name for the tests, the scheme that brings one here, and how to come by a place.
type Line = (&'static str, &'static str, fn() -> Found);

/// Where the tests' stores are. Every backend of this build that other processes see has at least one line here, and
/// with it all tests that need no file.
const PLACES: &[Line] = &[
    ("sqlite", "sqlite", || Ok(Place::file("sqlite:locks.db"))),
    ("dynamodb", "dynamodb", || {
        let server = server(Kind::DynamoDb)?;
        let url = "dynamodb://eu-central-1/lockctl-e2e?access_key_id=test&secret_access_key=test";
        let endpoint = server.url();
        Ok(Place::server(format!("{url}&endpoint={}", endpoint.trim_end_matches('/')), "&timeout", server))
    }),
    ("s3", "s3", || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let bucket = runtime.block_on(servers::Bucket::shared("lockctl-e2e"))?;
        let url = "s3://lockctl-e2e/locks?region=us-east-1&access_key_id=test&secret_access_key=test";
        let url = format!("{url}&endpoint={}", bucket.endpoint());
        Ok(Place::server(url, "&timeout", bucket.server().clone()))
    }),
    ("etcd", "etcd", || server(Kind::Etcd).map(|server| Place::server(server.url(), "?timeout", server))),
    ("share", "share", || Ok(Place::file("share:."))),
    ("redis", "redis", || {
        server(Kind::Redis).map(|server| Place::server(server.url(), "?response_timeout", server))
    }),
    ("postgres", "postgres", || {
        server(Kind::Postgres).map(|server| Place::server(server.url(), "?timeout", server))
    }),
    ("mysql", "mysql", || server(Kind::MySql).map(|server| Place::server(server.url(), "?timeout", server))),
    ("mariadb", "mysql", || {
        server(Kind::MariaDb).map(|server| Place::server(server.url(), "?timeout", server))
    }),
];

/// A place, or why there is none: with [`ServerError::Unavailable`](servers::ServerError::Unavailable) the tests show as
/// ignored.
type Found<T = Place> = Result<T, Box<dyn Error + Send + Sync>>;

/// Where a test's locks are.
pub(crate) struct Place {
    /// What `LOCKCORE_URL` says.
    pub(crate) url: String,
    /// Whether other tests have their locks there too, so that this one needs a namespace of its own.
    pub(crate) shared: bool,
    /// What is behind the URL, if it is no file.
    server: Option<Arc<Server>>,
}

impl Place {
    fn file(url: &str) -> Self {
        Place { url: url.to_owned(), shared: false, server: None }
    }

    /// The server's `host:port`.
    pub(crate) fn address(&self) -> Option<String> {
        self.server.as_ref().map(|server| server.address())
    }

    /// A server that all tests share. `timeout` is how a URL of the kind goes on with how long an answer may take.
    fn server(url: String, timeout: &str, server: Arc<Server>) -> Self {
        let url = format!("{url}{timeout}={}s", servers::ANSWERS.as_secs());
        Place { url, shared: true, server: Some(server) }
    }
}

/// A server of the harness.
fn server(kind: Kind) -> Found<Arc<Server>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(servers::shared(kind))?)
}

/// What a test needs of a backend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing beyond what every backend has.
    Nothing,
    /// That waiters have places in a queue, which are shown.
    Queue,
    /// That programs of two versions share a store. Cells have one format so far.
    Versions,
    /// What only DynamoDB has.
    DynamoDb,
    /// What only a bucket has.
    S3,
    /// A server of SQL, which has two forms.
    Sql,
    /// A server, which the URL names by its address.
    Server,
    /// A file of its own: the store plays no part, or the test gets at its file.
    File,
}

/// A test; [`test!`] makes one of a function.
#[derive(Clone, Copy)]
pub(crate) struct Test {
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    pub(crate) run: fn(&Store),
}

impl Needs {
    fn had_from(self, scheme: &str, capabilities: Capabilities) -> bool {
        match self {
            Needs::Nothing => true,
            Needs::Queue => capabilities.fifo,
            Needs::Versions => !["etcd", "s3", "share"].contains(&scheme),
            Needs::DynamoDb => scheme == "dynamodb",
            Needs::S3 => scheme == "s3",
            Needs::Sql => ["mysql", "postgres"].contains(&scheme),
            Needs::Server => !["share", "sqlite"].contains(&scheme),
            Needs::File => scheme == "sqlite",
        }
    }
}

/// The modules whose tests are about what happens in time: leases that processes keep, and how soon others follow.
const IN_TIME: [&str; 9] =
    ["dying", "electing", "looking", "losing", "once", "running", "signals", "tokens", "watchdog"];

/// Where the quick run has the tests: the embedded default, and a server as the witness of all that are reached over a network.
/// What a backend does is tested by the suite; the program is the same on all.
const USUAL: [&str; 2] = ["sqlite", "postgres"];

impl Test {
    fn trial(self, place: &'static str, open: fn() -> Found, capabilities: Capabilities) -> Trial {
        let module = self.module.rsplit("::").next().unwrap_or(self.module);
        let trial = Trial::ignorable_test(format!("{place}::{module}::{}", self.name), move || {
            servers::outcome(open().map(|place| (self.run)(&Store::new(place, capabilities))))
        });
        // Each starts processes by the dozen: more at once only wait for one another.
        let trial = match (module, place) {
            ("contention" | "torturing", _) => trial.at_once("contention", 1),
            (_, "dynamodb" | "s3") => trial.at_once("http", 2),
            _ => trial.at_once("processes", 6),
        };
        let trial = if IN_TIME.contains(&module) { trial.of_liveness() } else { trial };
        if USUAL.contains(&place) || matches!(self.needs, Needs::DynamoDb | Needs::S3) {
            trial
        } else {
            trial.thorough()
        }
    }
}

macro_rules! test {
    ($name:ident, $needs:ident) => {
        $crate::stores::Test {
            module: module_path!(),
            name: stringify!($name),
            needs: $crate::stores::Needs::$needs,
            run: $name,
        }
    };
}

/// Every test on every backend of this build that can carry it, named `place::module::test`.
pub(crate) fn trials(tests: &[Test]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (scheme, capabilities) in backends() {
        let places: Vec<_> = PLACES.iter().filter(|(_, of, _)| *of == scheme).collect();
        assert!(!places.is_empty(), "nowhere to test {scheme}: add a line to PLACES");
        for &&(name, _, open) in &places {
            let fitting = tests.iter().filter(|test| test.needs.had_from(scheme, capabilities));
            trials.extend(fitting.map(|&test| test.trial(name, open, capabilities)));
        }
    }
    trials
}

/// The scheme and the abilities of each backend of this build that other processes see.
fn backends() -> impl Iterator<Item = (&'static str, Capabilities)> {
    let all = lockcore_any::backends().into_iter().filter(|backend| backend.capabilities.shared_store);
    all.map(|backend| (scheme(backend.example), backend.capabilities))
}

/// The schemes of this build, as messages list them.
pub(crate) fn schemes() -> String {
    let all: Vec<_> = lockcore_any::backends().iter().map(|backend| scheme(backend.example)).collect();
    all.join(", ")
}

fn scheme(url: &'static str) -> &'static str {
    url.split_once(':').map_or(url, |(scheme, _)| scheme)
}
