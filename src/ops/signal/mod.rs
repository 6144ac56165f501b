//! Signals: Fourier transforms, window functions, mel weights.

mod dft;
mod fourier;
mod mel;
mod stft;
mod windows;

pub(super) use dft::DFT;
pub(super) use mel::MEL_WEIGHT_MATRIX;
pub(super) use stft::STFT;
pub(super) use windows::{BLACKMAN_WINDOW, HAMMING_WINDOW, HANN_WINDOW};
