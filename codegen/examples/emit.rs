//! Prints the PTX that a build bakes, or writes all of it into a folder.

use kiln_codegen::bake::{self, DecoderPath};
use kiln_codegen::ptx::Text;
use kiln_codegen::{Kernel, Numerics, Target};
use kiln_shape::{Preset, WeightType, presets};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Prints the PTX that a build bakes.

  emit --model MODEL --target TARGET [--path PATH] [--numerics NUMERICS] [--kernel NAME] [--type TYPE]
                                                                     a model's decoder, or one kernel of it; PATH is
                                                                     stream unless given, NUMERICS exact; for weights
                                                                     of one TYPE only, as Q4_K
  emit --general --target TARGET [--kernel NAME]                     the kernels that belong to no model
  emit --all DIR [--model MODEL]... [--target TARGET]...             everything, a file for each module; --no-trace
                                                                     leaves out the kernels that trace
  emit --list                                                        models, targets, paths, numerics, kernels

With --light the text is that of a program: without source lines, its names short.
";

fn main() -> ExitCode {
    let done = Request::parse(std::env::args().skip(1)).and_then(|request| request.run());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            // Where standard error is full or closed there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "emit: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The command line.
#[derive(Default)]
struct Request {
    models: Vec<&'static Preset>,
    targets: Vec<Target>,
    path: Option<DecoderPath>,
    numerics: Option<Numerics>,
    kernel: Option<String>,
    ty: Option<WeightType>,
    all: Option<PathBuf>,
    general: bool,
    no_trace: bool,
    text: Text,
    list: bool,
    help: bool,
}

impl Request {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Request, String> {
        let mut request = Request::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let (flag, inline) = match argument.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let mut value = || {
                let value = inline.clone().or_else(|| arguments.next());
                value.ok_or_else(|| format!("{flag} needs a value\n\n{USAGE}"))
            };
            match flag.as_str() {
                "--model" => request.models.push(model(&value()?)?),
                "--target" => request.targets.push(target(&value()?)?),
                "--path" => request.path = Some(path(&value()?)?),
                "--numerics" => request.numerics = Some(numerics(&value()?)?),
                "--kernel" => request.kernel = Some(value()?),
                "--type" => request.ty = Some(weight_type(&value()?)?),
                "--all" => request.all = Some(value()?.into()),
                "--general" => request.general = true,
                "--no-trace" => request.no_trace = true,
                "--light" => request.text = Text::Light,
                "--list" => request.list = true,
                "--help" | "-h" => request.help = true,
                _ => return Err(format!("unknown argument {flag:?}\n\n{USAGE}")),
            }
        }
        Ok(request)
    }

    fn run(&self) -> Result<(), String> {
        if self.help {
            return print(USAGE);
        }
        if self.list {
            return print(&list());
        }
        if let Some(folder) = &self.all {
            return self.write_all(folder);
        }
        let &[target] = self.targets.as_slice() else {
            return Err(format!("one --target is needed\n\n{USAGE}"));
        };
        let (decoder, kernels) = match (self.models.as_slice(), self.general) {
            (&[model], false) => {
                let path = self.path.unwrap_or(DecoderPath::Stream);
                let numerics = self.numerics.unwrap_or(Numerics::Exact);
                let types = self.ty.map_or_else(|| types(model), |ty| vec![ty]);
                let mut kernels = bake::decoder(model.shape, &types, path, numerics);
                if target.is_own() {
                    kernels.clear();
                }
                if (path, numerics) == (DecoderPath::Persistent, Numerics::Fast) {
                    kernels.extend(bake::slices(model.shape, &types, target));
                }
                if (path, numerics) == (DecoderPath::Stream, Numerics::Fast) {
                    kernels.extend(bake::columns(model.shape, &types, target));
                }
                (Some((path, numerics)), kernels)
            }
            ([], true) => (None, bake::general()),
            _ => return Err(format!("either one --model or --general is needed\n\n{USAGE}")),
        };
        let kernels = self.chosen(kernels)?;
        print(&bake::emit_as(target, decoder, &kernels, self.text).map_err(|error| error.to_string())?.ptx)
    }

    /// The kernel asked for, or all of them.
    fn chosen(&self, mut kernels: Vec<Box<dyn Kernel>>) -> Result<Vec<Box<dyn Kernel>>, String> {
        let Some(wanted) = &self.kernel else { return Ok(kernels) };
        let names: Vec<String> = kernels.iter().map(|kernel| kernel.name().to_owned()).collect();
        kernels.retain(|kernel| kernel.name() == wanted);
        if kernels.is_empty() {
            return Err(format!("no kernel {wanted:?} here: use one of {}", names.join(", ")));
        }
        Ok(kernels)
    }

    /// A file for each module: `MODEL.TARGET.PATH_NUMERICS.ptx`, `MODEL.TARGET.persistent_NUMERICS_trace.ptx`,
    /// `MODEL.TARGET.persistent_fast_slices.ptx`, `MODEL.TARGET.stream_fast_columns.ptx`, `general.TARGET.ptx` and `batch.TARGET.ptx`.
    fn write_all(&self, folder: &Path) -> Result<(), String> {
        if self.kernel.is_some() || self.ty.is_some() || self.path.is_some() || self.numerics.is_some() || self.general
        {
            return Err(format!("--all takes --model, --target, --no-trace and --light only\n\n{USAGE}"));
        }
        let targets = if self.targets.is_empty() { Target::ALL.to_vec() } else { self.targets.clone() };
        let (own, targets): (Vec<Target>, Vec<Target>) =
            targets.iter().flat_map(|target| [Some(*target), target.own()]).flatten().partition(|t| t.is_own());
        let models = if self.models.is_empty() { presets::all().collect() } else { self.models.clone() };
        let at = |error: std::io::Error| format!("writing to {}: {error}", folder.display());
        std::fs::create_dir_all(folder).map_err(at)?;
        for (target, model) in own.iter().flat_map(|target| models.iter().map(move |model| (*target, model))) {
            let kernels = bake::columns(model.shape, &types(model), target);
            if !kernels.is_empty() {
                let decoder = Some((DecoderPath::Stream, Numerics::Fast));
                let module = bake::emit_as(target, decoder, &kernels, self.text)
                    .map_err(|error| format!("{} for {target}: {error}", model.feature))?;
                let file = format!("{}.{target}.stream_fast_columns.ptx", model.feature);
                std::fs::write(folder.join(file), module.ptx).map_err(at)?;
            }
        }
        for target in targets {
            for model in &models {
                for numerics in Numerics::ALL {
                    let (columns, slices) = match numerics {
                        Numerics::Exact => (Vec::new(), None),
                        Numerics::Fast => (
                            bake::columns(model.shape, &types(model), target),
                            bake::slices(model.shape, &types(model), target),
                        ),
                    };
                    let columns = (!columns.is_empty()).then_some((DecoderPath::Stream, "_columns", columns));
                    let slices = slices.map(|kernel| (DecoderPath::Persistent, "_slices", vec![kernel]));
                    let further = columns.into_iter().chain(slices);
                    let of = |path| (path, "", bake::decoder(model.shape, &types(model), path, numerics));
                    let traces = || bake::tracing(model.shape, &types(model), numerics);
                    let tracing = (!self.no_trace).then(|| (DecoderPath::Persistent, "_trace", traces()));
                    for (path, end, kernels) in DecoderPath::ALL.map(of).into_iter().chain(tracing).chain(further) {
                        let module = bake::emit_as(target, Some((path, numerics)), &kernels, self.text)
                            .map_err(|error| format!("{} for {target}: {error}", model.feature))?;
                        let file = format!("{}.{target}.{}_{numerics}{end}.ptx", model.feature, path.name());
                        std::fs::write(folder.join(file), module.ptx).map_err(at)?;
                    }
                }
            }
            let module = bake::emit_as(target, None, &bake::general(), self.text)
                .map_err(|error| format!("{target}: {error}"))?;
            std::fs::write(folder.join(format!("general.{target}.ptx")), module.ptx).map_err(at)?;
            if target.sm() >= 80 {
                let module = bake::emit_as(target, None, &bake::batch(), self.text)
                    .map_err(|error| format!("{target}: {error}"))?;
                std::fs::write(folder.join(format!("batch.{target}.ptx")), module.ptx).map_err(at)?;
            }
        }
        Ok(())
    }
}

/// The types that a build bakes for a preset without further features.
fn types(preset: &Preset) -> Vec<WeightType> {
    preset.types.iter().collect()
}

/// A target by name; `sm_90a` is that chip's own.
fn target(name: &str) -> Result<Target, String> {
    let own = name.strip_suffix('a').and_then(|name| name.parse::<Target>().ok()).and_then(Target::own);
    own.map_or_else(|| name.parse().map_err(|error| format!("{error}")), Ok)
}

fn model(name: &str) -> Result<&'static Preset, String> {
    presets::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = presets::all().map(|preset| preset.feature).collect();
        format!("unknown model {name:?}: use one of {}", known.join(", "))
    })
}

fn weight_type(name: &str) -> Result<WeightType, String> {
    WeightType::ALL.iter().copied().find(|ty| ty.to_string() == name).ok_or_else(|| {
        let known: Vec<String> = WeightType::ALL.iter().map(WeightType::to_string).collect();
        format!("unknown type of weights {name:?}: use one of {}", known.join(", "))
    })
}

fn path(name: &str) -> Result<DecoderPath, String> {
    DecoderPath::ALL.into_iter().find(|path| path.name() == name).ok_or_else(|| {
        format!("unknown path {name:?}: use one of {}", DecoderPath::ALL.map(DecoderPath::name).join(", "))
    })
}

fn numerics(name: &str) -> Result<Numerics, String> {
    Numerics::ALL.into_iter().find(|numerics| numerics.name() == name).ok_or_else(|| {
        format!("unknown numerics {name:?}: use one of {}", Numerics::ALL.map(Numerics::name).join(", "))
    })
}

fn list() -> String {
    let mut text = "models\n".to_owned();
    for preset in presets::all() {
        text += &format!("  {:<13} {}\n", preset.feature, preset.model);
    }
    let targets: Vec<String> = Target::ALL.iter().map(Target::to_string).collect();
    text += &format!("targets\n  {}\n", targets.join(" "));
    text += &format!("numerics\n  {}\n", Numerics::ALL.map(Numerics::name).join(" "));
    let any = presets::PRESETS[0].shape;
    for path in DecoderPath::ALL {
        text += &format!("kernels of path {}\n", path.name());
        for kernel in bake::decoder(any, WeightType::ALL, path, Numerics::Exact) {
            text += &format!("  {}\n", kernel.name());
        }
    }
    text += "general kernels\n";
    for kernel in bake::general().into_iter().chain(bake::batch()) {
        text += &format!("  {}\n", kernel.name());
    }
    text
}

/// A reader that went away (`emit ... | head`) is no error.
fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(()),
    }
}
