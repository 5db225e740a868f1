//! What the store needs: printed for other tools, and made.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    store::{Ended, Store},
    stores::Test,
};

pub(crate) const TESTS: &[Test] = &[
    test!(an_unknown_language_is_a_mistake, Nothing),
    test!(what_programs_may_not_migrate_an_administrator_does, File),
    test!(a_table_is_described_for_other_tools_and_made, DynamoDb),
    test!(without_routines_statements_lock, Sql),
];

fn without_routines_statements_lock(store: &Store) {
    let namespace = store.namespace("statements");
    let run = |routines: &str, args: &[&str]| {
        let mut command = store.lockctl(args);
        command.env("LOCKCORE_URL", format!("{}&routines={routines}", store.url()));
        command.env("LOCKCORE_NAMESPACE", &namespace);
        Ended::of(command)
    };
    let printed = run("no", &["migrate", "--print", "sql"]);
    assert_eq!((printed.code, printed.stderr.as_str()), (0, ""));
    assert_eq!(printed.stdout.matches("CREATE TABLE").count(), 2, "{}", printed.stdout);
    assert!(
        !printed.stdout.contains("PROCEDURE") && !printed.stdout.contains("FUNCTION"),
        "{}",
        printed.stdout
    );
    let migrated = run("no", &["migrate"]);
    assert_eq!(migrated.code, 0, "{}", migrated.stderr);
    let locked = run("no", &["run", "--id", "a", "--id", "b", "--", "echo", "held"]);
    assert_eq!((locked.code, locked.stdout.as_str()), (0, "held\n"), "{}", locked.stderr);
    let looked = run("no", &["doctor"]);
    assert!(looked.stdout.contains("by plain statements"), "{} {}", looked.stdout, looked.stderr);
    // The other form never locks it.
    let refused = run("yes", &["run", "--id", "a", "--", "echo", "held"]);
    assert_eq!(refused.stdout, "");
    assert!(refused.stderr.contains(&format!("{namespace:?} is locked by statements")), "{}", refused.stderr);
}

fn an_unknown_language_is_a_mistake(store: &Store) {
    let ended = store.run(&["migrate", "--print", "cobol"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("lockctl: ") && ended.stderr.contains("cobol"), "{}", ended.stderr);
}

fn what_programs_may_not_migrate_an_administrator_does(store: &Store) {
    std::fs::write(store.path("lockcore.toml"), "[sqlite]\nmode = 'rw'").expect("written");
    let fresh = ["--url", "sqlite:fresh.db"];
    let run = |command: &str| store.run(&[&[command], &fresh[..]].concat());
    let refused = run("ls");
    assert_eq!(refused.code, 123, "{}", refused.stderr);
    let migrated = run("migrate");
    assert_eq!(
        (migrated.code, migrated.stdout.as_str()),
        (0, "the schema is current\n"),
        "{}",
        migrated.stderr
    );
    assert_eq!(run("ls").code, 0);
}

fn a_table_is_described_for_other_tools_and_made(store: &Store) {
    let table = format!("lockctl-{}", Uuid::new_v4());
    let url = store.url().replace("/lockctl-e2e?", &format!("/{table}?"));
    let run = |args: &[&str]| {
        let mut command = store.lockctl(args);
        command.env("LOCKCORE_URL", format!("{url}&context_index=context-ids-index"));
        Ended::of(command)
    };
    let printed = |language: &str| {
        let ended = run(&["migrate", "--print", language]);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{language}");
        let same: Value =
            serde_json::from_str(&run(&["migrate", "--print", language, "--json"]).stdout).expect("JSON");
        let said = same["schema"].as_str().map(str::trim_end);
        assert_eq!(said, Some(ended.stdout.trim_end()), "{language}");
        ended.stdout
    };

    let policy: Value = serde_json::from_str(&printed("iam")).expect("JSON");
    let [statement] = &policy["Statement"].as_array().expect("a list")[..] else { panic!("one: {policy}") };
    assert_eq!(statement["Effect"], "Allow");
    assert_eq!(statement["Resource"], format!("arn:aws:dynamodb:*:*:table/{table}"));
    let actions = ["BatchGetItem", "DescribeTable", "GetItem", "UpdateItem"];
    assert_eq!(statement["Action"], json!(actions.map(|action| format!("dynamodb:{action}"))));

    let template = printed("cloudformation");
    for part in [
        &format!("TableName: \"{table}\""),
        "BillingMode: PAY_PER_REQUEST",
        "TimeToLiveSpecification:\n        AttributeName: \"expires\"\n        Enabled: true",
        "IndexName: \"context-ids-index\"",
    ] {
        assert!(template.contains(part), "{part} in\n{template}");
    }
    let resource = printed("terraform");
    for part in [
        &format!("name         = \"{table}\""),
        "billing_mode = \"PAY_PER_REQUEST\"",
        "ttl {\n    attribute_name = \"expires\"\n    enabled        = true",
        "name            = \"context-ids-index\"",
    ] {
        assert!(resource.contains(part), "{part} in\n{resource}");
    }

    // So far nothing was made.
    let acquire = ["acquire", "--id", "a"];
    let missing = run(&acquire);
    assert!(
        missing.code != 0 && missing.stderr.contains("`lockctl migrate` creates it"),
        "{}",
        missing.stderr
    );
    for _ in 0..2 {
        assert_eq!(run(&["migrate"]).stdout, "the schema is current\n");
    }
    assert_eq!(run(&acquire).code, 0);
    let findings: Value = serde_json::from_str(&run(&["doctor", "--json"]).stdout).expect("JSON");
    for check in ["table", "context index", "ttl"] {
        let found = findings.as_array().expect("a list").iter().find(|found| found["check"] == check);
        assert_eq!(found.map(|found| &found["severity"]), Some(&json!("ok")), "{check} in {findings}");
    }
}
