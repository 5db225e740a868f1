//! The list type of the public interface.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use smallvec::SmallVec;

/// A list that stores a single element inline: most sets have one id, and none of their lists needs the heap.
///
/// It is a slice by [`Deref`], is collected from an iterator, and converts from and to a [`Vec`].
#[derive(Clone, PartialEq, Eq)]
pub struct List<T>(pub(crate) SmallVec<[T; 1]>);

impl<T> List<T> {
    /// Creates an empty list.
    #[inline]
    pub fn new() -> Self {
        List(SmallVec::new())
    }

    /// Creates a list of one element.
    #[inline]
    pub fn one(element: T) -> Self {
        List(SmallVec::from_buf([element]))
    }

    /// Creates an empty list with room for exactly `capacity` elements.
    pub fn with_capacity(capacity: usize) -> Self {
        List(SmallVec::with_capacity(capacity))
    }

    /// Appends an element.
    #[inline]
    pub fn push(&mut self, element: T) {
        self.0.push(element);
    }

    /// Returns the elements as a slice.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    /// Keeps the elements for which `keep` returns `true`, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.0.retain(|element| keep(element));
    }

    /// Shortens the list to its first `len` elements; does nothing if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Removes the element at `index` and returns it.
    ///
    /// # Panics
    /// If there is none.
    pub fn remove(&mut self, index: usize) -> T {
        self.0.remove(index)
    }

    /// Removes the last element and returns it.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        List::new()
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for List<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<E: IntoIterator<Item = T>>(elements: E) -> Self {
        List(elements.into_iter().collect())
    }
}

impl<T> Extend<T> for List<T> {
    fn extend<E: IntoIterator<Item = T>>(&mut self, elements: E) {
        self.0.extend(elements);
    }
}

impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = ListIter<T>;

    #[inline]
    fn into_iter(self) -> ListIter<T> {
        ListIter(self.0.into_iter())
    }
}

impl<'l, T> IntoIterator for &'l List<T> {
    type Item = &'l T;
    type IntoIter = std::slice::Iter<'l, T>;

    fn into_iter(self) -> std::slice::Iter<'l, T> {
        self.0.iter()
    }
}

impl<'l, T> IntoIterator for &'l mut List<T> {
    type Item = &'l mut T;
    type IntoIter = std::slice::IterMut<'l, T>;

    fn into_iter(self) -> std::slice::IterMut<'l, T> {
        self.0.iter_mut()
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(elements: Vec<T>) -> Self {
        List(SmallVec::from_vec(elements))
    }
}

impl<T> From<List<T>> for Vec<T> {
    fn from(list: List<T>) -> Self {
        list.0.into_vec()
    }
}

impl<T: fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The elements of a [`List`], by value.
pub struct ListIter<T>(smallvec::IntoIter<[T; 1]>);

impl<T> Iterator for ListIter<T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> ExactSizeIterator for ListIter<T> {}

impl<T: fmt::Debug> fmt::Debug for ListIter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
