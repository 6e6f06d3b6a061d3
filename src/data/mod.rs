//! Text and tokens: what a model trains on.

pub mod books;
pub mod cache;
pub mod corpus;
pub mod documents;
pub mod given;
pub mod rows;
pub mod tokens;

pub use corpus::Corpus;
pub use tokens::Tokenizer;
