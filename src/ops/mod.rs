//! Operators.
//!
//! [`TABLE`] is the one list: an operator is its family's file and one row here. Import checks,
//! shape inference, batch cutting, cost, the CPU device, the support table and the conformance
//! run all read the rows.

pub mod batch;
pub mod builder;
pub mod case;
pub mod cost;
mod def;
pub mod infer;
mod kernel;
mod precision;
mod profile;
mod program;
mod registry;
mod shape_only;
mod threads;
pub(crate) mod window;
mod workspace;

mod array;
mod attention;
pub(crate) mod blocked;
mod cast;
mod composite;
mod concat;
mod constant;
mod control;
mod conv;
mod cumsum;
mod depth_to_space;
mod dequant;
mod dropout;
mod einsum;
mod elementwise;
pub(crate) mod epilogue;
mod expand;
mod gather;
mod identity;
mod loss;
mod matmul;
mod mersenne;
mod ml;
mod movement;
mod non_max_suppression;
mod nonzero;
mod normalization;
mod onehot;
mod pad;
mod pool;
mod quantize;
mod random;
mod range;
mod recurrent;
mod reduce;
mod reshape;
mod resize;
mod reverse_sequence;
mod scatter;
mod sequence;
mod signal;
mod silu;
mod slice;
mod softmax;
mod text;
mod topk;
mod transpose;
mod trilu;
mod unique;
mod vision;

#[allow(unused_imports, reason = "devices other than the CPU read it")]
pub(crate) use crate::kernels::Activation;
pub(crate) use conv::transposed_axes;
pub use def::{AttributeDef, AttributeKind, OpDef, Port, PortKind, types};
pub(crate) use dequant::decoded_weights;
pub use infer::{Infer, infer_graph};
pub use kernel::{CpuKernel, Io, Prepare, kernel_fn};
pub(crate) use pad::padded;
pub use precision::Precision;
pub(crate) use precision::listed as listed_precisions;
pub use profile::{NodeProfile, Profiler, Recorder, SegmentProfile};
pub use program::{CompileOptions, Program, RunContext};
pub use registry::{MissingOp, OpRegistry};
pub(crate) use resize::resamplings;
pub use threads::Threads;
#[cfg(feature = "image")]
pub use vision::fuzz_images;
pub use workspace::Workspace;

/// Every operator, by family file.
pub static TABLE: &[&OpDef] = &[
    // identity.rs
    &identity::IDENTITY,
    // elementwise/
    &elementwise::ADD,
    &elementwise::SUB,
    &elementwise::MUL,
    &elementwise::DIV,
    &elementwise::MOD,
    &elementwise::POW,
    &elementwise::PRELU,
    &elementwise::MAX,
    &elementwise::MIN,
    &elementwise::SUM,
    &elementwise::MEAN,
    &elementwise::EQUAL,
    &elementwise::LESS,
    &elementwise::LESS_OR_EQUAL,
    &elementwise::GREATER,
    &elementwise::GREATER_OR_EQUAL,
    &elementwise::AND,
    &elementwise::OR,
    &elementwise::XOR,
    &elementwise::WHERE,
    &elementwise::CLIP,
    &elementwise::IS_NAN,
    &elementwise::IS_INF,
    &elementwise::NOT,
    &elementwise::EXP,
    &elementwise::LOG,
    &elementwise::TANH,
    &elementwise::SIGMOID,
    &elementwise::ERF,
    &elementwise::SQRT,
    &elementwise::RECIPROCAL,
    &elementwise::FLOOR,
    &elementwise::CEIL,
    &elementwise::ROUND,
    &elementwise::LEAKY_RELU,
    &elementwise::THRESHOLDED_RELU,
    &elementwise::HARD_SIGMOID,
    &elementwise::HARD_SWISH,
    &elementwise::ELU,
    &elementwise::SELU,
    &elementwise::CELU,
    &elementwise::SOFTPLUS,
    &elementwise::SOFTSIGN,
    &elementwise::MISH,
    &elementwise::SHRINK,
    &elementwise::SIN,
    &elementwise::COS,
    &elementwise::TAN,
    &elementwise::ASIN,
    &elementwise::ACOS,
    &elementwise::ATAN,
    &elementwise::SINH,
    &elementwise::COSH,
    &elementwise::ASINH,
    &elementwise::ACOSH,
    &elementwise::ATANH,
    &elementwise::NEG,
    &elementwise::ABS,
    &elementwise::SIGN,
    &elementwise::RELU,
    &elementwise::GELU,
    &elementwise::BITWISE_AND,
    &elementwise::BITWISE_OR,
    &elementwise::BITWISE_XOR,
    &elementwise::BITWISE_NOT,
    &elementwise::BIT_SHIFT,
    // cast.rs
    &cast::CAST,
    &cast::CAST_LIKE,
    // reduce/
    &reduce::ARG_MAX,
    &reduce::ARG_MIN,
    &reduce::REDUCE_SUM,
    &reduce::REDUCE_MEAN,
    &reduce::REDUCE_MAX,
    &reduce::REDUCE_MIN,
    &reduce::REDUCE_PROD,
    &reduce::REDUCE_L1,
    &reduce::REDUCE_L2,
    &reduce::REDUCE_SUM_SQUARE,
    &reduce::REDUCE_LOG_SUM,
    &reduce::REDUCE_LOG_SUM_EXP,
    // softmax.rs
    &softmax::SOFTMAX,
    &softmax::LOG_SOFTMAX,
    &softmax::HARDMAX,
    // normalization/
    &normalization::BATCH_NORMALIZATION,
    &normalization::LAYER_NORMALIZATION,
    &normalization::INSTANCE_NORMALIZATION,
    &normalization::GROUP_NORMALIZATION,
    &normalization::LRN,
    &normalization::LP_NORMALIZATION,
    &normalization::MEAN_VARIANCE_NORMALIZATION,
    // quantize/
    &quantize::QUANTIZE_LINEAR,
    &quantize::DEQUANTIZE_LINEAR,
    &quantize::MS_QUANTIZE_LINEAR,
    &quantize::MS_DEQUANTIZE_LINEAR,
    &quantize::DYNAMIC_QUANTIZE_LINEAR,
    // reshape.rs
    &reshape::RESHAPE,
    &reshape::FLATTEN,
    &reshape::SQUEEZE,
    &reshape::UNSQUEEZE,
    // transpose.rs
    &transpose::TRANSPOSE,
    // concat.rs
    &concat::CONCAT,
    &concat::SPLIT,
    &concat::TILE,
    // matmul/
    &matmul::MATMUL,
    &matmul::FUSED_MATMUL,
    &matmul::QMATMUL,
    &matmul::GEMM,
    &matmul::FUSED_GEMM,
    &matmul::MATMUL_INTEGER,
    &matmul::MATMUL_N_BITS,
    // dequant/
    &dequant::DEQUANT_MATMUL,
    &dequant::DEQUANT_GATHER,
    // conv/
    &conv::CONV,
    &conv::FUSED_CONV,
    &conv::CONV_TRANSPOSE,
    &conv::CONV_INTEGER,
    // pool/
    &pool::MAX_POOL,
    &pool::AVERAGE_POOL,
    &pool::LP_POOL,
    &pool::MAX_UNPOOL,
    &pool::GLOBAL_AVERAGE_POOL,
    &pool::GLOBAL_MAX_POOL,
    &pool::GLOBAL_LP_POOL,
    // resize/
    &resize::RESIZE,
    &resize::UPSAMPLE,
    // recurrent/
    &recurrent::LSTM,
    &recurrent::GRU,
    &recurrent::RNN,
    &recurrent::DYNAMIC_QUANTIZE_LSTM,
    // silu.rs
    &silu::SILU,
    // slice.rs
    &slice::SLICE,
    // pad.rs
    &pad::PAD,
    // gather.rs
    &gather::GATHER,
    &gather::GATHER_ELEMENTS,
    &gather::GATHER_ND,
    // scatter.rs
    &scatter::SCATTER,
    &scatter::SCATTER_ELEMENTS,
    &scatter::SCATTER_ND,
    // expand.rs
    &expand::EXPAND,
    &expand::SHAPE,
    &expand::SIZE,
    &expand::CONSTANT_OF_SHAPE,
    // range.rs
    &range::RANGE,
    // depth_to_space.rs
    &depth_to_space::DEPTH_TO_SPACE,
    &depth_to_space::SPACE_TO_DEPTH,
    // reverse_sequence.rs
    &reverse_sequence::REVERSE_SEQUENCE,
    // trilu.rs
    &trilu::TRILU,
    // cumsum.rs
    &cumsum::CUM_SUM,
    // nonzero.rs
    &nonzero::NON_ZERO,
    // onehot.rs
    &onehot::ONE_HOT,
    // topk.rs
    &topk::TOP_K,
    // unique.rs
    &unique::UNIQUE,
    // constant.rs
    &constant::CONSTANT,
    // control.rs
    &control::IF,
    &control::LOOP,
    &control::SCAN,
    &control::SEQUENCE_MAP,
    // sequence/
    &sequence::SEQUENCE_CONSTRUCT,
    &sequence::SEQUENCE_EMPTY,
    &sequence::SEQUENCE_AT,
    &sequence::SEQUENCE_INSERT,
    &sequence::SEQUENCE_ERASE,
    &sequence::SEQUENCE_LENGTH,
    &sequence::SPLIT_TO_SEQUENCE,
    &sequence::CONCAT_FROM_SEQUENCE,
    &sequence::OPTIONAL,
    &sequence::OPTIONAL_GET_ELEMENT,
    &sequence::OPTIONAL_HAS_ELEMENT,
    // text/
    &text::STRING_CONCAT,
    &text::STRING_NORMALIZER,
    &text::STRING_SPLIT,
    &text::REGEX_FULL_MATCH,
    &text::TF_IDF_VECTORIZER,
    // ml/
    &ml::LABEL_ENCODER,
    &ml::CATEGORY_MAPPER,
    &ml::ONE_HOT_ENCODER,
    &ml::ARRAY_FEATURE_EXTRACTOR,
    &ml::FEATURE_VECTORIZER,
    &ml::BINARIZER,
    &ml::SCALER,
    &ml::IMPUTER,
    &ml::NORMALIZER,
    &ml::LINEAR_REGRESSOR,
    &ml::LINEAR_CLASSIFIER,
    &ml::SVM_REGRESSOR,
    &ml::SVM_CLASSIFIER,
    &ml::TREE_ENSEMBLE,
    &ml::TREE_ENSEMBLE_REGRESSOR,
    &ml::TREE_ENSEMBLE_CLASSIFIER,
    // composite/
    &composite::MS_GELU,
    &composite::BIAS_GELU,
    &composite::FAST_GELU,
    &composite::QUICK_GELU,
    &composite::SWISH,
    &composite::FUSED_MATMUL,
    &composite::FUSED_GEMM,
    &composite::FUSED_CONV,
    &composite::RMS_NORMALIZATION,
    &composite::SIMPLIFIED_LAYER_NORMALIZATION,
    &composite::SKIP_LAYER_NORMALIZATION,
    &composite::EMBED_LAYER_NORMALIZATION,
    &composite::SKIP_SIMPLIFIED_LAYER_NORMALIZATION,
    &composite::QLINEAR_MATMUL,
    &composite::QLINEAR_CONV,
    &composite::QGEMM,
    &composite::QATTENTION,
    &composite::MATMUL_INTEGER_TO_FLOAT,
    &composite::DYNAMIC_QUANTIZE_MATMUL,
    &composite::QLINEAR_ADD,
    &composite::QLINEAR_MUL,
    &composite::QLINEAR_SIGMOID,
    &composite::QLINEAR_LEAKY_RELU,
    &composite::QLINEAR_GLOBAL_AVERAGE_POOL,
    &composite::QLINEAR_AVERAGE_POOL,
    &composite::QLINEAR_SOFTMAX,
    &composite::QLINEAR_CONCAT,
    // attention/
    &attention::ATTENTION,
    &attention::ROTARY_EMBEDDING,
    &attention::MS_ATTENTION,
    &attention::MULTI_HEAD_ATTENTION,
    &attention::GROUP_QUERY_ATTENTION,
    &attention::MS_ROTARY_EMBEDDING,
    // random.rs
    &random::RANDOM_NORMAL,
    &random::RANDOM_NORMAL_LIKE,
    &random::RANDOM_UNIFORM,
    &random::RANDOM_UNIFORM_LIKE,
    &random::BERNOULLI,
    &random::MULTINOMIAL,
    // array.rs
    &array::COMPRESS,
    &array::EYE_LIKE,
    &array::CENTER_CROP_PAD,
    &array::DET,
    // einsum.rs
    &einsum::EINSUM,
    // dropout.rs
    &dropout::DROPOUT,
    // loss.rs
    &loss::NEGATIVE_LOG_LIKELIHOOD_LOSS,
    &loss::SOFTMAX_CROSS_ENTROPY_LOSS,
    // non_max_suppression.rs
    &non_max_suppression::NON_MAX_SUPPRESSION,
    // vision/
    &vision::GRID_SAMPLE,
    &vision::AFFINE_GRID,
    &vision::COL2IM,
    &vision::DEFORM_CONV,
    &vision::ROI_ALIGN,
    &vision::MAX_ROI_POOL,
    #[cfg(feature = "image")]
    &vision::IMAGE_DECODER,
    // signal/
    &signal::DFT,
    &signal::STFT,
    &signal::HANN_WINDOW,
    &signal::HAMMING_WINDOW,
    &signal::BLACKMAN_WINDOW,
    &signal::MEL_WEIGHT_MATRIX,
];
