//! Ids are their bytes: nothing is folded, trimmed or normalised, section 7.

use lockcore::{ConflictReason, MAX_ID_BYTES, MAX_OWNER_BYTES, Owner};

use crate::{Backend, Store, store::id};

/// 7: ids that differ only by case, blanks, NUL, Unicode form, quoting or emoji are different locks.
pub async fn odd_ids_are_different_locks<B: Backend>(store: Store<B>) {
    let ids = odd_ids();
    let mut held = Vec::new();
    for id in &ids {
        let caller = store.caller();
        held.push((caller.take([id]).await, caller));
    }
    for id in &ids {
        store.caller().refused([id]).await;
    }
    for (grant, caller) in &held {
        caller.free(grant).await;
    }
}

/// 7 and 2.2: a set of all of them is taken and freed in one step, and refusals give them back unchanged.
pub async fn odd_ids_come_back_unchanged<B: Backend>(store: Store<B>) {
    let [holder, other] = store.callers();
    let mut ids = odd_ids();
    let held = holder.take(&ids).await;
    let conflicts = other.refused(&ids).await;
    let mut told: Vec<String> =
        conflicts.iter().map(|conflict| conflict.target.stored().into_owned()).collect();
    told.sort();
    ids.sort();
    assert_eq!(told, ids);
    if store.capabilities().listing {
        let one = lockcore::LockDao::inspect(&**store.dao(), &id(&ids[3])).await.expect("the store answers");
        assert_eq!(one.target, Ok(id(&ids[3])));
        assert_eq!(one.holders.len(), 1);
    }
    holder.free(&held).await;
    other.take(&ids).await;
}

/// 7: ids of the greatest length are distinguished by their last byte, and a hundred of them make a set.
pub async fn ids_of_the_greatest_length_work<B: Backend>(store: Store<B>) {
    let start = "x".repeat(MAX_ID_BYTES - 3);
    let ids: Vec<String> = (0..100).map(|number| format!("{start}{number:03}")).collect();
    let [one, two] = store.callers();
    let first = one.take([&ids[0]]).await;
    let rest = two.take(&ids[1..]).await;
    one.free(&first).await;
    two.free(&rest).await;
    let all = one.take(&ids).await;
    one.free(&all).await;
}

/// 1: owner labels of any content are given back as they are, with the data that they carry.
pub async fn owner_labels_come_back_unchanged<B: Backend>(store: Store<B>) {
    let labels = ["", "it's \"quoted\" \\ %s {} ; --", "\u{1F512} n\u{e9}\n\0", "\0", "a\0b|~{}"];
    let longest = ["l", "\0", "%"].map(|part| part.repeat(MAX_OWNER_BYTES));
    let data = Owner::with_data("worker-7", r#"{"port":8080}"#);
    assert_eq!((data.label(), data.data()), ("worker-7", Some(r#"{"port":8080}"#)));
    let labels = labels.into_iter().chain(longest.iter().map(String::as_str)).chain([&*data]);
    for label in labels {
        let mut holder = store.caller();
        holder.owner = label.into();
        let held = holder.take(["a"]).await;
        match &store.caller().refused(["a"]).await[0].reason {
            ConflictReason::Held { holders, .. } => assert_eq!(&*holders[0].owner, label),
            other => panic!("not held: {other:?}"),
        }
        holder.free(&held).await;
    }
}

fn odd_ids() -> Vec<String> {
    let mut ids: Vec<String> = [
        "a",
        "A",
        "a ",
        " a",
        "a  ",
        "a\t",
        "a\n",
        "a\r\n",
        "\0",
        "a\0",
        "a\0b",
        "a\0c",
        "\u{e9}",
        "e\u{301}",
        "\u{c9}",
        "\u{212b}",
        "\u{c5}",
        "stra\u{df}e",
        "strasse",
        "STRASSE",
        "\u{131}",
        "i",
        "I",
        "\u{130}",
        "\u{1F512}",
        "\u{1F513}",
        "\u{1F468}\u{200d}\u{1F469}",
        "\u{1F468}",
        "\u{2764}",
        "\u{2764}\u{fe0f}",
        "\u{feff}a",
        "\u{200b}a",
        "\u{202e}a",
        "\u{10ffff}",
        "'",
        "''",
        "\"",
        "`",
        "\\",
        "\\\\",
        "\\'",
        "%",
        "_",
        "a%",
        "a_",
        "a*",
        "a?",
        "[a]",
        "{a}",
        "{a}:b",
        "a:b",
        "a|b",
        "a/b",
        "a#b",
        "$1",
        ":a",
        "?",
        "@a",
        "'; DROP TABLE locks; --",
        "NULL",
        "null",
        "0",
        "00",
        "1e3",
        "1000",
        "-1",
        ".",
        "..",
        "s|a",
        "x:1",
        "~",
        "lc2~shared",
        "lc2~frozen",
        "%s",
        "%d%n",
        "{}",
        "}",
        "/f",
        "/n:a",
        "\n",
        "a\nb",
        "\0\n",
        "\u{ff}",
        "\u{7f}",
    ]
    .map(str::to_owned)
    .to_vec();
    ids.push("\u{1F512}".repeat(MAX_ID_BYTES / 4));
    ids.push("\u{e9}".repeat(MAX_ID_BYTES / 2));
    for part in ["\0", "%", "|", "\n", "\u{10ffff}"] {
        ids.push(part.repeat(MAX_ID_BYTES / part.len()));
    }
    ids
}
