//! Formatted output of C, as device code's `printf` has it: the conversions of the
//! [Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#formatted-output), written as
//! glibc writes them.

/// Most characters of a width or precision.
const WIDEST: u32 = 1 << 16;

/// A piece of a format.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Text(Vec<u8>),
    Conversion(Conversion),
}

/// A width or precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Count {
    Given(u32),
    /// `*`: an argument of its own.
    Argument,
}

/// A conversion as written, such as `%-8.3f`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Conversion {
    flags: Flags,
    pub(crate) width: Option<Count>,
    pub(crate) precision: Option<Count>,
    /// Bytes of an integer.
    size: u32,
    letter: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Flags {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
}

/// An argument's form in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// An integer of so many bytes.
    Integer(u32),
    Double,
    /// The address of a string.
    Text,
}

/// The pieces of a format; an error is the conversion that C does not have.
pub(crate) fn pieces(format: &[u8]) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut rest) = (Vec::new(), format);
    while !rest.is_empty() {
        let plain = rest.iter().position(|&c| c == b'%').unwrap_or(rest.len());
        if plain > 0 {
            pieces.push(Piece::Text(rest[..plain].to_vec()));
        } else if rest.starts_with(b"%%") {
            pieces.push(Piece::Text(b"%".to_vec()));
            rest = &rest[2..];
            continue;
        } else {
            let mut at = &rest[1..];
            let Some(conversion) = conversion(&mut at) else {
                let end = rest.len() - at.len() + 1;
                return Err(String::from_utf8_lossy(&rest[..end.min(rest.len())]).into_owned());
            };
            pieces.push(Piece::Conversion(conversion));
            rest = at;
            continue;
        }
        rest = &rest[plain..];
    }
    Ok(pieces)
}

/// Reads a conversion behind its `%`.
fn conversion(text: &mut &[u8]) -> Option<Conversion> {
    let mut flags = Flags::default();
    while let Some(flag) = text.first().and_then(|c| flags.of(*c)) {
        *flag = true;
        *text = &text[1..];
    }
    let width = count(text)?;
    let precision = if eat(text, b".") { Some(count(text)?.unwrap_or(Count::Given(0))) } else { None };
    let sizes: [(&[u8], u32); 9] =
        [(b"hh", 1), (b"h", 2), (b"ll", 8), (b"l", 8), (b"z", 8), (b"j", 8), (b"t", 8), (b"L", 8), (b"", 4)];
    let (_, size) = sizes.into_iter().find(|(name, _)| eat(text, name))?;
    let letter = *text.first().filter(|c| b"diouxXcpsfFeEgGaA".contains(c))?;
    *text = &text[1..];
    Some(Conversion { flags, width, precision, size: if letter == b'p' { 8 } else { size }, letter })
}

fn eat(text: &mut &[u8], what: &[u8]) -> bool {
    let found = text.starts_with(what);
    *text = if found { &text[what.len()..] } else { text };
    found
}

/// Digits or `*`, or nothing. `None` for a number that is too large.
fn count(text: &mut &[u8]) -> Option<Option<Count>> {
    if eat(text, b"*") {
        return Some(Some(Count::Argument));
    }
    let digits = text.iter().take_while(|c| c.is_ascii_digit()).count();
    let number = text[..digits].iter().try_fold(0u32, |n, c| {
        let more = n.checked_mul(10)?.checked_add(u32::from(c - b'0'))?;
        (more <= WIDEST).then_some(more)
    })?;
    *text = &text[digits..];
    Some((digits > 0).then_some(Count::Given(number)))
}

impl Flags {
    fn of(&mut self, c: u8) -> Option<&mut bool> {
        Some(match c {
            b'-' => &mut self.left,
            b'+' => &mut self.plus,
            b' ' => &mut self.space,
            b'#' => &mut self.alternate,
            b'0' => &mut self.zero,
            _ => return None,
        })
    }
}

impl Conversion {
    /// The form of its argument.
    pub(crate) fn argument(&self) -> Form {
        match self.letter {
            b's' => Form::Text,
            b'd' | b'i' | b'o' | b'u' | b'x' | b'X' => Form::Integer(self.size.max(4)),
            b'p' => Form::Integer(8),
            b'c' => Form::Integer(4),
            _ => Form::Double,
        }
    }

    /// With the value of a width that is an argument: one below zero stands for the flag `-`.
    pub(crate) fn with_width(mut self, width: i32) -> Conversion {
        self.flags.left |= width < 0;
        Conversion { width: Some(Count::Given(width.unsigned_abs().min(WIDEST))), ..self }
    }

    /// With the value of a precision that is an argument: one below zero stands for none.
    pub(crate) fn with_precision(self, precision: i32) -> Conversion {
        let precision = u32::try_from(precision).ok().map(|precision| Count::Given(precision.min(WIDEST)));
        Conversion { precision, ..self }
    }

    fn precision(&self) -> Option<usize> {
        match self.precision {
            Some(Count::Given(n)) => Some(n as usize),
            _ => None,
        }
    }

    /// A string, up to its precision.
    pub(crate) fn text(&self, text: &[u8]) -> Vec<u8> {
        let most = self.precision().unwrap_or(text.len()).min(text.len());
        self.pad("", text[..most].to_vec(), false)
    }

    /// An integer, a character, an address or a float, given by its bits.
    pub(crate) fn number(&self, bits: u64) -> Vec<u8> {
        match self.letter {
            b'c' => self.pad("", vec![bits as u8], false),
            b'p' if bits == 0 => self.pad("", b"(nil)".to_vec(), false),
            b'p' => self.pad("0x", format!("{bits:x}").into_bytes(), false),
            b'd' | b'i' | b'o' | b'u' | b'x' | b'X' => self.integer(bits),
            _ => self.float(f64::from_bits(bits)),
        }
    }

    fn sign(&self, negative: bool) -> &'static str {
        match self.flags {
            _ if negative => "-",
            Flags { plus: true, .. } => "+",
            Flags { space: true, .. } => " ",
            _ => "",
        }
    }

    fn integer(&self, bits: u64) -> Vec<u8> {
        let unused = 64 - 8 * self.size;
        let (signed, unsigned) = ((bits << unused) as i64 >> unused, bits << unused >> unused);
        let alternate = self.flags.alternate;
        let (sign, mut digits) = match self.letter {
            b'd' | b'i' => (self.sign(signed < 0), signed.unsigned_abs().to_string()),
            b'o' => ("", format!("{unsigned:o}")),
            b'x' => (if alternate && unsigned != 0 { "0x" } else { "" }, format!("{unsigned:x}")),
            b'X' => (if alternate && unsigned != 0 { "0X" } else { "" }, format!("{unsigned:X}")),
            _ => ("", unsigned.to_string()),
        };
        if self.precision() == Some(0) && unsigned == 0 {
            digits.clear();
        }
        let least = self.precision().unwrap_or(0);
        digits = "0".repeat(least.saturating_sub(digits.len())) + &digits;
        if alternate && self.letter == b'o' && !digits.starts_with('0') {
            digits.insert(0, '0');
        }
        self.pad(sign, digits.into_bytes(), self.precision().is_none())
    }

    fn float(&self, value: f64) -> Vec<u8> {
        let upper = self.letter.is_ascii_uppercase();
        let (sign, size) = (self.sign(value.is_sign_negative()), value.abs());
        if !value.is_finite() {
            let name = if value.is_nan() { "nan" } else { "inf" };
            let name = if upper { name.to_uppercase() } else { name.to_owned() };
            return self.pad(sign, name.into_bytes(), false);
        }
        let (precision, alternate) = (self.precision().unwrap_or(6), self.flags.alternate);
        let (prefix, mut digits) = match self.letter.to_ascii_lowercase() {
            b'f' => ("", fixed(size, precision, alternate)),
            b'e' => ("", scientific(size, precision, alternate)),
            b'g' => ("", shortest(size, precision.max(1), alternate)),
            _ => ("0x", hexadecimal(size, self.precision(), alternate)),
        };
        let mut sign = format!("{sign}{prefix}");
        if upper {
            (digits, sign) = (digits.to_uppercase(), sign.to_uppercase());
        }
        self.pad(&sign, digits.into_bytes(), true)
    }

    /// Fills up to the width, with zeros behind the sign where flag and conversion allow.
    fn pad(&self, sign: &str, body: Vec<u8>, zeros: bool) -> Vec<u8> {
        let width = match self.width {
            Some(Count::Given(n)) => n as usize,
            _ => 0,
        };
        let lack = width.saturating_sub(sign.len() + body.len());
        let parts: [&[u8]; 4] = match self.flags {
            Flags { left: true, .. } => [sign.as_bytes(), &body, &vec![b' '; lack], b""],
            Flags { zero: true, .. } if zeros => [sign.as_bytes(), &vec![b'0'; lack], &body, b""],
            _ => [&vec![b' '; lack], sign.as_bytes(), &body, b""],
        };
        parts.concat()
    }
}

fn fixed(size: f64, precision: usize, point: bool) -> String {
    format!("{size:.precision$}") + if point && precision == 0 { "." } else { "" }
}

/// Digits and exponent of the decimal number of `precision` digits behind the point.
fn decimal(size: f64, precision: usize) -> (String, i32) {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (digits.to_owned(), exponent.parse().unwrap_or(0))
}

fn scientific(size: f64, precision: usize, point: bool) -> String {
    let (digits, exponent) = decimal(size, precision);
    let (point, sign) = (if point && precision == 0 { "." } else { "" }, if exponent < 0 { '-' } else { '+' });
    format!("{digits}{point}e{sign}{:02}", exponent.abs())
}

/// `%g`: of `digits` significant digits, without zeros at the end unless `alternate`.
fn shortest(size: f64, digits: usize, alternate: bool) -> String {
    let (_, exponent) = decimal(size, digits - 1);
    let is_fixed = exponent >= -4 && i64::from(exponent) < digits as i64;
    let text = match is_fixed {
        true => fixed(size, (digits as i64 - 1 - i64::from(exponent)) as usize, alternate),
        false => scientific(size, digits - 1, alternate),
    };
    let (mantissa, tail) = text.split_at(text.find('e').unwrap_or(text.len()));
    if alternate || !mantissa.contains('.') {
        return text;
    }
    format!("{}{tail}", mantissa.trim_end_matches('0').trim_end_matches('.'))
}

/// `%a`, behind its `0x`: rounded to nearest even where the precision is less than 13.
fn hexadecimal(size: f64, precision: Option<usize>, alternate: bool) -> String {
    let (bits, one) = (size.to_bits(), 1u64 << 52);
    let (lead, exponent) = match bits >> 52 {
        0 if bits == 0 => (0, 0),
        0 => (0, -1022),
        biased => (one, biased as i32 - 1023),
    };
    let mut mantissa = lead | bits & (one - 1);
    if let Some(cut) = precision.filter(|&digits| digits < 13).map(|digits| 52 - 4 * digits) {
        let (half, rest) = (1u64 << (cut - 1), mantissa & ((1 << cut) - 1));
        let up = rest > half || rest == half && mantissa >> cut & 1 == 1;
        mantissa = ((mantissa >> cut) + u64::from(up)) << cut;
    }
    let all = format!("{:013x}", mantissa & (one - 1));
    let digits = match precision {
        Some(digits) => format!("{all:0<digits$}")[..digits.max(13)][..digits].to_owned(),
        None => all.trim_end_matches('0').to_owned(),
    };
    let point = if digits.is_empty() && !alternate { "" } else { "." };
    format!("{}{point}{digits}p{exponent:+}", mantissa >> 52)
}
