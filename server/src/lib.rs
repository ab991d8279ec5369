//! Library of the `peregrine` program: configuration, command line, and the protocols that it serves.

pub mod cli;
pub mod config;
pub mod electrum;
pub mod http;
mod interrupt;
pub mod light;
pub mod live;
pub mod node;
mod progress;
mod secret;
pub mod silent;
