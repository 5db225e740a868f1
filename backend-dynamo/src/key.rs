//! The keys of items.

use std::borrow::Cow;

/// The prefix of this library's own keys; an id with this prefix gets such a key too.
const RESERVED: &str = "lockcore";

/// Converts between ids and keys within one namespace.
///
/// Without a namespace an id is its own key, as other clients of the table write it. Everything else is
/// `lockcore#<namespace>#<id>`, where the namespace has no `#`, so that no two ids share a key: an id that itself begins
/// with `lockcore`, and the global lock, are in the empty namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    namespace: String,
    prefix: String,
}

impl Keys {
    pub(crate) fn new(namespace: &str) -> Self {
        Keys { namespace: namespace.to_owned(), prefix: format!("{RESERVED}#{namespace}#") }
    }

    /// Returns the key of the id with this stored form.
    pub(crate) fn lock(&self, stored: &str) -> String {
        if self.namespace.is_empty() && !stored.is_empty() && !stored.starts_with(RESERVED) {
            return stored.to_owned();
        }
        format!("{}{stored}", self.prefix)
    }

    /// Returns the key of the item that keeps the fence of the id with this key, even if the id's own is removed.
    pub(crate) fn fence_of(&self, key: &str) -> String {
        let stored = self.stored(key).unwrap_or(key);
        format!("{RESERVED}-fence#{}#{stored}", self.namespace)
    }

    /// Returns the key of the item with the version of this namespace's items.
    pub(crate) fn version(&self) -> String {
        format!("{RESERVED}-version#{}", self.namespace)
    }

    /// Returns the stored form of the id with this key; `None` if the key is not one of this namespace.
    pub(crate) fn stored<'k>(&self, key: &'k str) -> Option<&'k str> {
        match key.strip_prefix(&self.prefix) {
            Some(stored) => Some(stored),
            None if self.namespace.is_empty() && !key.starts_with(RESERVED) => Some(key),
            None => None,
        }
    }

    /// Returns the common prefix of this namespace's keys; empty where ids are their own keys.
    pub(crate) fn common_prefix(&self) -> Cow<'_, str> {
        if self.namespace.is_empty() { Cow::Borrowed("") } else { Cow::Borrowed(&self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_ids_have_different_keys_and_come_back() {
        let ids = ["", "a", "#", "lockcore", "lockcore##a", "lockcore#n#a", "lockcore-fence##a", "n#a"];
        let mut keys = Vec::new();
        for namespace in ["", "n", "lockcore"] {
            let of = Keys::new(namespace);
            for id in ids {
                let key = of.lock(id);
                assert_eq!(of.stored(&key), Some(id), "{key}");
                assert_eq!(of.stored(&of.fence_of(&key)), None);
                assert_eq!(of.stored(&of.version()), None);
                let fence = of.fence_of(&key);
                keys.extend([key, fence]);
            }
        }
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count, "{keys:?}");
    }

    #[test]
    fn without_a_namespace_an_id_is_its_key() {
        assert_eq!(Keys::new("").lock("s3://archive/b1"), "s3://archive/b1");
        assert_eq!(Keys::new("billing").lock("a"), "lockcore#billing#a");
        assert_eq!(Keys::new("billing").stored("lockcore#other#a"), None);
    }
}
