//! Gathering: the children of one item, on their way back into one list.
//!
//! Where children leave their region (at a collect, at a sink) their parent has a cell for them. The
//! *senders* fill it, as they do the cells of a join; whoever completes it, the last child or the end
//! marker with the count, passes the parent on.

use crate::error::{ErrorKind, ItemError};
use crate::packet::Delivery;
use crate::payload::Payload;
use crate::supervise::discard;

/// What one item leaves at an end of its region.
pub(crate) enum Part<P> {
    /// The fact that it was there.
    Nothing,
    /// What a port took.
    One(Delivery<P>),
    /// What its own children left.
    Many(Vec<Delivery<P>>),
}

/// The cell of one end, in the parent of the children that leave there.
pub(crate) struct Gather<P> {
    places: Vec<Option<Part<P>>>,
    arrived: usize,
    expected: Option<usize>,
    bytes: usize,
    fault: Option<ItemError>,
}

impl<P> Default for Gather<P> {
    fn default() -> Self {
        Self { places: Vec::new(), arrived: 0, expected: None, bytes: 0, fault: None }
    }
}

impl<P> Gather<P> {
    /// Says how many children there are, and why the list is worth nothing if so. True if this
    /// completes the list.
    pub(crate) fn announce(&mut self, count: usize, fault: Option<ItemError>) -> bool {
        self.expected = Some(count);
        if let Some(fault) = fault {
            self.spoil(fault);
        }
        self.arrived == count
    }

    /// Takes the complete list, in the order of the children.
    pub(crate) fn take(&mut self) -> Result<Vec<Delivery<P>>, ItemError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut list = Vec::with_capacity(self.places.len());
        for part in std::mem::take(&mut self.places).into_iter().flatten() {
            match part {
                Part::Nothing => {}
                Part::One(delivery) => list.push(delivery),
                Part::Many(deliveries) => list.extend(deliveries),
            }
        }
        Ok(list)
    }

    /// Empties the cell for another item.
    pub(crate) fn renew(&mut self) {
        if self.arrived > 0 || self.expected.is_some() || self.fault.is_some() {
            self.forget();
            *self = Self::default();
        }
    }

    fn spoil(&mut self, fault: ItemError) {
        self.fault.get_or_insert(fault);
        self.forget();
    }

    fn forget(&mut self) {
        std::mem::take(&mut self.places).into_iter().flatten().for_each(Part::discard);
    }
}

impl<P: Payload> Gather<P> {
    /// Puts child `index` into its place. True if this completes the list. Past `limit` bytes the
    /// list becomes an error, and nothing more is kept.
    pub(crate) fn put(&mut self, index: usize, part: Part<P>, limit: usize) -> bool {
        self.arrived += 1;
        self.bytes = self.bytes.saturating_add(part.bytes());
        if self.fault.is_none() && self.bytes > limit {
            let message = format!(
                "its children keep more than {limit} bytes until they are collected: raise \
                 `Options::child_bytes`, or give less of them"
            );
            self.spoil(ItemError::new(ErrorKind::Limit, message));
        }
        if self.fault.is_none() {
            if self.places.len() <= index {
                self.places.resize_with(index + 1, || None);
            }
            self.places[index] = Some(part);
        } else {
            part.discard();
        }
        self.expected == Some(self.arrived)
    }
}

fn error_of<P>(delivery: Delivery<P>) -> Option<ItemError> {
    delivery.map(|payload| discard(Some(payload))).err()
}

impl<P> Part<P> {
    /// The error in it, filtered or failed, if there is one.
    pub(crate) fn into_error(self) -> Option<ItemError> {
        match self {
            Self::Nothing => None,
            Self::One(delivery) => error_of(delivery),
            Self::Many(deliveries) => ItemError::join(deliveries.into_iter().filter_map(error_of)),
        }
    }

    /// Drops it, whatever its payloads do.
    fn discard(self) {
        drop(self.into_error());
    }
}

impl<P: Payload> Part<P> {
    fn bytes(&self) -> usize {
        let one = |delivery: &Delivery<P>| delivery.as_ref().map_or(0, Payload::bytes);
        match self {
            Self::Nothing => 0,
            Self::One(delivery) => one(delivery),
            Self::Many(deliveries) => deliveries.iter().map(one).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(gather: &mut Gather<i64>, index: usize) -> bool {
        gather.put(index, Part::One(Ok(i64::try_from(index).unwrap())), 1000)
    }

    #[test]
    fn the_list_is_complete_with_its_last_child_or_with_the_count() {
        let mut gather = Gather::default();
        assert!(!put(&mut gather, 2));
        assert!(!put(&mut gather, 0));
        assert!(!gather.announce(3, None));
        assert!(put(&mut gather, 1));
        let list: Vec<_> = gather.take().unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(list, [0, 1, 2]);

        let mut gather = Gather::default();
        assert!(!put(&mut gather, 0));
        assert!(gather.announce(1, None));

        let mut gather = Gather::<i64>::default();
        assert!(gather.announce(0, None));
        assert!(gather.take().unwrap().is_empty());
    }

    #[test]
    fn a_list_past_its_limit_is_an_error_once_all_its_children_have_come() {
        let mut gather = Gather::<i64>::default();
        assert!(!gather.announce(3, None));
        assert!(!gather.put(0, Part::One(Ok(1)), 10));
        assert!(!gather.put(1, Part::Many(vec![Ok(1)]), 10));
        assert!(gather.put(2, Part::Nothing, 10));
        let error = gather.take().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.message().contains("10 bytes"), "{error}");
    }
}
