//! Parser: tokens to the syntax tree. A rule that takes a `Token` continues after it.

use super::ast::{Arg, Ast, Body, Function, Inst, Num, Stmt, Var};
use super::lexer::{Lexer, Token};
use super::{PtxError, Res};
use crate::machine::kernel::KernelInfo;
use crate::machine::types::{Space, Ty};
use std::collections::HashMap;
use std::sync::Arc;

/// Most nested brackets, to protect the stack.
const MAX_DEPTH: u32 = 64;
/// Most alignment in bytes, so that sizes cannot overflow.
const MAX_ALIGN: u32 = 1 << 16;
/// The text of the last token.
const END: &str = "";

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The next token.
    ahead: Token<'a>,
    depth: u32,
    /// Braces that are open.
    braces: u32,
    /// Source files by the numbers that `.file` gives them.
    files: HashMap<&'a str, &'a str>,
    /// Position of the last `.loc`.
    loc: Option<Arc<(String, u32)>>,
    /// Whether `.pragma "nounroll"` stood before what comes next.
    rolled: bool,
    ast: Ast,
}

/// Parses a module.
pub(crate) fn parse(text: &str) -> Res<Ast> {
    let mut lexer = Lexer::new(text);
    lexer.check_characters()?;
    let ahead = lexer.next();
    let mut p =
        Parser { lexer, ahead, depth: 0, braces: 0, files: files(text), loc: None, rolled: false, ast: Ast::default() };
    p.many(END, Parser::module_item)?;
    if p.ast.sm == 0 {
        return Err(PtxError::new(1, ".target", "the module names no target"));
    }
    Ok(p.ast)
}

/// File names by number. Read ahead, since `.file` may follow the `.loc` that refers to it.
fn files(text: &str) -> HashMap<&str, &str> {
    let mut lexer = Lexer::new(text);
    let tokens: Vec<&str> = std::iter::from_fn(|| Some(lexer.next().text).filter(|text| *text != END)).collect();
    let named = tokens.windows(3).filter(|w| w[0] == ".file");
    named.map(|w| (w[1], w[2].trim_matches('"'))).collect()
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Token<'a> {
        let next = self.lexer.next();
        let token = std::mem::replace(&mut self.ahead, next);
        match token.text {
            "{" => self.braces += 1,
            "}" => self.braces = self.braces.saturating_sub(1),
            _ => {}
        }
        token
    }

    fn eat(&mut self, text: &str) -> bool {
        let hit = self.ahead.text == text;
        if hit {
            self.next();
        }
        hit
    }

    fn expect(&mut self, text: &str) -> Res<()> {
        if self.eat(text) { Ok(()) } else { Err(self.ahead.error(format!("expected `{text}`"))) }
    }

    fn name(&mut self) -> Res<String> {
        let token = self.next();
        if token.is_word() { Ok(token.text.to_string()) } else { Err(token.error("expected a name")) }
    }

    fn int<T: TryFrom<u64>>(&mut self) -> Res<T> {
        let token = self.next();
        match token.number()? {
            Num::Int(value) => T::try_from(value).map_err(|_| token.error("integer that is too large")),
            _ => Err(token.error("expected an integer")),
        }
    }

    fn ty(&mut self) -> Res<Ty> {
        let token = self.next();
        if [".texref", ".samplerref", ".surfref"].contains(&token.text) {
            return Ok(Ty::B64);
        }
        token.text.strip_prefix('.').and_then(Ty::parse).ok_or_else(|| token.error("expected a type"))
    }

    /// The offset after a name, if any: `+4`, `-4` or `+-4`.
    fn offset(&mut self) -> Res<Option<i64>> {
        let some = self.eat("+") || self.ahead.text.starts_with('-');
        some.then(|| self.int::<u64>().map(|offset| offset as i64)).transpose()
    }

    /// Items up to the token `close`.
    fn many(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Res<()>) -> Res<()> {
        self.depth += 1;
        while !self.eat(close) {
            if self.depth > MAX_DEPTH {
                return Err(self.ahead.error("nested too deeply"));
            }
            if self.ahead.text == END {
                return self.expect(close);
            }
            item(self)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Items separated by commas, up to the token `close`.
    fn list<T>(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Res<T>) -> Res<Vec<T>> {
        let mut list = Vec::new();
        self.many(close, |p| {
            if !list.is_empty() {
                p.expect(",")?;
            }
            list.push(item(p)?);
            Ok(())
        })?;
        Ok(list)
    }

    fn module_item(&mut self) -> Res<()> {
        let mut start = self.next();
        let external = start.text == ".extern";
        while [".visible", ".extern", ".weak", ".common"].contains(&start.text) {
            start = self.next();
        }
        match start.text {
            ".version" => self.next().number().map(|_| ())?,
            ".address_size" => self.expect("64")?,
            ".target" => self.target()?,
            ".entry" | ".func" => self.function(start)?,
            ".global" | ".const" | ".shared" => {
                let vars = self.variables(start)?.into_iter();
                self.ast.vars.extend(vars.map(|v| Var { count: v.count.filter(|_| !external), ..v }));
            }
            _ if self.annotation(start)? => {}
            _ => return Err(start.error("directive that is not known at module scope")),
        }
        Ok(())
    }

    /// `.target sm_90a, debug`
    fn target(&mut self) -> Res<()> {
        let target = self.next();
        let digits = target.text.strip_prefix("sm_").map(|sm| sm.trim_end_matches(char::is_alphabetic));
        let sm = digits.and_then(|digits| digits.parse().ok());
        self.ast.sm = sm.ok_or_else(|| target.error("expected a target such as sm_75"))?;
        while self.eat(",") {
            let option = self.next();
            if !["debug", "texmode_independent", "texmode_unified"].contains(&option.text) {
                return Err(option.error("target option that is not known"));
            }
        }
        Ok(())
    }

    /// Reads a directive that may stand anywhere and changes no result. Returns whether it is one.
    fn annotation(&mut self, start: Token<'a>) -> Res<bool> {
        match start.text {
            ".pragma" => self.many(";", |p| {
                p.rolled |= p.next().text.trim_matches('"') == "nounroll";
                Ok(())
            })?,
            ".section" => self.many("}", |p| Ok(_ = p.next()))?, // DWARF
            // `.file number "name", time, size`
            ".file" => {
                let _read_before = (self.next(), self.next());
                while self.eat(",") {
                    self.int::<u64>()?;
                }
            }
            // `.loc file line column, function_name label+offset, inlined_at file line column`
            ".loc" => {
                let (file, line, _column) = (self.next(), self.int()?, self.int::<u32>()?);
                while self.eat(",") {
                    if self.name()? == "function_name" {
                        self.name()?;
                        self.offset()?;
                    } else {
                        (0..3).try_for_each(|_| self.int::<u32>().map(drop))?;
                    }
                }
                let name = self.files.get(file.text).unwrap_or(&file.text).to_string();
                self.loc = Some(Arc::new((name, line)));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `.entry name(parameters) directives { body }`; declarations without a body are skipped.
    fn function(&mut self, start: Token<'a>) -> Res<()> {
        let (returns, name, params) = (self.parameters()?, self.name()?, self.parameters()?);
        let (entry, line, info) = (start.text == ".entry", start.line, KernelInfo { name, ..KernelInfo::default() });
        let (address, taken, body, refused) = (0, false, Vec::new(), None);
        let mut f = Function { entry, returns, params, body, address, taken, refused, line, info };
        while !self.eat("{") {
            let directive = self.next();
            match directive.text {
                ";" => return Ok(()),
                ".reqntid" => f.info.reqntid = Some(self.dims()?),
                ".maxntid" => f.info.maxntid = Some(self.dims()?),
                ".minnctapersm" | ".maxnctapersm" => f.info.min_blocks = Some(self.int()?),
                ".maxnreg" | ".maxclusterrank" => drop(self.int::<u32>()?),
                ".explicitcluster" | ".noreturn" => {}
                ".reqnctapercluster" => f.info.cluster = Some(self.dims()?),
                _ if self.annotation(directive)? => {}
                _ => return Err(directive.error("directive that is not known for a function")),
            }
        }
        (self.loc, self.rolled) = (None, false);
        let (open, depth) = (self.braces, self.depth);
        match self.body() {
            Ok(body) => f.body = body,
            Err(error) => {
                self.depth = depth;
                while self.braces >= open {
                    if self.ahead.text == END {
                        return Err(error);
                    }
                    self.next();
                }
                f.refused = Some(error);
            }
        }
        self.ast.functions.push(f);
        Ok(())
    }

    fn parameters(&mut self) -> Res<Vec<Var>> {
        if !self.eat("(") {
            return Ok(Vec::new());
        }
        self.list(")", |p| {
            p.expect(".param")?;
            let head = p.variable_head(Space::Param)?;
            p.variable(&head)
        })
    }

    /// One to three dimensions.
    fn dims(&mut self) -> Res<[u32; 3]> {
        let x = self.int()?;
        let y = if self.eat(",") { self.int()? } else { 1 };
        let z = if self.eat(",") { self.int()? } else { 1 };
        Ok([x, y, z])
    }

    /// `.global .align 4 .b8 name[16] = {..}, name2;`
    fn variables(&mut self, start: Token<'a>) -> Res<Vec<Var>> {
        let space = start.text.strip_prefix('.').and_then(Space::parse);
        let space = space.ok_or_else(|| start.error("directive that is not known here"))?;
        let head = self.variable_head(space)?;
        self.list(";", |p| p.variable(&head))
    }

    /// A declaration up to the name: `.global .align 8 .f32`
    fn variable_head(&mut self, space: Space) -> Res<Var> {
        let align = if self.eat(".align") { Some(self.int()?) } else { None };
        let ty = self.ty()?;
        // What a parameter points to: `.ptr .global .align 16`.
        while [".ptr", ".global", ".const", ".shared", ".local", ".align"].contains(&self.ahead.text) {
            if self.next().text == ".align" {
                self.int::<u32>()?;
            }
        }
        let align = align.unwrap_or(ty.bytes());
        if ty == Ty::Pred || !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(self.ahead.error(format!("predicate, or alignment that is no power of two up to {MAX_ALIGN}")));
        }
        Ok(Var { space, ty, align, name: String::new(), count: Some(1), init: Vec::new(), line: 0 })
    }

    /// `name[4][2] = {..}`
    fn variable(&mut self, head: &Var) -> Res<Var> {
        let start = self.ahead;
        let mut v = Var { name: self.name()?, line: start.line, ..head.clone() };
        while self.eat("[") {
            let n: Option<u64> = if self.ahead.text == "]" { None } else { Some(self.int()?) };
            v.count = v.count.zip(n).map(|(count, n)| count.saturating_mul(n));
            self.expect("]")?;
        }
        if self.eat("=") {
            self.initial_values(&mut v.init)?;
            let n = v.init.len() as u64;
            if !matches!(v.space, Space::Global | Space::Const) || n > *v.count.get_or_insert(n) {
                return Err(start.error("more initial values than the variable can have"));
            }
        }
        Ok(v)
    }

    /// A value, or a list of values in braces.
    fn initial_values(&mut self, out: &mut Vec<Arg>) -> Res<()> {
        if self.eat("{") {
            self.list("}", |p| p.initial_values(out))?;
        } else if self.eat("generic") {
            // Addresses in memory are generic ones.
            self.expect("(")?;
            let name = self.name()?;
            self.expect(")")?;
            out.push(Arg::Offset(name, self.offset()?.unwrap_or(0)));
        } else {
            out.push(self.arg()?);
        }
        Ok(())
    }

    fn body(&mut self) -> Res<Body> {
        let mut body = Body::new();
        self.many("}", |p| {
            let start = p.next();
            if start.text != ";" && !p.annotation(start)? {
                body.push((start.line, p.statement(start)?));
            }
            Ok(())
        })?;
        Ok(body)
    }

    fn statement(&mut self, start: Token<'a>) -> Res<Stmt> {
        Ok(match start.text {
            "{" => Stmt::Block(self.body()?),
            ".reg" => Stmt::Registers(self.ty()?, self.list(";", Self::register)?),
            text if text.starts_with('.') => Stmt::Variables(self.variables(start)?),
            name if start.is_word() && self.eat(":") => self.labelled(name.to_string())?,
            _ => self.instruction(start)?,
        })
    }

    /// What stands behind `name:`, where it is no place in the code.
    fn labelled(&mut self, name: String) -> Res<Stmt> {
        match self.ahead.text {
            ".callprototype" => {
                self.next();
                let returns = self.parameters()?;
                self.name()?;
                let params = self.parameters()?;
                self.eat(".noreturn");
                self.expect(";")?;
                Ok(Stmt::Prototype(name, Arc::new((returns, params))))
            }
            ".calltargets" | ".branchtargets" => {
                self.next();
                Ok(Stmt::Targets(name, self.list(";", Self::name)?.into()))
            }
            _ => Ok(Stmt::Label(name)),
        }
    }

    /// `%r<4>` or `%x`
    fn register(&mut self) -> Res<(String, Option<u32>)> {
        let name = self.name()?;
        let count = if self.eat("<") { Some(self.int()?) } else { None };
        if count.is_some() {
            self.expect(">")?;
        }
        Ok((name, count))
    }

    /// `@!%p add.u32 %a, %b, 1;`
    fn instruction(&mut self, mut op: Token<'a>) -> Res<Stmt> {
        let mut guard = None;
        if op.text == "@" {
            let negated = self.eat("!");
            guard = Some((self.name()?, negated));
            op = self.next();
        }
        if !op.is_word() {
            return Err(op.error("expected an instruction"));
        }
        let (mut first, mut second) = (true, None);
        let args = self.list(";", |p| {
            let arg = p.arg()?;
            if std::mem::take(&mut first) && p.eat("|") {
                second = Some(p.name()?);
            }
            Ok(arg)
        })?;
        let source = match self.lexer.comment {
            (at, file, line) if at == op.line => Some(Arc::new((file.to_string(), line))),
            _ => self.loc.clone(),
        };
        Ok(Stmt::Inst(Inst {
            guard,
            op: op.text.into(),
            args,
            second,
            source,
            rolled: std::mem::take(&mut self.rolled),
        }))
    }

    fn arg(&mut self) -> Res<Arg> {
        let start = self.next();
        Ok(match start.text {
            "[" => {
                let (name, offset) = (self.name()?, self.offset()?.unwrap_or(0));
                match self.eat(",") {
                    true => Arg::Place(name, offset, self.list("]", Self::arg)?),
                    false => {
                        self.expect("]")?;
                        Arg::Address(name, offset)
                    }
                }
            }
            "{" => Arg::Vector(self.list("}", Self::arg)?),
            "(" => Arg::Vector(self.list(")", Self::arg)?),
            "!" => Arg::Not(self.name()?),
            word if start.is_word() => match self.offset()? {
                Some(offset) => Arg::Offset(word.to_string(), offset),
                None => Arg::Word(word.to_string()),
            },
            _ if start.is_number() => Arg::Num(start.number()?),
            _ => return Err(start.error("expected an operand")),
        })
    }
}
