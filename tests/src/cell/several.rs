//! The checks of stores that replace several cells in one step.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures_util::future::join;
use lockcore_cell::{Cell, Change, Found, Written};

use super::{Adapter, Cells, Version, answer, has, is_absent, refused, write};
use crate::race;

/// Makes a change of a cell.
fn change<V: Clone>(name: &str, at: Option<&V>, content: &str) -> Change<V> {
    Change { name: name.to_owned(), at: at.cloned(), content: Bytes::copy_from_slice(content.as_bytes()) }
}

/// Replaces several cells at once; returns whether that was done, and their versions.
async fn write_all<C: Cell>(cell: &C, changes: &[Change<C::Version>]) -> Option<Vec<C::Version>> {
    match answer(|| cell.replace_all(changes)).await {
        Written::Done(versions) => {
            assert_eq!(versions.len(), changes.len(), "a version for each");
            Some(versions)
        }
        Written::Refused => None,
    }
}

/// Returns the contents of cells that are read at once.
async fn contents<C: Cell>(cell: &C, names: &[&str]) -> Vec<Option<Bytes>> {
    let cells: Vec<_> = names.iter().map(|name| ((*name).to_owned(), None)).collect();
    let found = answer(|| cell.read_all(&cells)).await;
    assert_eq!(found.len(), names.len(), "an answer for each");
    let content = |found| match found {
        Found::Changed(_, content) => Some(content),
        Found::Absent => None,
        Found::Unchanged => panic!("no version was known"),
    };
    found.into_iter().map(content).collect()
}

/// Cells are replaced at once, new ones and old ones together, and read at once in the order in which they are asked for.
pub async fn several_cells_are_replaced_at_once<A: Adapter>(cells: Cells<A>) {
    let (one, two) = cells.two().await;
    if one.at_once() < 2 {
        return;
    }
    let old = write(&one, "id/b", None, "b1").await;
    // In no order of names.
    let changes = [change("id/c", None, "c1"), change("id/b", Some(&old), "b2"), change("id/a", None, "a1")];
    let versions = write_all(&two, &changes).await.expect("all conditions hold");
    for ((name, content), version) in [("id/c", "c1"), ("id/b", "b2"), ("id/a", "a1")].iter().zip(&versions) {
        has(&one, name, content).await;
        assert!(matches!(answer(|| one.read(name, Some(version))).await, Found::Unchanged), "{name}");
    }
    refused(&one, "id/b", Some(&old)).await;
    let asked = ["id/x", "id/b", "id/a", "id/c", "id/b"];
    let expected = [None, Some("b2"), Some("a1"), Some("c1"), Some("b2")];
    let expected = expected.map(|content| content.map(|content| Bytes::from_static(content.as_bytes())));
    assert_eq!(contents(&one, &asked).await, expected);
    // A version that is known is not sent again.
    let cells = [("id/a".to_owned(), Some(versions[2].clone())), ("id/b".to_owned(), Some(old))];
    let found = answer(|| one.read_all(&cells)).await;
    assert!(matches!(&found[..], [Found::Unchanged, Found::Changed(_, b)] if b == "b2"), "{found:?}");
    assert!(answer(|| one.read_all(&[])).await.is_empty(), "none is asked for");
    assert_eq!(write_all(&one, &[]).await.map(|versions| versions.len()), Some(0), "none is replaced");
    let alone = write_all(&one, &[change("id/a", Some(&versions[2]), "a2")]).await;
    assert!(alone.is_some(), "one is a set, too");
    has(&two, "id/a", "a2").await;
}

/// If one cell is not of its version, none is replaced, whichever it is and whatever is wrong with it.
pub async fn all_are_replaced_or_none<A: Adapter>(cells: Cells<A>) {
    let (one, two) = cells.two().await;
    if one.at_once() < 2 {
        return;
    }
    let names = ["id/a", "id/b", "id/c", "id/d"];
    let mut versions = Vec::new();
    for name in names {
        versions.push(write(&one, name, None, "old").await);
    }
    let stale = versions.clone();
    for (position, name) in names.iter().enumerate() {
        versions[position] = write(&two, name, Some(&versions[position]), "newer").await;
    }
    for (wrong, stale) in stale.iter().enumerate() {
        for at in [None, Some(stale)] {
            let changes: Vec<_> = names
                .iter()
                .enumerate()
                .map(|(position, name)| {
                    let at = if position == wrong { at } else { Some(&versions[position]) };
                    change(name, at, "never")
                })
                .chain([change("id/e", None, "never"), change("id/0", None, "never")])
                .collect();
            assert_eq!(write_all(&one, &changes).await.map(drop), None, "{wrong} is of another version");
        }
    }
    for (name, version) in names.iter().zip(&versions) {
        assert!(matches!(answer(|| two.read(name, Some(version))).await, Found::Unchanged), "{name}");
        has(&two, name, "newer").await;
    }
    is_absent(&two, "id/e").await;
    is_absent(&two, "id/0").await;
}

/// Of sets that share a cell, and name the same version of it, one is replaced; and what is read at once is of one moment.
pub async fn overlapping_sets_never_both<A: Adapter>(cells: Cells<A>) {
    const WRITERS: usize = 8;
    let cell = Arc::new(cells.open().await);
    if cell.at_once() < 2 {
        return;
    }
    let other = Arc::new(cells.open().await);
    let mut shared = None;
    for round in 0..4 {
        let (at, by) = (shared.clone(), [cell.clone(), other.clone()]);
        let written = race(WRITERS, move |number| {
            let (cell, at) = (by[number % 2].clone(), at.clone());
            async move {
                let content = format!("{round} {number}");
                // Each has cells of its own before and behind the shared one.
                let changes = [
                    change(&format!("id/{round}a{number}"), None, &content),
                    change("id/m", at.as_ref(), &content),
                    change(&format!("id/z{round}{}", WRITERS - number), None, &content),
                ];
                write_all(&*cell, &changes).await.map(|versions| (number, versions[1].clone()))
            }
        })
        .await;
        let winners: Vec<_> = written.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "round {round}: one of all that name a version replaces it");
        let (winner, version) = winners.into_iter().next().expect("one");
        for number in 0..WRITERS {
            let names = [format!("id/{round}a{number}"), format!("id/z{round}{}", WRITERS - number)];
            let names = [&*names[0], &*names[1]];
            let content = (number == winner).then(|| Bytes::from(format!("{round} {number}")));
            assert_eq!(contents(&*cell, &names).await, [content.clone(), content], "round {round}");
        }
        shared = Some(version);
    }
    // Two cells that are always replaced together are always read alike.
    let pair = ["id/p", "id/q"];
    let changes = pair.map(|name| change(name, None, "0"));
    let mut versions = write_all(&*cell, &changes).await.expect("they are new");
    let writing = async {
        for number in 1..30 {
            let content = format!("{number}");
            let changes = [0, 1].map(|one| change(pair[one], Some(&versions[one]), &content));
            versions = write_all(&*cell, &changes).await.expect("one writer");
        }
    };
    let reading = async {
        for _ in 0..30 {
            let read = contents(&*other, &pair).await;
            assert_eq!(read[0], read[1], "what is read at once is of one moment");
        }
    };
    join(writing, reading).await;
}

/// Removing a cell of a version does nothing to another; a set that names a cell as new is refused while it is there, and done after.
pub async fn a_cell_is_removed_at_its_version<A: Adapter>(cells: Cells<A>) {
    let (one, two) = cells.two().await;
    if one.at_once() < 2 {
        return;
    }
    let first = write(&one, "id/a", None, "1").await;
    let second = write(&one, "id/a", Some(&first), "2").await;
    answer(|| two.remove_at("id/a", &first)).await;
    has(&one, "id/a", "2").await;
    let anew = |content| [change("id/a", None, content), change("id/b", None, content)];
    assert!(write_all(&one, &anew("3")).await.is_none(), "it is there");
    is_absent(&two, "id/b").await;
    for _ in 0..2 {
        answer(|| two.remove_at("id/a", &second)).await;
        is_absent(&one, "id/a").await;
    }
    refused(&one, "id/a", Some(&second)).await;
    is_absent(&one, "id/a").await;
    let versions = write_all(&one, &anew("4")).await.expect("both are new");
    has(&two, "id/a", "4").await;
    // No version of a cell that was removed counts for the one that is there now.
    for old in [&first, &second] {
        answer(|| two.remove_at("id/a", old)).await;
        refused(&two, "id/a", Some(old)).await;
        let changes = [change("id/a", Some(old), "5"), change("id/b", Some(&versions[1]), "5")];
        assert!(write_all(&two, &changes).await.is_none(), "a version came back");
    }
    has(&one, "id/b", "4").await;
}

/// As many cells as the adapter names are replaced and read at once, few and many, and one wrong version among them undoes all.
pub async fn sets_of_all_sizes_are_replaced<A: Adapter>(cells: Cells<A>) {
    let (one, two) = cells.two().await;
    if one.at_once() < 2 {
        return;
    }
    for size in BTreeSet::from([1, 2, 16, 17, 300, 4096].map(|size| one.at_once().min(size))) {
        let names: Vec<_> = (0..size).map(|number| format!("id/{size}x{number:06x}")).collect();
        let set = |versions: Option<&[Version<A>]>, content: &str| -> Vec<_> {
            let at = |position: usize| versions.map(|versions| &versions[position]);
            names.iter().enumerate().map(|(position, name)| change(name, at(position), content)).collect()
        };
        let first = write_all(&one, &set(None, "first")).await.expect("all are new");
        let second = write_all(&two, &set(Some(&first), "second")).await.expect("all are of their versions");
        let mut wrong = second.clone();
        wrong[size / 2] = first[size / 2].clone();
        assert!(write_all(&two, &set(Some(&wrong), "third")).await.is_none(), "one of {size} is wrong");
        let asked: Vec<_> = names.iter().cloned().zip(second.iter().cloned().map(Some)).collect();
        let found = answer(|| one.read_all(&asked)).await;
        assert!(found.iter().all(|found| matches!(found, Found::Unchanged)), "{size} cells");
        let asked: Vec<_> = names.iter().map(|name| (name.clone(), None)).collect();
        let found = answer(|| one.read_all(&asked)).await;
        assert!(
            found.iter().all(|found| matches!(found, Found::Changed(_, content) if content == "second")),
            "{size} cells"
        );
    }
}
