//! What must hold of a GGUF file before it is read: every length within the file, no
//! tensor twice, none over another or beyond the end, an alignment that is one.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::Result;
use candle_core::quantized::GgmlDType;

use crate::bad_input;

/// A header is longer than this in no file, bytes.
const LONGEST_HEADER: u64 = 1 << 30;
/// More dimensions than this has no tensor (GGML_MAX_DIMS).
const MOST_DIMENSIONS: u32 = 4;
/// The alignment of a file that gives none.
const ALIGNMENT: u64 = 32;

/// Checks a file.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) that says where in the file, in bytes, it is wrong.
pub fn check(path: &Path) -> Result<()> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
    let (metadata, file) = match opened {
        Ok(opened) => opened,
        Err(error) => bad_input!("{}: {error}", path.display()),
    };
    if !metadata.is_file() {
        bad_input!("{}: a GGUF file is needed, and this is no file", path.display());
    }
    let mut walk = Walk { reader: BufReader::new(file), length: metadata.len(), at: 0 };
    match walk.file() {
        Ok(()) => Ok(()),
        Err(problem) => {
            bad_input!("{}: not a whole GGUF file: at byte {}: {problem}; download it again", path.display(), walk.at)
        }
    }
}

/// A walk over the header.
struct Walk {
    reader: BufReader<File>,
    /// Bytes of the file.
    length: u64,
    /// Bytes walked over.
    at: u64,
}

type Checked<T> = std::result::Result<T, String>;

impl Walk {
    fn bytes<const N: usize>(&mut self) -> Checked<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|_| "the file ends".to_string())?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self) -> Checked<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Checked<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// Goes over `bytes` bytes, which must be there.
    fn skip(&mut self, bytes: u64) -> Checked<()> {
        let end = self.at.saturating_add(bytes);
        if end > self.length.min(LONGEST_HEADER) {
            return Err(format!("{bytes} bytes are said to follow, where the file has {}", self.length - self.at));
        }
        self.reader.seek_relative(bytes as i64).map_err(|error| error.to_string())?;
        self.at = end;
        Ok(())
    }

    fn string(&mut self) -> Checked<String> {
        let length = self.u64()?;
        if self.at.saturating_add(length) > self.length.min(LONGEST_HEADER) {
            return Err(format!("a string of {length} bytes, where the file has {}", self.length - self.at));
        }
        let mut bytes = vec![0; length as usize];
        self.reader.read_exact(&mut bytes).map_err(|_| "the file ends".to_string())?;
        self.at += length;
        String::from_utf8(bytes).map_err(|_| "a string that is not UTF-8".to_string())
    }

    /// Goes over a value; returns it where it is an unsigned number.
    fn value(&mut self, kind: u32, depth: usize) -> Checked<Option<u64>> {
        match kind {
            0 => return self.bytes::<1>().map(|b| Some(u64::from(b[0]))),
            1 | 7 => self.skip(1)?,
            2 => return self.bytes::<2>().map(|b| Some(u64::from(u16::from_le_bytes(b)))),
            3 => self.skip(2)?,
            4 => return self.u32().map(|v| Some(u64::from(v))),
            5 | 6 => self.skip(4)?,
            8 => {
                self.string()?;
            }
            9 => {
                let (kind, length) = (self.u32()?, self.u64()?);
                let size = match kind {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    10..=12 => 8,
                    8 | 9 => 0,
                    kind => return Err(format!("a value of the unknown kind {kind}")),
                };
                if size > 0 {
                    self.skip(length.saturating_mul(size))?;
                } else if depth == 0 {
                    return Err("arrays in arrays in arrays".to_string());
                } else {
                    for _ in 0..length {
                        self.value(kind, depth - 1)?;
                    }
                }
            }
            10 => return self.u64().map(Some),
            11 | 12 => self.skip(8)?,
            kind => return Err(format!("a value of the unknown kind {kind}")),
        }
        Ok(None)
    }

    fn file(&mut self) -> Checked<()> {
        if &self.bytes::<4>()? != b"GGUF" {
            return Err("it does not begin with GGUF".to_string());
        }
        let version = self.u32()?;
        if version != 2 && version != 3 {
            return Err(format!("GGUF version {version}; 2 and 3 are read"));
        }
        let (tensors, values) = (self.u64()?, self.u64()?);
        let mut alignment = ALIGNMENT;
        let mut keys = HashSet::new();
        for _ in 0..values {
            let key = self.string()?;
            let kind = self.u32()?;
            let value = self.value(kind, 2)?;
            if key == "general.alignment" {
                alignment = value.ok_or("general.alignment is no count")?;
                if alignment == 0 || !alignment.is_power_of_two() || alignment > 1 << 20 {
                    return Err(format!("general.alignment is {alignment}"));
                }
            }
            if keys.contains(&key) {
                return Err(format!("the key `{key}` stands twice"));
            }
            keys.insert(key);
        }
        let mut names = HashSet::new();
        let mut stretches = Vec::new();
        for _ in 0..tensors {
            let name = self.string()?;
            stretches.push(self.tensor(&name, alignment)?);
            if names.contains(&name) {
                return Err(format!("the tensor `{name}` stands twice"));
            }
            names.insert(name);
        }
        let data = self.at.next_multiple_of(alignment);
        stretches.sort();
        let mut end = 0;
        for (start, bytes) in stretches {
            if start < end {
                return Err(format!("tensors overlap at byte {start} of the data"));
            }
            end = start.saturating_add(bytes);
        }
        match data.saturating_add(end) <= self.length {
            true => Ok(()),
            false => {
                Err(format!("tensors take {end} bytes from byte {data} on, where the file ends at {}", self.length))
            }
        }
    }

    /// Goes over a tensor's description; returns where its data begin and how many bytes they are.
    fn tensor(&mut self, name: &str, alignment: u64) -> Checked<(u64, u64)> {
        let dimensions = self.u32()?;
        if dimensions == 0 || dimensions > MOST_DIMENSIONS {
            return Err(format!("the tensor `{name}` has {dimensions} dimensions"));
        }
        let mut elements = 1u64;
        for _ in 0..dimensions {
            elements = elements.checked_mul(self.u64()?).ok_or(format!("the tensor `{name}` is too large"))?;
        }
        let kind = self.u32()?;
        let start = self.u64()?;
        let Some(kind) = dtype(kind) else {
            return Err(format!("the tensor `{name}` is of the kind {kind}, which is not read here"));
        };
        let block = kind.block_size() as u64;
        if elements == 0 || !elements.is_multiple_of(block) || !start.is_multiple_of(alignment) {
            return Err(format!("the tensor `{name}` has {elements} elements from byte {start} of the data"));
        }
        let bytes = (elements / block).checked_mul(kind.type_size() as u64);
        Ok((start, bytes.ok_or(format!("the tensor `{name}` is too large"))?))
    }
}

/// The number of a type in the file (enum ggml_type).
fn dtype(kind: u32) -> Option<GgmlDType> {
    Some(match kind {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        9 => GgmlDType::Q8_1,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        15 => GgmlDType::Q8K,
        30 => GgmlDType::BF16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file of one number in the metadata and one tensor of four f32.
    fn bytes(alignment: u32, second: &str, start: u64) -> Vec<u8> {
        let mut b = Vec::new();
        let string = |b: &mut Vec<u8>, s: &str| {
            b.extend((s.len() as u64).to_le_bytes());
            b.extend(s.bytes());
        };
        b.extend(b"GGUF");
        b.extend(3u32.to_le_bytes());
        b.extend(2u64.to_le_bytes());
        b.extend(1u64.to_le_bytes());
        string(&mut b, "general.alignment");
        b.extend(4u32.to_le_bytes());
        b.extend(alignment.to_le_bytes());
        for (name, start) in [("a", 0), (second, start)] {
            string(&mut b, name);
            b.extend(1u32.to_le_bytes());
            b.extend(4u64.to_le_bytes());
            b.extend(0u32.to_le_bytes());
            b.extend(start.to_le_bytes());
        }
        b.resize(b.len().next_multiple_of(32) + 48, 0);
        b
    }

    fn said(bytes: &[u8]) -> Option<String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        check(file.path()).err().map(|error| {
            assert!(error.is::<crate::error::BadInput>());
            error.to_string()
        })
    }

    #[test]
    fn whole_files_pass_and_others_say_why() {
        let whole = bytes(32, "b", 32);
        assert_eq!(said(&whole), None);
        for (bytes, part) in [
            (bytes(0, "b", 32), "general.alignment is 0"),
            (bytes(24, "b", 32), "general.alignment is 24"),
            (bytes(32, "a", 32), "`a` stands twice"),
            (bytes(32, "b", 0), "tensors overlap"),
            (bytes(32, "b", 33), "from byte 33"),
            (bytes(32, "b", 1 << 40), "where the file ends"),
            (b"PK\x03\x04".to_vec(), "does not begin with GGUF"),
        ] {
            let said = said(&bytes).expect(part);
            assert!(said.contains(part), "{said}");
        }
        for length in 0..whole.len() {
            assert!(said(&whole[..length]).is_some(), "cut to {length} bytes");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] = 0xff;
            let _ = said(&changed);
        }
    }
}
