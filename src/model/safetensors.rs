//! Weights from safetensors files, read a part at a time as f32.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use super::config::ModelConfig;
use super::layout::{Slot, units};
use crate::bad_input;
use crate::parallel::shard::WeightSource;

/// The index of a model in several files.
pub const INDEX: &str = "model.safetensors.index.json";
/// The file of a model in one.
pub const SINGLE: &str = "model.safetensors";

/// Which file each tensor is in, by an index.
fn weight_map(index: &Path) -> Result<HashMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let map = match std::fs::read(index).map(|bytes| serde_json::from_slice::<Index>(&bytes)) {
        Ok(Ok(index)) => index.weight_map,
        Ok(Err(error)) => bad_input!("{}: {error}: not an index of safetensors files", index.display()),
        Err(error) => bad_input!("{}: {error}", index.display()),
    };
    if let Some(outside) = map.values().find(|name| Path::new(name).components().count() != 1) {
        bad_input!("{}: the file `{outside}` is not one of this folder", index.display());
    }
    Ok(map)
}

fn files_of(weight_map: &HashMap<String, String>, folder: &Path) -> Vec<PathBuf> {
    let names: BTreeSet<&String> = weight_map.values().collect();
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// The files of weights that a folder's index names, whether they are there or not.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if there is no index or it can't be read.
pub fn shards(folder: &Path) -> Result<Vec<PathBuf>> {
    Ok(files_of(&weight_map(&folder.join(INDEX))?, folder))
}

/// Where a tensor stands.
#[derive(Debug, Clone)]
pub struct Entry {
    file: usize,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Bytes of the file.
    bytes: Range<usize>,
}

/// The tensors of one file or of a model's files.
pub struct Safetensors {
    files: Vec<(PathBuf, Mmap)>,
    tensors: HashMap<String, Entry>,
}

impl Safetensors {
    /// Opens files; a name that stands in two of them is refused.
    pub fn open(paths: &[PathBuf]) -> Result<Safetensors> {
        let mut all = Safetensors { files: Vec::new(), tensors: HashMap::new() };
        for path in paths {
            all.add(path)?;
        }
        Ok(all)
    }

    /// Opens the files of a model's folder: those of its index, or the single one.
    pub fn of_model(folder: &Path) -> Result<Safetensors> {
        let index = folder.join(INDEX);
        if !index.exists() {
            let single = folder.join(SINGLE);
            if !single.exists() {
                bad_input!("{}: no {SINGLE} and no {INDEX}: give a folder of a model in safetensors", folder.display());
            }
            return Safetensors::open(&[single]);
        }
        let weight_map = weight_map(&index)?;
        let all = Safetensors::open(&files_of(&weight_map, folder))?;
        for (tensor, file) in &weight_map {
            let found = all.tensors.get(tensor).map(|entry| &all.files[entry.file].0);
            if found != Some(&folder.join(file)) {
                bad_input!("{}: `{tensor}` is not in {file}: download the model again", index.display());
            }
        }
        Ok(all)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let opened = File::open(path).and_then(|file| {
            // SAFETY: the map is read-only; as with any mapped file, nobody may shorten it meanwhile.
            let map = unsafe { Mmap::map(&file)? };
            Ok(map)
        });
        let map = match opened {
            Ok(map) => map,
            Err(error) => bad_input!("{}: {error}", path.display()),
        };
        // Sizes, gaps, overlaps and lengths beyond the file are checked there.
        let (header, metadata) = match SafeTensors::read_metadata(&map) {
            Ok(read) => read,
            Err(error) => bad_input!("{}: not a whole safetensors file: {error}; download it again", path.display()),
        };
        let file = self.files.len();
        for (name, info) in metadata.tensors() {
            let data = 8 + header;
            let bytes = data + info.data_offsets.0..data + info.data_offsets.1;
            let entry = Entry { file, dtype: info.dtype, shape: info.shape.clone(), bytes };
            if let Some(other) = self.tensors.insert(name.clone(), entry) {
                let other = self.files[other.file].0.display();
                bad_input!("{}: the tensor `{name}` stands in {other} too", path.display());
            }
        }
        self.files.push((path.to_path_buf(), map));
        Ok(())
    }

    /// A tensor's place, by name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.tensors.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.files[entry.file].1[entry.bytes.clone()]
    }

    /// The file that a tensor is from.
    pub fn file(&self, entry: &Entry) -> &Path {
        &self.files[entry.file].0
    }

    /// Says what keeps these tensors from being the weights of a model of this config.
    pub fn fits(&self, config: &ModelConfig) -> Result<()> {
        let units = units(config);
        let mut known = Vec::new();
        for slot in units.iter().flat_map(|unit| &unit.slots) {
            let Some(entry) = self.tensors.get(&slot.name) else {
                bad_input!(
                    "the weights lack the tensor `{}`: config.json and the weights are of different models",
                    slot.name
                );
            };
            let file = self.file(entry).display();
            let shape = slot.shape();
            if entry.shape != shape {
                bad_input!(
                    "{file}: `{}` has the shape {:?}, where config.json asks for {shape:?}",
                    slot.name,
                    entry.shape
                );
            }
            if !matches!(entry.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32) {
                bad_input!("{file}: `{}` holds {:?}; weights in bf16, f16 or f32 are read", slot.name, entry.dtype);
            }
            known.push(&slot.name[..]);
        }
        for (name, entry) in &self.tensors {
            if known.contains(&&name[..]) || name.ends_with("rotary_emb.inv_freq") {
                continue;
            }
            let file = self.file(entry).display();
            if name != "lm_head.weight" {
                bad_input!("{file}: the tensor `{name}` is not one of this architecture's: it would be ignored");
            }
            // Some tied models are published with the head written out.
            let same =
                self.tensors.get("model.embed_tokens.weight").is_some_and(|e| self.bytes(e) == self.bytes(entry));
            if !same {
                bad_input!("{file}: the head is tied by config.json, but `{name}` differs from the embedding");
            }
        }
        Ok(())
    }
}

impl WeightSource for Safetensors {
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> Result<()> {
        let Some(entry) = self.tensors.get(&slot.name) else {
            bad_input!("the weights lack the tensor `{}`", slot.name)
        };
        let size = entry.dtype.bitsize() / 8;
        let bytes = self.bytes(entry).get(first * size..(first + out.len()) * size);
        let Some(bytes) = bytes else {
            bad_input!("the tensor `{}` ends before element {}", slot.name, first + out.len())
        };
        let pairs = |convert: fn([u8; 2]) -> f32, out: &mut [f32]| {
            let values = bytes.chunks_exact(2).map(|b| convert([b[0], b[1]]));
            out.iter_mut().zip(values).for_each(|(o, v)| *o = v);
        };
        match entry.dtype {
            Dtype::BF16 => pairs(|b| bf16::from_le_bytes(b).to_f32(), out),
            Dtype::F16 => pairs(|b| f16::from_le_bytes(b).to_f32(), out),
            dtype => {
                ensure!(dtype == Dtype::F32, "`{}` holds {dtype:?}", slot.name);
                let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                out.iter_mut().zip(values).for_each(|(o, v)| *o = v);
            }
        }
        Ok(())
    }
}
