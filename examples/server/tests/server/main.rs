//! The server as its clients see it, with the demo model on the emulator.

mod client;
mod ending;
mod hostile;
mod many;
mod protocol;
