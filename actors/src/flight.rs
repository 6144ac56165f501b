//! The items in flight.

use std::collections::VecDeque;

use crate::error::ItemError;
use crate::item::{Admission, Item, Shape};
use crate::packet::Seq;
use crate::sync::{Arc, Mutex, lock};

/// The items in flight: what a stop has to settle. The sink does not come here: it marks an item as
/// retired, and an admission takes one that is marked and that nobody holds for the next item.
pub(crate) struct Flight<P>(Mutex<Table<P>>);

struct Table<P> {
    /// In flight or retired, about in the order of their admission.
    items: VecDeque<Arc<Item<P>>>,
    /// How many are kept where many retired ones are still held, by tickets.
    most: usize,
    next_seq: u64,
    closed: Option<ItemError>,
}

/// How many items an admission looks at before it makes a new one.
const LOOKS: usize = 4;

impl<P> Flight<P> {
    /// A table for at most `capacity` items in flight.
    pub(crate) fn new(capacity: usize) -> Self {
        // Callers may have as many results to take as items in flight.
        let most = capacity.saturating_mul(2).saturating_add(LOOKS);
        let items = VecDeque::new();
        Self(Mutex::new(Table { items, most, next_seq: 0, closed: None }))
    }

    pub(crate) fn insert(
        &self,
        admission: Admission<P>,
        shape: &Shape,
    ) -> Result<Arc<Item<P>>, ItemError> {
        let mut table = lock(&self.0);
        if let Some(cause) = &table.closed {
            return Err(cause.clone());
        }
        let seq = Seq::new(table.next_seq);
        table.next_seq += 1;
        let item = table.renewed(seq, admission, shape);
        table.items.push_back(Arc::clone(&item));
        Ok(item)
    }

    /// Takes an item out that must not be kept: one of a stream would keep what the stream carries.
    pub(crate) fn forget(&self, item: &Item<P>) {
        let mut table = lock(&self.0);
        let place = table.items.iter().position(|other| other.seq() == item.seq());
        let forgotten = place.and_then(|place| table.items.remove(place));
        drop(table);
        drop(forgotten);
    }

    /// The numbers of the items in flight, and when they were admitted, in nanoseconds.
    pub(crate) fn open(&self) -> Vec<(Seq, u64)> {
        let table = lock(&self.0);
        let open = table.items.iter().filter(|item| !item.result.is_retired());
        open.map(|item| (item.seq(), item.result.admitted_ns)).collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Item<P>>> {
        let table = lock(&self.0);
        table.items.iter().filter(|item| !item.result.is_retired()).cloned().collect()
    }

    /// The lowest number in flight.
    pub(crate) fn oldest(&self) -> Option<Seq> {
        let table = lock(&self.0);
        let left = table.items.iter().filter(|item| !item.result.is_retired());
        left.map(|item| item.seq()).min()
    }

    /// Takes no more items, and retires those that are left.
    pub(crate) fn close(&self, cause: &ItemError) -> Vec<Arc<Item<P>>> {
        let mut table = lock(&self.0);
        table.closed.get_or_insert_with(|| cause.clone());
        std::mem::take(&mut table.items).into_iter().filter(|item| item.result.retire()).collect()
    }
}

impl<P> Table<P> {
    /// An item of which nobody has a handle, used before or new.
    fn renewed(&mut self, seq: Seq, admission: Admission<P>, shape: &Shape) -> Arc<Item<P>> {
        for _ in 0..LOOKS.min(self.items.len()) {
            let Some(mut item) = self.items.pop_front() else {
                break;
            };
            if let Some(unheld) = Arc::get_mut(&mut item)
                && unheld.result.0.has_retired()
            {
                unheld.renew(seq, admission, shape);
                return item;
            }
            if self.items.len() < self.most || !item.result.is_retired() {
                self.items.push_back(item);
            }
        }
        Arc::new(Item::new(seq, admission, shape))
    }
}
