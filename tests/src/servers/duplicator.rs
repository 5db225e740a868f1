//! An HTTP proxy that sends writes twice.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

use super::http::Message;

/// The operations of DynamoDB that write.
const DYNAMODB_WRITES: [&str; 5] =
    ["BatchWriteItem", "DeleteItem", "PutItem", "TransactWriteItems", "UpdateItem"];

/// What a [`Duplicator`] does with a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copies {
    /// Sends it once.
    #[default]
    None,
    /// Sends it again when it is done, as a proxy that lost the response; the response is that to the copy.
    AtOnce,
    /// Sends it again so much later; the response is that to the first.
    After(Duration),
}

/// An HTTP proxy in front of an engine of DynamoDB or an emulator of S3 that can send writes twice; dropping it closes it.
#[derive(Debug)]
pub struct Duplicator {
    address: SocketAddr,
    copies: Arc<Mutex<Copies>>,
    task: AbortHandle,
}

impl Duplicator {
    /// Starts one for the server at `upstream` (`host:port`) that sends each write once until [`set`](Self::set) is called.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(upstream: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (upstream, copies) = (upstream.into(), Arc::new(Mutex::default()));
        let chosen = copies.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, chosen) = (upstream.clone(), chosen.clone());
                connections.spawn(async move { drop(serve(client, &upstream, &chosen).await) });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Duplicator { address, copies, task: task.abort_handle() })
    }

    /// Returns where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Chooses what happens to each write from now on.
    pub fn set(&self, copies: Copies) {
        *self.copies.lock().unwrap_or_else(PoisonError::into_inner) = copies;
    }
}

impl Drop for Duplicator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, upstream: &str, copies: &Mutex<Copies>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut client = BufReader::new(client);
    loop {
        let mut request = Message::read(&mut client, true).await?;
        request.set("connection", "close");
        let copies = match is_write(&request) {
            true => *copies.lock().unwrap_or_else(PoisonError::into_inner),
            false => Copies::None,
        };
        let mut response = exchange(upstream, &request).await?;
        match copies {
            Copies::None => {}
            Copies::AtOnce => response = exchange(upstream, &request).await?,
            Copies::After(pause) => {
                let upstream = upstream.to_owned();
                // It arrives whatever becomes of the client.
                tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    drop(exchange(&upstream, &request).await);
                });
            }
        }
        response.headers.retain(|(name, _)| name != "connection");
        response.write(&mut client).await?;
    }
}

/// Sends a request on a connection of its own, so that it is not sent again because an idle one was closed.
async fn exchange(upstream: &str, request: &Message) -> io::Result<Message> {
    let mut server = BufReader::new(TcpStream::connect(upstream).await?);
    request.write(&mut server).await?;
    let has_body = !request.first.starts_with("HEAD ");
    let mut response = Message::read(&mut server, has_body).await?;
    if has_body {
        // It may have come in chunks.
        response.set("content-length", response.body.len());
    }
    Ok(response)
}

fn is_write(request: &Message) -> bool {
    let operation = request.header("x-amz-target").and_then(|target| target.rsplit('.').next());
    match operation {
        Some(operation) => DYNAMODB_WRITES.contains(&operation),
        None => request.first.starts_with("PUT "),
    }
}
