//! An HTTP server between the DAO and an emulator, or a service that is made up here: holds requests back, loses responses, and
//! forges them.

mod fake;
mod policy;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use lockcore_conformance::servers::http::Message;
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::AbortHandle,
};

pub(crate) use self::{
    fake::{Dialect, Fake},
    policy::Policy,
};

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It does not reach the store; the response has this status.
    Refuse(u16),
    /// The same, with a code of the service.
    RefuseAs(u16, &'static str),
    /// It is done; the response has this status all the same.
    DoAndRefuse(u16),
    /// It is done, and the connection closed.
    LoseResponse,
    /// It reaches the store once this is notified.
    Hold(Arc<Notify>),
}

/// The front; dropping it closes it.
pub(crate) struct Front {
    address: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

/// The store behind it.
enum Behind {
    Server(String),
    Fake(Mutex<Fake>),
}

struct State {
    behind: Behind,
    /// A part of the first line of the request, and what happens to the next that has it.
    faults: Mutex<Vec<(String, Fault)>>,
    ahead: AtomicI64,
    is_proxy: AtomicBool,
    drops_conditions: AtomicBool,
    weakens_tags: AtomicBool,
    /// Headers of all responses.
    added: Mutex<Vec<(String, String)>>,
    refusals: Mutex<Vec<Refusal>>,
}

/// What a bucket's settings refuse: a request and the status of its response by the store, if it was asked already.
type Refusal = Box<dyn Fn(&Message, Option<u16>) -> Option<Message> + Send>;

impl Front {
    /// Before the store at `host:port`.
    pub(crate) async fn before(store: &str) -> io::Result<Self> {
        Self::start(Behind::Server(store.trim_start_matches("http://").to_owned())).await
    }

    /// Before an empty service that answers in this dialect.
    pub(crate) async fn of(dialect: Dialect) -> io::Result<Self> {
        Self::start(Behind::Fake(Mutex::new(Fake::new(dialect)))).await
    }

    async fn start(behind: Behind) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            behind,
            faults: Mutex::default(),
            ahead: AtomicI64::default(),
            is_proxy: AtomicBool::default(),
            drops_conditions: AtomicBool::default(),
            weakens_tags: AtomicBool::default(),
            added: Mutex::default(),
            refusals: Mutex::default(),
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

    /// Sets, or asks, the service that is made up.
    pub(crate) fn fake<T>(&self, change: impl FnOnce(&mut Fake) -> T) -> T {
        let Behind::Fake(fake) = &self.state.behind else { panic!("the store is another server") };
        change(&mut fake.lock().expect("no panic inside"))
    }

    pub(crate) fn url(&self) -> Arc<str> {
        format!("http://{}", self.address).into()
    }

    /// The next request with this in its first line, such as `PUT` or `/table`, meets this fault; later calls wait for earlier
    /// ones.
    pub(crate) fn next(&self, of: &str, fault: Fault) {
        self.state.faults.lock().expect("no test panics inside").push((of.to_owned(), fault));
    }

    /// Whether all faults were met.
    pub(crate) fn is_over(&self) -> bool {
        self.state.faults.lock().expect("no test panics inside").is_empty()
    }

    /// The service's clock, as far as responses tell it, is so many seconds ahead.
    pub(crate) fn shift_date(&self, seconds: i64) {
        self.state.ahead.store(seconds, SeqCst);
    }

    /// The service's clock steps by so many seconds.
    pub(crate) fn step_date(&self, seconds: i64) {
        self.state.ahead.fetch_add(seconds, SeqCst);
    }

    /// The responses have no id of the service, as those of a proxy.
    pub(crate) fn is_proxy(&self) {
        self.state.is_proxy.store(true, SeqCst);
    }

    /// Reads get weak entity tags, as by a proxy that compresses.
    pub(crate) fn weaken_tags(&self) {
        self.state.weakens_tags.store(true, SeqCst);
    }

    /// All responses have this header.
    pub(crate) fn add_header(&self, name: &str, value: &str) {
        self.state.added.lock().expect("no test panics inside").push((name.to_owned(), value.to_owned()));
    }

    /// Requests are refused as the settings of a bucket would: by the request before the store is asked, and by its status
    /// afterwards.
    pub(crate) fn refuse(&self, refusal: impl Fn(&Message, Option<u16>) -> Option<Message> + Send + 'static) {
        self.state.refusals.lock().expect("no test panics inside").push(Box::new(refusal));
    }

    /// Writes lose their conditions.
    pub(crate) fn drop_conditions(&self) {
        self.state.drops_conditions.store(true, SeqCst);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    /// The service's time.
    fn now(&self) -> SystemTime {
        let ahead = self.ahead.load(SeqCst);
        let (now, shift) = (SystemTime::now(), Duration::from_secs(ahead.unsigned_abs()));
        if ahead < 0 { now - shift } else { now + shift }
    }
}

async fn serve(client: TcpStream, state: &State) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = BufReader::new(client);
    loop {
        let mut request = Message::read(&mut client, true).await?;
        if state.drops_conditions.load(SeqCst) {
            request.headers.retain(|(name, _)| name != "if-match" && name != "if-none-match");
        }
        let fault = {
            let mut faults = state.faults.lock().expect("no test panics inside");
            let at = faults.iter().position(|(of, _)| request.first.contains(of.as_str()));
            at.map(|at| faults.remove(at).1)
        };
        let weakens = state.weakens_tags.load(SeqCst) && request.first.starts_with("GET");
        let mut response = match fault {
            None => ask(state, request).await?,
            Some(Fault::Refuse(status)) => forged(status),
            Some(Fault::RefuseAs(status, code)) => refusal(status, code, code),
            Some(Fault::DoAndRefuse(status)) => {
                ask(state, request).await?;
                forged(status)
            }
            Some(Fault::LoseResponse) => {
                ask(state, request).await?;
                return Ok(());
            }
            Some(Fault::Hold(gate)) => {
                // It is on its way, whatever becomes of the client.
                gate.notified().await;
                ask(state, request).await?
            }
        };
        if let Some(tag) = response.header("etag").filter(|_| weakens).map(|tag| format!("W/{tag}")) {
            response.set("etag", tag);
        }
        changed(response, state).write(&mut client).await?;
    }
}

fn refused(state: &State, request: &Message, status: Option<u16>) -> Option<Message> {
    let refusals = state.refusals.lock().expect("no test panics inside");
    refusals.iter().find_map(|refusal| refusal(request, status))
}

async fn ask(state: &State, mut request: Message) -> io::Result<Message> {
    if let Some(refused) = refused(state, &request, None) {
        return Ok(refused);
    }
    let response = match &state.behind {
        Behind::Fake(fake) => fake.lock().expect("no panic inside").answer(&request, state.now()),
        Behind::Server(address) => {
            let mut store = BufReader::new(TcpStream::connect(address).await?);
            request.set("connection", "close");
            request.write(&mut store).await?;
            Message::read(&mut store, !request.first.starts_with("HEAD")).await?
        }
    };
    let status = response.first.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(refused(state, &request, status).unwrap_or(response))
}

/// What the client gets instead of the store's response.
fn changed(mut response: Message, state: &State) -> Message {
    if state.is_proxy.load(SeqCst) {
        let of_service = ["x-amz", "x-guploader", "x-ms-request", "cf-ray"];
        response.headers.retain(|(name, _)| !of_service.iter().any(|of| name.starts_with(of)));
    }
    response.headers.extend(state.added.lock().expect("no test panics inside").clone());
    response.as_response(httpdate::fmt_http_date(state.now()));
    response
}

fn forged(status: u16) -> Message {
    refusal(status, "Injected", "injected")
}

/// The service's response to a request that it does not do.
pub(crate) fn refusal(status: u16, code: &str, message: &str) -> Message {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>");
    Message {
        first: format!("HTTP/1.1 {status} Injected"),
        headers: vec![
            ("content-type".to_owned(), "application/xml".to_owned()),
            ("x-amz-request-id".to_owned(), "INJECTED".to_owned()),
        ],
        body: body.into_bytes(),
    }
}
