//! A bucket of an emulator of S3.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Kind, Server, ServerError, Way, shared};

/// A bucket of an emulator of S3, for any credentials of the region `us-east-1`.
#[derive(Debug)]
pub struct Bucket {
    endpoint: String,
    server: Arc<Server>,
}

impl Bucket {
    /// Makes the bucket in the server that tests share for DynamoDB if that speaks S3's protocol too, else in one of this
    /// test's own. It may be there already.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn shared(name: &str) -> Result<Self, ServerError> {
        if let Ok(server) = shared(Kind::DynamoDb).await
            && make(&server.address(), name).await.is_ok()
        {
            return Ok(Self::of(server));
        }
        Self::own(name).await
    }

    /// Makes the bucket in a server of this test's own.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn own(name: &str) -> Result<Self, ServerError> {
        // The containers of DynamoDB have nothing else.
        Self::on(Server::start_by(Kind::DynamoDb, Way::Process).await?, name).await
    }

    /// Makes the bucket in another emulator of this test's own: `moto`.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn moto(name: &str) -> Result<Self, ServerError> {
        Self::on(Server::start_program(Kind::DynamoDb, "moto_server", |_| Ok(Vec::new())).await?, name).await
    }

    async fn on(server: Server, name: &str) -> Result<Self, ServerError> {
        Self::make(&server, name).await?;
        Ok(Self::of(Arc::new(server)))
    }

    /// Makes the bucket in a server that speaks S3's protocol, unless it is there.
    ///
    /// # Errors
    /// [`ServerError::Failed`] where it cannot be made.
    pub async fn make(server: &Server, name: &str) -> Result<(), ServerError> {
        let made = make(&server.address(), name).await;
        made.map_err(|error| ServerError::failed(Kind::DynamoDb, "make a bucket in", error))
    }

    fn of(server: Arc<Server>) -> Self {
        Bucket { endpoint: format!("http://{}", server.address()), server }
    }

    /// Its endpoint, with scheme, host and port.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

async fn make(address: &str, name: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(address).await?;
    let request =
        format!("PUT /{name} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    server.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    server.read_to_string(&mut response).await?;
    let status = response.split(' ').nth(1).unwrap_or_default();
    // 409: it is there.
    match ["200", "409"].contains(&status) {
        true => Ok(()),
        false => Err(io::Error::other(response)),
    }
}
