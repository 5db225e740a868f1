//! DynamoDB in memory as a process sees it: an HTTP client of the SDK, whose requests travel to the service and back. `service` is what
//! the service answers, `expression` what conditions and updates mean.

mod expression;
mod service;

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use aws_smithy_runtime_api::{
    client::{
        http::{HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector},
        orchestrator::{HttpRequest, HttpResponse},
        result::ConnectorError,
        runtime_components::RuntimeComponents,
    },
    http::StatusCode,
};
use aws_smithy_types::{DateTime, body::SdkBody, date_time::Format};
use fastrand::Rng;
use lockcore::{BackendError, BackendErrorKind};
use lockcore_dynamo::DynamoLockDao;
use serde_json::{Value, json};

use crate::{
    dynamo::expression::Item,
    faults::Kind,
    net::{Net, START},
    plan::Plan,
};

/// The name of the table.
const TABLE: &str = "locks";

/// A table and what the service knows beside it.
pub(crate) struct Table {
    items: BTreeMap<String, Stored>,
    versions: u64,
    /// The transactions by their token, and how they ended.
    transactions: BTreeMap<String, (Value, Outcome)>,
    /// Whether the outcome of a transaction that was cancelled is remembered too: the service promises it of none but those done.
    remembers_all: bool,
    /// The most that the clock of a host of the service is off, in microseconds.
    off: u64,
    /// Whether expired items are collected.
    collects: bool,
    /// How far the clock was set in all, and when that was last.
    stepped: (u64, u64),
}

#[derive(Clone)]
struct Stored {
    item: Item,
    version: u64,
    /// By the clock of the run.
    written: u64,
    in_transaction: bool,
    /// What was there before.
    before: Option<Item>,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    operation: String,
    body: Value,
}

/// What the service answers, or how it refuses: status and body.
type Outcome = Result<Value, (u16, Value)>;

#[derive(Debug)]
pub(crate) struct Reply {
    outcome: Outcome,
    /// Set if something was written, though the outcome may not say so.
    is_done: bool,
    /// In seconds.
    date: u64,
}

impl Table {
    /// The service of a run, and the way to it.
    pub(crate) fn net(plan: &Plan) -> Net<Table> {
        let mut rng = Rng::with_seed(plan.seed ^ 0xd1a0);
        let off = *rng.choice(&[0, 1_000, 50_000]).unwrap_or(&0);
        let table = Table {
            items: BTreeMap::new(),
            versions: 0,
            transactions: BTreeMap::new(),
            remembers_all: rng.bool(),
            off,
            collects: plan.kinds.contains(&Kind::Collect),
            stepped: (START, 0),
        };
        Net::new(plan, rng, table)
    }
}

/// Opens the DAO of a process.
pub(crate) async fn open(
    net: Arc<Net<Table>>,
    process: u32,
    strict_fence: bool,
) -> Result<Arc<DynamoLockDao<String, u64>>, BackendError> {
    let service = SimulatedService { net, process };
    let dao = DynamoLockDao::builder().table(TABLE).region("simulated").credentials("id", "secret", None);
    let time = UNIX_EPOCH + Duration::from_micros(START);
    dao.strict_fence(strict_fence).own_clock().simulated(service, time).open().await.map(Arc::new)
}

/// The service as one process sees it.
#[derive(Clone, Debug)]
struct SimulatedService {
    net: Arc<Net<Table>>,
    process: u32,
}

impl HttpClient for SimulatedService {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for SimulatedService {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let SimulatedService { net, process } = self.clone();
        let target = request.headers().get("x-amz-target").expect("a request names its operation");
        let operation = target.trim_start_matches("DynamoDB_20120810.").to_owned();
        let body = request.body().bytes().expect("the body is in memory");
        let body = serde_json::from_slice(body).expect("the body is JSON");
        HttpConnectorFuture::new(async move {
            let refused = |error| Reply {
                outcome: refusal(400, error),
                is_done: false,
                date: net.state().date(process),
            };
            let reply = match net.ask(process, Request { operation, body }).await {
                Ok(reply) => reply,
                Err(error) => match error.kind() {
                    BackendErrorKind::Busy => refused("ThrottlingException"),
                    BackendErrorKind::Denied => refused("AccessDeniedException"),
                    _ => {
                        let kind = match error.in_doubt() {
                            true => io::ErrorKind::ConnectionReset,
                            false => io::ErrorKind::ConnectionRefused,
                        };
                        return Err(ConnectorError::io(io::Error::from(kind).into()));
                    }
                },
            };
            Ok(response(reply))
        })
    }
}

/// The outcome of a request that the service refuses.
fn refusal(status: u16, error: &str) -> Outcome {
    let name = format!("com.amazonaws.dynamodb.v20120810#{error}");
    Err((status, json!({ "__type": name, "message": "simulated" })))
}

fn response(reply: Reply) -> HttpResponse {
    let (status, body) = match reply.outcome {
        Ok(body) => (200, body),
        Err(refused) => refused,
    };
    let status = StatusCode::try_from(status).expect("a status has three digits");
    let date = i64::try_from(reply.date).map(DateTime::from_secs).expect("it is not so late");
    let date = date.fmt(Format::HttpDate).expect("the year has four digits");
    let mut response = HttpResponse::new(status, SdkBody::from(body.to_string()));
    response.headers_mut().insert("date", date);
    response.headers_mut().insert("x-amzn-requestid", "simulated");
    response
}
