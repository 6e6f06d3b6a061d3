//! Rows of token ids that the user gives, in a safetensors file.

use std::path::{Path, PathBuf};

use anyhow::Result;
use safetensors::Dtype;

use crate::bad_input;
use crate::device::IGNORED;
use crate::model::safetensors::{Entry, Safetensors};
use crate::train::world::Row;

/// transformers' label of a position that counts for nothing.
const NO_LABEL: i64 = -100;

/// Integers of a tensor [rows, length] or [length], row by row.
fn rows(file: &Safetensors, path: &Path, name: &str, entry: &Entry) -> Result<Vec<Vec<i64>>> {
    let length = match entry.shape[..] {
        [length] | [_, length] if length > 0 => length,
        _ => bad_input!("{}: `{name}` has the shape {:?}, not [length] or [rows, length]", path.display(), entry.shape),
    };
    let bytes = file.bytes(entry);
    let values: Vec<i64> = match entry.dtype {
        Dtype::I64 => bytes
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect(),
        Dtype::I32 => bytes.chunks_exact(4).map(|b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect(),
        Dtype::U32 => bytes.chunks_exact(4).map(|b| i64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect(),
        other => bad_input!("{}: `{name}` holds {other:?}; i32, u32 or i64 are read", path.display()),
    };
    Ok(values.chunks(length).map(<[i64]>::to_vec).collect())
}

/// Reads `input_ids` and, where they are, `labels` (transformers', aligned with the ids,
/// -100 for those that don't count) and `position_ids`.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if the file is none, shapes differ, an id is not
/// below `vocabulary`, or positions don't count from 0: restarting ones mean packed
/// documents, whose attention is not kept apart here.
pub fn read(path: &Path, vocabulary: usize) -> Result<Vec<Row>> {
    let shown = path.display();
    let file = Safetensors::open(&[PathBuf::from(path)])?;
    let tensor = |name: &str| file.entry(name).map(|entry| rows(&file, path, name, entry)).transpose();
    if let Some(other) = file.names().find(|n| !["input_ids", "labels", "position_ids"].contains(n)) {
        bad_input!("{shown}: `{other}` is none of input_ids, labels and position_ids, and would be ignored");
    }
    let Some(ids) = tensor("input_ids")? else { bad_input!("{shown}: there are no input_ids") };
    let (labels, positions) = (tensor("labels")?, tensor("position_ids")?);
    let same = |other: &Option<Vec<Vec<i64>>>| {
        other.as_ref().is_none_or(|o| o.len() == ids.len() && o[0].len() == ids[0].len())
    };
    if ids.is_empty() || !same(&labels) || !same(&positions) {
        bad_input!("{shown}: labels and position_ids must have the shape of input_ids, with a row at least");
    }
    let token = |what: &str, id: i64| match u32::try_from(id) {
        Ok(id) if (id as usize) < vocabulary => Ok(id),
        _ => bad_input!("{shown}: {what} has {id}, where the vocabulary ends at {}", vocabulary - 1),
    };
    let mut out = Vec::with_capacity(ids.len());
    for (i, row) in ids.iter().enumerate() {
        if let Some(positions) = &positions
            && let Some((at, position)) = positions[i].iter().enumerate().find(|(at, p)| **p != *at as i64)
        {
            bad_input!(
                "{shown}: position_ids of row {i} have {position} at {at}: they must count from 0; packed documents are \
                 not computed here, since their attention would have to be kept apart: give them as rows"
            );
        }
        let label = |id: &i64| if *id == NO_LABEL { Ok(IGNORED) } else { token("labels", *id) };
        let labels = labels.as_ref().map(|l| l[i].iter().map(label).collect::<Result<Vec<u32>>>()).transpose()?;
        out.push(Row { ids: row.iter().map(|id| token("input_ids", *id)).collect::<Result<_>>()?, labels });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A file of i32 tensors.
    fn file(tensors: &[(&str, &[usize], &[i32])]) -> tempfile::NamedTempFile {
        let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| t.2.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
        let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
            (*name, safetensors::tensor::TensorView::new(Dtype::I32, shape.to_vec(), bytes).unwrap())
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        safetensors::serialize_to_file(views, None::<HashMap<String, String>>, file.path()).unwrap();
        file
    }

    #[test]
    fn rows_with_and_without_labels() {
        let given =
            file(&[("input_ids", &[2, 3], &[1, 2, 3, 4, 5, 6]), ("labels", &[2, 3], &[1, -100, 3, -100, 5, 6])]);
        let rows = read(given.path(), 10).unwrap();
        assert_eq!(rows[0], Row { ids: vec![1, 2, 3], labels: Some(vec![1, IGNORED, 3]) });
        assert_eq!(rows[1].ids, [4, 5, 6]);
        let one = file(&[("input_ids", &[4], &[1, 2, 3, 4]), ("position_ids", &[4], &[0, 1, 2, 3])]);
        assert_eq!(read(one.path(), 5).unwrap(), [Row { ids: vec![1, 2, 3, 4], labels: None }]);
    }

    /// failures.md 7: packed documents are refused, not read as one.
    #[test]
    fn what_does_not_fit_is_refused() {
        let ids: (&str, &[usize], &[i32]) = ("input_ids", &[4], &[1, 2, 3, 4]);
        for (tensors, part) in [
            (vec![ids, ("position_ids", &[4][..], &[0, 1, 0, 1][..])], "packed documents"),
            (vec![ids, ("labels", &[2][..], &[0, 1][..])], "must have the shape"),
            (vec![ids, ("attention_mask", &[4][..], &[1, 1, 1, 0][..])], "would be ignored"),
            (vec![("input_ids", &[4][..], &[1, 2, 99, 4][..])], "ends at 49"),
            (vec![("input_ids", &[4][..], &[1, 2, -1, 4][..])], "-1"),
            (vec![("labels", &[4][..], &[1, 2, 3, 4][..])], "no input_ids"),
        ] {
            let error = read(file(&tensors).path(), 50).unwrap_err();
            assert!(error.is::<crate::error::BadInput>() && error.to_string().contains(part), "{part}: {error}");
        }
    }
}
