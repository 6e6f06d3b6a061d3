//! A page as one HTML file that needs nothing beside it: no network, no fonts, no script.

use std::collections::HashMap;

use super::document::{Block, Table};

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 17px/1.55 system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif; color: #1d1d1f; background: #fff;
  max-width: 66rem; margin: 2.5rem auto 5rem; padding: 0 1.25rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .6rem; border-top: 1px solid #ddd; padding-top: 1.2rem; }
p { max-width: 46rem; }
.lead { font-size: 1.15rem; }
figure { margin: 1.4rem 0; }
figure svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; margin: 1rem 0; }
th, td { padding: .38rem .55rem; min-width: 2.5rem; border-bottom: 1px solid #e2e2e2; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #888; font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: #f6f6f4; padding: .9rem 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.4; }
@media print { body { max-width: none; margin: 0; font-size: 11pt; } figure, pre, tr { break-inside: avoid; } }
";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn table(table: &Table) -> String {
    let cell = |tag: &str, i: usize, text: &str| {
        let class = if table.is_numeric(i) { " class=\"number\"" } else { "" };
        format!("<{tag}{class}>{}</{tag}>", escape(text))
    };
    let row = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().enumerate().map(|(i, c)| cell(tag, i, c)).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = table.rows.iter().map(|r| row("td", r)).collect();
    let head = row("th", &table.head);
    format!("<div class=\"scroll\"><table>\n<thead>{head}</thead>\n<tbody>\n{body}</tbody></table></div>\n")
}

/// The svg element of a file: what stands before it (an XML declaration) has no place in HTML.
fn inline(svg: &str) -> &str {
    svg.find("<svg").map_or("", |start| &svg[start..])
}

/// Renders a page; `figures`: SVG by name, put into the page.
pub fn render(title: &str, blocks: &[Block], figures: &HashMap<&str, &str>) -> String {
    let mut body = String::new();
    let mut lead = true;
    for block in blocks {
        match block {
            Block::Heading(level, text) => body.push_str(&format!("<h{level}>{}</h{level}>\n", escape(text))),
            Block::Paragraph(text) => {
                let class = if lead { " class=\"lead\"" } else { "" };
                lead = false;
                body.push_str(&format!("<p{class}>{}</p>\n", escape(text)));
            }
            Block::Figure { name, title } => {
                let svg = figures.get(name.as_str()).copied().unwrap_or("");
                let (label, svg) = (escape(title), inline(svg));
                body.push_str(&format!("<figure role=\"img\" aria-label=\"{label}\">{svg}</figure>\n"));
            }
            Block::Table(content) => body.push_str(&table(content)),
            Block::Pre(text) => body.push_str(&format!("<pre>{}</pre>\n", escape(text.trim_end()))),
        }
    }
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}
