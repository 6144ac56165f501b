//! Short lists that need no memory of their own.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// Elements that lie in place: as many as nearly every tensor has axes.
const FEW: usize = 6;

/// A list whose elements lie in place as long as they are few, so that what is worked out for each
/// axis of a tensor allocates nothing.
#[derive(Clone)]
pub(crate) struct Few<T>(Kept<T>);

#[derive(Clone)]
enum Kept<T> {
    InPlace { len: u8, elements: [T; FEW] },
    Apart(Vec<T>),
}

impl<T: Copy + Default> Few<T> {
    pub(crate) fn new() -> Self {
        Self(Kept::InPlace { len: 0, elements: [T::default(); FEW] })
    }

    /// `len` times the same.
    pub(crate) fn filled(element: T, len: usize) -> Self {
        std::iter::repeat_n(element, len).collect()
    }

    pub(crate) fn push(&mut self, element: T) {
        match &mut self.0 {
            Kept::InPlace { len, elements } => match elements.get_mut(usize::from(*len)) {
                Some(free) => {
                    *free = element;
                    *len += 1;
                }
                None => {
                    let all = elements.iter().copied().chain([element]).collect();
                    self.0 = Kept::Apart(all);
                }
            },
            Kept::Apart(all) => all.push(element),
        }
    }

    /// Takes the element at `at` out; those behind it move up.
    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        self.get_mut(at..).filter(|rest| !rest.is_empty())?.rotate_left(1);
        self.pop()
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.last().copied()?;
        match &mut self.0 {
            Kept::InPlace { len, .. } => *len -= 1,
            Kept::Apart(all) => all.truncate(all.len() - 1),
        }
        Some(last)
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.0 {
            Kept::InPlace { len, elements } => &elements[..usize::from(*len)],
            Kept::Apart(all) => all,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Kept::InPlace { len, elements } => &mut elements[..usize::from(*len)],
            Kept::Apart(all) => all,
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Copy + Default> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(iter: I) -> Self {
        let mut out = Self::new();
        out.extend(iter);
        out
    }
}

impl<T: Copy + Default> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, iter: I) {
        iter.into_iter().for_each(|element| self.push(element));
    }
}

impl<T: Copy + Default> From<&[T]> for Few<T> {
    fn from(elements: &[T]) -> Self {
        elements.iter().copied().collect()
    }
}

impl<T: Copy + Default> Default for Few<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

impl<T: Hash> Hash for Few<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_goes_in_place_or_not() {
        for len in 0..FEW + 3 {
            let plain: Vec<usize> = (1..=len).collect();
            let mut few: Few<usize> = plain.iter().copied().collect();
            assert_eq!(*few, *plain);
            assert_eq!(Few::from(&plain[..]), few);
            few.push(9);
            assert_eq!((few.len(), few[len]), (len + 1, 9));
            assert_eq!(few.pop(), Some(9));
            assert_eq!(*few, *plain);
            assert_eq!(format!("{few:?}"), format!("{plain:?}"));
        }
        assert_eq!(Few::<u8>::new().pop(), None);
        let mut few: Few<u8> = [1, 2, 3].into_iter().collect();
        assert_eq!((few.remove(0), few.remove(1), few.remove(1)), (Some(1), Some(3), None));
        assert_eq!(*few, [2]);
        assert_eq!(*Few::filled(3, 2), [3, 3]);
    }
}
