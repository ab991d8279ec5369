//! Library of the `peregrine` program.
