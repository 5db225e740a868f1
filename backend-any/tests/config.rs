//! Configuration: what is read from where, what wins, and every message about a mistake.
#![cfg(all(feature = "memory", feature = "sqlite"))]

use std::{fs, path::Path, time::Duration};

use lockcore::{Claim, LockDao, LockError};
use lockcore_any::{BackendOptions, Config, ConnectError, Waiting, connect, connect_as};

const FULL: &str = r#"
    url = "sqlite:locks.db?busy_timeout=2s"
    namespace = "billing"
    owner = "worker-7"
    lease = "1m 30s"
    wait = "5s"

    [sqlite]
    busy_timeout = "7s"
    synchronous = "full"

    [postgres]
    max_connections = 3
"#;

fn from_url(url: &str) -> Config {
    Config { url: Some(url.parse().expect("a good URL")), ..Config::default() }
}

fn toml_error(text: &str) -> String {
    Config::from_toml(text).expect_err(text).to_string()
}

async fn connect_error(url: &str) -> String {
    connect(url).await.expect_err(url).to_string()
}

#[test]
fn a_file_says_everything() {
    let config = Config::from_toml(FULL).expect("a good file");
    assert_eq!(config.url.map(|url| url.to_string()).as_deref(), Some("sqlite:locks.db?busy_timeout=2s"));
    assert_eq!(config.namespace.as_deref(), Some("billing"));
    assert_eq!(config.owner.as_deref(), Some("worker-7"));
    assert_eq!(config.lease, Some(Duration::from_secs(90)));
    assert_eq!(config.wait, Some(Waiting::UpTo(Duration::from_secs(5))));
}

#[test]
fn it_can_be_a_part_of_another_configuration() {
    #[derive(serde::Deserialize)]
    struct Mine {
        locks: Config,
    }
    let mine: Mine = toml::from_str("[locks]\nurl = 'memory:'\nlease = '3s'").expect("a good file");
    assert_eq!(mine.locks.lease, Some(Duration::from_secs(3)));
    let error = toml::from_str::<Mine>("[locks]\nlease = 3").map(drop).expect_err("no unit");
    assert!(error.to_string().contains("lease in configuration: \"3\" is not possible, it needs a unit"));
}

#[test]
fn mistakes_in_a_file_are_named() {
    let cases = [
        (
            "leese = '3s'",
            "lockcore.toml: unknown key \"leese\"; known are url, namespace, owner, lease, wait, memory, sqlite, dynamodb, etcd, mysql, postgres, redis, s3, share",
        ),
        (
            "lease = '60'",
            "lease in lockcore.toml: \"60\" is not possible, it needs a unit, such as 60s or 60ms",
        ),
        (
            "lease = 60",
            "lease in lockcore.toml: \"60\" is not possible, it needs a unit, such as 60s or 60ms",
        ),
        (
            "lease = 'soon'",
            "lease in lockcore.toml: \"soon\" is not possible, it must be a duration with a unit, such as 30s",
        ),
        (
            "wait = 'always'",
            "wait in lockcore.toml: \"always\" is not possible, it must be never, forever, or a duration with a \
             unit, such as 30s",
        ),
        ("owner = ['a']", "owner in lockcore.toml: a array is not possible, owner must be a string"),
        ("memory = 3", "memory in lockcore.toml: a integer is not possible, it must be a table, [memory]"),
        (
            "[sqlite]\nbusy = '3s'",
            "sqlite.busy in lockcore.toml: unknown key \"busy\"; known are busy_timeout, mode, synchronous, \
             table_prefix",
        ),
        (
            "url = 'hunter2'",
            "url in lockcore.toml: must begin with a scheme, such as sqlite:/var/lib/locks.db",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(toml_error(text), message);
    }
}

#[test]
fn no_message_about_a_file_quotes_a_password() {
    for text in [
        "owner = 'x'\nurl = 'redis://:hunter2@host",
        "url = \"redis://:hunter2@\\qhost\"",
        "url = 'redis//:hunter2@host'",
        "url = 'redis://:a?hunter2@host'",
        "url = redis://:hunter2@host",
        "[postgres]\npassword = ['hunter2']",
        "[sqlite]\npassword = 'hunter2'",
    ] {
        let error = Config::from_toml(text).expect_err(text);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let unclosed = toml_error("owner = 'x'\nurl = 'redis://:hunter2@host");
    assert!(unclosed.starts_with("lockcore.toml: line 2: "), "{unclosed}");
}

#[tokio::test]
async fn no_message_and_no_debug_shows_a_password() {
    let config = Config::from_toml(
        "url = 'dynamodb://user:hunter2@host/0?password=hunter2'\n[dynamodb]\nsession_token = 'hunter2'",
    )
    .expect("a good file");
    let error = config.connect().await.expect_err("a password where there is none");
    let shown = format!("{config:?} {config:#?} {error} {error:?}");
    assert!(shown.contains("[redacted]") && !shown.contains("hunter2"), "{shown}");
    for url in [
        "sqlite:x?password=hunter2",
        "memory:?token=hunter2",
        "sqlite://user:hunter2@/nowhere/x.db?mode=rw",
        "dynamodb://eu-central-1/x?access_key_id=hunter2&secret_access_key=hunter2",
        "dynamodb://eu-central-1/locks?session_token=hunter2",
        "redis://user:hunter2@127.0.0.1:1/",
        "redis://user:hunter2@127.0.0.1:x/",
        "redis+unix:///nowhere.socket?user=me&pass=hunter2",
        "redis+cluster://user:hunter2@127.0.0.1:1,127.0.0.1:2",
    ] {
        let error = connect(url).await.expect_err(url);
        let shown = format!("{error} {error:?} {:?}", from_url(url));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[tokio::test]
async fn options_come_from_the_table_under_those_of_the_url() {
    let in_code = |value: &str| Config {
        options: BackendOptions::default().with("sqlite", "synchronous", value),
        ..from_url("sqlite::memory:")
    };
    let error = in_code("off").connect().await.expect_err("no such value").to_string();
    assert_eq!(error, "sqlite.synchronous: \"off\" is not possible, it must be normal or full");
    let error = Config { url: "sqlite::memory:?synchronous=no".parse().ok(), ..in_code("full") };
    let error = error.connect().await.expect_err("no such value").to_string();
    assert!(error.starts_with("synchronous in the url: \"no\""), "{error}");
    let file = "url = 'sqlite::memory:'\n[sqlite]\nsynchronous = 'none'";
    let file = Config::from_toml(file).expect("well-formed");
    let error = file.clone().connect().await.expect_err("no such value").to_string();
    assert!(error.starts_with("sqlite.synchronous in lockcore.toml: \"none\""), "{error}");
    file.overridden_by(in_code("full")).expect("they agree").connect().await.expect("the code wins");
}

#[tokio::test]
async fn later_layers_win() {
    let file = Config::from_toml(FULL).expect("a good file");
    let over = Config { owner: Some("me".to_owned()), ..from_url("memory:?namespace=mine") };
    let both = file.clone().overridden_by(over).expect("they agree");
    assert_eq!(both.url.as_ref().map(|url| url.scheme()), Some("memory"));
    assert_eq!(both.namespace.as_deref(), Some("mine"));
    assert_eq!((both.owner.as_deref(), both.lease), (Some("me"), file.lease));

    let plain = Config { namespace: Some("other".to_owned()), ..Config::default() };
    let over_url = from_url("memory:?namespace=mine").overridden_by(plain).expect("they agree");
    assert_eq!(over_url.namespace.as_deref(), Some("other"));
    over_url.connect().await.expect("the contradiction is settled");

    let torn = Config { namespace: Some("other".to_owned()), ..from_url("memory:?namespace=mine") };
    let error = Config::default().overridden_by(torn).expect_err("two namespaces");
    assert_eq!(error.to_string(), "namespace: \"other\" is not possible, the URL beside it says \"mine\"");
}

#[test]
fn a_missing_file_is_an_error_only_if_it_was_asked_for() {
    let error =
        Config::load(Some(Path::new("/nowhere/lockcore.toml")), Config::default()).expect_err("no file");
    assert_eq!(
        error.to_string(),
        "/nowhere/lockcore.toml: cannot be read: No such file or directory (os error 2)"
    );
    Config::load(None, Config::default()).expect("the default file need not be there");
}

#[tokio::test]
async fn mistakes_in_a_url_are_named() {
    for (url, message) in [
        (
            "mongodb://x",
            "url: unknown scheme \"mongodb\"; this build has memory, sqlite, dynamodb, etcd, mysql, postgres, redis, s3, share",
        ),
        (
            "dynamodb://eu-central-1/a",
            "dynamodb: table: \"a\" is not possible, it must have 3 to 255 of letters, digits, _, - and ., or be an ARN",
        ),
        (
            "dynamodb://x/locks?secret_access_key=hunter2",
            "access_key_id: alone is not possible, access_key_id and secret_access_key go together, session_token beside both",
        ),
        (
            "dynamodb://x/locks?endpoint=hunter2",
            "dynamodb: endpoint: \"..\" is not possible, it must begin with http:// or https:// and name no user",
        ),
        (
            "dynamodb://x/locks?namespace=a%23b",
            "dynamodb: namespace: \"a#b\" is not possible, it must have at most 255 bytes and no #",
        ),
        (
            "dynamodb://x/locks?strict_fence=maybe",
            "strict_fence in the url: \"maybe\" is not possible, it must be true or false",
        ),
        (
            "postgresql://:hunter2@x?commit=maybe",
            "commit in the url: \"maybe\" is not possible, it must be durable, release-async or async",
        ),
        (
            "postgres://x/app?routines=maybe",
            "routines in the url: \"maybe\" is not possible, it must be yes or no",
        ),
        (
            "mysql://x/app?routines=false",
            "routines in the url: \"false\" is not possible, it must be yes or no",
        ),
        (
            "mariadb://x/app?routines=no&isolation=snapshot",
            "isolation in the url: \"snapshot\" is not possible, it must be read-committed or serializable",
        ),
        (
            "postgres://x/app?routines=no&clock_difference=2m",
            "postgres: clock_difference: \"120s\" is not possible, it must be 1 min at most",
        ),
        (
            "postgres://x/app?clock_difference=1s",
            "postgres: clock_difference: \"1s\" is not possible, it is for locking without routines",
        ),
        (
            "mysql://x/app?isolation=serializable",
            "mysql: isolation: \"serializable\" is not possible, it is for locking without routines",
        ),
        (
            "postgres://:hunter2@x/db?listen_url=hunter2",
            "postgres: listen_url: \"..\" is not possible, it must be like postgres://user@host:5432/database",
        ),
        (
            "postgres://u@h1:5432,h2:5433/app?target_session_attrs=read-write",
            "url: several hosts are not supported; name one that leads to the server that takes writes",
        ),
        (
            "postgres://x/app?host=h1,h2",
            "url: several hosts are not supported; name one that leads to the server that takes writes",
        ),
        (
            "mysql://u:hunter2@h1,h2/app",
            "url: several hosts are not supported; name one that leads to the server that takes writes",
        ),
        (
            "postgres://x/app?target_session_attrs=standby",
            "target_session_attrs in the url: \"standby\" is not possible, it must be any, read-write or primary; locks are written",
        ),
        (
            "postgres://x/app?gssencmode=require",
            "gssencmode in the url: \"require\" is not possible, it must be disable or prefer; encryption by Kerberos is not supported",
        ),
        (
            "postgres://x/app?sslmode=verify-full&sslrootcert=/nowhere.pem",
            "sslrootcert in the url: \"/nowhere.pem\" is not possible, it must be a file that can be read: /nowhere.pem: No such file or directory (os error 2)",
        ),
        (
            "mysql://x/app?ssl-ca=/nowhere.pem",
            "ssl-ca in the url: \"/nowhere.pem\" is not possible, it must be a file that can be read: /nowhere.pem: No such file or directory (os error 2)",
        ),
        (
            "redis://x?pass=hunter2",
            "pass: an option is not possible, it is for redis+unix; elsewhere the URL itself says it: redis://USER:PASSWORD@HOST/DB",
        ),
        (
            "rediss://x?tls_verify=off",
            "tls_verify in the url: \"off\" is not possible, it must be full, ca or none",
        ),
        ("rediss://x/#insecure", "url: has #insecure: the option is tls_verify=none"),
        (
            "redis+x://x",
            "url: unknown scheme \"redis+x\"; this build has memory, sqlite, dynamodb, etcd, mysql, postgres, redis, s3, share",
        ),
        ("redis://x?replicas=1", "replicas: alone is not possible, replicas and replicas_within go together"),
        (
            "redis://x?db=1",
            "db: an option is not possible, it is for redis+unix; elsewhere the URL itself says it: redis://USER:PASSWORD@HOST/DB",
        ),
        ("redis+sentinel://x", "url: names no master: redis+sentinel://HOST,HOST/MASTER"),
        (
            "redis://x?namespace=a{b",
            "namespace: \"a{b\" is not possible, it must have 1 to 128 bytes and no braces",
        ),
        (
            "redis://:hunter2@x?root_certificate=/nowhere",
            "root_certificate in the url: \"/nowhere\" is not possible, it must be a file that can be read: No such file or directory (os error 2)",
        ),
        ("memory:x", "url: \"x\" is not possible, nothing may stand behind memory: but options"),
        ("memory:?shards=2", "shards in the url: unknown key \"shards\"; known are namespace"),
        (
            "sqlite::memory:?busy_timeout=60",
            "busy_timeout in the url: \"60\" is not possible, it needs a unit, such as 60s or 60ms",
        ),
        (
            "sqlite::memory:?synchronous=off",
            "synchronous in the url: \"off\" is not possible, it must be normal or full",
        ),
        ("sqlite::memory:?mode=ro", "mode in the url: \"ro\" is not possible, it must be rwc or rw"),
    ] {
        assert_eq!(connect_error(url).await, message);
    }
    let nothing = Config::default().connect().await.expect_err("no URL").to_string();
    assert!(nothing.starts_with("url: not given; set it in lockcore.toml, in LOCKCORE_URL"), "{nothing}");
    assert!(matches!(connect("sqlite:").await, Err(ConnectError::Backend(_))));
}

/// What URLs of providers and other programs have is taken: nothing listens on port 1, and that is what the error says.
#[tokio::test]
async fn usual_urls_are_taken() {
    for url in [
        "postgres://u:p@127.0.0.1:1/app?sslmode=prefer&channel_binding=require&connect_timeout=10&keepalives=1\
         &keepalives_idle=30&gssencmode=disable&target_session_attrs=read-write&tcp_user_timeout=5",
        "postgres://u:p@127.0.0.1:1/app?sslmode=disable&sslrootcert=system",
        "postgres://u@[::1]:1/app?sslmode=disable",
        "mysql://u:p%2Fq@[::1]:1/app?ssl-mode=disabled",
        "redis://:p%40q@[::1]:1/0",
    ] {
        let error = connect_error(&format!(
            "{url}{}timeout=300ms",
            if url.starts_with("redis") { "?connect_" } else { "&" }
        ))
        .await;
        let dialled =
            ["refused", "No route", "unreachable", "Cannot assign"].iter().any(|word| error.contains(word));
        assert!(dialled, "{url}: {error}");
    }
    let socket = connect_error("redis+unix:///nowhere/x.sock?pass=hunter2&user=app&db=1").await;
    assert!(socket.contains("No such file"), "{socket}");
    let config =
        Config::from_toml("url = 'redis+unix:///nowhere/x.sock'\n[redis]\npass = 'hunter2'").expect("good");
    let socket = config.connect().await.expect_err("there is no socket").to_string();
    assert!(socket.contains("No such file"), "{socket}");
}

#[test]
fn the_schema_is_printed_only_for_settings_that_are_possible() {
    let print = |url: &str| from_url(url).schema("sql").map_err(|error| error.to_string());
    for url in [
        "postgres://h/d?table_prefix=x_",
        "postgres://h/d?migrate=false&namespace=n",
        "mysql://h/d?table_prefix=x_",
        "postgres://h/d?routines=no&schema=s",
        "mysql://h/d?routines=no&table_prefix=x_",
    ] {
        assert!(print(url).is_ok(), "{url}");
    }
    for url in
        ["postgres://h/d?table_prefx=x_", "mysql://h/d?table_prefx=x_", "dynamodb://x/locks?table_prefx=x_"]
    {
        let error = print(url).expect_err(url);
        assert!(error.starts_with("table_prefx in the url: unknown key \"table_prefx\""), "{error}");
    }
    let long = "x".repeat(41);
    for scheme in ["postgres", "mysql", "mariadb"] {
        for prefix in ["", &long, "%00"] {
            let error = print(&format!("{scheme}://h/d?table_prefix={prefix}")).expect_err(prefix);
            assert!(error.starts_with("table_prefix in the url: "), "{error}");
            assert!(error.ends_with("is not possible, it must have 1 to 40 bytes, and no NUL"), "{error}");
        }
    }
}

#[tokio::test]
async fn migrating_needs_rights_that_programs_do_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = from_url(&format!("sqlite:{}/locks.db?mode=rw", folder.path().display()));
    config.connect().await.expect_err("there is no file");
    config.connect_and_migrate().await.expect("it is made");
    config.connect().await.expect("it is there");
}

#[tokio::test]
async fn connecting_to_an_existing_store_creates_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    let config = from_url(&format!("sqlite:{}?mode=rwc", file.display()));
    config.connect_existing().await.expect_err("there is no file");
    assert!(!file.exists());
    config.connect_and_migrate().await.expect("it is made");
    config.connect_existing().await.expect("it is there");
}

#[tokio::test]
async fn paths_in_a_file_are_relative_to_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lockcore.toml");
    let text =
        "url = 'sqlite:locks.db?table_prefix=x_'\nnamespace = 'n'\n[redis]\nroot_certificate = 'ca.pem'";
    fs::write(&file, text).expect("written");
    let config = Config::from_file(&file).expect("a good file");
    let shown = format!("sqlite:{}/locks.db?table_prefix=x_", folder.path().display());
    assert_eq!(config.store().expect("a URL"), format!("{shown}, namespace \"n\""));
    assert!(format!("{:?}", config.options).contains(&format!("{}/ca.pem", folder.path().display())));
    config.connect().await.expect("it is made");
    assert!(folder.path().join("locks.db").exists());
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_waited_for_longer_than_the_timeout() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("it has one");
    for scheme in ["postgres", "mysql"] {
        let started = std::time::Instant::now();
        let error = connect_error(&format!("{scheme}://u:hunter2@{address}/d?timeout=200ms")).await;
        assert_eq!(error, format!("{scheme} at {address}: no answer within 200ms"));
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn the_service_has_the_defaults() {
    let config =
        Config::from_toml("url = 'memory:'\nowner = 'me'\nlease = '20s'\nwait = '10ms'").expect("good");
    let locks = config.service().await.expect("a service");
    let guard = locks.lock(["a"]).await.expect("free");
    assert!(guard.time_left().is_some_and(|left| left <= Duration::from_secs(20)));
    let refused = locks.lock(["a"]).await.expect_err("held").to_string();
    assert!(refused.contains("(me)") && refused.contains("not locked after"), "{refused}");

    let bad = Config::from_toml("url = 'sqlite::memory:'\nlease = '0s'").expect("well-formed");
    let error = bad.service().await.expect_err("no lease").to_string();
    assert_eq!(error, "lease: 0ns, the sqlite backend needs at least 10ms");
}

#[tokio::test]
async fn other_types_and_every_option() {
    let memory = connect_as::<u64, u64>("memory:").await.expect("memory");
    assert_eq!(memory.capabilities().backend, "memory");
    let locks = lockcore::LockingService::builder_with_contexts(memory, || 1).build().expect("defaults");
    locks.lock([Claim::exclusive(7)]).await.expect("free").release().await.expect("held");

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a b#c.db");
    let url = format!("sqlite:{}/a%20b%23c.db", folder.path().display());
    let missing = connect(&format!("{url}?mode=rw")).await;
    assert!(missing.is_err() && !file.exists(), "mode=rw creates nothing: {missing:?}");
    let options = "busy_timeout=1s&synchronous=full&table_prefix=x_&mode=rwc&namespace=n";
    connect(&format!("{url}?{options}")).await.expect("sqlite");
    assert!(file.exists());
    connect(&format!("{url}?mode=rw&table_prefix=x_")).await.expect("now it is there");
}

#[tokio::test]
async fn namespaces_keep_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}/locks.db", folder.path().display());
    let service =
        async |text: &str| Config::from_toml(text).expect("good").service().await.expect("a service");
    let one = service(&format!("url = '{url}'\nnamespace = 'one'")).await;
    let two = service(&format!("url = '{url}?namespace=two'")).await;
    let again = service(&format!("url = '{url}?namespace=one'")).await;
    let _held = one.lock(["a"]).await.expect("free");
    two.lock(["a"]).await.expect("another namespace").release().await.expect("held");
    again.lock(["a"]).await.expect_err("the same namespace");
}

#[test]
fn a_file_is_read_from_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.toml");
    fs::write(&file, FULL).expect("written");
    let config =
        Config::load(Some(&file), Config { lease: Some(Duration::from_secs(1)), ..Config::default() })
            .expect("a good file");
    assert_eq!((config.namespace.as_deref(), config.lease), (Some("billing"), Some(Duration::from_secs(1))));
}

#[tokio::test]
async fn a_builder_has_the_defaults_and_contexts_of_ones_own() {
    let config =
        Config::from_toml("url = 'sqlite::memory:'\nowner = 'worker-7'\nlease = '1m'").expect("good");
    let numbers = std::sync::atomic::AtomicU64::new(1);
    let make = move || numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let builder = config.builder_with_contexts::<String, u64>(make).await.expect("it opens");
    let locks = builder.max_hold(Duration::from_secs(3600)).build().expect("good settings");
    let guard = locks.lock(["a"]).await.expect("free");
    assert_eq!(*guard.held().context(), 1);
    assert!(guard.held().time_left().is_some_and(|left| left > Duration::from_secs(40)));
    let seen = locks.admin().inspect(&lockcore::Target::Id("a".to_owned())).await.expect("an answer");
    assert_eq!(&*seen.holders[0].owner, "worker-7");
    guard.release().await.expect("held");
}

#[test]
fn configuration_serves_programs_without_a_runtime() {
    let config = Config::from_toml("url = 'sqlite::memory:'\nlease = '1m'").expect("good");
    let locks = config.blocking_service().expect("it opens");
    let held = locks.with_held_locks(["a"], |held| Ok::<_, std::io::Error>(held.time_left())).expect("free");
    assert!(held.is_some_and(|left| left > Duration::from_secs(40)));
}

#[cfg(feature = "s3")]
#[tokio::test]
async fn connections_to_an_object_store_in_memory_share_it_by_name() {
    use lockcore::{LockingService, Wait};

    let open = async |url| LockingService::new(connect(url).await.expect("memory answers"));
    let (one, same) = (open("memory-object:jobs").await, open("memory-object:jobs").await);
    let other = open("memory-object:others").await;
    let guard = one.lock(["a"]).await.expect("it is free");
    assert!(same.wait(Wait::never()).lock(["a"]).await.is_err_and(|error| error.is_contention()));
    other.lock(["a"]).await.expect("another store").release().await.expect("it is held");
    guard.release().await.expect("it is held");
    same.lock(["a"]).await.expect("it is free again").release().await.expect("it is held");
}

/// A program below `lockctl run` does not wait for the command that waits for it. The environment is the child's alone, so that the
/// program is a process: this test again.
#[tokio::test]
async fn a_program_below_lockctl_does_not_wait_for_its_command() {
    const STORE: &str = "LOCKCORE_TEST_STORE";
    if let Ok(url) = std::env::var(STORE) {
        let config = Config { wait: Some(Waiting::Forever), ..from_url(&url) };
        let locks = config.service().await.expect("a service");
        let refused = locks.lock(["command"]).await.expect_err("it is the command's");
        assert!(matches!(refused, LockError::SelfDeadlock { .. }), "{refused}");
        let locks = config.builder().await.expect("a builder").build().expect("defaults");
        let refused = locks.lock(["command", "free"]).await.expect_err("it is the command's");
        assert!(matches!(refused, LockError::SelfDeadlock { .. }), "{refused}");
        locks.lock(["free"]).await.expect("free").release().await.expect("held");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}/locks.db", folder.path().display());
    let command = from_url(&url).service().await.expect("a service");
    let held = command.lock(["command"]).await.expect("free");
    let name = std::thread::current().name().expect("the test's").to_owned();
    let program = std::process::Command::new(std::env::current_exe().expect("it runs"))
        .args([&name, "--exact"])
        .env(STORE, &url)
        .env("LOCKCORE_ENCLOSING", format!("{} =636f6d6d616e64 ", held.context()))
        .output()
        .expect("it runs");
    assert!(program.status.success(), "{}", String::from_utf8_lossy(&program.stdout));
    assert!(String::from_utf8_lossy(&program.stdout).contains("1 passed"), "it was run");
    held.release().await.expect("held");
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_server_that_refuses_connections_is_named() {
    let error = connect_error("redis://user:hunter2@127.0.0.1:1/").await;
    assert!(error.starts_with("redis at 127.0.0.1:1: "), "{error}");
    assert_eq!(error.matches("refused").count(), 1, "{error}");
}

#[tokio::test]
async fn a_report_with_causes_says_nothing_twice() {
    for url in [
        "sqlite:/nowhere/locks.db",
        "redis://127.0.0.1:1/",
        "postgres://127.0.0.1:1/d",
        "mysql://127.0.0.1:1/d",
    ] {
        let Err(error) = connect(url).await else { panic!("{url}: it is there") };
        let chain: Vec<_> = anyhow::Error::from(error).chain().map(ToString::to_string).collect();
        for (position, cause) in chain.iter().enumerate() {
            assert!(!chain[..position].iter().any(|before| before.contains(cause)), "{chain:?}");
        }
    }
    let error = Config::from_file(Path::new("/nowhere/lockcore.toml")).expect_err("there is none");
    assert_eq!(anyhow::Error::from(error).chain().count(), 1);
}

/// The wait that is configured is also one for the store; a wrong password would end it, and so does a setting.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_store_that_cannot_be_reached_yet_is_waited_for() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let url = format!("redis://{gone}/");
    for (wait, at_least) in
        [(None, 0), (Some(Waiting::Never), 0), (Some(Waiting::UpTo(Duration::from_secs(1))), 1)]
    {
        let begun = std::time::Instant::now();
        let error = Config { wait, ..from_url(&url) }.connect().await.expect_err("no server");
        assert!(begun.elapsed() >= Duration::from_secs(at_least), "{wait:?}: {:?}", begun.elapsed());
        assert!(matches!(error, ConnectError::Backend(error) if error.is_retryable()));
    }
    let config = Config { wait: Some(Waiting::Forever), ..from_url(&format!("{url}?response_timeout=0s")) };
    config.connect().await.expect_err("no setting");
}
