//! Names of registers, labels and variables in a kernel's text: the kernel's own, or the shortest.

use super::builder::{DYNAMIC, REST};
use super::ir::{Class, Function, Reg};
use super::live::{Shared, pool};
use super::print::Text;
use std::cmp::Reverse;
use std::fmt::{self, Display, Formatter};

/// Whether Rust and PTX take it as a name. No keyword of Rust is all capitals.
pub(crate) fn is_identifier(name: &str) -> bool {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let named = name.starts_with(|c: char| c.is_ascii_alphabetic())
        || name.starts_with('_') && name.contains(|c: char| c.is_ascii_alphanumeric());
    plain && named
}

/// The names of one kernel.
pub(crate) struct Names<'a> {
    function: &'a Function,
    short: Option<Short>,
}

/// The names of registers in light text.
struct Short {
    shared: Shared,
    /// By class and place.
    names: [Vec<String>; Class::ALL.len()],
}

/// A name, to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Name<'a> {
    Own(&'a str),
    Numbered(&'static str, u32),
}

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Name::Own(name) => f.write_str(name),
            Name::Numbered(prefix, number) => write!(f, "{prefix}{number}"),
        }
    }
}

impl<'a> Names<'a> {
    pub(crate) fn new(text: Text, function: &'a Function) -> Names<'a> {
        let short = match text {
            Text::Full => None,
            Text::Light => Some(Short::of(function)),
        };
        Names { function, short }
    }

    pub(crate) fn reg(&self, reg: Reg) -> Name<'_> {
        match &self.short {
            None => Name::Numbered(reg.class.prefix(), reg.index),
            Some(short) => Name::Own(&short.names[pool(reg.class) as usize][short.shared.place(reg) as usize]),
        }
    }

    /// Whether two registers have one name.
    pub(crate) fn same(&self, one: Reg, other: Reg) -> bool {
        let place = |short: &Short, reg: Reg| (pool(reg.class), short.shared.place(reg));
        self.short.as_ref().map_or(one == other, |short| place(short, one) == place(short, other))
    }

    /// The names of a class as they are declared, if there are any.
    pub(crate) fn declared(&self, class: Class) -> Option<String> {
        match &self.short {
            None => {
                let mut count = 0;
                let mut see = |reg: Reg| count = if reg.class == class { count.max(reg.index + 1) } else { count };
                self.function.instructions(&mut |inst| {
                    inst.dst.iter().chain(&inst.src).for_each(|arg| arg.registers(&mut see));
                });
                (count > 0).then(|| format!("{}<{count}>", class.prefix()))
            }
            Some(short) => {
                let names = &short.names[class as usize];
                (!names.is_empty()).then(|| names.join(","))
            }
        }
    }

    pub(crate) fn label(&self, number: u32) -> Name<'static> {
        Name::Numbered(if self.short.is_none() { "$L" } else { "L" }, number)
    }

    /// The predicate that tells a role from those after it.
    pub(crate) fn role(&self) -> Name<'static> {
        Name::Own(if self.short.is_none() { "%role" } else { "%q" })
    }

    /// How far what a symbol stands for lies behind what it is printed as.
    pub(crate) fn distance(&self, name: &str) -> i64 {
        if name == REST { i64::from(self.function.dynamic_shared) } else { 0 }
    }

    /// A parameter or a shared variable.
    pub(crate) fn symbol<'b>(&self, name: &'b str) -> Name<'b> {
        let name = if name == REST { DYNAMIC } else { name };
        if self.short.is_none() {
            return Name::Own(name);
        }
        if name == DYNAMIC {
            return Name::Own(dynamic(Text::Light));
        }
        let param = self.function.params.iter().position(|param| param.name == name);
        let shared = || self.function.shared.iter().position(|var| var.name == name);
        let numbered = |prefix, place| Name::Numbered(prefix, place as u32);
        let found = param.map(|place| numbered("$", place));
        found.or_else(|| shared().map(|place| numbered("_", place))).unwrap_or(Name::Own(name))
    }
}

impl Short {
    /// The shortest names go to the registers that are named most.
    fn of(function: &Function) -> Short {
        let shared = Shared::of(function);
        let mut order: Vec<(u32, Class, usize)> = Vec::new();
        for class in Class::ALL {
            order.extend(shared.uses(class).iter().enumerate().map(|(place, uses)| (*uses, class, place)));
        }
        order.sort_by_key(|(uses, class, place)| (Reverse(*uses), *class, *place));
        let mut names = Class::ALL.map(|class| vec![String::new(); shared.uses(class).len()]);
        for ((_, class, place), name) in order.into_iter().zip(identifiers()) {
            names[class as usize][place] = name;
        }
        Short { shared, names }
    }
}

/// Identifiers, shortest first: one letter, then a letter and a letter or digit, then with a number. None is an
/// instruction or begins like a label.
fn identifiers() -> impl Iterator<Item = String> {
    let letters = || ('a'..='z').chain('A'..='Z').filter(|letter| *letter != 'L');
    let second = || ('0'..='9').chain('a'..='z').chain('A'..='Z');
    let pairs = letters().flat_map(move |first| second().map(move |second| format!("{first}{second}")));
    let pairs = pairs.filter(|name| !matches!(name.as_str(), "ld" | "or" | "st"));
    letters().map(String::from).chain(pairs).chain((100..).map(|number| format!("a{number}")))
}

/// The module's array of dynamic shared memory; no entry's name begins with a dollar sign.
pub(crate) const fn dynamic(text: Text) -> &'static str {
    match text {
        Text::Full => DYNAMIC,
        Text::Light => "$s",
    }
}

#[cfg(test)]
mod tests {
    use super::identifiers;
    use std::collections::BTreeSet;

    #[test]
    fn identifiers_differ_and_are_no_instructions() {
        let some: Vec<String> = identifiers().take(10_000).collect();
        assert_eq!(some.iter().collect::<BTreeSet<_>>().len(), some.len());
        assert!(some.iter().all(|name| !name.starts_with('L') && !["ld", "or", "st"].contains(&name.as_str())));
        assert!(some[..51].iter().all(|name| name.len() == 1) && some[51..3200].iter().all(|name| name.len() == 2));
    }
}
