//! Fills of all widths, of ranges and of rectangles.
#![allow(non_snake_case)]

use super::super::command::End::{Device, Pattern};
use super::super::{Code, Handle, Outcome, Stream};
use super::on_stream;

/// Fills `count` elements of `width` bytes.
fn fill(stream: Handle, to: u64, (value, width): (u32, usize), count: usize) -> u32 {
    on_stream(stream, |stream| run(stream, to, (value, width), count))
}

fn run(stream: &Stream, to: u64, (value, width): (u32, usize), count: usize) -> Outcome {
    let bytes = count.checked_mul(width).ok_or(Code::INVALID_VALUE)?;
    stream.copy(Device(to), Pattern(value, width), bytes, false)
}

/// Fills `size.0` elements in each of `size.1` rows that begin `pitch` bytes apart.
fn rectangle(stream: Handle, to: u64, pitch: usize, (value, width): (u32, usize), size: (usize, usize)) -> u32 {
    on_stream(stream, |stream| {
        let (columns, rows) = size;
        let row = columns.checked_mul(width).ok_or(Code::INVALID_VALUE)?;
        if row == 0 || rows == 0 {
            return Ok(());
        }
        if rows > 1 && (pitch < row || !pitch.is_multiple_of(width)) {
            return Err(Code::INVALID_VALUE);
        }
        // All or nothing: the last byte is checked first.
        let whole = (rows - 1).checked_mul(pitch).and_then(|before| before.checked_add(row));
        let whole = whole.ok_or(Code::INVALID_VALUE)?;
        stream.context.memory.range(to, whole as u64).map_err(|_| Code::INVALID_VALUE)?;
        if pitch == row {
            return run(stream, to, (value, width), columns * rows);
        }
        (0..rows).try_for_each(|index| run(stream, to + (index * pitch) as u64, (value, width), columns))
    })
}

api! {
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) => fill(0, to, (value.into(), 1), count);
    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) => fill(0, to, (value.into(), 2), count);
    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) => fill(0, to, (value, 4), count);
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) =>
        fill(stream, to, (value.into(), 2), count);

    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize) =>
        rectangle(0, to, pitch, (value.into(), 1), (width, height));
    fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, height: usize) =>
        rectangle(0, to, pitch, (value.into(), 2), (width, height));
    fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: u32, width: usize, height: usize) =>
        rectangle(0, to, pitch, (value, 4), (width, height));
    fn cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) =>
        rectangle(stream, to, pitch, (value.into(), 1), (width, height));
    fn cuMemsetD2D16Async(to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) =>
        rectangle(stream, to, pitch, (value.into(), 2), (width, height));
    fn cuMemsetD2D32Async(to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) =>
        rectangle(stream, to, pitch, (value, 4), (width, height));
}
