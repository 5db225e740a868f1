//! The sources of configuration: a TOML file and the environment.

use std::{
    ffi::OsString,
    fs::{File, Metadata},
    io::{self, Read},
    path::{Path, absolute},
};

use serde::{Deserialize, Deserializer, de};
use toml::{Table, Value};

use crate::{
    BackendUrl, Config, ConfigError, backends,
    option::{OptionValue, Options},
    parse_duration,
    schemes::BACKENDS,
    text::{trimmed, without_line_ends},
};

/// The file that is read if none is named and it is there.
const DEFAULT_FILE: &str = "lockcore.toml";

/// The keys beside the backends' tables.
const KEYS: [&str; 5] = ["url", "namespace", "owner", "lease", "wait"];

/// Other variables that begin with [`PREFIX`]: the path of the file, what `lockctl` reads and what it passes to its commands, and
/// what the test suite reads.
const OTHER_VARIABLES: [&str; 9] =
    ["CONFIG", "LOG", "CONTEXT", "FENCE", "FENCES", "PERMITS", "ENCLOSING", "REQUIRE_SERVERS", "BLESS"];

/// The prefix of every variable.
const PREFIX: &str = "LOCKCORE_";

/// Refuses variables that look like ours but are not: a misspelt one would otherwise be ignored.
pub(crate) fn check_names(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<(), ConfigError> {
    let known = || KEYS.iter().map(|key| key.to_ascii_uppercase()).chain(OTHER_VARIABLES.map(str::to_owned));
    for (name, _) in variables.filter(|(_, value)| !value.is_empty()) {
        let name = name.to_string_lossy();
        let Some(own) = name.strip_prefix(PREFIX) else { continue };
        // Kubernetes sets variables of these forms for a service that is called lockcore, or lockcore-something.
        let of_kubernetes = format!("_{own}_");
        let of_kubernetes = of_kubernetes.contains("_SERVICE_") || of_kubernetes.contains("_PORT_");
        if of_kubernetes || own.starts_with("TEST_") || known().any(|known| known == own) {
            continue;
        }
        let nearest = known().min_by_key(|known| strsim::damerau_levenshtein(known, own)).unwrap_or_default();
        return Err(ConfigError::UnknownVariable {
            name: name.escape_debug().to_string(),
            nearest: PREFIX.to_owned() + &nearest,
        });
    }
    Ok(())
}

/// The file named by the caller, else by `LOCKCORE_CONFIG`, else the default one if it is there.
pub(crate) fn find(
    named: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Config, ConfigError> {
    let by_variable = variable("LOCKCORE_CONFIG").filter(|name| !name.is_empty());
    match (named, by_variable) {
        (Some(named), _) => file(named),
        (None, Some(named)) => file(path_in(&named)?),
        (None, None) => match read(Path::new(DEFAULT_FILE), check_trust) {
            Err(ConfigError::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Config::default())
            }
            found => found,
        },
    }
}

/// The path that `LOCKCORE_CONFIG` holds.
fn path_in(variable: &OsString) -> Result<&Path, ConfigError> {
    let Some(text) = variable.to_str() else { return Ok(Path::new(variable)) };
    match trimmed(text) {
        Ok(path) => Ok(Path::new(path)),
        Err(expected) => {
            let (field, expected) = ("LOCKCORE_CONFIG".to_owned(), expected.to_owned());
            Err(ConfigError::Value { field, value: format!("{text:?}"), expected })
        }
    }
}

/// Reads a file.
pub(crate) fn file(path: &Path) -> Result<Config, ConfigError> {
    read(path, |_, _| Ok(()))
}

/// Reads a file once `check` has looked at what it is.
fn read(
    path: &Path,
    check: impl FnOnce(&Path, &Metadata) -> Result<(), ConfigError>,
) -> Result<Config, ConfigError> {
    let refuse = |error| ConfigError::Read { file: path.to_owned(), error };
    // Not by its name again: it could be another file by then.
    let mut file = File::open(path).map_err(refuse)?;
    check(path, &file.metadata().map_err(refuse)?)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(refuse)?;
    let config = toml(&text, &path.display().to_string())?;
    match absolute(path).map_err(refuse)?.parent() {
        Some(folder) => config.under(folder),
        None => Ok(config),
    }
}

/// Refuses a file that another user may have put into the current directory, as ssh and git do.
#[cfg(unix)]
fn check_trust(file: &Path, metadata: &Metadata) -> Result<(), ConfigError> {
    use std::os::unix::fs::MetadataExt;

    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    let reason = if ![0, nix::unistd::geteuid().as_raw()].contains(&owner) {
        format!("it belongs to user {owner}, who is neither root nor the caller")
    } else if mode & 0o022 != 0 {
        format!("other users may write it (mode {mode:03o})")
    } else {
        return Ok(());
    };
    Err(ConfigError::Untrusted { file: file.to_owned(), reason })
}

#[cfg(not(unix))]
fn check_trust(_: &Path, _: &Metadata) -> Result<(), ConfigError> {
    Ok(())
}

/// Reads the text of a file that is called `name`.
pub(crate) fn toml(text: &str, name: &str) -> Result<Config, ConfigError> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        // Not the error as a whole: it quotes the line, in which a password may stand.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        ConfigError::Syntax {
            file: name.to_owned(),
            line: before.matches('\n').count() + 1,
            message: error.message().lines().collect::<Vec<_>>().join(", "),
        }
    })?;
    from_table(table, name)
}

/// Reads the environment.
pub(crate) fn environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    for key in KEYS {
        let name = format!("LOCKCORE_{}", key.to_ascii_uppercase());
        let Some(text) = variable(&name).filter(|text| !text.is_empty()) else { continue };
        let Ok(text) = text.into_string() else {
            // Not shown: it may be the URL, with a password in it.
            let (value, expected) = ("what it holds".to_owned(), "it must be UTF-8".to_owned());
            return Err(ConfigError::Value { field: name, value, expected });
        };
        set(&mut config, key, name, &text)?;
    }
    Ok(config)
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_table(Table::deserialize(deserializer)?, "configuration").map_err(de::Error::custom)
    }
}

fn from_table(table: Table, name: &str) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    for (key, value) in table {
        if KEYS.contains(&key.as_str()) {
            let field = format!("{key} in {name}");
            let text = plain(&key, &field, value)?;
            set(&mut config, &key, field, &text)?;
        } else if BACKENDS.contains(&key.as_str()) {
            let options = backend_table(&key, value, name)?;
            config.options.set(key, options);
        } else {
            let known = KEYS.into_iter().chain(backends::compiled_in()).collect();
            return Err(ConfigError::UnknownKey { place: name.to_owned(), key, known });
        }
    }
    Ok(config)
}

fn backend_table(scheme: &str, value: Value, name: &str) -> Result<Options, ConfigError> {
    let field = format!("{scheme} in {name}");
    let Value::Table(table) = value else {
        let expected = format!("it must be a table, [{scheme}]");
        return Err(ConfigError::Value { field, value: format!("a {}", value.type_str()), expected });
    };
    let mut options = Options::default();
    for (key, value) in table {
        let field = format!("{scheme}.{key} in {name}");
        let text = plain(&key, &field, value)?;
        options.insert(key.clone(), OptionValue::new(&key, field, text));
    }
    // Here too, not only on connecting: so that a mistake does not hide while another backend is in use.
    if let Some(known) = backends::options_of(scheme) {
        options.check_known(known)?;
    }
    Ok(options)
}

/// Returns a single value as text. `key` decides whether it may be shown.
fn plain(key: &str, field: &str, value: Value) -> Result<String, ConfigError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Boolean(flag) => Ok(flag.to_string()),
        other => Err(ConfigError::Value {
            field: field.to_owned(),
            value: format!("a {}", other.type_str()),
            expected: format!("{key} must be a string"),
        }),
    }
}

/// Sets one of [`KEYS`] to what stands at `field`.
fn set(config: &mut Config, key: &str, field: String, text: &str) -> Result<(), ConfigError> {
    let refuse = |expected| ConfigError::Value { field: field.clone(), value: format!("{text:?}"), expected };
    let text = without_line_ends(text);
    match key {
        "url" => config.url = Some(BackendUrl::read(text, &field)?),
        "namespace" => {
            let name = trimmed(text).map_err(|expected| refuse(expected.to_owned()))?;
            config.namespace = Some(name.to_owned());
        }
        "owner" => config.owner = Some(text.to_owned()),
        "lease" => config.lease = Some(parse_duration(text).map_err(refuse)?),
        "wait" => config.wait = Some(text.parse().map_err(refuse)?),
        other => unreachable!("{other} is none of the keys"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        environment(|name| find(name).map(|(_, text)| (*text).into()))
    }

    #[test]
    fn the_environment_is_read_and_its_mistakes_named() {
        let config = from(&[("LOCKCORE_URL", "memory:"), ("LOCKCORE_LEASE", "20s"), ("LOCKCORE_OWNER", "")]);
        let config = config.expect("good variables");
        assert_eq!(config.url.map(|url| url.to_string()).as_deref(), Some("memory:"));
        assert_eq!((config.lease, config.owner), (Some(Duration::from_secs(20)), None));

        let lines =
            [("LOCKCORE_URL", "memory:\n"), ("LOCKCORE_NAMESPACE", "prod\r\n"), ("LOCKCORE_LEASE", "20s\n")];
        let config = from(&lines).expect("line ends are not meant");
        assert_eq!(
            (config.namespace.as_deref(), config.lease),
            (Some("prod"), Some(Duration::from_secs(20)))
        );
        let error = from(&[("LOCKCORE_NAMESPACE", "prod ")]).expect_err("it may be meant").to_string();
        assert_eq!(
            error,
            "LOCKCORE_NAMESPACE: \"prod \" is not possible, it must not begin or end with white space"
        );

        let error = from(&[("LOCKCORE_LEASE", "60")]).expect_err("no unit").to_string();
        assert_eq!(error, "LOCKCORE_LEASE: \"60\" is not possible, it needs a unit, such as 60s or 60ms");
        let error = from(&[("LOCKCORE_URL", "hunter2")]).expect_err("no scheme").to_string();
        assert_eq!(error, "LOCKCORE_URL: must begin with a scheme, such as sqlite:/var/lib/locks.db");
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_nearest_known_one() {
        let check = |name: &str| check_names([(name.into(), "x".into())].into_iter());
        for (name, nearest) in [
            ("LOCKCORE_NAMESPCE", "LOCKCORE_NAMESPACE"),
            ("LOCKCORE_LAESE", "LOCKCORE_LEASE"),
            ("LOCKCORE_url", "LOCKCORE_URL"),
        ] {
            let error = check(name).expect_err(name).to_string();
            assert_eq!(error, format!("{name}: unknown variable; the nearest known one is {nearest}"));
        }
        for name in [
            "LOCKCORE_URL",
            "LOCKCORE_FENCES",
            "LOCKCORE_TEST_SEED",
            "LOCKCORE_SERVICE_HOST",
            "LOCKCORE_DB_PORT_5432_TCP",
            "LOCK_NAMESPCE",
        ] {
            check(name).expect(name);
        }
        check_names([("LOCKCORE_NAMESPCE".into(), "".into())].into_iter()).expect("empty counts as absent");
    }

    #[test]
    #[cfg(unix)]
    fn a_variable_that_is_not_text_is_a_mistake() {
        use std::os::unix::ffi::OsStringExt;
        for key in KEYS {
            let name = format!("LOCKCORE_{}", key.to_uppercase());
            let variable = |asked: &str| (asked == name).then(|| OsString::from_vec(b"memory:\xff".to_vec()));
            let error = environment(variable).expect_err("it is not UTF-8").to_string();
            assert_eq!(error, format!("{name}: what it holds is not possible, it must be UTF-8"));
        }
    }

    #[test]
    fn a_file_named_by_the_environment_must_be_there() {
        let variable = |name: &str| (name == "LOCKCORE_CONFIG").then(|| "/nowhere/x.toml".into());
        let error = find(None, variable).expect_err("no file").to_string();
        assert!(error.starts_with("/nowhere/x.toml: cannot be read: "), "{error}");
        find(None, |_| None).expect("nothing is named");
    }
}
