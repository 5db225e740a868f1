//! Credentials, region and endpoint come by the SDK's usual chain: checked by programs with an environment of their own, by
//! the key that their requests are signed with. No secret shows in what they print or log.

use std::{
    fs,
    process::{Command, ExitCode, Output},
};

use lockcore::{
    ClaimSet, FreshContext, Grant, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_conformance::servers::{Kind, TestResult, Trial, trial};
use lockcore_dynamo::DynamoLockDao;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::engine::front::rig::{self, Rig};

/// What tells this program that it is to lock something.
const TABLE: &str = "LOCKCORE_TEST_TABLE";
const NAMESPACE: &str = "LOCKCORE_TEST_NAMESPACE";
const PROFILE: &str = "LOCKCORE_TEST_PROFILE";

/// An id of its own: without a namespace other tests of this process see it.
const ID: &str = "locked by a program";

/// What no client may see.
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYSECRETKEY";
const TOKEN: &str = "FwoGZXIvYXdzEBYaSESSIONTOKEN";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        trial(Kind::DynamoDb, "credentials::from_the_environment", environment),
        trial(Kind::DynamoDb, "credentials::from_a_profile", profile),
        trial(Kind::DynamoDb, "credentials::from_a_process", process),
        trial(Kind::DynamoDb, "credentials::none_or_broken_ones_are_denied", denied),
        trial(Kind::DynamoDb, "credentials::the_short_form_takes_all_from_the_environment", short_form),
    ]
}

/// What this program does as one of those with an environment of their own.
pub(crate) fn as_the_environment_says() -> Option<ExitCode> {
    let table = std::env::var(TABLE).ok()?;
    Some(Runtime::new().expect("a runtime can be made").block_on(locker(table)))
}

/// Locks and frees an id, and prints and logs all that is shown.
async fn locker(table: String) -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(std::io::stderr).init();
    let outcome = async {
        let dao = match std::env::var(NAMESPACE) {
            Err(_not_set) => DynamoLockDao::<String>::open(table).await?,
            Ok(namespace) => {
                let mut builder = DynamoLockDao::<String>::builder().table(table).namespace(namespace);
                if let Ok(profile) = std::env::var(PROFILE) {
                    builder = builder.profile(profile);
                }
                println!("{builder:?}");
                builder.open().await?
            }
        };
        println!("{dao:?}");
        let request = AcquireRequest {
            context: Uuid::fresh(),
            attempt: AttemptId::fresh(),
            claims: ClaimSet::new([ID], Mode::Exclusive).expect("an id"),
            lease: Some(std::time::Duration::from_secs(30)),
            owner: "a program".into(),
            queue: false,
            nested: false,
            detached: false,
        };
        if let Acquired::Granted(granted) = dao.acquire(&request).await? {
            dao.release(&Grant::new(request.context, request.claims, granted, request.lease)).await?;
        }
        Ok::<_, lockcore::BackendError>(())
    };
    match outcome.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}\n{error:?}\nkind: {:?}, in doubt: {}", error.kind(), error.in_doubt());
            ExitCode::FAILURE
        }
    }
}

/// Runs this program once more, with nothing of the SDK's in its environment but these.
fn run(rig: &Rig, environment: &[(&str, &str)]) -> Output {
    run_in(rig, Some(&Uuid::new_v4().to_string()), environment)
}

/// The same in a namespace, or opened by the short form.
fn run_in(rig: &Rig, namespace: Option<&str>, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
        command.env_remove(name);
    }
    let (table, _) = rig.keys();
    command
        .env(TABLE, table)
        .envs(namespace.map(|namespace| (NAMESPACE, namespace)))
        .env("AWS_REGION", "eu-central-1")
        .env("AWS_ENDPOINT_URL_DYNAMODB", rig.front.url())
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        .env("AWS_CONFIG_FILE", "/nonexistent")
        .env("HOME", "/nonexistent")
        .envs(environment.iter().copied());
    let output = command.output().expect("it starts");
    assert!(String::from_utf8_lossy(&output.stderr).contains("TRACE"), "all is logged");
    for said in [&output.stdout, &output.stderr] {
        let said = String::from_utf8_lossy(said);
        assert!(!said.contains(SECRET), "the secret shows in {said}");
        assert!(!said.contains(TOKEN), "the session's token shows in {said}");
    }
    output
}

/// Runs it and gives the keys that its requests were signed with.
async fn signed_by(environment: &[(&str, &str)]) -> Result<Vec<String>, rig::Error> {
    let rig = Rig::new().await?;
    rig.front.signed_by();
    let output = tokio::task::block_in_place(|| run(&rig, environment));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let counted = rig.front.counted();
    assert_eq!((counted["DescribeTable"], counted["UpdateItem"]), (1, 2));
    Ok(rig.front.signed_by())
}

async fn environment() -> TestResult {
    let keys = [("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT"), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    assert_eq!(signed_by(&keys).await?, ["AKIAENVIRONMENT"]);
    let keys = [&keys[..], &[("AWS_SESSION_TOKEN", TOKEN)]].concat();
    assert_eq!(signed_by(&keys).await?, [format!("AKIAENVIRONMENT with {TOKEN}")]);
    Ok(())
}

async fn profile() -> TestResult {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("credentials");
    let mut text = String::new();
    for (profile, key) in [("default", "AKIADEFAULT"), ("one", "AKIAONE"), ("two", "AKIATWO")] {
        text += &format!("[{profile}]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n\n");
    }
    fs::write(&file, text)?;
    let file = ("AWS_SHARED_CREDENTIALS_FILE", file.to_str().ok_or("a path in UTF-8")?);
    assert_eq!(signed_by(&[file]).await?, ["AKIADEFAULT"]);
    assert_eq!(signed_by(&[file, ("AWS_PROFILE", "one")]).await?, ["AKIAONE"]);
    assert_eq!(
        signed_by(&[file, ("AWS_PROFILE", "one"), (PROFILE, "two")]).await?,
        ["AKIATWO"],
        "ours counts"
    );
    Ok(())
}

async fn process() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (answer, config) = (folder.path().join("answer"), folder.path().join("config"));
    let keys = format!(
        r#"{{"Version":1,"AccessKeyId":"AKIAPROCESS","SecretAccessKey":"{SECRET}","SessionToken":"{TOKEN}"}}"#
    );
    fs::write(&answer, keys)?;
    fs::write(&config, format!("[default]\ncredential_process = cat {}\n", answer.display()))?;
    let config = ("AWS_CONFIG_FILE", config.to_str().ok_or("a path in UTF-8")?);
    assert_eq!(signed_by(&[config]).await?, [format!("AKIAPROCESS with {TOKEN}")]);
    Ok(())
}

async fn short_form() -> TestResult {
    let rig = Rig::new().await?;
    rig.front.signed_by();
    let keys = [("AWS_ACCESS_KEY_ID", "AKIASHORT"), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    let output = tokio::task::block_in_place(|| run_in(&rig, None, &keys));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let counted = rig.front.counted();
    assert_eq!((counted["DescribeTable"], counted["UpdateItem"]), (1, 2));
    assert_eq!(rig.front.signed_by(), ["AKIASHORT"]);
    let error = DynamoLockDao::<String>::open("a table").await.expect_err("a name without blanks");
    assert_eq!(error.kind(), lockcore::BackendErrorKind::BadSetting);
    assert!(error.to_string().contains("table: \"a table\""), "{error}");
    Ok(())
}

async fn denied() -> TestResult {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config");
    let text = format!(
        "[profile fails]\ncredential_process = false\n\n[profile unreadable]\ncredential_process = echo {SECRET}\n\n\
         [profile half]\naws_secret_access_key = {SECRET}\n"
    );
    fs::write(&config, text)?;
    let config = ("AWS_CONFIG_FILE", config.to_str().ok_or("a path in UTF-8")?);
    let rig = Rig::new().await?;
    for environment in [
        &[][..],
        &[config, ("AWS_PROFILE", "fails")],
        &[config, ("AWS_PROFILE", "unreadable")],
        &[config, ("AWS_PROFILE", "half")],
        &[config, (PROFILE, "missing")],
    ] {
        let output = tokio::task::block_in_place(|| run(&rig, environment));
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{environment:?}: {said}");
        assert!(said.contains("kind: Denied, in doubt: false"), "{environment:?}: {said}");
        assert!(rig.front.counted().is_empty(), "nothing is sent without credentials");
    }
    Ok(())
}
