//! Library of the `peregrine` program: configuration and command line.

pub mod cli;
pub mod config;
mod interrupt;
mod progress;
mod secret;
