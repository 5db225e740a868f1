//! The meaning of URLs and settings, and those that are refused.

use lockcore::BackendErrorKind;

use crate::{RedisBuilder, RedisLockDao, TlsVerify};

fn builder() -> RedisBuilder<String, uuid::Uuid> {
    RedisLockDao::builder()
}

async fn refused(builder: RedisBuilder<String, uuid::Uuid>) -> String {
    let error = builder.open().await.expect_err("it cannot be");
    assert_eq!(error.kind(), BackendErrorKind::BadSetting, "{error}");
    assert!(!error.in_doubt());
    format!("{error} {error:?}")
}

#[tokio::test]
async fn a_url_that_means_nothing_is_refused_without_being_shown() {
    for url in [
        "hunter2",
        "http://:hunter2@host",
        "redis:hunter2",
        "redis://:hunter2@host/0?protocol=2",
        "redis://:hunter2@one,two",
        "redis://:hunter2@host/0/1",
        "redis://:hunter2@host:port",
        "redis://:hunter2@host/database",
        "redis+mirror://:hunter2@host",
        "redis+sentinel://:hunter2@host",
        #[cfg(feature = "sentinel")]
        "redis+sentinel://:hunter2@host/master/database",
    ] {
        let message = refused(builder().url(url)).await;
        assert!(message.starts_with("url: ") && !message.contains("hunter2"), "{url}: {message}");
    }
}

#[tokio::test]
async fn settings_out_of_bounds_are_named() {
    use std::time::Duration;
    let second = Duration::from_secs(1);
    for (builder, begins) in [
        (builder().namespace(""), "namespace: \"\" is not possible"),
        (builder().namespace("a}b"), "namespace: \"a}b\" is not possible"),
        (builder().namespace("x".repeat(129)), "namespace: \"xxx"),
        (builder().connect_timeout(Duration::ZERO), "connect_timeout: 0ns is not possible"),
        (builder().response_timeout(second * 601), "response_timeout: 601s is not possible"),
        (builder().replicas(0, second), "replicas: 0 is not possible"),
        (builder().replicas(1, second * 5), "replicas within: 5s is not possible"),
        (builder().root_certificate("x"), "certificates: only a URL that begins with rediss uses TLS"),
        (builder().tls_verify(TlsVerify::None), "tls_verify: only a URL that begins with rediss uses TLS"),
        #[cfg(all(feature = "tls", feature = "sentinel"))]
        (
            builder().url("rediss+sentinel://h/m").tls_verify(TlsVerify::Ca),
            "tls_verify: ca is not possible with sentinels",
        ),
        #[cfg(feature = "tls")]
        (builder().url("rediss://h/#insecure"), "url: has #insecure: the option is tls_verify=none"),
    ] {
        let message = refused(builder).await;
        assert!(message.starts_with(begins), "{message}");
    }
}

#[test]
fn nothing_shows_a_secret() {
    let builder = builder().url("redis://user:hunter2@host").sentinel_user("user", "hunter2");
    let builder = builder.root_certificate("hunter2").client_certificate("hunter2", "hunter2");
    assert!(!format!("{builder:?} {builder:#?}").contains("hunter2"));
    let server = super::Server::read(&settings("redis://user:hunter2@host:7/1")).expect("a good URL");
    assert_eq!(format!("{server:?}"), "host:7");
}

#[cfg(all(feature = "sentinel", feature = "cluster"))]
#[test]
fn several_hosts_are_distinguished() {
    for (url, shown) in [
        ("redis+sentinel://:hunter2@a,b:7/main/3", "a:6379,b:7"),
        ("redis+cluster://u:hunter2@a,[::1]:7", "a:6379,::1:7"),
        ("redis+unix:///run/redis.sock?db=3&pass=hunter2", "/run/redis.sock"),
    ] {
        let server = super::Server::read(&settings(url)).expect("a good URL");
        assert_eq!(format!("{server:?}"), shown);
    }
}

fn settings(url: &str) -> crate::config::Settings {
    builder().url(url).settings
}
