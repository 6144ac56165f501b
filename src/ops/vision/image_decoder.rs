//! `ImageDecoder`.

use std::io::Cursor;

use image::{ImageFormat, ImageReader};

use crate::error::{Result, bail, err};
use crate::graph::Dim;
use crate::ops::case::{Case, filled};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor};

const BYTES: &[DType] = &[DType::U8];
/// The most bytes that decoding one image may take, its pixels included.
const MOST_BYTES: u64 = 512 << 20;
/// The longest side of an image, in pixels; that of JPEG.
const LONGEST: u32 = 65_535;

/// The pixels of an encoded image (BMP, JPEG, PNG, PNM, TIFF or WebP, told by how it begins), as
/// `[height, width, channels]`. An image that cannot be decoded is an error; the specification has
/// it come out empty. Alpha is dropped, elements of 16 bits are scaled to 8, and the orientation
/// that a camera wrote is not applied.
pub(in crate::ops) static IMAGE_DECODER: OpDef = OpDef {
    name: "ImageDecoder",
    domain: "",
    since: 20,
    attributes: &[AttributeDef::optional("pixel_format", AttributeKind::String)],
    inputs: &[Port::required("encoded_stream", BYTES)],
    outputs: &[Port::required("image", BYTES)],
    infer: |i| {
        let channels = PixelFormat::of(i.node.string("pixel_format")?)?.channels();
        let shape = vec![i.fresh(), i.fresh(), Dim::of(channels)];
        i.set(0, Some(DType::U8), Some(shape));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::transcendental,
    prepare: |p| {
        let format = PixelFormat::of(p.node.string("pixel_format")?)?;
        Ok(Box::new(ImageDecoder { format }))
    },
    cases,
};

#[derive(Clone, Copy, Debug)]
enum PixelFormat {
    Rgb,
    Bgr,
    Grayscale,
}

impl PixelFormat {
    fn of(name: Option<&str>) -> Result<Self> {
        Ok(match name.unwrap_or("RGB") {
            "RGB" => Self::Rgb,
            "BGR" => Self::Bgr,
            "Grayscale" => Self::Grayscale,
            other => bail!(
                Graph,
                "attribute `pixel_format` is `{other}`, expected `RGB`, `BGR` or `Grayscale`"
            ),
        })
    }

    fn channels(self) -> usize {
        match self {
            Self::Rgb | Self::Bgr => 3,
            Self::Grayscale => 1,
        }
    }
}

#[derive(Debug)]
struct ImageDecoder {
    format: PixelFormat,
}

impl CpuKernel for ImageDecoder {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let stream = io.tensor(0)?;
        if stream.rank() != 1 {
            bail!(
                Shape,
                "input `encoded_stream` is {}, expected the bytes of a file along one axis",
                stream.describe()
            );
        }
        let image = decode(stream.as_slice::<u8>()?, self.format)?;
        io.emit(image);
        Ok(())
    }
}

/// What the bytes hold, by how they begin.
fn format_of(bytes: &[u8]) -> Result<ImageFormat> {
    const JPEG_2000: [&[u8]; 2] = [b"\0\0\0\x0CjP  \r\n\x87\n", b"\xFF\x4F\xFF\x51"];
    const HELP: &str = "BMP, JPEG, PNG, PNM, TIFF and WebP are decoded; convert it, or decode it \
                        before the model";
    if JPEG_2000.iter().any(|magic| bytes.starts_with(magic)) {
        return Err(err!(Unsupported, "JPEG 2000 images are not decoded").with_help(HELP));
    }
    match image::guess_format(bytes) {
        Ok(format) if format.reading_enabled() => Ok(format),
        Ok(format) => Err(err!(
            Unsupported,
            "{} images are not decoded",
            format!("{format:?}").to_uppercase()
        )
        .with_help(HELP)),
        Err(_) => {
            Err(err!(Kernel, "the {} bytes begin like no image", bytes.len()).with_help(HELP))
        }
    }
}

fn decode(bytes: &[u8], pixels: PixelFormat) -> Result<Tensor> {
    let format = format_of(bytes)?;
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = image::Limits::default();
    limits.max_alloc = Some(MOST_BYTES);
    (limits.max_image_width, limits.max_image_height) = (Some(LONGEST), Some(LONGEST));
    reader.limits(limits);
    let decoded = reader.decode().map_err(|e| match e {
        image::ImageError::Limits(_) => err!(
            Limit,
            "the {format:?} image is larger than {LONGEST} pixels a side or {MOST_BYTES} bytes"
        ),
        image::ImageError::Unsupported(_) => {
            err!(Unsupported, "the {format:?} image is of a kind that is not decoded")
                .with_source(e)
        }
        e => err!(Kernel, "the {format:?} image cannot be decoded").with_source(e),
    })?;
    let image = decoded.into_rgb8();
    let (height, width) = (image.height() as usize, image.width() as usize);
    let mut rgb = image.into_raw();
    let bytes = match pixels {
        PixelFormat::Rgb => rgb,
        PixelFormat::Bgr => {
            rgb.chunks_exact_mut(3).for_each(|p| p.swap(0, 2));
            rgb
        }
        PixelFormat::Grayscale => rgb.chunks_exact(3).map(|p| luma([p[0], p[1], p[2]])).collect(),
    };
    Tensor::new([height, width, pixels.channels()], bytes)
}

/// Decodes `bytes` as an image and drops the outcome; for fuzzing.
pub fn fuzz_images(bytes: &[u8]) {
    drop(decode(bytes, PixelFormat::Grayscale));
}

/// The luma of BT.601 in whole numbers of 1/65536, as the reference rounds it.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    let sum = 19_595 * u32::from(r) + 38_470 * u32::from(g) + 7_471 * u32::from(b);
    ((sum + (1 << 15)) >> 16) as u8
}

fn cases() -> Vec<Case> {
    let colour = b"P6 2 1 255\n\xFF\x00\x00\x01\x02\x03";
    let new = |format: &str, file: &[u8]| {
        Case::new("ImageDecoder", 20, format!("{format}, {} bytes", file.len()))
            .attr("pixel_format", format)
            .input(filled(&[file.len()], file))
    };
    // A BMP of one column and two rows, which are stored from the bottom up and padded.
    let mut bitmap =
        b"BM\x3E\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x02\0\0\0\x01\0\x18\0".to_vec();
    bitmap.extend([0; 24]);
    bitmap.extend([1, 2, 3, 0, 4, 5, 6, 0]);
    vec![
        new("RGB", colour).output(filled(&[1, 2, 3], &[255_u8, 0, 0, 1, 2, 3])),
        new("BGR", colour).output(filled(&[1, 2, 3], &[0_u8, 0, 255, 3, 2, 1])),
        new("Grayscale", colour).output(filled(&[1, 2, 1], &[76_u8, 2])),
        new("Grayscale", b"P5 2 1 255\n\x07\xF0").output(filled(&[1, 2, 1], &[7_u8, 240])),
        new("RGB", &bitmap).output(filled(&[2, 1, 3], &[6_u8, 5, 4, 3, 2, 1])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use image::{DynamicImage, Rgb, RgbImage};

    fn picture() -> RgbImage {
        RgbImage::from_fn(7, 5, |x, y| Rgb([(x * 36) as u8, (y * 50) as u8, (x * y * 7) as u8]))
    }

    fn encode(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
        let mut file = Cursor::new(Vec::new());
        image.into().write_to(&mut file, format).unwrap();
        file.into_inner()
    }

    const LOSSLESS: [ImageFormat; 5] = [
        ImageFormat::Bmp,
        ImageFormat::Png,
        ImageFormat::Pnm,
        ImageFormat::Tiff,
        ImageFormat::WebP,
    ];

    #[test]
    fn formats_without_loss_give_every_pixel_back() {
        let want = Tensor::new([5, 7, 3], picture().into_raw()).unwrap();
        for format in LOSSLESS {
            let file = encode(picture(), format);
            assert_eq!(decode(&file, PixelFormat::Rgb).unwrap(), want, "{format:?}");
        }
    }

    #[test]
    fn a_jpeg_comes_near_its_picture() {
        let smooth = RgbImage::from_fn(24, 16, |x, y| Rgb([(x * 8) as u8, (y * 8) as u8, 90]));
        let file = encode(smooth.clone(), ImageFormat::Jpeg);
        let got = decode(&file, PixelFormat::Rgb).unwrap();
        assert_eq!(*got.shape(), [16, 24, 3]);
        let far = got.as_slice::<u8>().unwrap().iter().zip(smooth.as_raw());
        let far = far.map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(far < 24, "{far}");
    }

    #[test]
    fn alpha_is_dropped_and_wide_elements_are_scaled() {
        let clear =
            DynamicImage::ImageRgba8(image::RgbaImage::from_pixel(1, 1, image::Rgba([9, 8, 7, 0])));
        let got = decode(&encode(clear, ImageFormat::Png), PixelFormat::Rgb).unwrap();
        assert_eq!(got.as_slice::<u8>().unwrap(), [9, 8, 7]);
        let wide = DynamicImage::ImageLuma16(image::ImageBuffer::from_pixel(
            1,
            1,
            image::Luma([0xFFFF_u16]),
        ));
        let got = decode(&encode(wide, ImageFormat::Png), PixelFormat::Grayscale).unwrap();
        assert_eq!(got.as_slice::<u8>().unwrap(), [255]);
    }

    #[test]
    fn what_is_not_decoded_is_named() {
        for (bytes, kind, words) in [
            (&b"\0\0\0\x0CjP  \r\n\x87\n..."[..], ErrorKind::Unsupported, "JPEG 2000"),
            (b"\xFF\x4F\xFF\x51....", ErrorKind::Unsupported, "JPEG 2000"),
            (b"GIF89a....", ErrorKind::Unsupported, "GIF"),
            (b"no image at all", ErrorKind::Kernel, "15 bytes"),
            (b"", ErrorKind::Kernel, "0 bytes"),
            (b"\x89PNG\r\n\x1a\n\0", ErrorKind::Kernel, "Png"),
        ] {
            let error = decode(bytes, PixelFormat::Rgb).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_small_file_cannot_ask_for_much_memory() {
        // 65,000 × 65,000 pixels in 20 bytes.
        let error = decode(b"P6 65000 65000 255\n\0", PixelFormat::Rgb).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        let error = decode(b"P6 70000 1 255\n\0", PixelFormat::Rgb).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        // The same through the header of each format that can be patched in place.
        let mut png = encode(picture(), ImageFormat::Png);
        png[16..24].copy_from_slice(&[0, 0, 0xFD, 0xE8, 0, 0, 0xFD, 0xE8]);
        assert!(decode(&png, PixelFormat::Rgb).is_err());
        let mut bmp = encode(picture(), ImageFormat::Bmp);
        bmp[18..26].copy_from_slice(&[0xE8, 0xFD, 0, 0, 0xE8, 0xFD, 0, 0]);
        assert_eq!(decode(&bmp, PixelFormat::Rgb).unwrap_err().kind(), ErrorKind::Limit);
    }

    #[test]
    fn damaged_images_never_panic() {
        let mut mutator = crate::import::mutate::Mutator::new(20);
        let mut read = 0;
        for length in 0..200 {
            fuzz_images(&mutator.mutate(&vec![0; length]));
        }
        for format in LOSSLESS.into_iter().chain([ImageFormat::Jpeg]) {
            let file = encode(picture(), format);
            for _ in 0..400 {
                read += usize::from(decode(&mutator.mutate(&file), PixelFormat::Rgb).is_ok());
            }
        }
        assert!(read > 0, "every damaged file was refused: nothing was decoded");
    }
}
