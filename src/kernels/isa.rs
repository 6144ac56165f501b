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
pub struct Isa {
    kind: Kind,
    /// Dot products of bytes (AVX-512 VNNI).
    vnni: bool,
    /// Dot products of pairs of bfloat16 (AVX512-BF16).
    bf16: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) enum Kind {
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL, and all that [`Kind::Avx2`] has.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The portable kernels, written in plain Rust.
    pub const fn scalar() -> Self {
        Self::of(Kind::Scalar)
    }

    const fn of(kind: Kind) -> Self {
        Self { kind, vnni: false, bf16: false }
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
            let mut found = vec![Self::scalar()];
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                found.push(Self::of(Kind::Avx2));
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    found.push(Self::of(Kind::Avx512));
                    let vnni = is_x86_feature_detected!("avx512vnni");
                    if vnni {
                        found.push(Self { vnni, ..Self::of(Kind::Avx512) });
                    }
                    if is_x86_feature_detected!("avx512bf16") {
                        found.push(Self { vnni, bf16: true, ..Self::of(Kind::Avx512) });
                    }
                }
            }
            found
        })
    }

    /// The name shown to users.
    pub fn name(self) -> &'static str {
        match self.kind {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 if self.bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 if self.vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }

    pub(in crate::kernels) fn kind(self) -> Kind {
        self.kind
    }

    /// Whether dot products of pairs of bfloat16 are one instruction.
    pub(in crate::kernels) fn has_bf16(self) -> bool {
        self.bf16
    }

    /// Whether dot products of bytes are one instruction.
    pub(in crate::kernels) fn has_vnni(self) -> bool {
        self.vnni
    }
}
