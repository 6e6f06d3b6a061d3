//! Token ids kept on disk, by the content of the text and the tokenizer.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Tokenizer;
use crate::files::write_whole;
use crate::hash::sha256;

/// Texts below this size are tokenized faster than they would be looked up, bytes.
const WORTHWHILE: usize = 1 << 20;

/// What a file of the cache begins with.
const MAGIC: &[u8; 16] = b"ablation tokens1";
/// Bytes of the hash that it ends with, in hex.
const HASH: usize = 64;

/// Where token ids are kept: `$XDG_CACHE_HOME/ablation/tokens`, else below `~/.cache`.
pub fn folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(caches.join("ablation").join("tokens"))
}

/// As [`Tokenizer::encode_at_most`], from `folder` where it was done before.
pub fn encode_at_most(
    folder: Option<&Path>,
    tokenizer: &Tokenizer,
    text: &str,
    at_most: usize,
) -> Result<(Vec<u32>, u64)> {
    let Some(folder) = folder.filter(|_| text.len() >= WORTHWHILE) else {
        return tokenizer.encode_at_most(text, at_most);
    };
    let path = folder.join(sha256(format!("{}\n{at_most}\n{}", tokenizer.sha256(), sha256(text))));
    if let Some(found) = std::fs::read(&path).ok().and_then(|bytes| decode(&bytes)) {
        return Ok(found);
    }
    let (ids, characters) = tokenizer.encode_at_most(text, at_most)?;
    // A cache that can't be written costs time alone.
    let _ = std::fs::create_dir_all(folder);
    let _ = write_whole(&path, |file| Ok(file.write_all(&encode(&ids, characters))?));
    Ok((ids, characters))
}

fn encode(ids: &[u32], characters: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(characters.to_le_bytes());
    bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    let hash = sha256(&bytes);
    bytes.extend(hash.as_bytes());
    bytes
}

/// None if the bytes are damaged.
fn decode(bytes: &[u8]) -> Option<(Vec<u32>, u64)> {
    let (content, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH)?)?;
    if sha256(content).as_bytes() != hash {
        return None;
    }
    let (characters, ids) = content.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    let ids = ids.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]));
    Some((ids.collect(), u64::from_le_bytes(*characters)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_comes_back_and_what_is_damaged_does_not() {
        let bytes = encode(&[1, 2, 70_000], 9);
        assert_eq!(decode(&bytes), Some((vec![1, 2, 70_000], 9)));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {at}");
            assert_eq!(decode(&bytes[..at]), None, "{at} bytes");
        }
    }

    #[test]
    fn a_text_is_tokenized_once() {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::embedded().unwrap();
        let text = "It is a truth universally acknowledged, ".repeat(WORTHWHILE / 40 + 1);
        let encode = |at_most| encode_at_most(Some(dir.path()), &tokenizer, &text, at_most).unwrap();
        let files = || std::fs::read_dir(dir.path()).unwrap().count();
        let first = encode(1000);
        assert_eq!((first.0.len(), files()), (1000, 1));
        assert_eq!(encode(1000), first);
        assert_eq!(files(), 1);
        // Another length is another entry; a damaged one is made again.
        assert_eq!(encode(1001).0[..1000], first.0);
        assert_eq!(files(), 2);
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            std::fs::write(entry.unwrap().path(), "damaged").unwrap();
        }
        assert_eq!(encode(1000), first);
    }
}
