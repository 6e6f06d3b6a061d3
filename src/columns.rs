//! Rows as aligned lines, for a terminal.

/// Rows as lines, each column as wide as its widest cell; all but the first set to the right.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[i] - cell.chars().count());
            line.push_str(&if i == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") });
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
