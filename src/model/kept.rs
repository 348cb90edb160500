//! Sessions in files: the ids, and the cache of whole chunks. What lies behind the last whole chunk is run again.

use super::file::ModelFile;
use super::session::{Session, SessionOptions};
use super::{KvType, Model, Numerics};
use crate::shape::table::KV_CHUNK;
use crate::{Error, Result};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// What a file begins with: its kind, and the version of what follows.
const MAGIC: [u8; 8] = *b"kilnkv\0\x01";
/// Numbers behind it, 64 bits each: of the model, of what else decides bits, tokens, chunks, bytes of a chunk.
const NUMBERS: usize = 5;
/// Bytes of a tensor's ends that tell models of one shape apart.
const SAMPLE: usize = 4096;

/// A checksum that sees every change of a single word: each step is one to one.
#[derive(Debug, Clone, Copy)]
struct Sum(u64);

impl Sum {
    fn new() -> Sum {
        Sum(0x9e37_79b9_7f4a_7c15)
    }

    fn add(&mut self, bytes: &[u8]) {
        let word = |part: &[u8]| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        };
        for part in bytes.chunks(8) {
            self.0 = (self.0 ^ word(part)).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29);
        }
        self.0 = (self.0 ^ bytes.len() as u64).wrapping_mul(0x2545_f491_4f6c_dd1d);
    }
}

/// A number of a model: of its tensors' names, types and dimensions, and of the ends of their bytes.
fn number_of_model(file: &ModelFile) -> Result<u64> {
    let mut sum = Sum::new();
    for tensor in file.gguf().tensors() {
        let (_, bytes) = file.tensor(tensor.name())?;
        sum.add(tensor.name().as_bytes());
        sum.add(tensor.ty().to_string().as_bytes());
        tensor.dims().iter().for_each(|dim| sum.add(&dim.to_le_bytes()));
        sum.add(&bytes[..bytes.len().min(SAMPLE)]);
        sum.add(&bytes[bytes.len().saturating_sub(SAMPLE)..]);
    }
    Ok(sum.0)
}

/// A number of what else decides the bits of a cache: kiln's version, numerics, the cache's type, and in fast numerics the
/// chip.
fn number_of_bits(model: &Model, options: SessionOptions) -> u64 {
    let mut sum = Sum::new();
    sum.add(env!("CARGO_PKG_VERSION").as_bytes());
    sum.add(options.numerics.to_string().as_bytes());
    sum.add(&options.kv.bytes().to_le_bytes());
    if options.numerics == Numerics::Fast && options.kv == KvType::F16 {
        sum.add(&model.device().sm().to_le_bytes());
    }
    sum.0
}

/// Errors of a file.
#[derive(Clone, Copy)]
struct Named<'a>(&'a Path);

impl Named<'_> {
    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::SessionFile { path: self.0.to_owned(), what: what.into() }
    }

    fn io(&self) -> impl Fn(io::Error) -> Error {
        |error| self.wrong(error.to_string())
    }
}

impl Session {
    /// Writes the session to a file, in the place of one that is there: whatever happens meanwhile, the name leads to the
    /// old file or the new one, whole. [`Model::load_session`] reads it.
    ///
    /// # Errors
    /// [`Error::SessionFile`] for what the system says of the file; what the driver reports.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let named = Named(path.as_ref());
        self.end_item()?;
        let part = part_of(named.0);
        let written = self.write(&named, &part);
        if written.is_err() {
            // What was written of it is of no use.
            let _ = fs::remove_file(&part);
        }
        written
    }

    fn write(&self, named: &Named<'_>, part: &Path) -> Result<()> {
        let mut sum = Sum::new();
        let mut file = BufWriter::new(File::create(part).map_err(named.io())?);
        let mut put = |bytes: &[u8]| {
            sum.add(bytes);
            file.write_all(bytes).map_err(named.io())
        };
        let numbers = [number_of_model(&self.model().inner.file)?, number_of_bits(self.model(), self.options())];
        let (device, (sequence, tokens, ran)) = (self.model().device(), self.kept());
        let chunks: Vec<_> = sequence.whole_chunks(ran).collect();
        let bytes = chunks.first().map_or(0, |chunk| chunk.len());
        put(&MAGIC)?;
        let sizes = [tokens.len(), chunks.len(), bytes].map(|size| size as u64);
        for number in numbers.into_iter().chain(sizes) {
            put(&number.to_le_bytes())?;
        }
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        put(&ids)?;
        for chunk in chunks {
            // A resident kernel would hold the copy up.
            let quiet = device.context().quiesce()?;
            let content = chunk.to_host()?;
            drop(quiet);
            put(&content)?;
        }
        let sum = sum.0;
        file.write_all(&sum.to_le_bytes()).map_err(named.io())?;
        let file = file.into_inner().map_err(|error| named.wrong(error.to_string()))?;
        file.sync_all().map_err(named.io())?;
        drop(file);
        fs::rename(part, named.0).map_err(named.io())?;
        // The name as well. Where folders cannot be opened the system keeps it by itself.
        if let Some(folder) = named.0.parent().and_then(|folder| File::open(folder).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

/// The file that is written before it takes the other's place.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    path.with_file_name(name)
}

impl Model {
    /// A session as [`Session::save`] wrote it, with the same numerics and cache type. What follows has the bits that it
    /// would have had.
    ///
    /// # Errors
    /// [`Error::SessionFile`] for a file that is damaged, or of another model, version of kiln, numerics or cache type, or
    /// in fast numerics of another chip; as [`Model::session`], and [`Error::ContextFull`] if its tokens do not fit.
    pub fn load_session(&self, options: SessionOptions, path: impl AsRef<Path>) -> Result<Session> {
        let named = Named(path.as_ref());
        let file = File::open(named.0).map_err(named.io())?;
        let size = file.metadata().map_err(named.io())?.len();
        let mut file = Reader { file: BufReader::new(file), sum: Sum::new(), named };
        if file.bytes::<8>()? != MAGIC {
            return Err(named.wrong("it is no session of kiln's, or of another version"));
        }
        let mut numbers = [0; NUMBERS];
        for number in &mut numbers {
            *number = u64::from_le_bytes(file.bytes()?);
        }
        let [model, bits, tokens, chunks, chunk_bytes] = numbers;
        if model != number_of_model(&self.inner.file)? {
            return Err(named.wrong("it is a session of another model; run its tokens anew"));
        }
        if bits != number_of_bits(self, options) {
            let what = "it was made by another version of kiln, in other numerics or cache type, or in fast ones on another chip";
            return Err(named.wrong(format!("{what}; run its tokens anew")));
        }
        // Every size against the file's, before anything is made by it.
        let content = chunks.checked_mul(chunk_bytes).zip(tokens.checked_mul(4)).and_then(|(a, b)| a.checked_add(b));
        let needed = content.and_then(|content| content.checked_add((MAGIC.len() + 8 * NUMBERS + 8) as u64));
        if needed != Some(size) || chunks.checked_mul(u64::from(KV_CHUNK)).is_none_or(|held| held > tokens) {
            return Err(named.wrong("it is damaged: its sizes do not go together"));
        }
        let mut ids = vec![0; 4 * tokens as usize];
        file.take(&mut ids)?;
        let ids: Vec<u32> = ids.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let mut session = self.session(options)?;
        session.append(&ids)?;
        session.restore(chunks as u32 * KV_CHUNK, |chunk| file.take(chunk))?;
        let found = file.sum.0;
        match u64::from_le_bytes(file.bytes()?) == found {
            true => Ok(session),
            false => Err(named.wrong("it is damaged: its checksum differs")),
        }
    }
}

/// A file that is read and summed.
struct Reader<'a> {
    file: BufReader<File>,
    sum: Sum,
    named: Named<'a>,
}

impl Reader<'_> {
    fn take(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact(bytes).map_err(self.named.io())?;
        self.sum.add(bytes);
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.take(&mut bytes)?;
        Ok(bytes)
    }
}
