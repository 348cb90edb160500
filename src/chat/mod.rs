//! Sessions and text together: text as it is generated.

mod stream;

pub use stream::{Lent, TextStream};
