//! Writes NumPy arrays of float32, format version 1.

use std::io::{self, Write};

/// Begins a `[rows, columns]` array, row after row; the numbers follow as little-endian float32.
pub(crate) fn write_header(out: &mut impl Write, rows: usize, columns: usize) -> io::Result<()> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Magic, version and length are 10 bytes; with them the header ends in a newline at a multiple of 64.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', padded - 1 - header.len()));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(io::Error::other)?;
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(header.as_bytes())
}

/// Goes on with a row.
pub(crate) fn write_row(out: &mut impl Write, row: &[f32]) -> io::Result<()> {
    row.iter().try_for_each(|number| out.write_all(&number.to_le_bytes()))
}
