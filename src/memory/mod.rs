//! Memory: what each byte is for, who holds it, and how much there may be.

pub mod allocator;
pub mod category;
pub mod host;
pub mod ledger;
