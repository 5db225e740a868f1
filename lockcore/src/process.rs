//! The identity of this process: a child made by `fork` is another one, with a copy of its parent's memory and none of
//! its threads.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// The process as it was seen last.
static SEEN: AtomicU32 = AtomicU32::new(0);

/// The id of this process.
pub(crate) fn current() -> u32 {
    #[cfg(feature = "testing")]
    if let Some(process) = crate::simulated::process() {
        return process;
    }
    let current = std::process::id();
    if SEEN.load(Relaxed) != current {
        SEEN.store(current, Relaxed);
    }
    current
}

/// The id that [`current`] gave last, without asking the kernel: another one as soon as a child used the library.
pub(crate) fn seen() -> u32 {
    #[cfg(feature = "testing")]
    if let Some(process) = crate::simulated::process() {
        return process;
    }
    SEEN.load(Relaxed)
}

/// A value that each process makes for itself.
pub(crate) struct PerProcess<T>(OnceLock<Box<Made<T>>>);

struct Made<T> {
    process: u32,
    value: T,
    /// The value of the child which has a copy of this.
    child: PerProcess<T>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess(OnceLock::new())
    }

    /// The value of this process, if it was made.
    pub(crate) fn get(&self, process: u32) -> Option<&T> {
        let mut chain = std::iter::successors(self.0.get(), |made| made.child.0.get());
        chain.find(|made| made.process == process).map(|made| &made.value)
    }

    /// The value of this process, made at the first use.
    pub(crate) fn get_or_init(&self, process: u32, make: impl FnOnce() -> T) -> &T {
        let mut make = Some(make);
        let mut here = self;
        loop {
            let made = here.0.get_or_init(|| {
                let make = make.take().expect("only the last of the chain is made here");
                Box::new(Made { process, value: make(), child: PerProcess::new() })
            });
            if made.process == process {
                return &made.value;
            }
            here = &made.child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_value_of_its_own() {
        let values = PerProcess::new();
        for process in [7, 8, 7, 9, 8] {
            assert_eq!(*values.get_or_init(process, || process), process);
            assert_eq!(values.get(process), Some(&process));
        }
        assert_eq!(values.get(6), None);
        assert_eq!(*values.get_or_init(9, || 0), 9, "it is made once");
    }
}
