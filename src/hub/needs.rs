//! Which files of a repository are needed.

use std::path::Path;

use anyhow::Result;

use crate::bad_input;
use crate::model::checkpoint::BESIDE_WEIGHTS;
use crate::model::safetensors::{INDEX, SINGLE, shards};

/// Of a model's files, those that training needs or that belong to what it saves.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if there is no config.json or no safetensors.
pub fn of_model(id: &str, files: &[String]) -> Result<Vec<String>> {
    let has = |name: &str| files.iter().any(|file| file == name);
    if !has("config.json") {
        bad_input!("model {id}: it has no config.json: it is not a model in transformers' format");
    }
    let mut needed: Vec<String> = BESIDE_WEIGHTS.iter().filter(|name| has(name)).map(|name| name.to_string()).collect();
    if has(INDEX) {
        needed.push(INDEX.to_string());
        needed.extend(files.iter().filter(|f| f.starts_with("model-") && f.ends_with(".safetensors")).cloned());
    } else if has(SINGLE) {
        needed.push(SINGLE.to_string());
    } else {
        bad_input!("model {id}: it has no safetensors: take a GGUF file of it, and give its path");
    }
    Ok(needed)
}

/// Whether a folder has all weights of its model.
pub fn is_whole(folder: &Path) -> bool {
    let there = |name: &str| folder.join(name).exists();
    let whole = || match there(INDEX) {
        true => shards(folder).is_ok_and(|files| files.iter().all(|file| file.exists())),
        false => there(SINGLE),
    };
    there("config.json") && whole()
}

/// The Parquet files of a dataset's split, in order; all, if no path names a split.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if there are none.
pub fn of_dataset(id: &str, files: &[String], split: &str) -> Result<Vec<String>> {
    let mut parquet: Vec<&String> = files.iter().filter(|file| file.ends_with(".parquet")).collect();
    parquet.sort();
    let names = |file: &str, split: &str| {
        let is_split = |part: &str| {
            part.strip_prefix(split).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
        };
        file.split('/').any(is_split)
    };
    let of_split: Vec<String> = parquet.iter().filter(|file| names(file, split)).map(|f| f.to_string()).collect();
    let splits = ["train", "test", "validation"];
    let none_named = !parquet.iter().any(|file| splits.iter().any(|split| names(file, split)));
    match (parquet.is_empty(), of_split.is_empty()) {
        (true, _) => bad_input!("dataset {id}: it has no Parquet files: give a dataset that has, or text files"),
        (false, true) if none_named => Ok(parquet.into_iter().cloned().collect()),
        (false, true) => bad_input!("dataset {id}: none of its Parquet files is of the split `{split}`"),
        (false, false) => Ok(of_split),
    }
}

/// The files below a folder, as paths within it.
pub fn below(folder: &Path) -> Vec<String> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => files.extend(path.strip_prefix(folder).ok().map(|p| p.to_string_lossy().into_owned())),
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| n.to_string()).collect()
    }

    #[test]
    fn models_in_one_file_and_in_many() {
        let one = files(&["README.md", "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"]);
        assert_eq!(of_model("a/b", &one).unwrap(), ["config.json", "tokenizer.json", "model.safetensors"]);
        let many =
            files(&["config.json", INDEX, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
        assert_eq!(of_model("a/b", &many).unwrap().len(), 4);
        for (lacking, part) in [(&["model.safetensors"][..], "no config.json"), (&["config.json"], "no safetensors")] {
            assert!(of_model("a/b", &files(lacking)).unwrap_err().to_string().contains(part));
        }
    }

    #[test]
    fn splits_of_datasets() {
        let pg19 = files(&[
            "README.md",
            "data/train-00001-of-00002-x.parquet",
            "data/train-00000-of-00002-x.parquet",
            "data/test-00000-of-00001.parquet",
        ]);
        let train = of_dataset("a/b", &pg19, "train").unwrap();
        assert_eq!(train, ["data/train-00000-of-00002-x.parquet", "data/train-00001-of-00002-x.parquet"]);
        assert_eq!(of_dataset("a/b", &files(&["default/train/0000.parquet"]), "train").unwrap().len(), 1);
        assert_eq!(of_dataset("a/b", &files(&["0000.parquet", "trained.parquet"]), "train").unwrap().len(), 2);
        assert!(of_dataset("a/b", &pg19, "dev").unwrap_err().to_string().contains("split `dev`"));
        assert!(of_dataset("a/b", &files(&["a.csv"]), "train").unwrap_err().to_string().contains("no Parquet"));
    }
}
