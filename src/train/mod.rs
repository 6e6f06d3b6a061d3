//! Training: the step, what it keeps, and the toggles that change it.

pub mod bands;
pub mod evaluate;
pub mod gathered;
pub mod judge;
pub mod ranks;
pub mod saved;
pub mod step;
pub mod toggles;
pub mod world;
