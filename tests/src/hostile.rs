//! Hostile input: mutations of valid input, from a seed, for whatever reads what others wrote.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::{Duration, Instant},
};

use fastrand::Rng;

/// How many mutations there are unless `LOCKCORE_HOSTILE_SECONDS` gives a time.
const CASES: u64 = 20_000;

/// What parsers like least.
const NASTY: [&str; 25] = [
    "",
    "0",
    "-1",
    "1e999",
    "NaN",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "0-4294967295",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "é",
    "🦀",
    "%00",
    "%zz",
    "%",
    "\"",
    "'",
    "\\",
    "\n",
    "://",
    "[]",
    "{}",
];

/// Feeds mutations of `examples` to a reader: no input may make it panic. `LOCKCORE_HOSTILE_SECONDS` makes it go on for so
/// long, and `LOCKCORE_TEST_SEED` repeats a run.
///
/// # Panics
/// If the reader does, after the seed and the input were printed; and if there is no example.
pub fn feed(examples: &[&str], read: impl Fn(&str)) {
    let seed = env::var("LOCKCORE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    let seconds = env::var("LOCKCORE_HOSTILE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut rng = Rng::with_seed(seed);
    // What was read without an error or with one may lead to more: some of it becomes an example.
    let mut pool: Vec<String> = examples.iter().map(|example| (*example).to_owned()).collect();
    for case in 0.. {
        if until.map_or(case >= CASES, |until| Instant::now() >= until) {
            break;
        }
        let input = mutated(&pool, &mut rng);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| read(&input))) {
            eprintln!("LOCKCORE_TEST_SEED={seed}, case {case}: {input:?}");
            resume_unwind(panic);
        }
        if case % 64 == 0 && input.len() < 4096 {
            let at = rng.usize(..pool.len() + 1);
            match pool.len() < 256 {
                true => pool.push(input),
                false if at >= examples.len() && at < pool.len() => pool[at] = input,
                false => {}
            }
        }
    }
}

/// One of `pool` with some changes.
fn mutated(pool: &[String], rng: &mut Rng) -> String {
    let pick = |rng: &mut Rng| rng.choice(pool).expect("there is an example").clone().into_bytes();
    let mut bytes = pick(rng);
    for _ in 0..rng.usize(1..5) {
        let (from, to) = (rng.usize(..=bytes.len()), rng.usize(..=bytes.len()));
        let range = from.min(to)..from.max(to);
        match rng.u8(..8) {
            0 => drop(bytes.drain(range)),
            1 => drop(bytes.splice(range, rng.choice(NASTY).unwrap_or_default().bytes())),
            2 => bytes.insert(from, rng.u8(..)),
            3 => {
                if let Some(byte) = bytes.get_mut(from) {
                    *byte ^= 1 << rng.u8(..8);
                }
            }
            // Of structured text, most of what remains valid differs in a number.
            4 | 5 => {
                let is_digit = |at: &usize| bytes[*at].is_ascii_digit();
                if let Some(first) = (from..bytes.len()).find(is_digit) {
                    let end = (first..bytes.len()).find(|at| !is_digit(at)).unwrap_or(bytes.len());
                    drop(bytes.splice(first..end, rng.choice(NASTY).unwrap_or_default().bytes()));
                }
            }
            6 if bytes.len() < 4096 => {
                let copied = bytes[range].to_vec();
                drop(bytes.splice(to..to, copied));
            }
            _ => {
                let other = pick(rng);
                let cut = rng.usize(..=other.len());
                bytes.truncate(from);
                bytes.extend(&other[cut..]);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
