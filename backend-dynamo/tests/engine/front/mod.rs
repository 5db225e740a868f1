//! An HTTP front between the DAO and an engine: counts requests by operation, delays and forges answers, loses them.

pub(crate) mod rig;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use lockcore_conformance::servers::http::Message;
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::AbortHandle,
};

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It does not reach the engine; the answer has this status and code.
    Refuse(u16, &'static str),
    /// It is done by the engine; the answer has this status and code all the same.
    DoAndRefuse(u16, &'static str),
    /// It does not reach the engine; a proxy whose clock is so many seconds ahead answers with this status, and without
    /// the service's request id.
    Proxy(u16, i64),
    /// It does not reach the engine, and is never answered.
    Swallow,
    /// It is done by the engine, and never answered.
    LoseAnswer,
    /// It is done by the engine, and this answered only once the gate is notified.
    DoAndWait(Arc<Notify>, u16, &'static str),
    /// A transaction is cancelled, for this reason of its first item and none of the others.
    Cancel(&'static str),
    /// A batch of reads is left unprocessed.
    Unprocessed,
    /// The engine's description of a table has these fields besides.
    Described(serde_json::Value),
    /// It reaches the engine once this is notified.
    Wait(Arc<Notify>),
    /// Nothing: this one is only counted off.
    Pass,
}

/// The front; dropping it closes it.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

struct State {
    engine: String,
    faults: Mutex<Vec<(&'static str, Fault, usize)>>,
    counts: Mutex<BTreeMap<String, usize>>,
    signers: Mutex<BTreeSet<String>>,
    delay: Mutex<Duration>,
    date_shift: AtomicI64,
    checks_signatures: AtomicBool,
}

impl Front {
    /// Before the engine at `host:port`.
    pub(crate) async fn before(engine: String) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            engine,
            faults: Mutex::default(),
            counts: Mutex::default(),
            signers: Mutex::default(),
            delay: Mutex::default(),
            date_shift: AtomicI64::new(0),
            checks_signatures: AtomicBool::new(false),
        });
        let served = state.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let served = served.clone();
                connections.spawn(async move { drop(serve(client, &served).await) });
            }
        });
        Ok(Front { address, state, task: task.abort_handle() })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next `times` requests of this operation meet this fault; later calls wait for earlier ones.
    pub(crate) fn next(&self, operation: &'static str, fault: Fault, times: usize) {
        self.state.faults.lock().expect("no test panics inside").push((operation, fault, times));
    }

    /// Returns whether all faults were made.
    pub(crate) fn is_over(&self) -> bool {
        self.state.faults.lock().expect("no test panics inside").iter().all(|(.., times)| *times == 0)
    }

    /// No more faults.
    pub(crate) fn lift(&self) {
        self.state.faults.lock().expect("no test panics inside").clear();
    }

    /// How many requests came since the last call, by operation.
    pub(crate) fn counted(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.state.counts.lock().expect("no test panics inside"))
    }

    /// Whose requests came since the last call: the id of the key, and the session's token if there was one.
    pub(crate) fn signed_by(&self) -> Vec<String> {
        let signers = std::mem::take(&mut *self.state.signers.lock().expect("no test panics inside"));
        signers.into_iter().collect()
    }

    /// Every request, and every answer, takes so much longer.
    pub(crate) fn delay(&self, delay: Duration) {
        *self.state.delay.lock().expect("no test panics inside") = delay;
    }

    /// The service's clock, as far as answers tell it and signatures are compared with it, is so many seconds ahead.
    pub(crate) fn shift_date(&self, seconds: i64) {
        self.state.date_shift.store(seconds, SeqCst);
    }

    /// Refuses what is signed at another time than the service's, as the real one does.
    pub(crate) fn check_signatures(&self) {
        self.state.checks_signatures.store(true, SeqCst);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, state: &State) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = BufReader::new(client);
    let mut engine = None;
    loop {
        let request = Message::read(&mut client, true).await?;
        let target = request.header("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
        *state.counts.lock().expect("no test panics inside").entry(operation.clone()).or_default() += 1;
        let signer = signer(&request);
        state.signers.lock().expect("no test panics inside").insert(signer);
        let delay = *state.delay.lock().expect("no test panics inside");
        tokio::time::sleep(delay).await;
        let mut ahead = 0;
        let answer = match fault(state, &operation) {
            _ if state.checks_signatures.load(SeqCst) && !is_signed_now(&request, state) => {
                forged(400, "InvalidSignatureException", "")
            }
            None | Some(Fault::Pass) => ask(state, &mut engine, &request).await?,
            Some(Fault::Refuse(status, code)) => forged(status, code, ""),
            Some(Fault::DoAndRefuse(status, code)) => {
                ask(state, &mut engine, &request).await?;
                forged(status, code, "")
            }
            Some(Fault::Proxy(status, seconds)) => {
                ahead = seconds;
                by_a_proxy(status)
            }
            Some(Fault::Swallow) => std::future::pending().await,
            Some(Fault::LoseAnswer) => {
                ask(state, &mut engine, &request).await?;
                std::future::pending().await
            }
            Some(Fault::DoAndWait(gate, status, code)) => {
                ask(state, &mut engine, &request).await?;
                gate.notified().await;
                forged(status, code, "")
            }
            Some(Fault::Cancel(reason)) => cancelled(reason, &request),
            Some(Fault::Unprocessed) => unprocessed(&request),
            Some(Fault::Described(more)) => described(ask(state, &mut engine, &request).await?, more),
            Some(Fault::Wait(gate)) => {
                gate.notified().await;
                ask(state, &mut engine, &request).await?
            }
        };
        tokio::time::sleep(delay).await;
        write(&mut client, answer, state.now() + ahead).await?;
    }
}

fn fault(state: &State, operation: &str) -> Option<Fault> {
    let mut faults = state.faults.lock().expect("no test panics inside");
    let (_, fault, times) = faults.iter_mut().find(|(of, _, times)| *of == operation && *times > 0)?;
    *times -= 1;
    Some(fault.clone())
}

/// Passes a request on and gives the engine's answer.
async fn ask(
    state: &State,
    engine: &mut Option<BufReader<TcpStream>>,
    request: &Message,
) -> io::Result<Message> {
    // One that was idle may be closed by now.
    if let Some(stream) = engine
        && let Ok(answer) = exchange(stream, request).await
    {
        return Ok(answer);
    }
    let stream = TcpStream::connect(&state.engine).await?;
    stream.set_nodelay(true)?;
    exchange(engine.insert(BufReader::new(stream)), request).await
}

async fn exchange(stream: &mut BufReader<TcpStream>, request: &Message) -> io::Result<Message> {
    request.write(stream).await?;
    Message::read(stream, true).await
}

async fn write(client: &mut BufReader<TcpStream>, mut answer: Message, now: i64) -> io::Result<()> {
    let date = DateTime::from_secs(now).fmt(DateTimeFormat::HttpDate).map_err(io::Error::other)?;
    answer.as_response(date);
    answer.write(client).await
}

impl State {
    /// The service's time, as this front has it.
    fn now(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        now + self.date_shift.load(SeqCst)
    }
}

/// Within five minutes, as the real service wants it.
fn is_signed_now(request: &Message, state: &State) -> bool {
    let signed = request.header("x-amz-date").and_then(|date| {
        let at = |from, to| date.get(from..to);
        let (day, time) = ((at(0, 4)?, at(4, 6)?, at(6, 8)?), (at(9, 11)?, at(11, 13)?, at(13, 15)?));
        let text = format!("{}-{}-{}T{}:{}:{}Z", day.0, day.1, day.2, time.0, time.1, time.2);
        DateTime::from_str(&text, DateTimeFormat::DateTime).ok()
    });
    signed.is_some_and(|signed| (signed.secs() - state.now()).abs() <= 300)
}

fn signer(request: &Message) -> String {
    let credential = request.header("authorization").and_then(|header| header.split_once("Credential="));
    let key = credential.and_then(|(_, rest)| rest.split('/').next()).unwrap_or("nobody");
    match request.header("x-amz-security-token") {
        Some(token) => format!("{key} with {token}"),
        None => key.to_owned(),
    }
}

fn forged(status: u16, code: &str, more: &str) -> Message {
    let body = format!(
        r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"injected","Message":"injected"{more}}}"#
    );
    Message {
        first: format!("HTTP/1.1 {status} Injected"),
        headers: vec![
            ("content-type".to_owned(), "application/x-amz-json-1.0".to_owned()),
            ("x-amzn-requestid".to_owned(), "INJECTED".to_owned()),
        ],
        body: body.into_bytes(),
    }
}

fn by_a_proxy(status: u16) -> Message {
    Message {
        first: format!("HTTP/1.1 {status} Bad Gateway"),
        headers: vec![("content-type".to_owned(), "text/html".to_owned())],
        body: b"<html>no upstream</html>".to_vec(),
    }
}

fn cancelled(reason: &str, request: &Message) -> Message {
    let items = String::from_utf8_lossy(&request.body).matches("\"ConditionExpression\"").count().max(1);
    let mut reasons = vec![format!(r#"{{"Code":"{reason}","Message":"injected"}}"#)];
    reasons.resize(items, r#"{"Code":"None"}"#.to_owned());
    let more = format!(r#","CancellationReasons":[{}]"#, reasons.join(","));
    forged(400, "TransactionCanceledException", &more)
}

fn unprocessed(request: &Message) -> Message {
    let asked: serde_json::Value = serde_json::from_slice(&request.body).expect("the SDK sends JSON");
    let body = serde_json::json!({ "Responses": {}, "UnprocessedKeys": asked["RequestItems"] });
    Message {
        first: "HTTP/1.1 200 OK".to_owned(),
        body: body.to_string().into_bytes(),
        ..forged(200, "", "")
    }
}

fn described(answer: Message, more: serde_json::Value) -> Message {
    let mut body: serde_json::Value = serde_json::from_slice(&answer.body).expect("the engine sends JSON");
    for (name, value) in more.as_object().expect("an object") {
        body["Table"][name] = value.clone();
    }
    Message { body: body.to_string().into_bytes(), ..answer }
}
