//! Qwen3: its configuration, its layers and its head, forward and backward.

pub mod block;
pub mod checkpoint;
pub mod config;
pub mod gguf;
mod gguf_check;
mod gguf_tokenizer;
pub mod head;
pub mod hf;
pub mod init;
pub mod layout;
pub mod published;
pub mod rope;
pub mod safetensors;
pub mod save;
