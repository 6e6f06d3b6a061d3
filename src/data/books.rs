//! The books embedded in the program: six novels by Jane Austen.
//!
//! All are in the public domain (published 1811 to 1818, the author died in
//! 1817). Together they are 4.0 million characters of English.

use crate::bad_input;

/// One embedded book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Book {
    /// What an experiment calls it, in lower case and without spaces.
    pub name: &'static str,
    /// The title as printed.
    pub title: &'static str,
    /// The whole text, with the line breaks of its plain-text edition.
    pub text: &'static str,
}

/// Embeds the file of one book.
macro_rules! book {
    ($name:literal, $title:literal) => {
        Book { name: $name, title: $title, text: include_str!(concat!("../../experiments/text/", $name, ".txt")) }
    };
}

/// The embedded books, in a fixed order (that of their names).
pub static BOOKS: [Book; 6] = [
    book!("emma", "Emma"),
    book!("mansfieldpark", "Mansfield Park"),
    book!("northangerabbey", "Northanger Abbey"),
    book!("persuasion", "Persuasion"),
    book!("prideprejudice", "Pride and Prejudice"),
    book!("sensesensibility", "Sense and Sensibility"),
];

/// The names of the embedded books, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    BOOKS.iter().map(|book| book.name)
}

/// The names of the embedded books, for a message: `emma, mansfieldpark, ...`.
pub(super) fn listed() -> String {
    names().collect::<Vec<_>>().join(", ")
}

/// The embedded book of that name.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) with the names that exist if it is not
/// one of them.
pub fn find(name: &str) -> anyhow::Result<&'static Book> {
    if let Some(book) = BOOKS.iter().find(|book| book.name == name) {
        return Ok(book);
    }
    let meant = nearest(name).map_or(String::from("."), |near| format!("; did you mean \"{near}\"?"));
    bad_input!("unknown book \"{name}\"{meant} The embedded books are: {}", listed())
}

/// The embedded book whose name or title looks most like `name`, if any does.
fn nearest(name: &str) -> Option<&'static str> {
    let plain =
        |text: &str| -> String { text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect() };
    let wanted = plain(name);
    let (distance, near) = BOOKS
        .iter()
        .map(|book| {
            let by_name = strsim::levenshtein(&wanted, &plain(book.name));
            let by_title = strsim::levenshtein(&wanted, &plain(book.title));
            (by_name.min(by_title), book.name)
        })
        .min()?;
    (2 * distance <= wanted.chars().count().max(near.len())).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::BadInput;

    #[test]
    fn books_are_whole_and_in_order() {
        let bytes: Vec<usize> = BOOKS.iter().map(|book| book.text.len()).collect();
        assert_eq!(bytes, [883028, 883280, 432978, 466854, 684768, 673688]);
        assert!(names().is_sorted());
        // Line ends converted at checkout would change every token count.
        assert!(BOOKS.iter().all(|book| !book.text.contains('\r')));
        for book in &BOOKS {
            assert!(book.text.starts_with(book.title) || book.text.starts_with(&book.title.to_uppercase()));
            assert_eq!(find(book.name).unwrap(), book);
        }
    }

    #[test]
    fn unknown_names_get_a_suggestion() {
        for (wrong, right) in [
            ("Emma", "emma"),
            ("emma.txt", "emma"),
            ("pride-and-prejudice", "prideprejudice"),
            ("Sense and Sensibility", "sensesensibility"),
            ("mansfeildpark", "mansfieldpark"),
            ("persuation", "persuasion"),
            ("northanger", "northangerabbey"),
        ] {
            assert_eq!(nearest(wrong), Some(right), "{wrong}");
        }
        assert_eq!(nearest("middlemarch"), None);
        assert_eq!(nearest(""), None);
        let error = find("persuation").unwrap_err();
        let message = error.downcast_ref::<BadInput>().unwrap().to_string();
        assert_eq!(
            message,
            "unknown book \"persuation\"; did you mean \"persuasion\"? The embedded books are: \
             emma, mansfieldpark, northangerabbey, persuasion, prideprejudice, sensesensibility"
        );
        let message = find("middlemarch").unwrap_err().to_string();
        assert!(message.starts_with("unknown book \"middlemarch\". The embedded"), "{message}");
    }
}
