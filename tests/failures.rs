//! The table in `failures.md` is true: every test that it names exists and names its row.

use std::path::Path;

/// The doc comment above a test.
fn doc<'a>(source: &'a str, test: &str) -> Option<&'a str> {
    let at = source.find(&format!("fn {test}("))?;
    let before = &source[..at];
    Some(&before[before.rfind("\n\n").unwrap_or(0)..])
}

/// Whether a doc comment names a row: "failures.md 2, 3, 41".
fn names(doc: &str, row: u32) -> bool {
    let Some((_, after)) = doc.split_once("failures.md ") else { return false };
    let numbers = after.split([',', ' ', '\n']).filter(|word| !word.is_empty());
    numbers
        .map_while(|word| {
            let digits = word.trim_end_matches([':', '.', ';']);
            digits.parse::<u32>().ok().map(|n| (n, digits.len() < word.len()))
        })
        .any(|(n, _)| n == row)
}

#[test]
fn every_row_is_held_by_a_test_that_names_it_or_has_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("tests/failures.md")).unwrap();
    let rows: Vec<Vec<&str>> =
        table.lines().filter(|l| l.starts_with("| ")).skip(1).map(|l| l.split(" | ").collect()).collect();
    assert_eq!(rows.len(), 44);
    for (i, row) in rows.iter().enumerate() {
        let number: u32 = row[0].trim_start_matches("| ").parse().unwrap();
        assert_eq!(number as usize, i + 1);
        let held = row.last().unwrap().trim_end_matches(" |");
        let tests: Vec<(&str, &str)> = held
            .split('`')
            .filter_map(|cell| cell.split_once(": ").filter(|(file, _)| file.ends_with(".rs")))
            .collect();
        assert!(!tests.is_empty() || held.len() > 60, "row {number} has neither a test nor a reason");
        for (file, test) in tests {
            let source = std::fs::read_to_string(root.join(file)).unwrap();
            let doc = doc(&source, test).unwrap_or_else(|| panic!("row {number}: {file} has no test {test}"));
            assert!(doc.contains("#[test]") || doc.contains("proptest"), "row {number}: {test} is no test");
            assert!(names(doc, number), "row {number}: {test} does not name it");
        }
    }
}

#[test]
fn names_reads_lists() {
    assert!(names("/// failures.md 2, 3, 41: ring", 41) && names("/// failures.md 7 in its causal form", 7));
    assert!(!names("/// failures.md 2, 3: of 41 ranks", 41) && !names("/// nothing", 1));
}

/// The reverse: a test that names a row stands in the table.
#[test]
fn every_test_that_names_a_row_is_in_the_table() {
    fn sources(folder: &Path, all: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, all),
                false if path.extension().is_some_and(|e| e == "rs") => all.push(path),
                false => {}
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("tests/failures.md")).unwrap();
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("tests"), &mut files);
    let (mut seen, mut lacking) = (0, Vec::new());
    for path in files.iter().filter(|p| !p.ends_with("tests/failures.rs")) {
        let source = std::fs::read_to_string(path).unwrap();
        for (at, _) in source.match_indices("/// failures.md ") {
            let comment = &source[at..];
            let test = comment.split_once("fn ").unwrap().1.split('(').next().unwrap();
            let file = path.strip_prefix(root).unwrap().display();
            for row in (1..=44).filter(|row| names(comment.split_once("fn ").unwrap().0, *row)) {
                let line = table.lines().find(|l| l.starts_with(&format!("| {row} |"))).unwrap();
                if !line.contains(&format!("`{file}: {test}`")) {
                    lacking.push(format!("row {row} lacks {file}: {test}"));
                }
                seen += 1;
            }
        }
    }
    assert!(lacking.is_empty() && seen > 40, "{seen} named: {lacking:#?}");
}
