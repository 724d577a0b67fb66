//! Tests of the engine from outside, on the null device.

mod requests;
mod simulation;
mod watched;
