//! The `ztensor` and `z4ai` command lines, as a library: one piece of code behind the Rust
//! program and the console script of the Python wheel.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
// Commands need files, a terminal and signals; a report needs none of them, so that the viewer in a
// browser (WebAssembly) makes it with the same code.

#[cfg(not(target_family = "wasm"))]
mod args;
#[cfg(not(target_family = "wasm"))]
mod cast;
#[cfg(not(target_family = "wasm"))]
mod coding;
#[cfg(not(target_family = "wasm"))]
mod commands;
mod describe;
#[cfg(not(target_family = "wasm"))]
mod failure;
#[cfg(not(target_family = "wasm"))]
mod files;
#[cfg(not(target_family = "wasm"))]
mod fold;
#[cfg(all(feature = "remote", not(target_family = "wasm")))]
mod hub;
mod human;
mod json;
#[cfg(not(target_family = "wasm"))]
pub mod library;
#[cfg(not(target_family = "wasm"))]
mod limits;
#[cfg(not(target_family = "wasm"))]
mod llama_cpp;
#[cfg(not(target_family = "wasm"))]
mod output;
#[cfg(not(target_family = "wasm"))]
mod programs;
mod quantization;
#[cfg(not(target_family = "wasm"))]
mod rename;
#[doc(hidden)]
pub mod report;
#[cfg(not(target_family = "wasm"))]
mod select;
#[cfg(all(feature = "signatures", not(target_family = "wasm")))]
mod signature;
mod statistics;
#[cfg(not(target_family = "wasm"))]
mod table;
#[cfg(not(target_family = "wasm"))]
mod ui;
mod untrusted;
mod values;
#[cfg(not(target_family = "wasm"))]
mod z4ai;

#[cfg(not(target_family = "wasm"))]
pub use programs::{run, run_code, run_z4ai, run_z4ai_code};
