//! Whatever stands in a URL, a file or a variable, it is read or refused: nothing panics, and no secret is shown.

use lockcore_any::{BackendUrl, Config, Waiting, parse_duration};
use lockcore_conformance::hostile::feed;

#[test]
fn urls_are_read_or_refused() {
    let examples = [
        "memory:",
        "sqlite:/var/lib/app/locks.db?busy_timeout=5s",
        "redis://user:p%40ss@host:6379/3?namespace=billing&response_timeout=2s",
        "rediss+sentinel://a:1,b:2/main?db=0",
        "redis+cluster://a:1,b:2",
        "postgres://user:secret@[::1]:5432/app?sslmode=require",
        "mysql://user@host/app?ssl-mode=required&table_prefix=x_",
        "dynamodb://eu-central-1/locks?endpoint=http://localhost:8000",
    ];
    feed(&examples, |text| {
        if let Ok(url) = text.parse::<BackendUrl>() {
            let _ = (url.scheme(), url.path(), format!("{url:?} {url}"));
            let config = Config { url: Some(url), ..Config::default() };
            let _ = (config.store(), format!("{config:?}"));
        }
    });
}

#[test]
fn a_password_is_never_shown() {
    for url in ["redis://u:QQSECRETQQ@h:1/0", "postgres://u:QQSECRETQQ@h/db", "mysql://u:QQSECRETQQ@h/db?x=1"]
    {
        feed(&[url], |text| {
            // Wherever a change may have moved the password to: behind the first colon after the user it is one.
            let Some(rest) = text.split_once("://u:").map(|(_, rest)| rest) else { return };
            if !rest.starts_with("QQSECRETQQ@") || text.matches("QQSECRETQQ").count() != 1 {
                return;
            }
            let shown = match text.parse::<BackendUrl>() {
                Ok(url) => format!(
                    "{url:?} {url} {:?}",
                    Config { url: Some(url.clone()), ..Config::default() }.store()
                ),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("QQSECRETQQ"), "{shown}");
        });
    }
}

#[test]
fn files_are_read_or_refused() {
    let examples = [
        "url = 'sqlite:locks.db'\nnamespace = 'a'\nowner = 'b'\nlease = '30s'\nwait = 'never'\n",
        "url = \"redis://h/\"\n[redis]\nresponse_timeout = \"5s\"\n[postgres]\nmax_connections = 4\n",
    ];
    feed(&examples, |text| {
        if let Ok(config) = Config::from_toml(text) {
            let _ = (config.store(), format!("{config:?}"));
        }
    });
}

#[test]
fn durations_are_read_or_refused() {
    feed(&["30s", "1h 30m", "250ms", "never", "forever", "18446744073709551615s", "1.5d"], |text| {
        let _ = (parse_duration(text), text.parse::<Waiting>());
    });
}
