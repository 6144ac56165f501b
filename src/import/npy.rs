//! The `.npy` format of numpy: versions 1 to 3, read and written.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use super::Limits;
use crate::error::{Result, bail, err};
use crate::tensor::{Buffer, DType, Shape, Tensor, element_count, strides};

/// What every file starts with.
pub(crate) const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Reads the array in a `.npy` file, within the default [`Limits`].
///
/// Big-endian elements and Fortran order are converted. An array without axes is a scalar.
///
/// # Errors
/// If the file cannot be read, is not a `.npy` file, is truncated or has bytes left over, or holds
/// objects, strings, records, dates or complex numbers. The message names the file.
///
/// ```
/// use brigade::{Tensor, import};
/// let path = std::env::temp_dir().join(format!("brigade-doc-{}.npy", std::process::id()));
/// let t = Tensor::new([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
/// import::write_npy(&path, &t).unwrap();
/// assert_eq!(import::read_npy(&path).unwrap(), t);
/// # std::fs::remove_file(&path).unwrap();
/// ```
pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor> {
    let path = path.as_ref();
    read_file(path, &Limits::default()).map_err(|e| e.within(&format!("`{}`", path.display())))
}

fn read_file(path: &Path, limits: &Limits) -> Result<Tensor> {
    let file = super::open_file(path)?;
    let length = Some(file.metadata()?.len());
    // Unbuffered: the header takes a few small reads, the elements one large one.
    read_array(file, length, limits)
}

/// Reads the array in the bytes of a `.npy` file, within the default [`Limits`].
///
/// # Errors
/// As [`read_npy`].
///
/// ```
/// assert!(brigade::import::parse_npy(b"not an array").is_err());
/// ```
pub fn parse_npy(bytes: &[u8]) -> Result<Tensor> {
    read_array(bytes, Some(bytes.len() as u64), &Limits::default())
}

/// Reads one array to the end of `reader`. With `length`, the bytes that there are, memory is
/// only taken for what is really there; without it, it grows with what arrives.
pub(crate) fn read_array(
    mut reader: impl Read,
    length: Option<u64>,
    limits: &Limits,
) -> Result<Tensor> {
    let (header, start) = read_header(&mut reader, limits)?;
    let (dtype, shape) = (header.dtype, Shape::from(header.shape));
    let count = element_count(&shape, dtype.size())?;
    let need = count * dtype.size();
    limits.check_tensor(need, &|| format!("the array {dtype}{shape}"))?;
    let mut buffer = match length {
        Some(length) => {
            let there = length.saturating_sub(start);
            if there < need as u64 {
                bail!(Format, "truncated: {dtype}{shape} takes {need} bytes, {there} are there");
            }
            let mut buffer = Buffer::zeroed(need)?;
            if let Some(bytes) = buffer.unique_bytes() {
                reader.read_exact(bytes).map_err(unexpected_end)?;
            }
            buffer
        }
        None => {
            let mut bytes = Vec::new();
            reader.by_ref().take(need as u64).read_to_end(&mut bytes)?;
            if bytes.len() < need {
                let there = bytes.len();
                bail!(Format, "truncated: {dtype}{shape} takes {need} bytes, {there} are there");
            }
            Buffer::copy_of(&bytes)
        }
    };
    // Reading to the very end also lets a zip entry check its sum.
    if std::io::copy(&mut reader.by_ref().take(1), &mut std::io::sink())? > 0 {
        bail!(Format, "bytes are left over after the {need} bytes of {dtype}{shape}");
    }
    if header.big_endian
        && dtype.size() > 1
        && let Some(bytes) = buffer.unique_bytes()
    {
        bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
    if header.fortran_order && shape.rank() > 1 {
        buffer = from_fortran(buffer.as_bytes(), &shape, dtype.size())?;
    }
    Tensor::from_buffer(dtype, shape, buffer)
}

/// The array in the bytes of a whole file, over these bytes where they are in order.
pub(super) fn in_place(bytes: &Buffer, limits: &Limits) -> Result<Tensor> {
    let all = bytes.as_bytes();
    let (header, start) = read_header(&mut &*all, limits)?;
    let size = header.dtype.size();
    let turned = header.fortran_order && header.shape.len() > 1;
    if turned || (header.big_endian && size > 1) {
        return read_array(all, Some(all.len() as u64), limits);
    }
    let need = element_count(&header.shape, size)? * size;
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    let there = all.len().saturating_sub(start);
    let shape = Shape::from(header.shape);
    if there < need {
        bail!(Format, "truncated: {}{shape} takes {need} bytes, {there} are there", header.dtype);
    }
    if there > need {
        bail!(Format, "bytes are left over after the {need} bytes of {}{shape}", header.dtype);
    }
    let data = bytes.range(start, need).ok_or_else(|| err!(Format, "it ends too early"))?;
    Tensor::from_buffer(header.dtype, shape, data)
}

fn unexpected_end(e: std::io::Error) -> crate::Error {
    if e.kind() == std::io::ErrorKind::UnexpectedEof {
        err!(Format, "truncated: it ends too early")
    } else {
        e.into()
    }
}

/// Elements in column-major order, put into row-major order.
fn from_fortran(source: &[u8], shape: &[usize], size: usize) -> Result<Buffer> {
    let mut out = Buffer::zeroed(source.len())?;
    let Some(bytes) = out.unique_bytes() else { return Ok(out) };
    let steps = strides(shape);
    let mut index = vec![0usize; shape.len()];
    let mut at = 0usize;
    for element in source.chunks_exact(size) {
        bytes[at * size..(at + 1) * size].copy_from_slice(element);
        for axis in 0..shape.len() {
            index[axis] += 1;
            at += steps[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= steps[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    Ok(out)
}

struct Header {
    dtype: DType,
    big_endian: bool,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// The header and how many bytes it took.
fn read_header(reader: &mut impl Read, limits: &Limits) -> Result<(Header, u64)> {
    let mut start = [0u8; 8];
    let mut got = 0;
    while got < start.len() {
        match reader.read(&mut start[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    if got == 0 {
        return Err(err!(Format, "is empty, not a .npy file").with_help("write it again"));
    }
    if got < MAGIC.len() || start[..6] != MAGIC[..] {
        let what = super::describe_magic(&start[..got]);
        return Err(err!(Format, "is not a .npy file{what}")
            .with_help("save arrays with numpy.save or with `brigade run`"));
    }
    if got < start.len() {
        bail!(Format, "truncated: it ends within the header");
    }
    let (length_bytes, utf8) = match start[6] {
        1 => (2, false),
        2 => (4, false),
        3 => (4, true),
        v => bail!(Format, "version {v}.{} of the .npy format is not known", start[7]),
    };
    let mut length = [0u8; 4];
    reader.read_exact(&mut length[..length_bytes]).map_err(unexpected_end)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limits.max_header_bytes {
        let max = limits.max_header_bytes;
        bail!(Limit, "the .npy header takes {length} bytes, more than the limit of {max}");
    }
    let mut text = vec![0u8; length];
    reader.read_exact(&mut text).map_err(unexpected_end)?;
    let text = if utf8 {
        String::from_utf8(text).map_err(|_| err!(Format, "the .npy header is not UTF-8"))?
    } else {
        text.into_iter().map(char::from).collect()
    };
    let header = Literal { text: &text, at: 0 }.header(limits)?;
    Ok((header, (8 + length_bytes + length) as u64))
}

/// A reader of the one Python literal in a header.
struct Literal<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Literal<'a> {
    fn header(mut self, limits: &Limits) -> Result<Header> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.take('}') {
            let key = self.string()?;
            self.expect(':')?;
            let twice = match key {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.shape(limits)?).is_some(),
                other => bail!(Format, "the .npy header has an unknown key `{other}`"),
            };
            if twice {
                bail!(Format, "the .npy header has `{key}` twice");
            }
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        if !self.rest().trim().is_empty() {
            bail!(Format, "the .npy header goes on after its end");
        }
        let missing = |key: &str| err!(Format, "the .npy header lacks `{key}`");
        let (dtype, big_endian) = descr.ok_or_else(|| missing("descr"))?;
        Ok(Header {
            dtype,
            big_endian,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, c: char) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn expect(&mut self, c: char) -> Result<()> {
        if self.take(c) {
            return Ok(());
        }
        let found: String = self.rest().chars().take(12).collect();
        bail!(Format, "the .npy header has `{found}` where `{c}` belongs")
    }

    fn string(&mut self) -> Result<&'a str> {
        self.skip_space();
        let quote = match self.rest().chars().next() {
            Some(q @ ('\'' | '"')) => q,
            _ => bail!(Format, "the .npy header has no quoted text at byte {}", self.at),
        };
        let start = self.at + 1;
        let Some(length) = self.text[start..].find(quote) else {
            bail!(Format, "the .npy header has a quote without an end");
        };
        self.at = start + length + 1;
        Ok(&self.text[start..start + length])
    }

    fn boolean(&mut self) -> Result<bool> {
        self.skip_space();
        for (word, value) in [("True", true), ("False", false)] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        bail!(Format, "`fortran_order` in the .npy header is neither True nor False")
    }

    fn descr(&mut self) -> Result<(DType, bool)> {
        self.skip_space();
        if self.rest().starts_with('[') {
            return Err(err!(Unsupported, "a structured dtype cannot be read")
                .with_help("save each field as an array of its own"));
        }
        parse_descr(self.string()?)
    }

    fn shape(&mut self, limits: &Limits) -> Result<Vec<usize>> {
        self.expect('(')?;
        let mut shape = Vec::new();
        while !self.take(')') {
            self.skip_space();
            let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
            let extent = self.rest()[..digits]
                .parse::<usize>()
                .map_err(|_| err!(Format, "`shape` in the .npy header has a bad extent"))?;
            self.at += digits;
            // Python 2 wrote long integers with a suffix.
            self.take('L');
            shape.push(extent);
            limits.check_rank(shape.len())?;
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

/// The dtypes that can be read and written, by numpy's kind and size.
const DESCR: &[(&str, DType)] = &[
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("b1", DType::Bool),
];

/// The dtype of a `descr` and whether it is big-endian.
fn parse_descr(descr: &str) -> Result<(DType, bool)> {
    let (order, kind) = match descr.chars().next() {
        Some(c @ ('<' | '>' | '|' | '=')) => (c, &descr[1..]),
        _ => ('<', descr),
    };
    if let Some(row) = DESCR.iter().find(|row| row.0 == kind) {
        return Ok((row.1, order == '>'));
    }
    let (what, help) = match kind.chars().next() {
        Some('O') => ("Python objects (pickles)", "numbers or bools"),
        Some('U' | 'S' | 'a' | 'T') => ("text", "numbers, such as token ids"),
        Some('V') => ("raw records (numpy has no bfloat16 and no 8-bit floats)", "float32"),
        Some('M' | 'm') => ("dates or durations", "int64"),
        Some('c') => ("complex numbers", "two arrays, real and imaginary"),
        _ => ("elements of an unknown dtype", "numbers or bools"),
    };
    Err(err!(Unsupported, "dtype `{descr}` means {what}, which cannot be read")
        .with_help(format!("save the array as {help}")))
}

/// Writes `tensor` as a `.npy` file, in C order and little-endian.
///
/// # Errors
/// If the file cannot be written (the message names it), or numpy has no such dtype (bf16, 8-bit
/// and 4-bit floats, strings): cast first.
pub fn write_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    let path = path.as_ref();
    let write = || {
        // Before the file is touched, so that a refused dtype leaves an old file alone.
        let header = header_of(tensor)?;
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&header)?;
        file.write_all(tensor.as_bytes())?;
        file.flush()?;
        Ok(())
    };
    write().map_err(|e: crate::Error| e.within(&format!("`{}`", path.display())))
}

/// The header of `tensor`'s `.npy` file; its bytes follow.
pub(crate) fn header_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let dtype = tensor.dtype();
    let Some((kind, _)) = DESCR.iter().find(|row| row.1 == dtype) else {
        return Err(err!(
            Unsupported,
            "{dtype} cannot be written as .npy: numpy has no such dtype"
        )
        .with_help("cast it to f32 (or, for whole numbers, to i8) first"));
    };
    let order = if dtype.size() == 1 { '|' } else { '<' };
    let dims: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    let comma = if dims.len() == 1 { "," } else { "" };
    let mut text = format!(
        "{{'descr': '{order}{kind}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        dims.join(", ")
    );
    // The elements start at a multiple of 64, so that the file can be mapped.
    let wide = text.len() + 64 > usize::from(u16::MAX);
    let start = if wide { 12 } else { 10 };
    let end = (start + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', end - start - text.len() - 1));
    text.push('\n');
    let length = u32::try_from(text.len()).map_err(|_| err!(Limit, "too many axes for .npy"))?;
    let mut out = Vec::with_capacity(end);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[if wide { 2 } else { 1 }, 0]);
    out.extend_from_slice(&length.to_le_bytes()[..start - 8]);
    out.extend_from_slice(text.as_bytes());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([version, 0]);
        let length = u32::try_from(header.len()).unwrap().to_le_bytes();
        out.extend(&length[..if version == 1 { 2 } else { 4 }]);
        out.extend(header.as_bytes());
        out.extend(data);
        out
    }

    fn dict(descr: &str, fortran: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
    }

    #[test]
    fn all_versions_and_byte_orders() {
        for version in 1..=3 {
            let bytes = file(version, &dict("<i2", "False", "(2,)"), &[1, 0, 0, 1]);
            assert_eq!(parse_npy(&bytes).unwrap().as_slice::<i16>().unwrap(), [1, 256]);
            let bytes = file(version, &dict(">i2", "False", "(2L,)"), &[1, 0, 0, 1]);
            assert_eq!(parse_npy(&bytes).unwrap().as_slice::<i16>().unwrap(), [256, 1]);
        }
        let scalar = parse_npy(&file(1, &dict(">f8", "True", "()"), &2.5_f64.to_be_bytes()));
        assert_eq!(scalar.unwrap().item::<f64>().unwrap(), 2.5);
        assert!(parse_npy(&file(4, &dict("<i2", "False", "()"), &[0; 2])).is_err());
    }

    #[test]
    fn fortran_order_is_transposed() {
        // Columns of [[[0,1],[2,3],[4,5]],[[6,7],[8,9],[10,11]]].
        let data = [0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11];
        let t = parse_npy(&file(1, &dict("|u1", "True", "(2, 3, 2)"), &data)).unwrap();
        assert_eq!(t.as_slice::<u8>().unwrap(), (0..12).collect::<Vec<u8>>());
        let empty = parse_npy(&file(1, &dict("<f4", "True", "(3, 0, 2)"), &[])).unwrap();
        assert_eq!(*empty.shape(), [3, 0, 2]);
    }

    #[test]
    fn faults_are_named() {
        let whole = file(1, &dict("<f4", "False", "(2,)"), &[0; 8]);
        let message = |bytes: &[u8]| parse_npy(bytes).unwrap_err().to_string();
        assert!(message(&whole[..whole.len() - 1]).contains("truncated"));
        assert!(message(&whole[..20]).contains("truncated"));
        let longer = [&whole[..], &[0]].concat();
        assert!(message(&longer).contains("left over"));
        assert!(message(b"").contains("is empty"));
        assert!(message(b"PK\x03\x04 an archive").contains("zip"));
        for (descr, word) in [("|O", "objects"), ("<U5", "text"), ("|V2", "bfloat16")] {
            let error = parse_npy(&file(1, &dict(descr, "False", "(1,)"), &[0; 8])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains(word), "{error}");
        }
        let fields = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}";
        assert!(message(&file(1, fields, &[0; 4])).contains("structured"));
    }

    #[test]
    fn hostile_headers_take_no_memory() {
        for shape in ["(99999999999999,)", "(4294967296, 4294967296, 2)", "(1000000000000,0)"] {
            let _ = parse_npy(&file(1, &dict("<f8", "False", shape), &[]));
        }
        let huge = file(1, &dict("<f8", "False", "(9999999999,)"), &[]);
        assert!(parse_npy(&huge).is_err());
        let mut long = MAGIC.to_vec();
        long.extend([2, 0, 255, 255, 255, 255]);
        assert_eq!(parse_npy(&long).unwrap_err().kind(), ErrorKind::Limit);
        let axes = format!("({})", "1,".repeat(1000));
        let error = parse_npy(&file(1, &dict("<f4", "False", &axes), &[0; 4])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
    }

    #[test]
    fn writing_round_trips_and_aligns() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        for shape in [vec![], vec![6], vec![2, 3], vec![0, 4]] {
            let count = shape.iter().product();
            for &(_, dtype) in DESCR {
                let ones = Tensor::new(shape.clone(), vec![1_i64; count]).unwrap();
                let t = crate::tensor::cast(&ones, dtype).unwrap();
                write_npy(&path, &t).unwrap();
                assert_eq!(read_npy(&path).unwrap(), t);
                assert_eq!((std::fs::read(&path).unwrap().len() - t.bytes()) % 64, 0);
            }
        }
        let header = header_of(&Tensor::scalar(1_u8)).unwrap();
        let text = "{'descr': '|u1', 'fortran_order': False, 'shape': (), }";
        assert_eq!(&header[10..10 + text.len()], text.as_bytes());
        let bf16 = Tensor::zeros(DType::BF16, [2]).unwrap();
        let error = write_npy(&path, &bf16).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("cast it to f32"), "{error}");
        assert!(read_npy(&path).is_ok(), "the old file is gone");
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no such.npy");
        assert!(read_npy(&path).unwrap_err().to_string().contains("no such.npy"));
        std::fs::write(&path, &MAGIC[..]).unwrap();
        let error = read_npy(&path).unwrap_err();
        assert!(error.to_string().contains("no such.npy"), "{error}");
        assert!(read_npy(folder.path()).is_err());
        assert!(write_npy(folder.path(), &Tensor::scalar(1_u8)).is_err());
    }
}
