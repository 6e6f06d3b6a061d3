//! SHA-256, in hex.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Of bytes.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    let mut hash = Sha256::new();
    hash.update(bytes);
    hex(hash)
}

/// Of the bytes of a file.
pub fn sha256_of_file(path: &Path) -> std::io::Result<String> {
    let (mut file, mut hash, mut buffer) = (std::fs::File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(hash)),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// Of token ids, as little-endian 32-bit numbers.
pub fn sha256_of_ids(ids: &[u32]) -> String {
    let mut hash = Sha256::new();
    ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
    hex(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendix B.1.
    #[test]
    fn the_standards_example() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256("abc"), abc);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        assert_eq!(sha256_of_file(file.path()).unwrap(), abc);
        assert_eq!(sha256_of_ids(&[1, 256]), sha256([1, 0, 0, 0, 0, 1, 0, 0]));
    }
}
