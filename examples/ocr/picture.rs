//! Pictures, the lines of text on them, and the characters of a line.

use brigade::{Error, ErrorKind, Result, Tensor};

/// Probability above which a pixel belongs to text.
const THRESHOLD: f32 = 0.3;

/// The detector takes sides in multiples of this.
const STRIDE: usize = 32;
/// The longest side that the detector is given.
const LONGEST: usize = 960;

/// A picture as the models take it: three channels, normalised to -1 … 1.
pub(crate) struct Picture {
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Channel by channel, row by row.
    pub(crate) data: Vec<f32>,
}

/// Where a line of text lies: its rows and its columns.
pub(crate) type Place = ((usize, usize), (usize, usize));

impl Picture {
    /// From a tensor of shape 1 × 3 × height × width.
    pub(crate) fn of(tensor: &Tensor) -> Result<Self> {
        let shape = tensor.shape();
        Ok(Self { height: shape[2], width: shape[3], data: tensor.as_slice::<f32>()?.to_vec() })
    }

    /// From the bytes of a PNG or JPEG file, scaled down to what the detector takes.
    pub(crate) fn decode(file: &[u8]) -> Result<Self> {
        let wrong =
            |e| Error::new(ErrorKind::Format, "this is no picture in PNG or JPEG").with_source(e);
        let pixels = image::load_from_memory(file).map_err(wrong)?.into_rgb8();
        let (width, height) = (pixels.width() as usize, pixels.height() as usize);
        let data = (0..3)
            .rev()
            .flat_map(|c| pixels.pixels().map(move |p| f32::from(p.0[c]) / 127.5 - 1.0))
            .collect();
        let picture = Self { height, width, data };
        let scale = (LONGEST as f64 / height.max(width) as f64).min(1.0);
        let side = |side: usize| {
            let scaled = (side as f64 * scale / STRIDE as f64).round() as usize;
            scaled.max(1) * STRIDE
        };
        let (rows, columns) = (side(height), side(width));
        let fits = (rows, columns) == (height, width);
        Ok(if fits { picture } else { picture.resize(rows, columns) })
    }

    /// As a PNG file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let plane = self.height * self.width;
        let level = |c: usize, i: usize| ((self.data[c * plane + i] + 1.0) * 127.5).round() as u8;
        let pixels = (0..plane).flat_map(|i| [2, 1, 0].map(|c| level(c, i))).collect();
        let none = || Error::new(ErrorKind::Limit, "the picture is too large");
        let (width, height) = (self.width as u32, self.height as u32);
        let pixels = image::RgbImage::from_raw(width, height, pixels).ok_or_else(none)?;
        let mut file = std::io::Cursor::new(Vec::new());
        let failed =
            |e| Error::new(ErrorKind::Internal, "the PNG could not be written").with_source(e);
        pixels.write_to(&mut file, image::ImageFormat::Png).map_err(failed)?;
        Ok(file.into_inner())
    }

    pub(crate) fn tensor(&self) -> Result<Tensor> {
        Tensor::from_slice([1, 3, self.height, self.width], &self.data)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    fn at(&self, c: usize, y: usize, x: usize) -> f32 {
        self.data[(c * self.height + y) * self.width + x]
    }

    pub(crate) fn crop(&self, ((y0, y1), (x0, x1)): Place) -> Self {
        let mut data = Vec::with_capacity(3 * (y1 - y0) * (x1 - x0));
        for c in 0..3 {
            for y in y0..y1 {
                let row = (c * self.height + y) * self.width;
                data.extend_from_slice(&self.data[row + x0..row + x1]);
            }
        }
        Self { height: y1 - y0, width: x1 - x0, data }
    }

    /// Bilinear, with half-pixel centres.
    pub(crate) fn resize(&self, height: usize, width: usize) -> Self {
        let place = |i: usize, to: usize, from: usize| {
            let p =
                ((i as f32 + 0.5) * from as f32 / to as f32 - 0.5).clamp(0.0, from as f32 - 1.0);
            let low = p.floor() as usize;
            (low, (low + 1).min(from - 1), p - p.floor())
        };
        let mut data = Vec::with_capacity(3 * height * width);
        for c in 0..3 {
            for y in 0..height {
                let (y0, y1, fy) = place(y, height, self.height);
                for x in 0..width {
                    let (x0, x1, fx) = place(x, width, self.width);
                    let top = self.at(c, y0, x0) * (1.0 - fx) + self.at(c, y0, x1) * fx;
                    let low = self.at(c, y1, x0) * (1.0 - fx) + self.at(c, y1, x1) * fx;
                    data.push(top * (1.0 - fy) + low * fy);
                }
            }
        }
        Self { height, width, data }
    }

    /// Turned by half a turn.
    pub(crate) fn turned(&self) -> Self {
        let plane = (self.height * self.width).max(1);
        let data = self.data.chunks(plane).flat_map(|p| p.iter().rev().copied()).collect();
        Self { height: self.height, width: self.width, data }
    }

    /// With grey on the right, up to `width`.
    pub(crate) fn padded(&self, width: usize) -> Self {
        let mut data = Vec::with_capacity(3 * self.height * width);
        for row in self.data.chunks(self.width.max(1)) {
            data.extend_from_slice(row);
            data.resize(data.len() + width - self.width, 0.0);
        }
        Self { height: self.height, width, data }
    }
}

/// `count` pages made of one: it whole, parts of it, and all of that upside down.
pub(crate) fn variants(page: &Picture, count: usize) -> Vec<Picture> {
    let (height, width) = (page.height, page.width);
    // Rows in multiples of 32, as the detector takes them.
    let middle = (height / 64 * 32).min(224);
    let cuts = [(0, height), (0, middle), (middle, height)];
    let part = |n: usize| page.crop((cuts[n % cuts.len()], (0, width)));
    (0..count).map(|n| if n % 2 == 1 { part(n).turned() } else { part(n) }).collect()
}

/// Runs of indices for which `inside` holds.
fn runs(length: usize, inside: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for i in 0..=length {
        match (start, i < length && inside(i)) {
            (None, true) => start = Some(i),
            (Some(s), false) => {
                found.push((s, i));
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// The lines in a map of probabilities, from top to bottom. The map marks the core of a line; a line
/// is about half its core's height larger on each side.
pub(crate) fn lines(map: &Tensor) -> Result<Vec<Place>> {
    let (height, width) = (map.shape()[2], map.shape()[3]);
    let map = map.as_slice::<f32>()?;
    let row = |y: usize| map[y * width..(y + 1) * width].iter().any(|p| *p > THRESHOLD);
    let mut places = Vec::new();
    for (y0, y1) in runs(height, row) {
        let column = |x: usize| (y0..y1).any(|y| map[y * width + x] > THRESHOLD);
        let columns = runs(width, column);
        let (Some(first), Some(last)) = (columns.first(), columns.last()) else { continue };
        let grow = (y1 - y0) / 2 + 1;
        places.push((
            (y0.saturating_sub(grow), (y1 + grow).min(height)),
            (first.0.saturating_sub(grow), (last.1 + grow).min(width)),
        ));
    }
    Ok(places)
}

/// The text of greedy CTC: the best class at each step, repeats and blanks dropped. `steps` has the
/// shape 1 × steps × classes.
pub(crate) fn spell(steps: &Tensor, alphabet: &str) -> Result<String> {
    let mut table: Vec<&str> = vec![""];
    table.extend(alphabet.split('\n'));
    table.push(" ");
    let classes = steps.shape()[2];
    let (mut text, mut last) = (String::new(), usize::MAX);
    for row in steps.as_slice::<f32>()?.chunks(classes) {
        let best = (0..classes).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
        if best != last && best > 0 && best < table.len() {
            text.push_str(table[best]);
        }
        last = best;
    }
    Ok(text)
}
