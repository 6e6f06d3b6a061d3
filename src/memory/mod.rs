pub mod category;
