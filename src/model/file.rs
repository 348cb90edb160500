//! Opening a model file: mapped, its header read and checked, before anything is allocated on a device.

use crate::baked::{BakedModel, MODELS};
use crate::shape::{Gguf, ModelShape, TensorTypeSet, presets};
use crate::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A GGUF file of a model that kiln decodes, mapped into memory.
///
/// The file must not be changed while it is open: as with any mapped file, what is read then is undefined, and cutting
/// it short ends the process.
pub struct ModelFile {
    path: PathBuf,
    map: Mmap,
    gguf: Gguf,
    shape: ModelShape,
    types: TensorTypeSet,
}

impl ModelFile {
    /// Maps the file and checks header, shape and tensors.
    ///
    /// # Errors
    /// [`Error::ModelFile`] with what was found, and what was needed.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile> {
        let path = path.as_ref();
        let wrong = |what: String| Error::ModelFile { path: path.to_owned(), what };
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let kind = file.metadata().map_err(|error| wrong(error.to_string()))?;
        if !kind.is_file() || kind.len() == 0 {
            return Err(wrong("it is not a file with anything in it; a GGUF file is needed".to_owned()));
        }
        // SAFETY: the mapping is only read, and the documentation asks that nobody changes the file meanwhile.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| wrong(error.to_string()))?;
        let gguf = Gguf::from_bytes(&map).map_err(|error| wrong(error.to_string()))?;
        let shape = ModelShape::from_gguf(&gguf).map_err(|error| wrong(error.to_string()))?;
        let types = shape.check_tensors(&gguf).map_err(|error| wrong(error.to_string()))?;
        Ok(ModelFile { path: path.to_owned(), map, gguf, shape, types })
    }

    /// The header.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The shape.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of a tensor; the header was checked to lie inside the file.
    pub(super) fn tensor(&self, name: &str) -> Result<(&crate::shape::gguf::TensorInfo, &[u8])> {
        let wrong = |what: String| Error::ModelFile { path: self.path.clone(), what };
        let tensor = self.gguf.required_tensor(name).map_err(|error| wrong(error.to_string()))?;
        let range = usize::try_from(tensor.offset()).ok().zip(usize::try_from(tensor.bytes()).ok());
        let data = range.and_then(|(start, bytes)| self.map.get(start..start.checked_add(bytes)?));
        data.map(|data| (tensor, data)).ok_or_else(|| wrong(format!("tensor {name} lies outside the file")))
    }

    /// The baked model of this program whose kernels run this file.
    ///
    /// # Errors
    /// [`Error::NotBaked`], naming the features to build with.
    pub fn baked(&self) -> Result<&'static BakedModel> {
        MODELS
            .iter()
            .copied()
            .find(|baked| self.check_baked(baked).is_ok())
            .ok_or_else(|| self.not_baked("it is none of the models baked into this program".to_owned()))
    }

    /// Whether the kernels of `baked` run this file.
    ///
    /// # Errors
    /// [`Error::NotBaked`], listing each difference and the features to build with.
    pub fn check_baked(&self, baked: &BakedModel) -> Result<()> {
        let mut differences: Vec<String> =
            baked.shape.baked_differences(&self.shape).iter().map(ToString::to_string).collect();
        let types = self.types.without(baked.types);
        if !types.is_empty() {
            differences.push(format!("tensor types: baked {}, file also {types}", baked.types));
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(self.not_baked(format!("it differs from {}: {}", baked.name, differences.join("; "))))
    }

    fn not_baked(&self, what: String) -> Error {
        let features: Vec<&str> = presets::fitting(&self.shape).map(|preset| preset.feature).collect();
        let setting = match features.as_slice() {
            [] => "a bake of this shape in your build.rs (kiln-codegen's `Bake::model`)".to_owned(),
            features => format!("--features {}", features.join(" or ")),
        };
        let baked: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
        Error::NotBaked { path: self.path.clone(), what, baked: baked.join(", "), setting }
    }
}

impl std::fmt::Debug for ModelFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFile").field("path", &self.path).field("shape", &self.shape).finish_non_exhaustive()
    }
}
