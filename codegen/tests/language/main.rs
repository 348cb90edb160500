//! The typed PTX language: its rules, and its instructions.

mod constants;
mod instructions;
mod roles;
mod rules;
