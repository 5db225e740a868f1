//! Options that code sets go to the backend that is meant, or are refused.
#![cfg(feature = "memory")]

use lockcore_any::{BackendOptions, Config};

fn with(url: &str, scheme: &str, key: &str) -> Config {
    let options = BackendOptions::default().with(scheme, key, "0");
    Config { url: Some(url.parse().expect("a good URL")), options, ..Config::default() }
}

#[tokio::test]
async fn options_of_an_unknown_backend_are_refused() {
    let error = with("memory:", "memroy", "size").connect().await.expect_err("there is none").to_string();
    assert!(error.contains("unknown key \"memroy\""), "{error}");
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn options_may_be_set_under_any_name_of_the_backend() {
    let config = with("mariadb://127.0.0.1:1/x", "mariadb", "max_conections");
    let error = config.connect().await.expect_err("it is misspelt").to_string();
    assert!(error.contains("unknown key \"max_conections\""), "{error}");
}
