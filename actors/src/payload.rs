//! What the edges of a pipeline carry.

use crate::sync::Arc;

/// A value that travels along the edges of a pipeline.
///
/// The runtime looks at a payload only through these methods. A payload is usually a handle on
/// an immutable, reference-counted buffer, so that [`share`](Payload::share) costs one counter.
///
/// ```
/// use brigade_actors::Payload;
///
/// assert_eq!(7_i64.bytes(), 8);
/// assert_eq!(vec![1_u8, 2, 3].bytes(), 3);
/// assert_eq!(String::from("abc").share(), "abc");
/// ```
pub trait Payload: Send + 'static {
    /// The bytes of memory that this payload keeps alive; counted in byte budgets.
    fn bytes(&self) -> usize;

    /// One more handle on the same value, for fan-out: a consumer cannot tell it from the first.
    #[must_use]
    fn share(&self) -> Self
    where
        Self: Sized;

    /// Whether everybody may read it now. A payload that a device still works on may say no: it
    /// goes to actors of the same memory only, which order their work behind. Anywhere else the
    /// runtime makes it an error of its item, so that nobody reads a payload before it is there.
    fn ready(&self) -> bool {
        true
    }
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Payload for $ty {
            fn bytes(&self) -> usize {
                size_of::<$ty>()
            }

            fn share(&self) -> Self {
                *self
            }
        }
    )*};
}

plain!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, f32, f64, bool, char, ());

impl Payload for String {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn share(&self) -> Self {
        self.clone()
    }
}

impl<T: Clone + Send + 'static> Payload for Vec<T> {
    fn bytes(&self) -> usize {
        size_of_val(self.as_slice())
    }

    fn share(&self) -> Self {
        self.clone()
    }
}

impl<T: Payload + Sync> Payload for Arc<T> {
    fn bytes(&self) -> usize {
        T::bytes(self)
    }

    fn share(&self) -> Self {
        Self::clone(self)
    }

    fn ready(&self) -> bool {
        T::ready(self)
    }
}
