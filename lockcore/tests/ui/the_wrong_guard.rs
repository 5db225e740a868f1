//! A shared holder's fence says nothing about the order of shared holders.

use lockcore::{FenceGuard, Held};
use uuid::Uuid;

fn write(held: &Held<String, Uuid>, guard: &mut FenceGuard) {
    guard.admit_exclusive(held.shared_fence("tariff").expect("it is shared")).expect("it is fresh");
}

fn main() {}
