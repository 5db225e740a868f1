//! A transfer under two locks, in a database that refuses what a former holder writes. Accounts that are new begin with 100.
//!
//! `cargo run -p lockcore-sql --features postgres,mysql --example guarded_transfer -- \
//! postgres://user@host/database FROM TO AMOUNT`

mod ledger;
mod transfers;

use std::env;

#[tokio::main]
async fn main() -> transfers::Done {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, from, to, amount] = arguments.as_slice() else {
        return Err("usage: guarded_transfer URL FROM TO AMOUNT".into());
    };
    transfers::run(url, from, to, amount.parse()?).await
}
