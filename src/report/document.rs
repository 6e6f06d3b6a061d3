//! A page as blocks: written once, rendered as Markdown and as HTML.

/// A part of a page. All text is plain; each renderer escapes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Level 1 is the page's title.
    Heading(u8, String),
    Paragraph(String),
    /// A figure by the stem of its files, with its title.
    Figure {
        name: String,
        title: String,
    },
    Table(Table),
    /// Text as it is, in a fixed-width font.
    Pre(String),
}

/// A table; cells that begin with a digit are set to the right.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns and no rows yet.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|h| h.to_string()).collect(), rows: Vec::new() }
    }

    /// Whether a column holds numbers: every cell that isn't empty begins with a digit, × or −.
    pub fn is_numeric(&self, column: usize) -> bool {
        let number =
            |cell: &String| cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || "−×-".contains(c));
        !self.rows.is_empty() && self.rows.iter().filter_map(|row| row.get(column)).all(number)
    }
}

/// Shorthands that read well in a page.
pub fn heading(level: u8, text: impl Into<String>) -> Block {
    Block::Heading(level, text.into())
}

/// A paragraph.
pub fn paragraph(text: impl Into<String>) -> Block {
    Block::Paragraph(text.into())
}
