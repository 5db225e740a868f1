//! Which locks the calls that enclose the current one hold: found through the polls that are on the stack.

use std::any::Any;

use scoped_tls_hkt::scoped_thread_local;

/// What one enclosing callback holds, and the callback around that.
#[derive(Clone, Copy)]
struct Frame<'a> {
    service: usize,
    held: &'a dyn Any,
    outer: Option<&'a Frame<'a>>,
}

scoped_thread_local!(static INNERMOST: for<'a> &'a Frame<'a>);

/// Runs code as inside a callback that holds `held`.
///
/// Done around every poll of a callback, so that it belongs to the task and not to the thread.
pub(crate) fn inside<T>(service: usize, held: &dyn Any, code: impl FnOnce() -> T) -> T {
    if INNERMOST.is_set() {
        INNERMOST.with(|outer| INNERMOST.set(&Frame { service, held, outer: Some(outer) }, code))
    } else {
        INNERMOST.set(&Frame { service, held, outer: None }, code)
    }
}

/// Looks at what the enclosing calls of `service` hold, the innermost first, until `look` finds something.
/// `None` if there are none, or none of them had it; `any` tells whether there are some.
pub(crate) fn enclosing<H: 'static, T>(
    service: usize,
    any: &mut bool,
    mut look: impl FnMut(&H) -> Option<T>,
) -> Option<T> {
    if !INNERMOST.is_set() {
        return None;
    }
    INNERMOST.with(|innermost| {
        let mut frames = std::iter::successors(Some(innermost), |frame| frame.outer);
        frames.find_map(|frame| {
            let held = (frame.service == service).then_some(frame.held)?;
            *any = true;
            held.downcast_ref::<H>().and_then(&mut look)
        })
    })
}
