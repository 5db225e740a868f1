//! Which locks the calls that enclose the current one hold: found through the polls that are on the stack.

use std::{any::Any, cell::RefCell, sync::Arc};

/// What one enclosing callback holds.
struct Frame {
    service: usize,
    held: Arc<dyn Any + Send + Sync>,
}

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// As long as it lives, what runs on this thread runs inside a callback that holds `held`.
///
/// Made around every poll of a callback, so that it belongs to the task and not to the thread.
pub(crate) struct Entered(());

impl Entered {
    pub(crate) fn new(service: usize, held: Arc<dyn Any + Send + Sync>) -> Self {
        FRAMES.with_borrow_mut(|frames| frames.push(Frame { service, held }));
        Entered(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Out of the borrow: what the frame held may run code when it is dropped.
        let _frame = FRAMES.with_borrow_mut(Vec::pop);
    }
}

/// Looks at what the enclosing calls of `service` hold, the innermost first, until `look` finds something.
/// `None` if there are none, or none of them had it; `any` tells whether there are some.
pub(crate) fn enclosing<H: 'static, T>(
    service: usize,
    any: &mut bool,
    mut look: impl FnMut(&H) -> Option<T>,
) -> Option<T> {
    FRAMES.with_borrow(|frames| {
        frames.iter().rev().filter(|frame| frame.service == service).find_map(|frame| {
            *any = true;
            frame.held.downcast_ref::<H>().and_then(&mut look)
        })
    })
}
