//! Which instruction set the kernels use, found once at run time.

use std::sync::OnceLock;

/// An instruction set that this process may use.
///
/// The only ways to get one are [`Isa::best`], [`Isa::scalar`] and [`Isa::available`], so holding
/// a value proves that the CPU can execute it.
///
/// ```
/// use brigade::kernels::Isa;
/// assert!(Isa::available().contains(&Isa::scalar()));
/// assert!(Isa::available().contains(&Isa::best()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) enum Kind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The portable kernels, written in plain Rust.
    pub const fn scalar() -> Self {
        Self(Kind::Scalar)
    }

    /// The fastest instruction set of this CPU.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::scalar())
    }

    /// All usable instruction sets, slowest first.
    pub fn available() -> &'static [Self] {
        static FOUND: OnceLock<Vec<Isa>> = OnceLock::new();
        FOUND.get_or_init(|| {
            #[allow(unused_mut)]
            let mut found = vec![Isa(Kind::Scalar)];
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                found.push(Isa(Kind::Avx2));
            }
            found
        })
    }

    /// The name shown to users.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
        }
    }

    pub(in crate::kernels) fn kind(self) -> Kind {
        self.0
    }
}
