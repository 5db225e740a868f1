//! User and password, tokens that are over, TLS.

use std::{sync::Arc, time::Duration};

use lockcore::{BackendErrorKind, LockDao, Severity};
use lockcore_conformance::{
    Caller, eventually,
    servers::{
        self, Kind, Server, TestResult, Trial,
        certificates::{AUTHORITY, SELF_SIGNED, SERVER},
    },
};
use lockcore_etcd::EtcdLockDao;
use serde_json::json;
use uuid::Uuid;

use crate::{
    conformance::Place,
    front::Front,
    raw::{post, try_post},
};

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident)*) => {
            vec![$(servers::trial(Kind::Etcd, concat!("login::", stringify!($name)), $name)),*]
        };
    }
    trials! {
        a_token_that_is_over_is_replaced
        tokens_that_a_member_forgot_are_replaced
        a_wrong_password_is_denied
        a_role_of_the_prefix_is_enough
        a_password_that_is_not_asked_for_is_none
        authentication_may_be_turned_on
        a_certificate_is_verified
    }
}

type Dao = EtcdLockDao<String, Uuid>;

fn caller(dao: &Arc<Dao>) -> Caller<Dao> {
    Caller::new(dao.clone(), Duration::from_secs(60))
}

/// A member of this test's own, with more arguments.
async fn member(arguments: &[&str]) -> Result<Server, servers::ServerError> {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    Server::start_with(Kind::Etcd, move |_| Ok(arguments)).await
}

/// Asks for user and password from now on: `root` has all rights, `app` those of the prefix `locks`.
async fn turn_on(address: &str) {
    let encoded = |text: &str| {
        use base64::{Engine, prelude::BASE64_STANDARD};
        BASE64_STANDARD.encode(text)
    };
    for (user, role) in [("root", "root"), ("app", "locks")] {
        post(address, "/v3/auth/user/add", json!({ "name": user, "password": "hunter2" })).await;
        post(address, "/v3/auth/role/add", json!({ "name": role })).await;
        post(address, "/v3/auth/user/grant", json!({ "user": user, "role": role })).await;
    }
    let rights = json!({ "permType": "READWRITE", "key": encoded("locks/"), "range_end": encoded("locks0") });
    post(address, "/v3/auth/role/grant", json!({ "name": "locks", "perm": rights })).await;
    post(address, "/v3/auth/enable", json!({})).await;
}

fn place(user: &str, password: &str, address: &str) -> Place {
    Place::at(format!("etcd://{user}:{password}@{address}/locks"))
}

async fn opened(place: &Place) -> Arc<Dao> {
    Arc::new(place.builder().open().await.expect("the member answers"))
}

async fn a_token_that_is_over_is_replaced() -> TestResult {
    let server = member(&["--auth-token-ttl=1"]).await?;
    let address = server.address();
    turn_on(&address).await;
    let dao = opened(&place("app", "hunter2", &address)).await;
    let held = caller(&dao).take(["a"]).await;
    for _ in 0..2 {
        // One of the same age is over.
        let login = json!({ "name": "app", "password": "hunter2" });
        let login = post(&address, "/v3/auth/authenticate", login).await;
        let token = login["token"].as_str().expect("a token");
        eventually("the token is over", async || {
            // Each use prolongs it.
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            let asked =
                try_post(&address, "/v3/kv/range", &json!({ "key": "bG9ja3MvYQ==" }), Some(token)).await;
            asked.is_ok_and(|(status, _)| status == 401).then_some(())
        })
        .await;
        assert_eq!(caller(&dao).refused(["a"]).await.len(), 1);
        caller(&dao).keep(&held).await;
    }
    caller(&dao).free(&held).await;
    Ok(())
}

async fn tokens_that_a_member_forgot_are_replaced() -> TestResult {
    let server = member(&[]).await?;
    turn_on(&server.address()).await;
    let front = Front::before(&server.address()).await?;
    let dao = opened(&place("app", "hunter2", &front.address())).await;
    let held = caller(&dao).take(["a"]).await;
    let (before, logins) = (server.address(), front.requests_of("/v3/auth/authenticate"));
    // What is not in its database by then is done again as it starts, the login with its token, too.
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.restart().await?;
    if server.address() != before {
        // Another program has its port now.
        return Ok(());
    }
    caller(&dao).free(&held).await;
    caller(&dao).take(["a"]).await;
    assert!(front.requests_of("/v3/auth/authenticate") > logins, "the old token was refused");
    Ok(())
}

async fn a_wrong_password_is_denied() -> TestResult {
    let server = member(&[]).await?;
    let address = server.address();
    turn_on(&address).await;
    for place in [
        place("app", "wrong-hunter3", &address),
        place("nobody", "wrong-hunter3", &address),
        Place::at(format!("etcd://{address}/locks")),
        Place::at(format!("etcd://app:hunter2@{address}/others")),
    ] {
        let failed = place.builder().open().await.expect_err(&place.url);
        assert_eq!(failed.kind(), BackendErrorKind::Denied, "{failed}");
        let shown = format!("{failed} {failed:?}");
        assert!(!shown.contains("hunter"), "{shown}");
    }
    Ok(())
}

async fn a_role_of_the_prefix_is_enough() -> TestResult {
    let server = member(&[]).await?;
    turn_on(&server.address()).await;
    let place = place("app", "hunter2", &server.address());
    let (one, two) = (opened(&place).await, opened(&place).await);
    let held = caller(&one).take(["a"]).await;
    let mut waiter = caller(&two).queue(["a"]).await;
    caller(&one).free(&held).await;
    waiter.served().await;
    two.sweep(100, None).await?;
    let findings = two.doctor().await?;
    assert!(!findings.iter().any(|found| found.check == "authentication"), "{findings:?}");
    assert!(!format!("{two:?} {findings:?}").contains("hunter2"));
    Ok(())
}

async fn a_password_that_is_not_asked_for_is_none() -> TestResult {
    let server = member(&[]).await?;
    let dao = opened(&place("app", "hunter2", &server.address())).await;
    caller(&dao).take(["a"]).await;
    let findings = dao.doctor().await?;
    let found = findings.iter().find(|found| found.check == "authentication").expect("it is off");
    assert_eq!(found.severity, Severity::Warning);
    Ok(())
}

/// A process that was there before goes on, as one does after users were changed.
async fn authentication_may_be_turned_on() -> TestResult {
    let server = member(&[]).await?;
    let address = server.address();
    let dao = opened(&place("app", "hunter2", &address)).await;
    let held = caller(&dao).take(["a"]).await;
    turn_on(&address).await;
    caller(&dao).keep(&held).await;
    let root =
        post(&address, "/v3/auth/authenticate", json!({ "name": "root", "password": "hunter2" })).await;
    let root = root["token"].as_str();
    let (status, answer) =
        try_post(&address, "/v3/auth/user/add", &json!({ "name": "new", "password": "x" }), root).await?;
    assert_eq!(status, 200, "{answer}");
    caller(&dao).free(&held).await;
    caller(&dao).take(["a"]).await;
    Ok(())
}

async fn a_certificate_is_verified() -> TestResult {
    let server = Server::start_with(Kind::Etcd, |folder| {
        std::fs::write(folder.join("server.pem"), SERVER)?;
        std::fs::write(folder.join("authority.pem"), AUTHORITY)?;
        let options =
            "--cert-file=server.pem --key-file=server.pem --trusted-ca-file=authority.pem --client-cert-auth";
        Ok(options.split(' ').map(str::to_owned).collect())
    });
    let server = server.await?;
    let place = Place::at(format!("etcds://{}", server.address()));
    let good = || place.builder().root_certificate(AUTHORITY).client_certificate(SERVER, SERVER);
    caller(&Arc::new(good().open().await?)).take(["a"]).await;
    let plain = place.by(format!("etcd://{}", server.address()));
    for (builder, kind, named) in [
        (
            good().root_certificate(SELF_SIGNED),
            BackendErrorKind::Misconfigured,
            "no authority that is trusted",
        ),
        (good().client_certificate(SELF_SIGNED, SELF_SIGNED), BackendErrorKind::Misconfigured, ""),
        (place.builder().root_certificate(AUTHORITY), BackendErrorKind::Misconfigured, "ertificate"),
        (plain.builder(), BackendErrorKind::Unavailable, ""),
    ] {
        let failed = builder.open().await.expect_err("it is not accepted");
        assert!(failed.kind() == kind && failed.to_string().contains(named), "{failed:?} {named}");
    }
    Ok(())
}
