//! Opening a model file: mapped, its header read and checked, before anything is allocated on a device.

use crate::baked::{BakedModel, MODELS};
use crate::shape::{Gguf, ModelShape, WeightType, WeightTypes, presets};
use crate::{Error, Result};
use memmap2::Mmap;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A GGUF file of a model that kiln decodes, mapped into memory.
///
/// The file must not be changed while it is open: it is mapped, so reads of a changed file are undefined, and reads
/// behind the end of one that was cut short end the process by SIGBUS. Replace a file by renaming another over it.
pub struct ModelFile {
    path: PathBuf,
    map: Mmap,
    gguf: Gguf,
    shape: ModelShape,
    types: WeightTypes,
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

    /// The type and the bytes of a tensor.
    pub(super) fn weights(&self, name: &str) -> Result<(WeightType, &[u8])> {
        let (tensor, data) = self.tensor(name)?;
        let ty = WeightType::from_ggml(tensor.ty()).ok_or_else(|| Error::ModelFile {
            path: self.path.clone(),
            what: format!("tensor `{name}` is stored as {}; supported: {}", tensor.ty(), WeightTypes::ALL),
        })?;
        Ok((ty, data))
    }

    /// The baked model of this program whose kernels run this file.
    ///
    /// # Errors
    /// [`Error::NotBaked`], listing each difference from each baked model and the features to build with.
    pub fn baked(&self) -> Result<&'static BakedModel> {
        self.choose(MODELS)
    }

    /// The first of `models` whose kernels run this file.
    fn choose(&self, models: &[&'static BakedModel]) -> Result<&'static BakedModel> {
        let mut differences = Vec::new();
        for baked in models {
            match self.differences(baked) {
                None => return Ok(baked),
                Some(difference) => differences.push(difference),
            }
        }
        let what = if differences.is_empty() { "no kernels for it".to_owned() } else { differences.join("; ") };
        Err(self.not_baked(what, models))
    }

    /// The types of its matrices; kernels are baked for a set of them.
    pub fn types(&self) -> WeightTypes {
        self.types
    }

    /// Whether the kernels of `baked` run this file.
    ///
    /// # Errors
    /// [`Error::NotBaked`], listing each difference and the features to build with.
    pub fn check_baked(&self, baked: &BakedModel) -> Result<()> {
        self.differences(baked).map_or(Ok(()), |what| Err(self.not_baked(what, MODELS)))
    }

    /// The differences of the file from `baked`, in words; `None` if there is none.
    fn differences(&self, baked: &BakedModel) -> Option<String> {
        let mut differences: Vec<String> =
            baked.shape.baked_differences(&self.shape).iter().map(ToString::to_string).collect();
        let types = self.types.without(baked.types);
        if !types.is_empty() {
            differences.push(format!("tensor types: baked {}, file also {types}", baked.types));
        }
        (!differences.is_empty()).then(|| format!("it differs from {} ({})", baked.name, differences.join(", ")))
    }

    fn not_baked(&self, what: String, models: &[&BakedModel]) -> Error {
        // Each preset of this shape, with the features that add the types it lacks.
        let features: Vec<String> = presets::fitting(&self.shape)
            .map(|preset| {
                let lacking = self.types.without(preset.types).iter().filter_map(presets::feature_of);
                let lacking: BTreeSet<&str> = lacking.collect();
                [preset.feature].into_iter().chain(lacking).collect::<Vec<_>>().join(",")
            })
            .collect();
        let named = "KILN_MODELS naming this file while kiln is compiled";
        let setting = match features.as_slice() {
            [] => format!("{named}, or a bake of this shape in your build.rs (kiln-codegen's `Bake::model`)"),
            features => format!("--features {}, or {named}", features.join(" or ")),
        };
        let names: Vec<&str> = models.iter().map(|model| model.name).collect();
        let baked = if names.is_empty() { "no model".to_owned() } else { names.join(", ") };
        Error::NotBaked { path: self.path.clone(), what, baked, setting }
    }
}

impl std::fmt::Debug for ModelFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFile").field("path", &self.path).field("shape", &self.shape).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> ModelFile {
        ModelFile::open(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/demo.Q4_K_M.gguf")).expect("the demo model")
    }

    fn baked(name: &'static str, shape: ModelShape, types: WeightTypes) -> &'static BakedModel {
        Box::leak(Box::new(BakedModel { name, shape, types, modules: &[] }))
    }

    #[test]
    fn a_file_that_fits_no_baked_model_is_refused_with_each_difference_from_each() {
        let file = demo();
        let shape = *file.shape();
        let wide = baked("wide", ModelShape { hidden: 512, heads: 8, ..shape }, WeightTypes::ALL);
        let bare = baked("bare", shape, WeightTypes::of(&[WeightType::F16]));
        let error = file.choose(&[wide, bare]).expect_err("neither fits").to_string();
        for part in [
            "demo.Q4_K_M.gguf",
            "it differs from wide (hidden: baked 512, file 256, heads: baked 8, file 4)",
            "it differs from bare (tensor types: baked F16, file also Q4_K",
            "this program has wide, bare; build with --features tiny, or KILN_MODELS naming this file",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let fits = baked("fits", shape, WeightTypes::ALL);
        assert_eq!(file.choose(&[wide, fits]).expect("the second fits").name, "fits");
    }

    #[test]
    fn a_file_with_types_that_a_preset_lacks_is_told_their_features() {
        let (mut file, preset) = (demo(), presets::by_name("qwen3-8b").expect("a preset"));
        file.shape = preset.shape;
        file.types = WeightTypes::of(&[WeightType::Q4_K, WeightType::F16, WeightType::Q5_0, WeightType::BF16]);
        let known = baked("qwen3-8b", preset.shape, preset.types);
        let error = file.choose(&[known]).expect_err("types are missing").to_string();
        assert!(error.contains("file also F16, Q5_0, BF16"), "{error}");
        assert!(error.contains("build with --features qwen3-8b,float-weights,legacy-quants"), "{error}");
    }

    #[test]
    fn another_quantisation_of_a_baked_file_is_refused_by_its_type() {
        let mut file = demo();
        let of_file = baked("demo.Q4_K_M", *file.shape(), file.types());
        assert_eq!(file.choose(&[of_file]).expect("the file that was baked").name, "demo.Q4_K_M");
        file.types = file.types().with(WeightType::Q8_0);
        let error = file.choose(&[of_file]).expect_err("a type is missing").to_string();
        assert!(error.contains("differs from demo.Q4_K_M (tensor types: baked Q4_K, Q6_K, file also Q8_0)"), "{error}");
        assert!(error.contains("KILN_MODELS"), "{error}");
    }

    #[test]
    fn a_program_without_models_says_so() {
        let error = demo().choose(&[]).expect_err("there is none").to_string();
        assert!(error.contains("this program has no model; build with --features tiny"), "{error}");
    }
}
