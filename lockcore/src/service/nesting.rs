//! The locks that the calls around the current one hold: found through the polls that are on the stack.

use std::any::Any;

use scoped_tls_hkt::scoped_thread_local;

/// The locks that one enclosing callback holds, and the callback around that.
#[derive(Clone, Copy)]
struct Frame<'a> {
    service: usize,
    held: &'a dyn Any,
    share: Share,
    outer: Option<&'a Frame<'a>>,
}

/// Another handle to what a frame holds.
type Share = fn(&dyn Any) -> Box<dyn Any + Send>;

scoped_thread_local!(static INNERMOST: for<'a> &'a Frame<'a>);

/// Runs code as inside a callback that holds `held`.
///
/// Done around every poll of a callback, so that it belongs to the task and not to the thread.
pub(crate) fn inside<H: Clone + Send + 'static, T>(service: usize, held: &H, code: impl FnOnce() -> T) -> T {
    let share: Share = |held| Box::new(held.downcast_ref::<H>().expect("put in as this").clone());
    enter(service, held, share, code)
}

fn enter<T>(service: usize, held: &dyn Any, share: Share, code: impl FnOnce() -> T) -> T {
    if INNERMOST.is_set() {
        INNERMOST.with(|outer| INNERMOST.set(&Frame { service, held, share, outer: Some(outer) }, code))
    } else {
        INNERMOST.set(&Frame { service, held, share, outer: None }, code)
    }
}

/// Looks at what each of the enclosing calls of `service` holds, the innermost first.
pub(crate) fn each_enclosing<H: 'static>(service: usize, look: impl FnMut(&H)) {
    if !INNERMOST.is_set() {
        return;
    }
    INNERMOST.with(|innermost| {
        let frames = std::iter::successors(Some(innermost), |frame| frame.outer);
        let of_service = frames.filter(|frame| frame.service == service);
        of_service.filter_map(|frame| frame.held.downcast_ref::<H>()).for_each(look);
    });
}

/// The enclosing calls, the outermost first, to be taken along to another thread.
pub(crate) struct Enclosing(Vec<(usize, Box<dyn Any + Send>, Share)>);

impl Enclosing {
    /// Those of the code that calls this.
    pub(crate) fn here() -> Self {
        if !INNERMOST.is_set() {
            return Enclosing(Vec::new());
        }
        INNERMOST.with(|innermost| {
            let frames = std::iter::successors(Some(innermost), |frame| frame.outer);
            let mut all: Vec<_> =
                frames.map(|frame| (frame.service, (frame.share)(frame.held), frame.share)).collect();
            all.reverse();
            Enclosing(all)
        })
    }

    /// Runs code as inside all of them.
    pub(crate) fn around<T>(&self, code: impl FnOnce() -> T) -> T {
        fn nest(rest: &[(usize, Box<dyn Any + Send>, Share)], code: &mut dyn FnMut()) {
            match rest {
                [] => code(),
                [(service, held, share), inner @ ..] => {
                    enter(*service, &**held, *share, || nest(inner, code))
                }
            }
        }
        let (mut code, mut value) = (Some(code), None);
        nest(&self.0, &mut || value = code.take().map(|code| code()));
        value.expect("run once")
    }
}
