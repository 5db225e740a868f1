//! Identifiers, their stored form, and the global lock beside them.

use std::{borrow::Cow, cmp::Ordering, fmt, hash::Hash, sync::Arc};

use uuid::Uuid;

/// The longest stored form of an identifier, in bytes.
pub const MAX_ID_BYTES: usize = 1024;

/// An identifier of a lock: any type with a canonical stored form.
///
/// Two values are the same lock exactly if their stored forms are the same bytes; nothing is folded,
/// trimmed or normalised on any backend.
pub trait Ident: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static {
    /// The canonical form: UTF-8, 1 to [`MAX_ID_BYTES`] bytes, different for different values.
    ///
    /// The length is checked by the service before anything is sent; `Eq` must agree with it.
    fn stored(&self) -> Cow<'_, str>;

    /// The value whose stored form this is, or `None` if it is none of this type's.
    fn from_stored(stored: &str) -> Option<Self>;
}

impl Ident for String {
    fn stored(&self) -> Cow<'_, str> {
        Cow::Borrowed(self)
    }

    fn from_stored(stored: &str) -> Option<Self> {
        Some(stored.to_owned())
    }
}

impl Ident for Arc<str> {
    fn stored(&self) -> Cow<'_, str> {
        Cow::Borrowed(self)
    }

    fn from_stored(stored: &str) -> Option<Self> {
        Some(stored.into())
    }
}

impl Ident for Uuid {
    fn stored(&self) -> Cow<'_, str> {
        Cow::Owned(self.hyphenated().to_string())
    }

    fn from_stored(stored: &str) -> Option<Self> {
        canonical(stored)
    }
}

macro_rules! integers_are_idents {
    ($($int:ty),*) => {$(
        impl Ident for $int {
            fn stored(&self) -> Cow<'_, str> {
                Cow::Owned(self.to_string())
            }

            fn from_stored(stored: &str) -> Option<Self> {
                canonical(stored)
            }
        }
    )*};
}

integers_are_idents!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

/// Parses `stored` and takes the value only if that is how it would be stored.
pub(crate) fn canonical<T: std::str::FromStr + ToString>(stored: &str) -> Option<T> {
    let value: T = stored.parse().ok()?;
    (value.to_string() == stored).then_some(value)
}

/// The target of one claim: an identifier, or the global lock.
///
/// No value of the identifier's type is reserved for the global lock; its stored form is the empty
/// string, which no identifier has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target<I = String> {
    /// The global lock of a namespace.
    Global,
    /// The lock of one identifier.
    Id(I),
}

impl<I> Target<I> {
    /// Returns the identifier, unless this is the global lock.
    pub fn id(&self) -> Option<&I> {
        match self {
            Target::Global => None,
            Target::Id(id) => Some(id),
        }
    }
}

impl<I: Ident> Target<I> {
    /// Returns the stored form: the identifier's, or the empty string for the global lock.
    pub fn stored(&self) -> Cow<'_, str> {
        match self {
            Target::Global => Cow::Borrowed(""),
            Target::Id(id) => id.stored(),
        }
    }

    /// Returns the target whose stored form this is, or `None` if it is none of this type's.
    pub fn from_stored(stored: &str) -> Option<Self> {
        match stored {
            "" => Some(Target::Global),
            id => I::from_stored(id).map(Target::Id),
        }
    }

    /// Orders targets by the bytes of their stored forms: the order in which sets are locked.
    pub fn cmp_stored(&self, other: &Self) -> Ordering {
        self.stored().as_bytes().cmp(other.stored().as_bytes())
    }
}

impl<I: Ident> fmt::Display for Target<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Global => f.write_str("the global lock"),
            Target::Id(id) => write!(f, "{:?}", id.stored()),
        }
    }
}
