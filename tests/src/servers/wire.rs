//! The least exchange of each protocol that shows that a server answers.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::{Instant, sleep, timeout_at},
};

use super::Kind;

const PAUSE: Duration = Duration::from_millis(20);

/// Connects to `address` (`host:port`), has one exchange, and disconnects.
///
/// It needs no password: Redis is asked for a PING, Postgres is greeted and asks for a password,
/// `MariaDB` and `MySQL` greet first, an engine of `DynamoDB` answers any HTTP request, and
/// so does a member of etcd once it has a leader.
///
/// # Errors
/// When there is no connection, or the server says that it is still starting, or something else
/// answers. There is no time limit: a paused server is waited for.
pub async fn exchange(kind: Kind, address: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(address).await?;
    match kind {
        Kind::Redis => redis(&mut server).await,
        Kind::Postgres => postgres(&mut server).await,
        Kind::MariaDb | Kind::MySql => mysql(&mut server).await,
        Kind::DynamoDb => http(&mut server).await,
        Kind::Etcd => etcd(&mut server).await,
    }
}

/// Tries [`exchange`] until it succeeds.
///
/// # Errors
/// The last attempt's, when none succeeds within `limit`.
pub async fn until_answers(kind: Kind, address: &str, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    let mut last = None;
    loop {
        match timeout_at(deadline, exchange(kind, address)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => last = Some(error),
            Err(_) => return Err(last.unwrap_or_else(|| io::ErrorKind::TimedOut.into())),
        }
        sleep(PAUSE).await;
    }
}

/// Sends one command of words without blanks, and returns the reply as text: of an array, an element on each line.
///
/// # Errors
/// When the connection fails, or Redis replies with an error.
pub async fn redis_command(address: &str, command: &str) -> io::Result<String> {
    let mut server = BufReader::new(TcpStream::connect(address).await?);
    server.write_all(format!("{command}\r\n").as_bytes()).await?;
    let (mut elements, mut left) = (Vec::new(), 1_usize);
    while left > 0 {
        left -= 1;
        let mut head = String::new();
        server.read_line(&mut head).await?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| unexpected("not a length"));
        match head.trim_end().split_at_checked(1) {
            Some(("+" | ":", value)) => elements.push(value.to_owned()),
            Some(("$", "-1")) => elements.push(String::new()),
            Some(("*", length)) => left += number(length)?,
            Some(("$", length)) => {
                let mut bulk = vec![0; number(length)? + 2];
                server.read_exact(&mut bulk).await?;
                bulk.truncate(bulk.len() - 2);
                elements.push(String::from_utf8(bulk).map_err(|_| unexpected("not text"))?);
            }
            _ => return Err(io::Error::other(format!("{command}: {head}"))),
        }
    }
    Ok(elements.join("\n"))
}

async fn redis(server: &mut TcpStream) -> io::Result<()> {
    server.write_all(b"PING\r\n").await?;
    let mut reply = [0; 5];
    server.read_exact(&mut reply).await?;
    match &reply {
        b"+PONG" | b"-NOAU" => Ok(()),
        _ => Err(unexpected("not the answer to PING (still loading?)")),
    }
}

async fn postgres(server: &mut TcpStream) -> io::Result<()> {
    // Asking for TLS would be answered by a server that is still starting; a start-up message is not.
    let body = b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(body.len() + 4).expect("a short constant");
    server.write_all(&length.to_be_bytes()).await?;
    server.write_all(body).await?;
    let mut head = [0; 5];
    server.read_exact(&mut head).await?;
    match head[0] {
        b'R' => Ok(()),
        b'E' => {
            let mut report = Vec::new();
            server.read_to_end(&mut report).await?;
            // 57P03, cannot_connect_now: starting or recovering. Any other refusal is an answer.
            if report.windows(6).any(|field| field == b"C57P03") {
                Err(unexpected("still starting"))
            } else {
                Ok(())
            }
        }
        _ => Err(unexpected("not a Postgres server")),
    }
}

async fn mysql(server: &mut TcpStream) -> io::Result<()> {
    let mut head = [0; 5];
    server.read_exact(&mut head).await?;
    match head[4] {
        10 => Ok(()),
        _ => Err(unexpected("not the greeting of protocol version 10")),
    }
}

async fn http(server: &mut TcpStream) -> io::Result<()> {
    server.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut head = [0; 7];
    server.read_exact(&mut head).await?;
    match &head {
        b"HTTP/1." => Ok(()),
        _ => Err(unexpected("not the answer of an HTTP server")),
    }
}

async fn etcd(server: &mut TcpStream) -> io::Result<()> {
    match http(server).await {
        // With TLS it closes what does not begin so.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        answered => answered,
    }
}

fn unexpected(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
