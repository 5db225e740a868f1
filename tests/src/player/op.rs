//! The steps of histories.

/// One step of a history.
///
/// A [`Back`] chooses among the requests made by earlier steps by the position of the step, so that leaving a
/// step out changes what others choose only if it was chosen: so a history that fails can be shrunk.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Left out.
    Skip,
    Acquire {
        who: usize,
        claims: Vec<(usize, Wanted)>,
        queue: bool,
        nested: bool,
    },
    /// Of a grant that still holds something, or of any there ever was.
    Release {
        back: Back,
        live: bool,
    },
    /// A release in the name of another context.
    Forge {
        back: Back,
        who: usize,
    },
    Renew {
        back: Back,
        live: bool,
    },
    /// An earlier request arrives once more.
    Again {
        back: Back,
    },
    Leave {
        back: Back,
    },
    Undo {
        back: Back,
    },
    UndoUnsent {
        who: usize,
        claims: Vec<(usize, Wanted)>,
    },
    Break {
        back: Back,
        lock: usize,
        live: bool,
        now: bool,
    },
    Freeze {
        id: usize,
        frozen: bool,
    },
    Sweep,
    ReleaseContext {
        who: usize,
    },
    Inspect {
        id: usize,
    },
    /// A client takes locks, never renews them, and the leases end.
    Die {
        claims: Vec<(usize, Wanted)>,
    },
}

/// See [`Op`].
pub(crate) type Back = usize;

/// How an id is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    Exclusive,
    Shared,
    Slots { permits: u32, limit: u32 },
}
