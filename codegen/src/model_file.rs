//! Models by their files: what a bake needs of one is in its header.

use crate::error::{Error, FileFault, Result};
use kiln_shape::{Gguf, ModelShape, WeightType};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A model as the header of its GGUF file describes it: a name, a shape, and the types of its matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFile {
    path: PathBuf,
    name: String,
    shape: ModelShape,
    types: Vec<WeightType>,
}

impl ModelFile {
    /// Reads the header of a file, and nothing behind it. The model has the file's name, without `.gguf`.
    ///
    /// # Errors
    /// [`Error::ModelFile`] with the path and what is wrong with it.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile> {
        let path = path.as_ref();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let fail = |fault| Error::ModelFile { path: path.to_owned(), fault };
        let (shape, types) = read(path).map_err(fail)?;
        Ok(ModelFile { path: path.to_owned(), name, shape, types })
    }

    /// The same model under another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> ModelFile {
        self.name = name.to_owned();
        self
    }

    /// The files of a list as `KILN_MODELS` has it: paths, separated as those of `PATH`, each with `NAME=` before it
    /// where the model is not to have the file's name. Empty places are passed over.
    ///
    /// # Errors
    /// As [`ModelFile::open`], for the first that has one.
    pub fn list(list: &OsStr) -> Result<Vec<ModelFile>> {
        let entries = std::env::split_paths(list).filter(|entry| !entry.as_os_str().is_empty());
        entries.map(|entry| ModelFile::entry(&entry)).collect()
    }

    /// A path, or a name and a path. A whole path does not begin with a name.
    fn entry(entry: &Path) -> Result<ModelFile> {
        let named = entry.to_str().filter(|_| !entry.is_absolute()).and_then(|text| text.split_once('='));
        match named {
            Some((name, path)) => Ok(ModelFile::open(path)?.named(name)),
            None => ModelFile::open(entry),
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shape.
    pub fn shape(&self) -> ModelShape {
        self.shape
    }

    /// The types of its matrices, each once.
    pub fn types(&self) -> &[WeightType] {
        &self.types
    }
}

fn read(path: &Path) -> Result<(ModelShape, Vec<WeightType>), FileFault> {
    if path.to_str().is_none_or(|text| text.chars().any(char::is_control)) {
        return Err(FileFault::Unprintable);
    }
    if !path.is_absolute() {
        return Err(FileFault::Relative);
    }
    // Looked at before it is opened: a pipe would wait for whoever writes.
    if !std::fs::metadata(path).map_err(FileFault::Io)?.is_file() {
        return Err(FileFault::NotAFile);
    }
    let gguf = Gguf::open(path).map_err(|error| FileFault::Header(error.into()))?;
    let shape = ModelShape::from_gguf(&gguf).map_err(FileFault::Header)?;
    let types = shape.check_tensors(&gguf).map_err(FileFault::Header)?;
    Ok((shape, types.iter().collect()))
}
