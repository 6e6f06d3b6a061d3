//! A page as Markdown.

use super::document::{Block, Table};

/// Escapes what Markdown would take as markup.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '$' => out.extend(['\\', c]),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\n' | '\r' => out.push(' '),
            _ => out.push(c),
        }
    }
    out
}

fn table(table: &Table) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = line(table.head.iter().map(|h| escape(h)).collect());
    let rule = |i| if table.is_numeric(i) { "---:".to_string() } else { "---".to_string() };
    out.push_str(&line((0..table.head.len()).map(rule).collect()));
    for row in &table.rows {
        out.push_str(&line(row.iter().map(|c| escape(c)).collect()));
    }
    out
}

/// Renders a page; figures are linked from `figures/`.
pub fn render(blocks: &[Block]) -> String {
    let mut out = String::new();
    for block in blocks {
        match block {
            Block::Heading(level, text) => {
                out.push_str(&format!("{} {}\n", "#".repeat(usize::from(*level)), escape(text)))
            }
            Block::Paragraph(text) => out.push_str(&format!("{}\n", escape(text))),
            Block::Figure { name, title } => out.push_str(&format!("![{}](figures/{name}.svg)\n", escape(title))),
            Block::Table(content) => out.push_str(&table(content)),
            Block::Pre(text) => {
                // A fence longer than any run of backticks inside.
                let fence = "`".repeat(text.split(|c| c != '`').map(str::len).max().unwrap_or(0).max(2) + 1);
                out.push_str(&format!("{fence}text\n{}\n{fence}\n", text.trim_end()))
            }
        }
        out.push('\n');
    }
    out
}
