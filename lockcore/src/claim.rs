//! Claims on identifiers, and sets of them in the order in which they are locked.

use std::{borrow::Cow, fmt, ops::Deref};

use crate::{BadRequest, Ident, MAX_ID_BYTES, Target};

/// The most permits that one claim can take: a grant lists every one. A limit may be any number.
pub const MAX_PERMITS: u32 = 65_536;

/// The mode in which an identifier is wanted or held. Later variants exclude more: `Shared < Slots < Exclusive`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Together with all others but an exclusive holder.
    Shared,
    /// Some of a number of permits: granted while the id has no exclusive holder and the permits held
    /// plus `permits` are at most `limit`.
    Slots {
        /// The number of permits that this claim takes, from 1 to [`MAX_PERMITS`].
        permits: u32,
        /// The number that may be held at once *as this caller sees it*, at least `permits`.
        limit: u32,
    },
    /// Alone.
    Exclusive,
}

impl Mode {
    /// Returns the permits that this mode takes; 0 unless it is [`Mode::Slots`].
    pub fn permits(&self) -> u32 {
        match self {
            Mode::Slots { permits, .. } => *permits,
            _ => 0,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Shared => f.write_str("shared"),
            Mode::Slots { permits, limit } => write!(f, "{permits} of {limit} slots"),
            Mode::Exclusive => f.write_str("exclusive"),
        }
    }
}

/// An identifier and the mode in which it is claimed.
///
/// All elements of a set are of one type: beside a claim, an id is one too (`Claim::exclusive("a")`, not `"a"`).
///
/// ```
/// use lockcore::{Claim, LockingService};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
/// let set = [
///     Claim::exclusive("account/7"),
///     Claim::shared("tariff"),
///     Claim::slots("export", 10).permits(2), // two of ten
/// ];
/// let guard = locks.lock(set).await?;
/// assert_eq!(guard.held().permits("export").len(), 2);
///
/// // Others can share, and take up to eight slots.
/// locks.run_locked([Claim::shared("tariff"), Claim::slots("export", 10)], async || ()).await?;
/// assert!(locks.lock(["tariff"]).await.is_err());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Claim<I = String> {
    /// The target of the claim.
    pub target: Target<I>,
    /// The mode.
    pub mode: Mode,
}

impl Claim<String> {
    /// Claims a path and all below it: `path` alone, and each of its ancestors from `top` on together with others.
    ///
    /// Claims of this form exclude each other where one path is the other or lies below it, and siblings run together. `/data/a` and
    /// `/data/a/` are one path, and its id is the one with the slash: that is what [`Held::fence`](crate::Held::fence) and
    /// administration know. `/data/ab` lies beside it. A scheme such as `s3://` may stand in front. What could be written in two
    /// ways is refused: an empty part as in `//`, and the parts `.` and `..`.
    ///
    /// Only claims of this form are paths. An id that is claimed in another way is a name, each byte of it, and does not know of
    /// ancestors, so that all programs have to use this form, and the same `top`.
    ///
    /// There is no shared form: two holders that share a path could not exclude one that claims below it. Every holder shares
    /// `top`, which costs something where holders of one id are counted, as on DynamoDB (some 200 at most): choose it as low as the
    /// widest claim allows.
    ///
    /// ```
    /// use lockcore::{Claim, LockingService};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockingService::new(lockcore_memory::MemoryLockDao::<String>::new());
    /// let bag = locks.lock(Claim::subtree("s3://archive/", "s3://archive/bags/7/")?).await?;
    /// // What is below it has to wait, and what is beside it does not.
    /// assert!(locks.lock(Claim::subtree("s3://archive/", "s3://archive/bags/7/data/1")?).await.is_err());
    /// locks.lock(Claim::subtree("s3://archive/", "s3://archive/bags/8/data/1")?).await?.release().await?;
    /// bag.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadRequest::OutOfBounds`] if `top` or `path` is empty or has a part that is empty, `.` or `..`, or if `path` is neither
    /// `top` nor below it.
    pub fn subtree(top: &str, path: &str) -> Result<Vec<Self>, BadRequest> {
        let top = path_id("top", top)?;
        let id = path_id("path", path)?;
        let Some(below) = id.strip_prefix(&top) else {
            return Err(out_of_bounds("path", path, "it must be the top or lie below it"));
        };
        let ends = below.match_indices('/').map(|(at, _)| top.len() + at + 1);
        let ancestors = std::iter::once(top.len()).chain(ends).filter(|end| *end < id.len());
        let mut claims: Vec<_> = ancestors.map(|end| Claim::shared(id[..end].to_owned())).collect();
        claims.push(Claim::exclusive(id));
        Ok(claims)
    }
}

/// Returns the id of a path, which ends with a slash; so a path is above another exactly if its id is a prefix of the other's.
fn path_id(field: &'static str, path: &str) -> Result<String, BadRequest> {
    let refuse = |expected| Err(out_of_bounds(field, path, expected));
    if path.is_empty() {
        return refuse("a path is not empty");
    }
    let is_scheme = |scheme: &str| {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(word)
    };
    let parts = match path.split_once("://") {
        Some((scheme, _)) if is_scheme(scheme) && scheme != scheme.to_ascii_lowercase() => {
            return refuse("a scheme is in lower case");
        }
        Some((scheme, parts)) if is_scheme(scheme) => parts,
        _ => path,
    };
    let parts = parts.strip_prefix('/').unwrap_or(parts);
    let below_root = (!parts.is_empty()).then(|| parts.strip_suffix('/').unwrap_or(parts));
    for part in below_root.into_iter().flat_map(|parts| parts.split('/')) {
        match part {
            "" => return refuse("a path has no empty part, as in //"),
            "." => return refuse("a path has no part ."),
            ".." => return refuse("a path has no part .."),
            _ => {}
        }
    }
    Ok(if path.ends_with('/') { path.to_owned() } else { format!("{path}/") })
}

fn out_of_bounds(field: &'static str, value: &str, expected: &'static str) -> BadRequest {
    BadRequest::out_of_bounds(field, format!("{value:?}"), expected)
}

impl<I> Claim<I> {
    /// Claims the identifier alone.
    pub fn exclusive(id: I) -> Self {
        Claim { target: Target::Id(id), mode: Mode::Exclusive }
    }

    /// Claims the identifier together with other shared holders.
    pub fn shared(id: I) -> Self {
        Claim { target: Target::Id(id), mode: Mode::Shared }
    }

    /// Claims one permit of the identifier, of which at most `limit` may be held at once as this caller sees it.
    pub fn slots(id: I, limit: u32) -> Self {
        Claim { target: Target::Id(id), mode: Mode::Slots { permits: 1, limit } }
    }

    /// Claims one permit of an identifier whose limit is `buckets * per_bucket`, both as this caller sees them now; another
    /// caller may see another number. A product past `u32::MAX` counts as `u32::MAX`.
    pub fn buckets(id: I, buckets: u32, per_bucket: u32) -> Self {
        Claim::slots(id, buckets.saturating_mul(per_bucket))
    }

    /// Claims the global lock, exclusively.
    pub fn global() -> Self {
        Claim { target: Target::Global, mode: Mode::Exclusive }
    }

    fn map<J>(self, map: impl FnOnce(I) -> J) -> Claim<J> {
        let target = match self.target {
            Target::Global => Target::Global,
            Target::Id(id) => Target::Id(map(id)),
        };
        Claim { target, mode: self.mode }
    }

    /// Changes the claim to `wanted` permits, from 1 to [`MAX_PERMITS`]; without effect unless it is for slots.
    #[must_use]
    pub fn permits(mut self, wanted: u32) -> Self {
        if let Mode::Slots { permits, .. } = &mut self.mode {
            *permits = wanted;
        }
        self
    }
}

/// A value that can be given where a claim is wanted: an identifier (then the call says how it is
/// wanted, exclusively by default), a [`Claim`], or a reference to either.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither an identifier nor a claim for a service whose identifiers are `{I}`",
    label = "give `{I}` or `&{I}` (for `String` also `&str`), or a `Claim` of one of these"
)]
pub trait IntoClaim<I> {
    /// The claim; `bare` is how an identifier without a mode of its own is wanted.
    fn into_claim(self, bare: Mode) -> Claim<I>;
}

impl<I: Ident> IntoClaim<I> for I {
    fn into_claim(self, bare: Mode) -> Claim<I> {
        Claim { target: Target::Id(self), mode: bare }
    }
}

impl<I: Ident> IntoClaim<I> for &I {
    fn into_claim(self, bare: Mode) -> Claim<I> {
        self.clone().into_claim(bare)
    }
}

impl<I: Ident> IntoClaim<I> for Claim<I> {
    fn into_claim(self, _bare: Mode) -> Claim<I> {
        self
    }
}

impl<I: Ident> IntoClaim<I> for &Claim<I> {
    fn into_claim(self, _bare: Mode) -> Claim<I> {
        self.clone()
    }
}

impl<I: Ident> IntoClaim<I> for Claim<&I> {
    fn into_claim(self, _bare: Mode) -> Claim<I> {
        self.map(Clone::clone)
    }
}

macro_rules! text_is_a_string_ident {
    ($($text:ty),*) => {$(
        impl IntoClaim<String> for $text {
            fn into_claim(self, bare: Mode) -> Claim<String> {
                Claim { target: Target::Id(self.to_string()), mode: bare }
            }
        }

        impl IntoClaim<String> for Claim<$text> {
            fn into_claim(self, _bare: Mode) -> Claim<String> {
                self.map(|id| id.to_string())
            }
        }
    )*};
}

text_is_a_string_ident!(&str, &&str, Box<str>, Cow<'_, str>, &Cow<'_, str>);

impl IntoClaim<String> for &&String {
    fn into_claim(self, bare: Mode) -> Claim<String> {
        String::clone(self).into_claim(bare)
    }
}

/// The ids of a call: anything that can be iterated over and gives identifiers or claims.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a set of ids for a service whose identifiers are `{I}`",
    label = "give an array, a `Vec` or another collection of identifiers or claims; one id is `[id]`"
)]
pub trait Ids<I> {
    /// The claims in the order given; `bare` is how an identifier without a mode of its own is wanted.
    fn into_claims(self, bare: Mode) -> Vec<Claim<I>>;
}

impl<I, T> Ids<I> for T
where
    T: IntoIterator,
    T::Item: IntoClaim<I>,
{
    fn into_claims(self, bare: Mode) -> Vec<Claim<I>> {
        self.into_iter().map(|id| id.into_claim(bare)).collect()
    }
}

/// Claims that were checked, freed of duplicates and ordered by the bytes of their stored forms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimSet<I = String> {
    claims: Vec<Claim<I>>,
}

impl<I: Ident> ClaimSet<I> {
    /// Checks, de-duplicates and orders `ids`; a bare identifier is wanted as `bare` says.
    ///
    /// An identifier given twice is wanted once, in the stronger of its modes.
    ///
    /// # Errors
    /// [`BadRequest`] for an id that is empty or too long, a limit or number of permits of zero, more
    /// permits than the limit, or two different slot claims for one id.
    pub fn new(ids: impl Ids<I>, bare: Mode) -> Result<Self, BadRequest> {
        let mut claims = ids.into_claims(bare);
        for claim in &claims {
            check(claim)?;
        }
        if claims.len() > 1 {
            claims.sort_by(|a, b| a.target.cmp_stored(&b.target));
            merge_duplicates(&mut claims)?;
        }
        Ok(ClaimSet { claims })
    }

    /// Returns the claims by value, in order.
    pub fn into_claims(self) -> Vec<Claim<I>> {
        self.claims
    }
}

impl<I> Deref for ClaimSet<I> {
    type Target = [Claim<I>];

    fn deref(&self) -> &[Claim<I>] {
        &self.claims
    }
}

fn check<I: Ident>(claim: &Claim<I>) -> Result<(), BadRequest> {
    if let Target::Id(id) = &claim.target {
        let stored = id.stored();
        if stored.is_empty() {
            return Err(BadRequest::EmptyId);
        }
        if stored.len() > MAX_ID_BYTES {
            return Err(BadRequest::id_too_long(&stored));
        }
    }
    if let Mode::Slots { permits, limit } = claim.mode {
        let id = || claim.target.stored().into_owned();
        if limit == 0 {
            return Err(BadRequest::ZeroLimit { id: id() });
        }
        if permits == 0 {
            return Err(BadRequest::ZeroPermits { id: id() });
        }
        if permits > MAX_PERMITS {
            let (value, expected) =
                (format!("{permits} for id {:?}", id()), "at most 65536 can be taken by one claim");
            return Err(BadRequest::out_of_bounds("permits", value, expected));
        }
        if permits > limit {
            return Err(BadRequest::PermitsOverLimit { id: id(), permits, limit });
        }
    }
    Ok(())
}

fn merge_duplicates<I: Ident>(claims: &mut Vec<Claim<I>>) -> Result<(), BadRequest> {
    let mut contradiction = None;
    claims.dedup_by(|later, kept| {
        if later.target != kept.target {
            return false;
        }
        match (kept.mode, later.mode) {
            (Mode::Slots { .. }, Mode::Slots { .. }) if kept.mode != later.mode => {
                contradiction = Some(kept.target.stored().into_owned());
            }
            (kept_mode, later_mode) => {
                if strength(later_mode) > strength(kept_mode) {
                    kept.mode = later_mode;
                }
            }
        }
        true
    });
    match contradiction {
        Some(id) => Err(BadRequest::ContradictingSlots { id }),
        None => Ok(()),
    }
}

/// Ranks a mode by how much it excludes, for comparing two modes of one context.
pub(crate) fn strength(mode: Mode) -> u8 {
    match mode {
        Mode::Shared => 0,
        Mode::Slots { .. } => 1,
        Mode::Exclusive => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All paths of at most three parts below the top, in both spellings, with their parts.
    fn paths() -> Vec<(String, Vec<&'static str>)> {
        const PARTS: [&str; 4] = ["a", "ab", "b", "é"];
        let mut lists = vec![vec![]];
        for at in 0.. {
            let Some(list) = lists.get(at).cloned() else { break };
            if list.len() < 3 {
                lists.extend(PARTS.map(|part| [&list[..], &[part]].concat()));
            }
        }
        let spelt = |top: &str, list: &Vec<&str>| format!("{top}/{}", list.join("/"));
        let both = |list: Vec<&'static str>| {
            let path = spelt("s3://data", &list);
            let other = if path.ends_with('/') { "s3://data".to_owned() } else { format!("{path}/") };
            [(path, list.clone()), (other, list)]
        };
        lists.into_iter().flat_map(both).collect()
    }

    fn exclude(one: &[Claim], other: &[Claim]) -> bool {
        let alone = |claim: &Claim| claim.mode == Mode::Exclusive;
        one.iter().any(|a| other.iter().any(|b| a.target == b.target && (alone(a) || alone(b))))
    }

    /// 11.2: two paths exclude each other exactly if one is the other or lies above it, part by part, however they are written.
    #[test]
    fn paths_exclude_each_other_by_their_parts() {
        for top in ["s3://data", "s3://data/"] {
            let claimed: Vec<_> = paths()
                .into_iter()
                .map(|(path, parts)| (Claim::subtree(top, &path).expect("it is below the top"), path, parts))
                .collect();
            for (one, path, parts) in &claimed {
                for (other, other_path, other_parts) in &claimed {
                    let related = parts.starts_with(other_parts) || other_parts.starts_with(parts);
                    assert_eq!(exclude(one, other), related, "{path} and {other_path}");
                }
            }
        }
    }

    #[test]
    fn roots_of_any_form_are_paths() {
        for (top, path) in
            [("/", "/data/a"), ("data", "data/a"), ("s3://", "s3://b"), ("file:///", "file:///data/")]
        {
            let claims = Claim::subtree(top, path).expect("it is below the top");
            assert!(exclude(&claims, &Claim::subtree(top, top).expect("a path")), "{path}");
        }
    }

    #[test]
    fn a_path_that_could_be_written_in_another_way_is_refused() {
        let refused =
            |top: &str, path: &str| Claim::subtree(top, path).expect_err("it is refused").to_string();
        for (path, expected) in [
            ("", "a path is not empty"),
            ("//", "a path has no empty part, as in //"),
            ("//data", "a path has no empty part, as in //"),
            ("/data//a", "a path has no empty part, as in //"),
            ("/data/a//", "a path has no empty part, as in //"),
            ("/data/s3://b", "a path has no empty part, as in //"),
            ("s3://b//", "a path has no empty part, as in //"),
            ("S3://b", "a scheme is in lower case"),
            ("/data/./a", "a path has no part ."),
            ("./data", "a path has no part ."),
            ("/data/..", "a path has no part .."),
            ("/data/../b", "a path has no part .."),
        ] {
            assert_eq!(refused("/data", path), format!("path: {path:?} is not possible, {expected}"));
            assert_eq!(refused(path, "/data"), format!("top: {path:?} is not possible, {expected}"));
        }
        let beside = "path: \"/database\" is not possible, it must be the top or lie below it";
        assert_eq!(refused("/data", "/database"), beside);
    }
}
