//! One writer per object: tasks append to objects in a store without locks, and no line is lost.

use std::{collections::HashMap, sync::Mutex};

use lockcore::{LockingService, Wait};
use lockcore_memory::MemoryLockDao;
use tokio::task::yield_now;

/// Stands for an object store: whole objects are read and written, and the last writer wins.
static BUCKET: Mutex<Option<HashMap<String, String>>> = Mutex::new(None);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // For many processes: `LockingService::new(lockcore_any::connect("redis://127.0.0.1/").await?)`
    let locks = LockingService::new(MemoryLockDao::<String>::new());
    let writers = (0..100).map(|line| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let object = format!("log/{}.txt", line % 3);
            let append = async || -> anyhow::Result<()> {
                let mut text = get(&object);
                yield_now().await; // without the lock, another task could write here
                text += &format!("line {line}\n");
                put(&object, text);
                Ok(())
            };
            locks.wait(Wait::forever()).try_with_locks([&object], append).await
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await??;
    }
    let lines: usize = (0..3).map(|object| get(&format!("log/{object}.txt")).lines().count()).sum();
    assert_eq!(lines, 100);
    println!("all {lines} lines are there");
    Ok(())
}

fn get(object: &str) -> String {
    BUCKET.lock().expect("no writer panics").get_or_insert_default().get(object).cloned().unwrap_or_default()
}

fn put(object: &str, text: String) {
    BUCKET.lock().expect("no writer panics").get_or_insert_default().insert(object.to_owned(), text);
}

#[test]
fn it_runs() {
    main().expect("it runs");
}
