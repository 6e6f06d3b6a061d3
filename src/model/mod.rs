//! Qwen3: its configuration, its layers and its head, forward and backward.

pub mod block;
pub mod config;
pub mod gguf;
mod gguf_check;
pub mod head;
pub mod init;
pub mod layout;
pub mod rope;
pub mod safetensors;
