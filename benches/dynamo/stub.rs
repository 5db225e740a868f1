//! A server that answers everything at once with an empty object: what is left is the client's own time.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::SystemTime,
};

use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};

/// Serves on threads of its own until the process ends; gives its endpoint.
pub(crate) fn start() -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || serve(client));
        }
    });
    Ok(endpoint)
}

fn serve(client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut answers = client.try_clone()?;
    let mut requests = BufReader::new(client);
    let mut body = Vec::new();
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().map_err(io::Error::other)?;
                }
                None if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        body.resize(length, 0);
        requests.read_exact(&mut body)?;
        // The date is what our clock goes by: if it stood still, each request would be preceded by a read.
        let date =
            DateTime::from(SystemTime::now()).fmt(DateTimeFormat::HttpDate).map_err(io::Error::other)?;
        let head = format!(
            "HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-type: application/x-amz-json-1.0\r\n\
              x-amzn-requestid: stub\r\n\
              content-length: 2\r\n\r\n{{}}"
        );
        answers.write_all(head.as_bytes())?;
    }
}
