//! Users that no setting names, and certificates as `openssl` makes them: what connects, and what is said where it does not.

use std::{io, net::Ipv6Addr, path::Path};

use lockcore::{BackendError, BackendErrorKind};
use lockcore_conformance::servers::{
    self, Kind, Proxy, Server, TestResult, Trial,
    certificates::{AUTHORITY, ELSEWHERE, SELF_SIGNED, SERVER, VERSION_1},
};
use lockcore_sql::{MysqlLockDao, PostgresLockDao};

use crate::steps::{Error, take};

/// MariaDB stands for MySQL too: the driver is the same.
const KINDS: [Kind; 2] = [Kind::Postgres, Kind::MariaDb];

pub(crate) fn trials() -> Vec<Trial> {
    let of = |kind: Kind| {
        [
            servers::trial(kind, "connecting::a_user_that_is_not_given_is_said_so", move || no_user(kind)),
            servers::trial(kind, "connecting::a_good_certificate_is_verified", move || good(kind)),
            servers::trial(kind, "connecting::one_of_another_name_says_so", move || another_name(kind)),
            servers::trial(kind, "connecting::one_of_an_authority_says_so", move || self_signed(kind)),
            servers::trial(kind, "connecting::one_of_version_1_says_so", move || version_1(kind)),
        ]
    };
    KINDS.into_iter().flat_map(of).collect()
}

/// The modes of a kind, from one that verifies nothing to one that verifies all.
#[derive(Clone, Copy)]
enum Verify {
    Preferred,
    Nothing,
    Authority,
    All,
}

async fn no_user(kind: Kind) -> TestResult {
    let server = servers::shared(kind).await?;
    let (scheme, rest) =
        server.url().split_once("://").map(|(a, b)| (a.to_owned(), b.to_owned())).ok_or("a URL")?;
    let (_, place) = rest.rsplit_once('@').ok_or("it names a user")?;
    let url = format!("{scheme}://{place}");
    let error: BackendError = if kind == Kind::Postgres {
        PostgresLockDao::<String>::builder().url(url).open().await.expect_err("it has a password")
    } else {
        MysqlLockDao::<String>::builder().url(url).open().await.expect_err("it has a password")
    };
    assert_eq!(error.kind(), BackendErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("; the URL names no user, so that \""), "{error}");
    Ok(())
}

async fn good(kind: Kind) -> TestResult {
    let (server, root) = (Server::start_with_certificate(kind, SERVER).await?, file(AUTHORITY)?);
    locks(kind, &server.url(), Verify::All, root.path()).await?;
    locks(kind, &server.url().replace("127.0.0.1", "localhost"), Verify::All, root.path()).await?;
    // The driver takes the brackets of an address of IPv6 for a part of it.
    let on_ipv6 = Proxy::start_on(Ipv6Addr::LOCALHOST, server.address()).await?;
    let url = server.url_through(on_ipv6.address());
    assert!(url.contains("[::1]"), "{on_ipv6:?}");
    for verify in [Verify::Preferred, Verify::Authority, Verify::All] {
        locks(kind, &url, verify, root.path()).await?;
    }
    let other = file(SELF_SIGNED)?;
    refuses(kind, &server.url(), Verify::All, other.path(), "issued by no authority that is trusted").await;
    Ok(())
}

async fn another_name(kind: Kind) -> TestResult {
    let (server, root) = (Server::start_with_certificate(kind, ELSEWHERE).await?, file(AUTHORITY)?);
    for verify in [Verify::Preferred, Verify::Nothing, Verify::Authority] {
        locks(kind, &server.url(), verify, root.path()).await?;
    }
    refuses(kind, &server.url(), Verify::All, root.path(), "not valid for name \"127.0.0.1\"").await;
    Ok(())
}

async fn self_signed(kind: Kind) -> TestResult {
    let (server, root) = (Server::start_with_certificate(kind, SELF_SIGNED).await?, file(SELF_SIGNED)?);
    for verify in [Verify::Preferred, Verify::Nothing] {
        locks(kind, &server.url(), verify, root.path()).await?;
    }
    for verify in [Verify::Authority, Verify::All] {
        refuses(kind, &server.url(), verify, root.path(), "is that of an authority (CA:TRUE)").await;
    }
    Ok(())
}

/// rustls cannot use it, so that a client goes without TLS where that is only preferred.
async fn version_1(kind: Kind) -> TestResult {
    let (server, root) = (Server::start_with_certificate(kind, VERSION_1).await?, file(VERSION_1)?);
    locks(kind, &server.url(), Verify::Preferred, root.path()).await?;
    for verify in [Verify::Nothing, Verify::All] {
        refuses(kind, &server.url(), verify, root.path(), "is of X.509 version 1").await;
    }
    Ok(())
}

fn file(pem: &str) -> io::Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), pem)?;
    Ok(file)
}

/// The URL with a mode.
fn with(kind: Kind, url: &str, verify: Verify, root: &Path) -> String {
    let root = root.display();
    let of_postgres = kind == Kind::Postgres;
    let options = match verify {
        Verify::Preferred => return url.to_owned(),
        Verify::Nothing if of_postgres => "sslmode=require".to_owned(),
        Verify::Authority if of_postgres => format!("sslmode=verify-ca&sslrootcert={root}"),
        Verify::All if of_postgres => format!("sslmode=verify-full&sslrootcert={root}"),
        Verify::Nothing => "ssl-mode=required".to_owned(),
        Verify::Authority => format!("ssl-mode=verify_ca&ssl-ca={root}"),
        Verify::All => format!("ssl-mode=verify_identity&ssl-ca={root}"),
    };
    format!("{url}?{options}")
}

/// Connects in every way that a program does, listening among them, and locks.
async fn locks(kind: Kind, url: &str, verify: Verify, root: &Path) -> Result<(), Error> {
    let url = with(kind, url, verify, root);
    if kind == Kind::Postgres {
        let dao = PostgresLockDao::builder().url(url).timeout(servers::ANSWERS).open().await?;
        let held = take(&dao, ["a"]).await?;
        lockcore::LockDao::release(&dao, &held).await?;
        lockcore::LockDao::doctor(&dao).await?;
    } else {
        let dao = MysqlLockDao::builder().url(url).timeout(servers::ANSWERS).open().await?;
        let held = take(&dao, ["a"]).await?;
        lockcore::LockDao::release(&dao, &held).await?;
        lockcore::LockDao::doctor(&dao).await?;
    }
    Ok(())
}

async fn refuses(kind: Kind, url: &str, verify: Verify, root: &Path, told: &str) {
    let url = with(kind, url, verify, root);
    let error: BackendError = if kind == Kind::Postgres {
        PostgresLockDao::<String>::builder().url(url).open().await.expect_err(told)
    } else {
        MysqlLockDao::<String>::builder().url(url).open().await.expect_err(told)
    };
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    let text = error.to_string();
    let advice = if kind == Kind::Postgres { "ssl" } else { "ssl-" };
    assert!(text.contains(told) && text.contains(advice) && !text.contains("OtherError"), "{text}");
}
