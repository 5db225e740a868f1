//! `a_forked_process_starts_over_and_leaves_its_parents_locks_alone`, with what there was before the repair.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    ptr::null_mut,
};

use lockcore::{FreshContext, LockingService};
use lockcore_memory::MemoryLockDao;
use uuid::Uuid;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
}

#[test]
fn a_forked_process_makes_other_contexts() {
    let _first = Uuid::fresh();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    for _ in 0..2 {
        let child = unsafe { fork() };
        if child == 0 {
            let _service = LockingService::<String, Uuid, _>::new(MemoryLockDao::new());
            writeln!(writer, "{}", Uuid::fresh()).unwrap();
            unsafe { _exit(0) }
        }
        unsafe { waitpid(child, null_mut(), 0) };
    }
    writeln!(writer, "{}", Uuid::fresh()).unwrap();
    drop(writer);
    let mut made = String::new();
    reader.read_to_string(&mut made).unwrap();
    assert_eq!(made.lines().collect::<BTreeSet<_>>().len(), 3, "{made}");
}
