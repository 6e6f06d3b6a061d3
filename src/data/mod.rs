//! Text and tokens: what a model trains on.

pub mod books;
pub mod corpus;
pub mod given;
pub mod tokens;

pub use corpus::Corpus;
pub use tokens::Tokenizer;
