//! A DynamoDB for tests, on a port of the loopback: `lockcore-dynamo-in-process PORT`.

use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("which port?")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    dynoxide::server::serve_on(listener, dynoxide::Database::memory()?).await;
    Ok(())
}
