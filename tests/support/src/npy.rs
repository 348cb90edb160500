//! Reads NumPy arrays of float32.

use std::path::Path;

/// A `[rows, columns]` array of float32, row after row.
#[derive(Debug, Clone, PartialEq)]
pub struct Npy {
    pub rows: usize,
    pub columns: usize,
    pub values: Vec<f32>,
}

impl Npy {
    pub fn open(path: impl AsRef<Path>) -> Npy {
        let path = path.as_ref();
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\0", "{}", path.display());
        let data = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let header = std::str::from_utf8(&bytes[10..data]).expect("an ASCII header");
        assert!(header.contains("'<f4'") && header.contains("'fortran_order': False"), "{header}");
        let shape = header.split_once('(').and_then(|(_, rest)| rest.split_once(')')).expect("a shape").0;
        let dims: Vec<usize> = shape.split(',').filter_map(|dim| dim.trim().parse().ok()).collect();
        let &[rows, columns] = dims.as_slice() else { panic!("two dimensions: {header}") };
        let (numbers, rest) = bytes[data..].as_chunks::<4>();
        assert_eq!((numbers.len(), rest.len()), (rows * columns, 0));
        Npy { rows, columns, values: numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect() }
    }

    pub fn row(&self, row: usize) -> Vec<f64> {
        self.values[row * self.columns..][..self.columns].iter().map(|&x| x.into()).collect()
    }
}
