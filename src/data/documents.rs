//! Documents: texts one after the other, from files of plain text or of Parquet, never more
//! of them in memory than a row group.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use polars::prelude::{DataFrame, DataType, ParquetReader, SerReader};

use super::corpus::read;
use crate::bad_input;
use crate::guard::guarded;

/// The column of a Parquet file that holds the documents.
const TEXT: &str = "text";
/// Columns that name a document, the first that is there.
const NAMES: [&str; 5] = ["short_book_title", "title", "name", "url", "id"];

/// One text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// A file's name, or what its row says.
    pub name: String,
    pub text: String,
}

/// Documents in order, read as they are asked for.
pub type Documents<'a> = Box<dyn Iterator<Item = Result<Document>> + 'a>;

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default()
}

/// A text file (UTF-8), a Parquet file with a `text` column, or a folder of .txt or of
/// .parquet files, in the order of their names.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if a folder has neither or both; what is wrong with a
/// file is said when it is its turn.
pub fn of_path(path: &Path) -> Result<Documents<'static>> {
    if !path.is_dir() {
        return Ok(of_files(vec![path.to_path_buf()]));
    }
    let entries = std::fs::read_dir(path).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_file()).collect();
    files.sort();
    let of = |kind: &str| -> Vec<PathBuf> { files.iter().filter(|p| extension(p) == kind).cloned().collect() };
    match (of("txt"), of("parquet")) {
        (texts, parquet) if texts.is_empty() && parquet.is_empty() => {
            bad_input!("{}: a folder without .txt or .parquet files", path.display())
        }
        (texts, parquet) if !texts.is_empty() && !parquet.is_empty() => {
            bad_input!("{}: a folder of both .txt and .parquet files: give one kind", path.display())
        }
        (texts, parquet) => Ok(of_files(if texts.is_empty() { parquet } else { texts })),
    }
}

fn of_files(paths: Vec<PathBuf>) -> Documents<'static> {
    Box::new(paths.into_iter().flat_map(|path| match extension(&path) {
        "parquet" => of_parquet(path),
        _ => Box::new(std::iter::once_with(move || {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            Ok(Document { name, text: read(&path)? })
        })) as Documents,
    }))
}

/// The documents of a Parquet file, a row group at a time.
pub fn of_parquet(path: PathBuf) -> Documents<'static> {
    let mut groups: Option<VecDeque<(usize, usize)>> = None;
    let mut documents = VecDeque::new();
    Box::new(std::iter::from_fn(move || {
        let mut next = || -> Result<Option<Document>> {
            if groups.is_none() {
                groups = Some(row_groups(&path)?);
            }
            while documents.is_empty() {
                let Some((first, rows)) = groups.as_mut().and_then(VecDeque::pop_front) else { return Ok(None) };
                documents = row_group(&path, first, rows)?;
            }
            Ok(documents.pop_front())
        };
        match next() {
            Ok(document) => document.map(Ok),
            Err(error) => {
                // Said once: then it is the end.
                groups = Some(VecDeque::new());
                Some(Err(error))
            }
        }
    }))
}

/// Runs a reader of a Parquet file that may be damaged.
fn parquet<R>(path: &Path, read: impl FnOnce(ParquetReader<File>) -> polars::prelude::PolarsResult<R>) -> Result<R> {
    let advice = "fetch or write it again";
    let shown = path.display();
    let (file, bytes) = match path.metadata() {
        Ok(metadata) if !metadata.is_file() => bad_input!("{shown}: no regular file, where a Parquet file is needed"),
        Ok(metadata) => match File::open(path) {
            Ok(file) => (file, metadata.len()),
            Err(error) => bad_input!("{shown}: {error}"),
        },
        Err(error) => bad_input!("{shown}: {error}"),
    };
    match guarded(path, bytes, advice, || read(ParquetReader::new(file))) {
        Some(Ok(read)) => Ok(read),
        Some(Err(error)) => bad_input!("{shown}: not a whole Parquet file: {error}; {advice}"),
        None => bad_input!("{shown}: not a whole Parquet file; {advice}"),
    }
}

/// First row and number of rows of each row group.
fn row_groups(path: &Path) -> Result<VecDeque<(usize, usize)>> {
    let (groups, has_text) = parquet(path, |mut reader| {
        let rows: Vec<usize> = reader.get_metadata()?.row_groups.iter().map(|g| g.num_rows()).collect();
        Ok((rows, reader.schema()?.contains(TEXT)))
    })?;
    if !has_text {
        bad_input!("{}: it has no column `{TEXT}`: give a dataset of plain texts", path.display());
    }
    let mut first = 0;
    let place = |rows: usize| {
        first += rows;
        (first - rows, rows)
    };
    Ok(groups.into_iter().map(place).collect())
}

fn row_group(path: &Path, first: usize, rows: usize) -> Result<VecDeque<Document>> {
    let table = parquet(path, |mut reader| {
        let schema = reader.schema()?;
        let name = NAMES.into_iter().find(|name| schema.contains(name));
        let columns = std::iter::once(TEXT).chain(name).map(str::to_string).collect();
        reader.with_columns(Some(columns)).with_slice(Some((first, rows))).finish()
    })?;
    let shown = path.display();
    let texts = match table.column(TEXT).and_then(|column| column.str()) {
        Ok(texts) => texts,
        Err(error) => bad_input!("{shown}: column `{TEXT}`: {error}: give a dataset of plain texts"),
    };
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let named = names(&table);
    let document = |(i, text): (usize, Option<&str>)| {
        let name = named.as_ref().and_then(|names| names[i].clone()).unwrap_or_else(|| format!("{file}:{}", first + i));
        Some(Document { name, text: text?.to_string() })
    };
    Ok(texts.iter().enumerate().filter_map(document).collect())
}

fn names(table: &DataFrame) -> Option<Vec<Option<String>>> {
    let column = NAMES.into_iter().find_map(|name| table.column(name).ok())?;
    let text = column.cast(&DataType::String).ok()?;
    Some(text.str().ok()?.iter().map(|name| name.map(str::to_string)).collect())
}

#[cfg(test)]
mod tests {
    use polars::prelude::{Column, NamedFrom, ParquetWriter, Series};

    use super::*;

    fn write(path: &Path, columns: Vec<(&str, Vec<&str>)>) {
        let height = columns[0].1.len();
        let columns = columns.into_iter().map(|(name, rows)| Column::from(Series::new(name.into(), rows))).collect();
        let mut table = DataFrame::new(height, columns).unwrap();
        let file = File::create(path).unwrap();
        ParquetWriter::new(file).with_row_group_size(Some(1)).finish(&mut table).unwrap();
    }

    fn all(path: &Path) -> Vec<(String, String)> {
        let documents = of_path(path).unwrap().collect::<Result<Vec<_>>>().unwrap();
        documents.into_iter().map(|d| (d.name, d.text)).collect()
    }

    #[test]
    fn rows_of_parquet_files_and_files_of_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        write(&path("b.parquet"), vec![("id", vec!["x", "y", "z"]), ("text", vec!["one", "two", "three"])]);
        write(&path("c.parquet"), vec![("text", vec!["four"])]);
        let pairs =
            |pairs: &[(&str, &str)]| -> Vec<_> { pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect() };
        let four = [("x", "one"), ("y", "two"), ("z", "three"), ("c.parquet:0", "four")];
        assert_eq!(all(dir.path()), pairs(&four));
        assert_eq!(all(&path("b.parquet")), pairs(&four[..3]));
        assert_eq!(row_groups(&path("b.parquet")).unwrap(), [(0, 1), (1, 1), (2, 1)]);

        std::fs::write(path("a.txt"), "some words").unwrap();
        assert!(of_path(dir.path()).err().unwrap().to_string().contains("both .txt and .parquet"));
        assert_eq!(all(&path("a.txt")), pairs(&[("a.txt", "some words")]));
    }

    #[test]
    fn what_is_no_dataset_is_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        write(&path("other.parquet"), vec![("body", vec!["one"])]);
        std::fs::write(path("text.parquet"), "no parquet at all").unwrap();
        let mut cut = Vec::new();
        write(&path("whole.parquet"), vec![("text", vec!["a text"; 100])]);
        cut.extend(&std::fs::read(path("whole.parquet")).unwrap()[40..]);
        std::fs::write(path("cut.parquet"), cut).unwrap();
        for (name, part) in [
            ("other.parquet", "no column `text`"),
            ("text.parquet", "not a whole Parquet file"),
            ("cut.parquet", "not a whole Parquet file"),
            ("none.parquet", "No such file"),
        ] {
            let mut documents = of_parquet(path(name));
            let error = documents.next().unwrap().unwrap_err();
            assert!(error.is::<crate::error::BadInput>() && error.to_string().contains(part), "{name}: {error}");
            assert!(documents.next().is_none(), "{name}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(of_path(empty.path()).err().unwrap().to_string().contains("without .txt or .parquet"));
    }
}
