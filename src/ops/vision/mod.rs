//! Images: decoding, sampling by grids and regions, windows laid out as columns.

mod affine_grid;
mod col2im;
mod deform_conv;
mod grid_sample;
#[cfg(feature = "image")]
mod image_decoder;
mod roi;

pub(super) use affine_grid::AFFINE_GRID;
pub(super) use col2im::COL2IM;
pub(super) use deform_conv::DEFORM_CONV;
pub(super) use grid_sample::GRID_SAMPLE;
#[cfg(feature = "image")]
pub(super) use image_decoder::IMAGE_DECODER;
#[cfg(feature = "image")]
pub use image_decoder::fuzz_images;
pub(super) use roi::{MAX_ROI_POOL, ROI_ALIGN};

/// The value between the four pixels around a point of a plane of `height` × `width`; what is
/// outside of the plane is 0.
fn bilinear(plane: &[f64], height: usize, width: usize, y: f64, x: f64) -> f64 {
    let (top, left) = (y.floor(), x.floor());
    let pixel = |y: f64, x: f64| {
        if y < 0.0 || x < 0.0 || y >= height as f64 || x >= width as f64 {
            0.0
        } else {
            plane[y as usize * width + x as usize]
        }
    };
    let (dy, dx) = (y - top, x - left);
    let upper = pixel(top, left) * (1.0 - dx) + pixel(top, left + 1.0) * dx;
    let lower = pixel(top + 1.0, left) * (1.0 - dx) + pixel(top + 1.0, left + 1.0) * dx;
    upper * (1.0 - dy) + lower * dy
}
