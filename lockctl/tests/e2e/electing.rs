//! Leader election: `elect` and `leader`.

use std::fs;

use crate::{store::Store, stores::Test};

pub(crate) const TESTS: &[Test] = &[
    test!(candidates_lead_one_after_the_other, Nothing),
    test!(what_observers_would_not_see_is_refused, File),
];

fn what_observers_would_not_see_is_refused(store: &Store) {
    let elect = |args: &[&str]| store.run(&[&["elect", "--id", "e"], args, &["--", "true"]].concat());
    let empty = elect(&["--value", ""]);
    assert_eq!(empty.code, 125);
    assert!(empty.stderr.contains("'--value <VALUE>'"), "{}", empty.stderr);
    let owner = elect(&["--value", "v", "--owner", "me"]);
    let message = "lockctl: --owner: observers of an election see --value, leave it out\n";
    assert_eq!((owner.code, owner.stderr.as_str()), (125, message));
}

fn candidates_lead_one_after_the_other(store: &Store) {
    let leads = |value: &str| {
        let script = format!(
            "echo $LOCKCORE_FENCE >{value}.term; touch {value}; while [ ! -e resign-{value} ]; do sleep 0.01; done"
        );
        let data = format!("{{\"candidate\": \"{value}\"}}");
        store.start(&[
            "elect",
            "--id",
            "scheduler",
            "--value",
            value,
            "--data",
            &data,
            "--",
            "sh",
            "-c",
            &script,
        ])
    };
    let leader = || store.run(&["leader", "scheduler"]);
    assert_eq!((leader().code, leader().stdout.as_str()), (120, ""));

    let first = leads("one");
    store.until_file("one");
    assert_eq!((leader().code, leader().stdout.as_str()), (0, "one {\"candidate\":\"one\"}\n"));
    let second = leads("two");
    fs::write(store.path("resign-one"), "").expect("written");
    assert_eq!(first.end().code, 0);
    store.until_file("two");
    let seen = store.json(&["leader", "scheduler"]);
    let term = |value: &str| store.read(&format!("{value}.term")).trim().parse::<u64>().expect("a number");
    assert_eq!((seen["value"].as_str(), seen["term"].as_u64()), (Some("two"), Some(term("two"))));
    assert!(term("two") > term("one"));
    assert_eq!(seen["data"], serde_json::json!({ "candidate": "two" }));
    let holder = &store.json(&["show", "scheduler"])["holders"][0];
    assert_eq!((&holder["owner"], &holder["data"]), (&serde_json::json!("two"), &seen["data"]));
    fs::write(store.path("resign-two"), "").expect("written");
    assert_eq!(second.end().code, 0);
    assert_eq!(leader().code, 120);
}
