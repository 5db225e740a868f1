//! Messages of HTTP/1.1, for fronts that hold back, change or lose what passes.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A request or a response.
#[derive(Clone, Debug)]
pub struct Message {
    /// The first line.
    pub first: String,
    /// The headers, with their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; its chunks are joined.
    pub body: Vec<u8>,
}

impl Message {
    /// Reads a message. A response to HEAD has no body, whatever its headers say.
    ///
    /// # Errors
    /// When the connection fails or ends, or what it brings is no message.
    pub async fn read(stream: &mut (impl AsyncBufRead + Unpin), has_body: bool) -> io::Result<Self> {
        let mut first = String::new();
        if stream.read_line(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut message =
            Message { first: first.trim_end().to_owned(), headers: Vec::new(), body: Vec::new() };
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            message.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        if !has_body || message.first.contains(" 304 ") || message.first.contains(" 204 ") {
            return Ok(message);
        }
        if message.header("transfer-encoding") == Some("chunked") {
            message.headers.retain(|(name, _)| name != "transfer-encoding");
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).await?;
                let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
                let mut chunk = vec![0; length + 2];
                stream.read_exact(&mut chunk).await?;
                message.body.extend(&chunk[..length]);
                if length == 0 {
                    return Ok(message);
                }
            }
        }
        let length = message.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        message.body = vec![0; length];
        stream.read_exact(&mut message.body).await?;
        Ok(message)
    }

    /// Writes it as it is.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn write(&self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut head = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        stream.write_all(&self.body).await
    }

    /// Returns the value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Sets a header, instead of those of this name.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        self.headers.retain(|(key, _)| key != name);
        self.headers.push((name.to_owned(), value.to_string()));
    }

    /// Makes it a response of a front: with this date and length, on a connection that stays.
    pub fn as_response(&mut self, date: impl ToString) {
        self.headers.retain(|(name, _)| name != "connection");
        self.set("date", date);
        self.set("content-length", self.body.len());
    }
}
