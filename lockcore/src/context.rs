//! Holders: contexts, the attempts made under them, and the owner label.

use std::{
    borrow::Cow,
    cell::Cell,
    ffi::OsStr,
    fmt,
    hash::Hash,
    ops::Deref,
    path::{Path, PathBuf},
    sync::Arc,
};

use uuid::Uuid;

use crate::{
    ident::canonical,
    process::{self, PerProcess},
};

/// The longest stored form of a context, in bytes.
pub const MAX_CONTEXT_BYTES: usize = 255;

/// The longest owner label, in bytes, with the [data](Owner::with_data) that it carries.
pub const MAX_OWNER_BYTES: usize = 1280;

/// The separator between an owner label and its data: the unit separator of ASCII.
const BEFORE_DATA: char = '\u{1f}';

/// Identifies the holder of one set of locks, among all processes that use the store: two calls with one context hold each other's
/// locks.
///
/// Every call has a new context. A worker's name, host or pid may be part of it but must never be the whole of it: with a
/// context that is used twice at once, both calls are let in, and one frees the locks of the other. A service refuses a context
/// that it is using itself ([`ContextInUse`](crate::LockingError::ContextInUse)), and knows nothing of other services. What
/// administration shows is the owner label, see [`Owner`].
pub trait ContextId: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static {
    /// The canonical form: UTF-8, 1 to [`MAX_CONTEXT_BYTES`] bytes, different for different values.
    fn stored(&self) -> Cow<'_, str>;

    /// The value whose stored form this is, or `None` if it is none of this type's.
    fn from_stored(stored: &str) -> Option<Self>;
}

/// A context type that the service can make by itself, one for each call.
pub trait FreshContext: ContextId {
    /// A value that no other call, in this process or another, has or will have.
    fn fresh() -> Self;
}

impl ContextId for Uuid {
    fn stored(&self) -> Cow<'_, str> {
        Cow::Owned(self.hyphenated().encode_lower(&mut Uuid::encode_buffer()).to_owned())
    }

    fn from_stored(stored: &str) -> Option<Self> {
        canonical(stored)
    }
}

impl FreshContext for Uuid {
    /// 74 random bits that the thread drew once and a count, as a UUID of version 8: as unlike any other as a random
    /// one for up to 2^48 values a thread, at a fraction of the cost. A forked process draws again once a
    /// [`LockingService`](crate::LockingService) is made in it; before that it must make no context.
    fn fresh() -> Self {
        thread_local! {
            static STREAM: Cell<Stream> = Cell::new(Stream::draw());
        }
        let next = STREAM.try_with(|stream| {
            let mut now = stream.get();
            if now.process != process::seen() {
                now = Stream::draw();
            }
            stream.set(Stream { count: now.count + 1, ..now });
            (now.random & !((1 << 48) - 1)) | u128::from(now.count & ((1 << 48) - 1))
        });
        match next {
            Ok(bits) => uuid::Builder::from_u128(bits).with_version(uuid::Version::Custom).into_uuid(),
            // The thread is ending and has no stream any more.
            Err(_ended) => Uuid::new_v4(),
        }
    }
}

/// The source of the contexts of a thread.
#[derive(Clone, Copy)]
struct Stream {
    random: u128,
    count: u64,
    /// The process for which it was drawn.
    process: u32,
}

impl Stream {
    fn draw() -> Self {
        let mut bytes = [0; 16];
        // Of the kernel: a generator in this process would be in the same state on both sides of a fork.
        let random = match getrandom::fill(&mut bytes) {
            Ok(()) => u128::from_ne_bytes(bytes),
            Err(_) => Uuid::new_v4().as_u128(),
        };
        Stream { random, count: 0, process: process::seen() }
    }
}

impl ContextId for String {
    fn stored(&self) -> Cow<'_, str> {
        Cow::Borrowed(self)
    }

    fn from_stored(stored: &str) -> Option<Self> {
        Some(stored.to_owned())
    }
}

impl ContextId for u64 {
    fn stored(&self) -> Cow<'_, str> {
        Cow::Owned(self.to_string())
    }

    fn from_stored(stored: &str) -> Option<Self> {
        canonical(stored)
    }
}

/// A context as a store shows it: one of ours, or what another program wrote there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum StoredContext<C> {
    /// A context of this type.
    Known(C),
    /// A holder whose context is not of this type, as it stands in the store.
    Foreign(String),
}

impl<C: ContextId> StoredContext<C> {
    /// Reads a stored form.
    pub fn read(stored: &str) -> Self {
        match C::from_stored(stored) {
            Some(context) => StoredContext::Known(context),
            None => StoredContext::Foreign(stored.to_owned()),
        }
    }
}

impl<C: ContextId> fmt::Display for StoredContext<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Others write there too: nothing of it may reach a terminal as a command.
            StoredContext::Known(context) => write!(f, "{}", context.stored().escape_debug()),
            StoredContext::Foreign(stored) => write!(f, "{}", stored.escape_debug()),
        }
    }
}

/// Names one try to acquire, so that it can be withdrawn though its answer never came.
///
/// Random, 64 bits; it only has to differ among the attempts of one context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttemptId(pub u64);

impl AttemptId {
    /// Creates a new attempt.
    pub fn fresh() -> Self {
        AttemptId(fastrand::u64(..))
    }
}

/// A label for people to read: a worker's name, host, purpose. It may carry data for programs to read. Text of at most
/// [`MAX_OWNER_BYTES`] bytes; derefs to all of it as `str`, and is cheap to clone. A service on a store that processes share
/// labels its locks with [`Owner::this_process`] by default.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Owner(Option<Arc<str>>);

impl Owner {
    /// Names this process: `program@host:process id`.
    pub fn this_process() -> Self {
        static LABEL: PerProcess<Owner> = PerProcess::new();
        let process = process::current();
        LABEL.get_or_init(process, || label(process)).clone()
    }

    /// Names what this process does beside the process itself: `what program@host:process id`. A plain label is the whole of what
    /// others see; with this they still see which process to look for.
    ///
    /// ```
    /// use lockcore::Owner;
    ///
    /// let owner = Owner::in_this_process("album/7");
    /// assert_eq!(*owner, format!("album/7 {}", &*Owner::this_process()));
    /// ```
    pub fn in_this_process(what: &str) -> Self {
        format!("{what} {}", &*Owner::this_process()).into()
    }

    /// Carries data beside a label, such as a small JSON value. Administrators, watchers and observers of the lock see both. They are
    /// stored as one text, with the character U+001F between them, which a label had better not contain.
    ///
    /// ```
    /// use lockcore::{LockingService, Owner, Target};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let owner = Owner::with_data("worker-7", r#"{"port":8080}"#);
    /// let guard = locks.owner(owner).lock(["a"]).await?;
    /// let seen = locks.admin().inspect(&Target::Id("a".to_owned())).await?;
    /// assert_eq!(seen.holders[0].owner.label(), "worker-7");
    /// assert_eq!(seen.holders[0].owner.data(), Some(r#"{"port":8080}"#));
    /// # guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_data(label: &str, data: &str) -> Self {
        format!("{label}{BEFORE_DATA}{data}").into()
    }

    /// Returns the label, without data.
    pub fn label(&self) -> &str {
        self.split_once(BEFORE_DATA).map_or(self, |(label, _)| label)
    }

    /// Returns the data that the label carries, if it does.
    pub fn data(&self) -> Option<&str> {
        self.split_once(BEFORE_DATA).map(|(_, data)| data)
    }
}

fn label(process: u32) -> Owner {
    let program = std::env::args_os().next().map(PathBuf::from);
    let program = program.as_deref().and_then(Path::file_stem).map_or("?".into(), OsStr::to_string_lossy);
    let uname = rustix::system::uname();
    let mut label = format!("{program}@{}", uname.nodename().to_string_lossy());
    let process = format!(":{process}");
    while label.len() + process.len() > MAX_OWNER_BYTES {
        label.pop();
    }
    (label + &process).into()
}

impl From<&str> for Owner {
    fn from(label: &str) -> Self {
        Owner((!label.is_empty()).then(|| label.into()))
    }
}

impl From<String> for Owner {
    fn from(label: String) -> Self {
        label.as_str().into()
    }
}

impl Deref for Owner {
    type Target = str;

    fn deref(&self) -> &str {
        self.0.as_deref().unwrap_or("")
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The label, without data.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Others may have written it: nothing of it may reach a terminal as a command.
        write!(f, "{}", self.label().escape_debug())
    }
}
