//! Tokens to the syntax tree.

use super::PtxError;
use super::ast::{Arg, Ast, Function, Init, Inst, Num, Stmt, Var};
use super::lexer::{Tok, lex};
use super::types::{Space, Ty};
use std::collections::HashMap;
use std::rc::Rc;

type Res<T> = Result<T, PtxError>;

/// Blocks inside blocks: more would only exhaust the stack.
const MAX_DEPTH: u32 = 64;

const SPACES: &[(&str, Space)] = &[
    (".global", Space::Global),
    (".const", Space::Const),
    (".shared", Space::Shared),
    (".local", Space::Local),
    (".param", Space::Param),
];

struct Parser {
    toks: Vec<(Tok, u32)>,
    at: usize,
    ast: Ast,
    provenance: HashMap<u32, (String, u32)>,
    files: HashMap<u64, String>,
    /// Position of the last `.loc`, as an index into the sources plus one.
    loc: u32,
    depth: u32,
}

/// Reads a module.
pub(crate) fn parse(text: &str) -> Res<Ast> {
    let tokens = lex(text)?;
    let (toks, provenance) = (tokens.toks, tokens.provenance);
    let mut p = Parser { toks, provenance, at: 0, ast: Ast::default(), files: HashMap::new(), loc: 0, depth: 0 };
    p.files();
    while *p.peek() != Tok::End {
        p.module_item()?;
    }
    if p.ast.sm == 0 {
        return Err(PtxError::new(1, ".target", "the module names no target"));
    }
    Ok(p.ast)
}

/// What all rules are made of.
impl Parser {
    fn peek(&self) -> &Tok {
        &self.toks[self.at].0
    }

    fn line(&self) -> u32 {
        self.toks[self.at].1
    }

    fn next(&mut self) -> Tok {
        let t = self.toks[self.at].0.clone();
        if self.at + 1 < self.toks.len() {
            self.at += 1;
        }
        t
    }

    fn fail<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(PtxError::new(self.line(), self.peek().show(), message))
    }

    fn is(&self, c: char) -> bool {
        *self.peek() == Tok::Punct(c)
    }

    fn eat(&mut self, c: char) -> bool {
        let hit = self.is(c);
        if hit {
            self.next();
        }
        hit
    }

    fn expect(&mut self, c: char) -> Res<()> {
        if self.eat(c) { Ok(()) } else { self.fail(format!("expected `{c}`")) }
    }

    fn word(&mut self) -> Res<String> {
        let Tok::Word(w) = self.peek().clone() else { return self.fail("expected a name") };
        self.next();
        Ok(w)
    }

    fn is_word(&self, list: &[&str]) -> bool {
        matches!(self.peek(), Tok::Word(x) if list.contains(&x.as_str()))
    }

    fn eat_word(&mut self, w: &str) -> bool {
        let hit = self.is_word(&[w]);
        if hit {
            self.next();
        }
        hit
    }

    fn int(&mut self) -> Res<u64> {
        let Tok::Int(v) = *self.peek() else { return self.fail("expected an integer") };
        self.next();
        Ok(v)
    }

    fn number(&mut self) -> Res<Num> {
        let minus = self.eat('-');
        if !minus {
            self.eat('+');
        }
        let n = match *self.peek() {
            Tok::Int(v) => Num::Int(if minus { v.wrapping_neg() } else { v }),
            Tok::F32(b) => Num::F32(if minus { b ^ 0x8000_0000 } else { b }),
            Tok::F64(v) => Num::F64(if minus { -v } else { v }),
            _ => return self.fail("expected a number"),
        };
        self.next();
        Ok(n)
    }

    /// `item, item`
    fn separated<T>(&mut self, mut item: impl FnMut(&mut Self) -> Res<T>) -> Res<Vec<T>> {
        let mut out = vec![item(self)?];
        while self.eat(',') {
            out.push(item(self)?);
        }
        Ok(out)
    }

    /// Items up to a closing bracket, perhaps none.
    fn until<T>(&mut self, close: char, item: impl FnMut(&mut Self) -> Res<T>) -> Res<Vec<T>> {
        if self.eat(close) {
            return Ok(Vec::new());
        }
        let list = self.separated(item)?;
        self.expect(close)?;
        Ok(list)
    }

    fn skip_to(&mut self, end: char) -> Res<()> {
        while !self.eat(end) {
            if *self.peek() == Tok::End {
                return self.fail(format!("expected `{end}`"));
            }
            self.next();
        }
        Ok(())
    }
}

/// Source positions.
impl Parser {
    /// `.file` directives may follow their use: read them all first.
    fn files(&mut self) {
        for w in self.toks.windows(3) {
            if let [(Tok::Word(d), _), (Tok::Int(n), _), (Tok::Str(s), _)] = w
                && d == ".file"
            {
                self.files.insert(*n, s.clone());
            }
        }
    }

    /// `.file 1 "name", size, time`
    fn file(&mut self) -> Res<()> {
        self.next();
        self.int()?;
        if !matches!(self.next(), Tok::Str(_)) {
            return self.fail("expected a file name");
        }
        while self.eat(',') {
            self.int()?;
        }
        Ok(())
    }

    /// `.loc file line column, function_name label, inlined_at file line column`
    fn location(&mut self) -> Res<()> {
        self.next();
        let (file, line) = (self.int()?, self.int()? as u32);
        self.int()?;
        while self.eat(',') {
            if self.eat_word("function_name") {
                self.word()?;
                if self.eat('+') {
                    self.int()?;
                }
            } else if self.eat_word("inlined_at") {
                for _ in 0..3 {
                    self.int()?;
                }
            } else {
                return self.fail("attribute of a location that is not known");
            }
        }
        let name = self.files.get(&file).cloned().unwrap_or_else(|| format!("file {file}"));
        self.loc = self.source(name, line);
        Ok(())
    }

    fn source(&mut self, file: String, line: u32) -> u32 {
        let entry = (file, line);
        if self.ast.sources.last() != Some(&entry) {
            self.ast.sources.push(entry);
        }
        self.ast.sources.len() as u32
    }
}

/// Module scope.
impl Parser {
    fn module_item(&mut self) -> Res<()> {
        let line = self.line();
        let mut external = false;
        while self.is_word(&[".visible", ".extern", ".weak", ".common"]) {
            external |= self.is_word(&[".extern"]);
            self.next();
        }
        let Tok::Word(word) = self.peek().clone() else { return self.fail("expected a directive") };
        match word.as_str() {
            ".version" => {
                self.next();
                self.ast.version = match self.next() {
                    Tok::F64(v) => (v as u32, ((v - v.floor()) * 10.0).round() as u32),
                    Tok::Int(v) => (v as u32, 0),
                    _ => return Err(PtxError::new(line, ".version", "expected a version such as 7.4")),
                };
            }
            ".target" => {
                self.next();
                let target = self.word()?;
                let digits = target.strip_prefix("sm_").map(|s| s.trim_end_matches(|c: char| c.is_ascii_alphabetic()));
                let Some(sm) = digits.and_then(|d| d.parse().ok()) else {
                    return Err(PtxError::new(line, &target, "expected a target such as sm_75"));
                };
                self.ast.sm = sm;
                while self.eat(',') {
                    let option = self.word()?;
                    if !matches!(option.as_str(), "debug" | "texmode_independent" | "texmode_unified") {
                        return Err(PtxError::new(line, option, "target option that is not known"));
                    }
                }
            }
            ".address_size" => {
                self.next();
                if self.int()? != 64 {
                    return Err(PtxError::new(line, ".address_size", "only 64-bit addresses are supported"));
                }
            }
            ".file" => self.file()?,
            // DWARF sections are passed over.
            ".section" => self.skip_to('}')?,
            ".pragma" => self.skip_to(';')?,
            ".entry" | ".func" => {
                let function = self.function()?;
                self.ast.functions.extend(function.map(Rc::new));
            }
            ".global" | ".const" | ".shared" => {
                let vars = self.variables()?;
                self.ast.vars.extend(vars.into_iter().map(|v| Var { external, ..v }));
            }
            _ => return self.fail("directive that is not known at module scope"),
        }
        Ok(())
    }

    /// `.entry name(parameters) directives { body }`; nothing for a declaration.
    fn function(&mut self) -> Res<Option<Function>> {
        let line = self.line();
        let entry = self.word()? == ".entry";
        let returns = self.parameters()?;
        let name = self.word()?;
        let params = self.parameters()?;
        let (reqntid, maxntid, cluster, min_ctas) = (None, None, None, None);
        let body = Vec::new();
        let mut f = Function { name, entry, returns, params, body, reqntid, maxntid, cluster, min_ctas, line };
        while !self.eat('{') {
            if self.eat(';') {
                return Ok(None);
            }
            let here = self.line();
            let directive = self.word()?;
            match directive.as_str() {
                ".reqntid" => f.reqntid = Some(self.dims()?),
                ".maxntid" => f.maxntid = Some(self.dims()?),
                ".reqnctapercluster" => f.cluster = Some(self.dims()?),
                ".minnctapersm" | ".maxnctapersm" => f.min_ctas = Some(self.int()? as u32),
                ".maxclusterrank" | ".maxnreg" => drop(self.int()?),
                ".explicitcluster" | ".noreturn" | ".blocksareclusters" => {}
                ".pragma" => self.skip_to(';')?,
                _ => return Err(PtxError::new(here, directive, "directive that is not known for a function")),
            }
        }
        self.loc = 0;
        f.body = self.body()?;
        Ok(Some(f))
    }

    fn parameters(&mut self) -> Res<Vec<Var>> {
        if !self.eat('(') {
            return Ok(Vec::new());
        }
        self.until(')', |p| {
            if p.is_word(&[".reg"]) {
                return p.fail("register parameters are not supported; declare them with .param");
            }
            let v = p.variable_head()?;
            let v = p.variable_name(v)?;
            if v.space == Space::Param { Ok(v) } else { p.fail("parameters live in .param space") }
        })
    }

    fn dims(&mut self) -> Res<[u32; 3]> {
        let given = self.separated(Self::int)?;
        if given.len() > 3 {
            return self.fail("more than three dimensions");
        }
        Ok(std::array::from_fn(|i| given.get(i).map_or(1, |d| *d as u32)))
    }
}

/// Variables.
impl Parser {
    fn typ(&mut self) -> Res<Ty> {
        let line = self.line();
        let w = self.word()?;
        let ty = w.strip_prefix('.').and_then(Ty::parse);
        ty.ok_or_else(|| PtxError::new(line, w, "expected a type"))
    }

    /// `.global .align 4 .b8 name[16] = {..}, name2;`
    fn variables(&mut self) -> Res<Vec<Var>> {
        let head = self.variable_head()?;
        let list = self.separated(|p| {
            let v = p.variable_name(head.clone())?;
            if p.eat('=') { p.initialiser(v) } else { Ok(v) }
        })?;
        self.expect(';')?;
        Ok(list)
    }

    fn variable_head(&mut self) -> Res<Var> {
        let line = self.line();
        let w = self.word()?;
        let Some((_, space)) = SPACES.iter().find(|(name, _)| *name == w) else {
            return Err(PtxError::new(line, &w, "expected a state space"));
        };
        let (mut align, mut vector) = (None, 1);
        while self.is_word(&[".align", ".v2", ".v4"]) {
            match self.word()?.as_str() {
                ".align" => align = Some(self.int()? as u32),
                v => vector = if v == ".v2" { 2 } else { 4 },
            }
        }
        let ty = self.typ()?;
        // Attributes of pointer parameters: `.ptr .global .align 16`.
        while self.is_word(&[".ptr", ".global", ".shared", ".local", ".const", ".align"]) {
            if self.word()? == ".align" {
                self.int()?;
            }
        }
        let align = align.unwrap_or(ty.bytes() * vector);
        if !align.is_power_of_two() {
            return Err(PtxError::new(line, align.to_string(), "alignment must be a power of two"));
        }
        let (count, name, init) = (Some(u64::from(vector)), String::new(), Vec::new());
        Ok(Var { space: *space, ty, align, name, count, init, external: false, line })
    }

    /// `name[4][2]`
    fn variable_name(&mut self, mut v: Var) -> Res<Var> {
        v.line = self.line();
        v.name = self.word()?;
        while self.eat('[') {
            if self.eat(']') {
                v.count = None;
                continue;
            }
            let n = self.int()?;
            v.count = v.count.and_then(|c| c.checked_mul(n));
            self.expect(']')?;
        }
        Ok(v)
    }

    fn initialiser(&mut self, mut v: Var) -> Res<Var> {
        self.initial_values(&mut v.init)?;
        let n = v.init.len() as u64;
        if n > *v.count.get_or_insert(n) {
            return Err(PtxError::new(v.line, &v.name, "more initial values than elements"));
        }
        Ok(v)
    }

    /// A value, or a list of such in braces.
    fn initial_values(&mut self, out: &mut Vec<Init>) -> Res<()> {
        if self.eat('{') {
            return self.until('}', |p| p.initial_values(out)).map(drop);
        }
        if !matches!(self.peek(), Tok::Word(_)) {
            out.push(Init::Num(self.number()?));
            return Ok(());
        }
        let mut name = self.word()?;
        if name == "generic" {
            self.expect('(')?;
            name = self.word()?;
            self.expect(')')?;
        }
        let offset = if self.eat('+') { self.int()? as i64 } else { 0 };
        out.push(Init::Address(name, offset));
        Ok(())
    }
}

/// Bodies.
impl Parser {
    fn body(&mut self) -> Res<Vec<Stmt>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail("blocks nested too deeply");
        }
        let mut out = Vec::new();
        while !self.eat('}') {
            self.statement(&mut out)?;
        }
        self.depth -= 1;
        Ok(out)
    }

    fn statement(&mut self, out: &mut Vec<Stmt>) -> Res<()> {
        let line = self.line();
        let label = matches!(self.toks.get(self.at + 1), Some((Tok::Punct(':'), _)));
        if self.eat('{') {
            out.push(Stmt::Block(self.body()?));
        } else if self.eat(';') {
        } else if self.eat('@') {
            let negated = self.eat('!');
            let p = self.word()?;
            out.push(self.instruction(Some((p, negated)))?);
        } else if !matches!(self.peek(), Tok::Word(_)) {
            return self.fail("expected a statement");
        } else if matches!(self.peek(), Tok::Word(w) if w.starts_with('.')) {
            self.directive(out)?;
        } else if !label {
            out.push(self.instruction(None)?);
        } else {
            let name = self.word()?;
            self.next();
            if self.eat_word(".branchtargets") {
                let list = self.separated(Self::word)?;
                self.expect(';')?;
                out.push(Stmt::Targets(name, list, line));
            } else if self.is_word(&[".callprototype"]) {
                return self.fail("indirect calls are not supported");
            } else {
                out.push(Stmt::Label(name, line));
            }
        }
        Ok(())
    }

    fn directive(&mut self, out: &mut Vec<Stmt>) -> Res<()> {
        if self.is_word(&[".shared", ".local", ".param", ".global", ".const"]) {
            out.extend(self.variables()?.into_iter().map(Stmt::Var));
        } else if self.is_word(&[".loc"]) {
            self.location()?;
        } else if self.is_word(&[".file"]) {
            self.file()?;
        } else if self.is_word(&[".pragma"]) {
            self.skip_to(';')?;
        } else if self.eat_word(".reg") {
            if self.is_word(&[".v2", ".v4"]) {
                return self.fail("vector registers are not supported; name scalars in braces");
            }
            let (line, ty) = (self.line(), self.typ()?);
            out.extend(self.separated(|p| {
                let name = p.word()?;
                let count = if p.eat('<') { Some(p.int()? as u32) } else { None };
                if count.is_some() {
                    p.expect('>')?;
                }
                Ok(Stmt::Reg { ty, name, count, line })
            })?);
            self.expect(';')?;
        } else {
            return self.fail("directive that is not known in a body");
        }
        Ok(())
    }

    fn instruction(&mut self, guard: Option<(String, bool)>) -> Res<Stmt> {
        let line = self.line();
        let op = self.word()?;
        let args = self.until(';', Self::arg)?;
        let source = match self.provenance.get(&line).cloned() {
            Some((file, l)) => self.source(file, l),
            None => self.loc,
        };
        Ok(Stmt::Inst(Inst { guard, op, args, line, source }))
    }

    fn arg(&mut self) -> Res<Arg> {
        if self.eat('[') {
            return self.address();
        }
        if self.eat('{') {
            return Ok(Arg::Vector(self.until('}', Self::arg)?));
        }
        if self.eat('(') {
            return Ok(Arg::List(self.until(')', Self::arg)?));
        }
        if self.eat('!') {
            return Ok(Arg::Not(self.word()?));
        }
        if !matches!(self.peek(), Tok::Word(_)) {
            return Ok(Arg::Num(self.number()?));
        }
        let w = self.word()?;
        if self.eat('|') {
            return Ok(Arg::Pair(w, self.word()?));
        }
        if self.eat('+') {
            return Ok(Arg::Offset(w, self.int()? as i64));
        }
        Ok(Arg::Word(w))
    }

    /// `base+offset]`
    fn address(&mut self) -> Res<Arg> {
        let base = if matches!(self.peek(), Tok::Word(_)) { Some(self.word()?) } else { None };
        let mut offset = 0i64;
        while !self.eat(']') {
            let (plus, minus) = (self.eat('+'), self.eat('-'));
            let absolute = base.is_none() && matches!(self.peek(), Tok::Int(_));
            if !(plus || minus || absolute) {
                return self.fail("address form that is not known");
            }
            let v = self.int()? as i64;
            offset = offset.wrapping_add(if minus { v.wrapping_neg() } else { v });
        }
        Ok(Arg::Address(base, offset))
    }
}
