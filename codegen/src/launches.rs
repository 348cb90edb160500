//! Launches of a program's own kernels, as the generated file has them: a struct for each, a field for each parameter.

use crate::error::{Error, Result};
use crate::ptx::Param;
use kiln_shape::{NumberType, ParamType};
use std::fmt::Write as _;

/// Most parameters of a launch, as kiln has it.
const MOST: usize = 25;

/// Words that Rust keeps for itself.
const KEYWORDS: &str = "as async await become box break const continue crate do dyn else enum extern false final fn for \
                        gen if impl in let loop macro match mod move mut override priv pub ref return self static struct \
                        super trait true try type typeof unsafe unsized use abstract virtual where while yield";

/// The launches of some kernels as Rust; `kiln` is the path of that crate.
///
/// # Errors
/// [`Error::LaunchName`] if the names of two kernels make one name of a struct, or a name makes none.
pub(crate) fn launches(kiln: &str, kernels: &[(&str, &[Param])]) -> Result<String> {
    let mut text = String::new();
    let mut taken: Vec<(String, &str)> = Vec::new();
    for (kernel, params) in kernels {
        if let Some(reason) = no_launch(params) {
            line(&mut text, format_args!("// `{kernel}` has no launch: {reason}.\n"));
            continue;
        }
        let launch = camel_case(kernel);
        let other = taken.iter().find(|(name, _)| *name == launch).map(|(_, other)| (*other).to_owned());
        if other.is_some() || launch == "Self" || !launch.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(Error::LaunchName { kernel: (*kernel).to_owned(), launch, other });
        }
        write(&mut text, kiln, &launch, kernel, params);
        taken.push((launch, kernel));
    }
    Ok(text)
}

/// Why a kernel's parameters can be no fields.
fn no_launch(params: &[Param]) -> Option<String> {
    let is_address = |ty: ParamType| matches!(ty, ParamType::Read(_) | ParamType::Write(_));
    if params.len() > MOST {
        return Some(format!("{} parameters, more than {MOST}", params.len()));
    }
    if !params.iter().any(|param| is_address(param.ty)) {
        return Some("it takes no addresses".to_owned());
    }
    let is_field = |name: &str| {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        plain && name.starts_with(|c: char| c.is_ascii_alphabetic()) && !KEYWORDS.split_whitespace().any(|k| k == name)
    };
    let odd = params.iter().find(|param| !is_field(&param.name));
    odd.map(|param| format!("a field cannot be named `{}`", param.name))
}

fn write(text: &mut String, kiln: &str, launch: &str, kernel: &str, params: &[Param]) {
    line(text, format_args!("{kiln}::launch::launch! {{"));
    line(text, format_args!("    /// The launch of `{kernel}`: a field for each parameter, in the kernel's order."));
    line(text, format_args!("    pub struct {launch}<'a> {{"));
    for param in params {
        let number = |number| host(kiln, number);
        let ty = match param.ty {
            ParamType::Value(of) => number(of),
            ParamType::Read(of) => format!("{kiln}::launch::In<'a, {}>", number(of)),
            ParamType::Write(of) => format!("{kiln}::launch::Out<'a, {}>", number(of)),
        };
        line(text, format_args!("        {}: {ty},", param.name));
    }
    line(text, format_args!("    }}\n}}\n"));
    line(text, format_args!("impl {kiln}::launch::Entry for {launch}<'_> {{"));
    line(text, format_args!("    const NAME: &'static str = {kernel:?};\n}}\n"));
}

/// A number as Rust has it.
fn host(kiln: &str, number: NumberType) -> String {
    match number {
        NumberType::U8 => "u8".to_owned(),
        NumberType::S8 => "i8".to_owned(),
        NumberType::U16 => "u16".to_owned(),
        NumberType::U32 => "u32".to_owned(),
        NumberType::S32 => "i32".to_owned(),
        NumberType::U64 => "u64".to_owned(),
        NumberType::F16 => format!("{kiln}::launch::f16"),
        NumberType::BF16 => format!("{kiln}::launch::bf16"),
        NumberType::F32 => "f32".to_owned(),
        NumberType::F64 => "f64".to_owned(),
    }
}

/// `softmax_rows` as the name of a struct: `SoftmaxRows`.
fn camel_case(name: &str) -> String {
    let word = |word: &str| {
        let mut chars = word.chars();
        chars.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(chars).collect::<String>()
    };
    name.split('_').map(word).collect()
}

/// One line. Writing to a `String` does not fail.
fn line(text: &mut String, of: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(of);
    text.push('\n');
}
