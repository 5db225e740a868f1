//! An HTTP server before a member: holds requests back, loses responses, forges and dates them.

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

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It does not reach the member; the response has this status, this code of gRPC and this message.
    Refuse(u16, u32, &'static str),
    /// It is done; the response says the same.
    DoAndRefuse(u16, u32, &'static str),
    /// It is done twice, as by a proxy that sends it again; the response is the second.
    Twice,
    /// It is done, and the connection closed.
    LoseResponse,
    /// It reaches the member once this is notified.
    Hold(Arc<Notify>),
    /// It reaches the member; the response is passed on once this is notified.
    AnswerLate(Arc<Notify>),
    /// It does not reach the member; the response has this body.
    Answer(String),
}

/// The front; dropping it closes it.
pub(crate) struct Front {
    address: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

struct State {
    member: String,
    /// A part of the first line of the request, and what happens to the next that has it.
    faults: Mutex<Vec<(String, Fault)>>,
    ahead: AtomicI64,
    is_proxy: AtomicBool,
    requests: Mutex<Vec<Message>>,
}

impl Front {
    /// Before the member at `host:port`.
    pub(crate) async fn before(member: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            member: member.to_owned(),
            faults: Mutex::default(),
            ahead: AtomicI64::default(),
            is_proxy: AtomicBool::default(),
            requests: Mutex::default(),
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

    /// Its `host:port`.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// The next request with this in its first line meets this fault; later calls wait for earlier ones.
    pub(crate) fn next(&self, of: &str, fault: Fault) {
        self.state.faults.lock().expect("no test panics inside").push((of.to_owned(), fault));
    }

    /// Whether all faults were met.
    pub(crate) fn is_over(&self) -> bool {
        self.state.faults.lock().expect("no test panics inside").is_empty()
    }

    /// The member's clock steps by so many seconds.
    pub(crate) fn step_date(&self, seconds: i64) {
        self.state.ahead.fetch_add(seconds, SeqCst);
    }

    /// Responses have what a proxy adds.
    pub(crate) fn is_proxy(&self) {
        self.state.is_proxy.store(true, SeqCst);
    }

    /// The number of requests so far with this in their first line.
    pub(crate) fn requests_of(&self, path: &str) -> usize {
        self.requests().iter().filter(|request| request.first.contains(path)).count()
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<Message> {
        self.state.requests.lock().expect("no test panics inside").clone()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    /// The member's time.
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
        let request = Message::read(&mut client, true).await?;
        state.requests.lock().expect("no test panics inside").push(request.clone());
        if request.first.contains("/v3/watch") {
            // A stream is no message: waiters look by themselves.
            return Ok(());
        }
        let fault = {
            let mut faults = state.faults.lock().expect("no test panics inside");
            let at = faults.iter().position(|(of, _)| request.first.contains(of.as_str()));
            at.map(|at| faults.remove(at).1)
        };
        let mut response = match fault {
            None => ask(state, request).await?,
            Some(Fault::Refuse(status, code, message)) => refusal(status, code, message),
            Some(Fault::DoAndRefuse(status, code, message)) => {
                ask(state, request).await?;
                refusal(status, code, message)
            }
            Some(Fault::Twice) => {
                ask(state, request.clone()).await?;
                ask(state, request).await?
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
            Some(Fault::AnswerLate(gate)) => {
                let response = ask(state, request).await?;
                gate.notified().await;
                response
            }
            Some(Fault::Answer(body)) => message(200, body),
        };
        response.as_response(httpdate::fmt_http_date(state.now()));
        if state.is_proxy.load(SeqCst) {
            response.set("via", "1.1 proxy");
        }
        response.write(&mut client).await?;
    }
}

async fn ask(state: &State, mut request: Message) -> io::Result<Message> {
    let mut member = BufReader::new(TcpStream::connect(&state.member).await?);
    request.set("connection", "close");
    request.write(&mut member).await?;
    Message::read(&mut member, true).await
}

fn refusal(status: u16, code: u32, text: &str) -> Message {
    message(status, format!("{{\"error\":{text:?},\"message\":{text:?},\"code\":{code}}}"))
}

fn message(status: u16, body: String) -> Message {
    Message { first: format!("HTTP/1.1 {status} -"), headers: Vec::new(), body: body.into_bytes() }
}
