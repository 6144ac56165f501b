//! Products by cuBLASLt, where the library is.
//!
//! The library counts by columns, so that it is asked for the transposed product: of `b` and `a`, whose
//! rows are its columns.

use std::ffi::c_void;
use std::mem::size_of;
use std::sync::Mutex;

use cudarc::cublaslt::result::{self as lt, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue,
    cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulPreferenceAttributes_t as Wish,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cudaDataType as DataType,
};

use super::driver::{DeviceMemory, Stream};
use crate::device::gpu::lock;
use crate::gpu::ProductCall;
use crate::ops::Precision;

/// Bytes that a product may use beside its operands, one set for each actor.
pub(super) const WORKSPACE: usize = 32 << 20;

/// The opened library.
pub(super) struct Blas(sys::cublasLtHandle_t);

// SAFETY: a handle is used by any thread at any time.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

/// What the library refuses, in words.
pub(super) fn words(refusal: CublasError) -> String {
    format!("cuBLASLt: {:?}", refusal.0)
}

impl Blas {
    /// The library, if it is there and works. The context of a GPU is bound.
    pub(super) fn open() -> Option<Self> {
        // A library that lacks a function is one that is not there.
        std::panic::catch_unwind(Self::load).unwrap_or(None)
    }

    fn load() -> Option<Self> {
        // SAFETY: it loads and unloads the library, whose initialisers do nothing beyond it.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let blas = Self(lt::create_handle().ok()?);
        // Every function is looked up when it is first called.
        let small = ProductCall {
            extents: [16; 3],
            a_by_columns: false,
            b_by_columns: false,
            count: 1,
            steps: [0; 2],
            alpha: 1.0,
            bias: true,
            residual: false,
            relu: false,
        };
        blas.plan(small, Precision::F32).map(|_| blas)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: it was created once, by `open`.
        let _ = unsafe { lt::destroy_handle(self.0) };
    }
}

/// A description that the library holds.
struct Desc(sys::cublasLtMatmulDesc_t);

// SAFETY: it has one owner, who locks it to change it.
unsafe impl Send for Desc {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { lt::destroy_matmul_desc(self.0) };
    }
}

impl Desc {
    fn set<T>(&self, attribute: DescAttribute, value: &T) -> Result<(), CublasError> {
        let at = std::ptr::from_ref(value).cast::<c_void>();
        // SAFETY: the library reads so many bytes of the value before it returns.
        unsafe { lt::set_matmul_desc_attribute(self.0, attribute, at, size_of::<T>()) }
    }
}

/// How a matrix lies.
struct MatrixLayout(sys::cublasLtMatrixLayout_t);

// SAFETY: it is never changed once it was made.
unsafe impl Send for MatrixLayout {}
// SAFETY: as above.
unsafe impl Sync for MatrixLayout {}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { lt::destroy_matrix_layout(self.0) };
    }
}

impl MatrixLayout {
    /// `columns` columns of `rows` packed numbers, `count` times, `step` numbers apart.
    fn new(rows: usize, columns: usize, count: usize, step: usize) -> Result<Self, CublasError> {
        let wide = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let raw = lt::create_matrix_layout(
            DataType::CUDA_R_32F,
            rows as u64,
            columns as u64,
            wide(rows),
        )?;
        let layout = Self(raw);
        let set = |attribute, at: *const c_void, bytes| {
            // SAFETY: the library reads so many bytes before it returns.
            unsafe { lt::set_matrix_layout_attribute(layout.0, attribute, at, bytes) }
        };
        let (count, step) = (i32::try_from(count).unwrap_or(i32::MAX), wide(step));
        let batch = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
        set(batch, (&raw const count).cast(), size_of::<i32>())?;
        let offset = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        set(offset, (&raw const step).cast(), size_of::<i64>())?;
        Ok(layout)
    }
}

/// A product for which the library chose an algorithm.
pub(super) struct Plan {
    call: ProductCall,
    desc: Mutex<Desc>,
    a: MatrixLayout,
    b: MatrixLayout,
    y: MatrixLayout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: the algorithm is plain data, the rest says so itself.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

/// Where the operands of a product lie.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
    pub(super) y: u64,
}

impl Plan {
    /// The operands among the parameters of its launch: words, what is read, what is written.
    pub(super) fn operands(&self, parameters: &[u64]) -> Option<Operands> {
        let mut read = parameters.get(1..parameters.len() - 1)?.iter().copied();
        let (a, b) = (read.next()?, read.next()?);
        let bias = if self.call.bias { read.next()? } else { 0 };
        let residual = if self.call.residual { read.next()? } else { 0 };
        Some(Operands { a, b, bias, residual, y: *parameters.last()? })
    }
}

impl Blas {
    /// A plan for a product; `None` if the library has no algorithm for it.
    pub(super) fn plan(&self, call: ProductCall, precision: Precision) -> Option<Plan> {
        self.try_plan(call, precision).ok()
    }

    fn try_plan(&self, call: ProductCall, precision: Precision) -> Result<Plan, CublasError> {
        let [m, n, k] = call.extents;
        // Operands and results are f32 in memory; the library rounds operands as it reads them.
        let compute = match precision {
            Precision::F32 => Compute::CUBLAS_COMPUTE_32F,
            Precision::Tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            Precision::Bf16 => Compute::CUBLAS_COMPUTE_32F_FAST_16BF,
            Precision::F16 => Compute::CUBLAS_COMPUTE_32F_FAST_16F,
        };
        let desc = Desc(lt::create_matmul_desc(compute, DataType::CUDA_R_32F)?);
        // CUBLAS_OP_N and CUBLAS_OP_T.
        let turned = i32::from;
        desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &turned(call.b_by_columns))?;
        desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, &turned(call.a_by_columns))?;
        let epilogue = match (call.bias, call.relu) {
            (false, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => Epilogue::CUBLASLT_EPILOGUE_RELU,
            (true, false) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (true, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if call.bias {
            // Not where it lies, but that it lies somewhere: some versions look.
            let somewhere = 256_u64;
            desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &somewhere)?;
        }
        let packed = |by_columns, rows, columns| match by_columns {
            true => (rows, columns),
            false => (columns, rows),
        };
        let of = |(rows, columns): (usize, usize), step| {
            MatrixLayout::new(rows, columns, call.count, step)
        };
        let a = of(packed(call.a_by_columns, m, k), call.steps[0])?;
        let b = of(packed(call.b_by_columns, k, n), call.steps[1])?;
        let y = of((n, m), m * n)?;
        let wish = lt::create_matmul_pref()?;
        let attribute = Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let (bytes, size) = (WORKSPACE as u64, size_of::<u64>());
        // SAFETY: the library reads so many bytes before it returns.
        let set = unsafe {
            lt::set_matmul_pref_attribute(wish, attribute, (&raw const bytes).cast(), size)
        };
        let found = set.and_then(|()| {
            // SAFETY: all of it lives.
            unsafe { lt::get_matmul_algo_heuristic(self.0, desc.0, b.0, a.0, y.0, y.0, wish) }
        });
        // SAFETY: it was created above.
        let _ = unsafe { lt::destroy_matmul_pref(wish) };
        let algorithm = found?.algo;
        Ok(Plan { call, desc: Mutex::new(desc), a, b, y, algorithm })
    }

    /// Orders a product on a stream.
    ///
    /// # Safety
    /// The operands are as the plan says and live, as `workspace` does, until it has happened; nobody
    /// else uses `y` and `workspace` meanwhile.
    pub(super) unsafe fn order(
        &self,
        plan: &Plan,
        stream: &Stream,
        operands: Operands,
        workspace: &DeviceMemory,
    ) -> Result<(), CublasError> {
        let desc = lock(&plan.desc);
        if plan.call.bias {
            desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias)?;
        }
        let (alpha, beta): (f32, f32) = (plan.call.alpha, f32::from(plan.call.residual));
        let added = if plan.call.residual { operands.residual } else { operands.y };
        let at = |address: u64| address as *const c_void;
        // SAFETY: the library reads the description and both numbers before it returns; the rest is
        // the caller's.
        unsafe {
            lt::matmul(
                self.0,
                desc.0,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                at(operands.b),
                plan.b.0,
                at(operands.a),
                plan.a.0,
                at(added),
                plan.y.0,
                operands.y as *mut c_void,
                plan.y.0,
                &raw const plan.algorithm,
                workspace.address() as *mut c_void,
                workspace.bytes(),
                stream.raw().cast(),
            )
        }
    }
}
