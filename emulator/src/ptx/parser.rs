//! Tokens to the syntax tree.

use super::PtxError;
use super::ast::{Arg, Ast, Function, Init, Inst, Num, Stmt, Var};
use super::lexer::{Tok, lex};
use super::types::{Space, Ty};
use std::collections::HashMap;
use std::rc::Rc;

type Res<T> = Result<T, PtxError>;

struct Parser {
    toks: Vec<(Tok, u32)>,
    at: usize,
    ast: Ast,
    provenance: HashMap<u32, (String, u32)>,
    files: HashMap<u64, String>,
    /// Position of the last `.loc`, as an index into the sources plus one.
    loc: u32,
    /// Position given by a comment, likewise, by line.
    depth: u32,
}

/// Reads a module.
pub(crate) fn parse(text: &str) -> Res<Ast> {
    let tokens = lex(text)?;
    let mut p = Parser {
        toks: tokens.toks,
        at: 0,
        ast: Ast::default(),
        provenance: tokens.provenance,
        files: HashMap::new(),
        loc: 0,
        depth: 0,
    };
    p.files();
    p.module()?;
    Ok(p.ast)
}

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
    fn eat(&mut self, c: char) -> bool {
        let hit = *self.peek() == Tok::Punct(c);
        if hit {
            self.next();
        }
        hit
    }
    fn expect(&mut self, c: char) -> Res<()> {
        if self.eat(c) { Ok(()) } else { self.fail(format!("expected `{c}`")) }
    }
    fn word(&mut self) -> Res<String> {
        match self.peek() {
            Tok::Word(_) => match self.next() {
                Tok::Word(w) => Ok(w),
                _ => self.fail("expected a name"),
            },
            _ => self.fail("expected a name"),
        }
    }
    fn is_word(&self, w: &str) -> bool {
        matches!(self.peek(), Tok::Word(x) if x == w)
    }
    fn eat_word(&mut self, w: &str) -> bool {
        let hit = self.is_word(w);
        if hit {
            self.next();
        }
        hit
    }
    fn int(&mut self) -> Res<u64> {
        match *self.peek() {
            Tok::Int(v) => {
                self.next();
                Ok(v)
            }
            _ => self.fail("expected an integer"),
        }
    }

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

    fn source(&mut self, file: String, line: u32) -> u32 {
        let entry = (file, line);
        if self.ast.sources.last() != Some(&entry) {
            self.ast.sources.push(entry);
        }
        self.ast.sources.len() as u32
    }

    fn module(&mut self) -> Res<()> {
        loop {
            let line = self.line();
            if *self.peek() == Tok::End {
                break;
            }
            let mut external = false;
            while self.is_word(".visible")
                || self.is_word(".extern")
                || self.is_word(".weak")
                || self.is_word(".common")
            {
                external |= self.is_word(".extern");
                self.next();
            }
            let word = match self.peek() {
                Tok::Word(w) => w.clone(),
                _ => return self.fail("expected a directive"),
            };
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
                    let digits: String =
                        target.trim_start_matches("sm_").chars().take_while(char::is_ascii_digit).collect();
                    let sm = target.strip_prefix("sm_").and_then(|_| digits.parse().ok());
                    self.ast.sm = sm.ok_or_else(|| PtxError::new(line, &target, "expected a target such as sm_75"))?;
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
                ".section" => self.section()?,
                ".pragma" => self.skip_statement(),
                ".entry" | ".func" => {
                    if let Some(f) = self.function()? {
                        self.ast.functions.push(Rc::new(f));
                    }
                }
                ".global" | ".const" | ".shared" => {
                    let mut vars = self.variables()?;
                    vars.iter_mut().for_each(|v| v.external = external);
                    self.ast.vars.append(&mut vars);
                }
                _ => return self.fail("directive that is not known at module scope"),
            }
        }
        if self.ast.sm == 0 {
            return Err(PtxError::new(1, ".target", "the module names no target"));
        }
        Ok(())
    }

    fn skip_statement(&mut self) {
        while !self.eat(';') && *self.peek() != Tok::End {
            self.next();
        }
    }

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

    /// DWARF sections are passed over.
    fn section(&mut self) -> Res<()> {
        self.next();
        self.word()?;
        self.expect('{')?;
        while !self.eat('}') {
            if *self.peek() == Tok::End {
                return self.fail("section is not closed");
            }
            self.next();
        }
        Ok(())
    }

    fn space(word: &str) -> Option<Space> {
        Some(match word {
            ".global" => Space::Global,
            ".const" => Space::Const,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            ".param" => Space::Param,
            _ => return None,
        })
    }

    fn typ(&mut self) -> Res<Ty> {
        let line = self.line();
        let w = self.word()?;
        let ty = w.strip_prefix('.').and_then(Ty::parse);
        ty.ok_or_else(|| PtxError::new(line, w, "expected a type"))
    }

    /// `.global .align 4 .b8 name[16] = {..}, name2;`
    fn variables(&mut self) -> Res<Vec<Var>> {
        let mut out = Vec::new();
        let first = self.variable_head()?;
        loop {
            let mut v = first.clone();
            self.variable_name(&mut v)?;
            if self.eat('=') {
                self.initialiser(&mut v)?;
            }
            out.push(v);
            if !self.eat(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(out)
    }

    fn variable_head(&mut self) -> Res<Var> {
        let line = self.line();
        let w = self.word()?;
        let space = Self::space(&w).ok_or_else(|| PtxError::new(line, &w, "expected a state space"))?;
        let mut align = 0;
        let mut vector = 1;
        loop {
            if self.eat_word(".align") {
                align = self.int()? as u32;
            } else if self.eat_word(".ptr") {
                continue;
            } else if self.eat_word(".v2") {
                vector = 2;
            } else if self.eat_word(".v4") {
                vector = 4;
            } else {
                break;
            }
        }
        let ty = self.typ()?;
        // Attributes of pointer parameters: `.ptr .global .align 16`.
        while matches!(self.peek(), Tok::Word(w) if matches!(w.as_str(), ".ptr" | ".global" | ".shared" | ".local" | ".const" | ".align"))
        {
            if self.word()? == ".align" {
                self.int()?;
            }
        }
        let align = if align == 0 { ty.bytes() * vector } else { align };
        if !align.is_power_of_two() {
            return Err(PtxError::new(line, align.to_string(), "alignment must be a power of two"));
        }
        let count = Some(u64::from(vector));
        Ok(Var { space, ty, align, name: String::new(), count, init: Vec::new(), external: false, line })
    }

    fn variable_name(&mut self, v: &mut Var) -> Res<()> {
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
        // `%name<4>`: a numbered family is only used for registers.
        Ok(())
    }

    fn initialiser(&mut self, v: &mut Var) -> Res<()> {
        let mut depth = 0;
        loop {
            match self.peek().clone() {
                Tok::Punct('{') => {
                    depth += 1;
                    self.next();
                }
                Tok::Punct('}') => {
                    depth -= 1;
                    self.next();
                }
                Tok::Punct(',') if depth > 0 => {
                    self.next();
                }
                Tok::Word(name) => {
                    self.next();
                    let name = if name == "generic" {
                        self.expect('(')?;
                        let inner = self.word()?;
                        self.expect(')')?;
                        inner
                    } else {
                        name
                    };
                    let offset = if self.eat('+') { self.int()? as i64 } else { 0 };
                    v.init.push(Init::Address(name, offset));
                }
                _ => {
                    let n = self.number()?;
                    v.init.push(Init::Num(n));
                }
            }
            if depth == 0 {
                break;
            }
        }
        if v.count.is_none() {
            v.count = Some(v.init.len() as u64);
        }
        if v.init.len() as u64 > v.count.unwrap_or(0) {
            return Err(PtxError::new(v.line, &v.name, "more initial values than elements"));
        }
        Ok(())
    }

    fn number(&mut self) -> Res<Num> {
        let minus = self.eat('-');
        let plus = !minus && self.eat('+');
        let _ = plus;
        Ok(match *self.peek() {
            Tok::Int(v) => {
                self.next();
                Num::Int(if minus { v.wrapping_neg() } else { v })
            }
            Tok::F32(b) => {
                self.next();
                Num::F32(if minus { b ^ 0x8000_0000 } else { b })
            }
            Tok::F64(v) => {
                self.next();
                Num::F64(if minus { -v } else { v })
            }
            _ => return self.fail("expected a number"),
        })
    }

    fn parameters(&mut self) -> Res<Vec<Var>> {
        let mut out = Vec::new();
        if !self.eat('(') {
            return Ok(out);
        }
        while !self.eat(')') {
            if self.is_word(".reg") {
                return self.fail("register parameters are not supported; declare them with .param");
            }
            let mut v = self.variable_head()?;
            self.variable_name(&mut v)?;
            if v.space != Space::Param {
                return self.fail("parameters live in .param space");
            }
            out.push(v);
            self.eat(',');
        }
        Ok(out)
    }

    fn dims(&mut self) -> Res<[u32; 3]> {
        let mut d = [1u32; 3];
        for (i, slot) in d.iter_mut().enumerate() {
            if i > 0 && !self.eat(',') {
                break;
            }
            *slot = self.int()? as u32;
        }
        Ok(d)
    }

    fn function(&mut self) -> Res<Option<Function>> {
        let line = self.line();
        let entry = self.word()? == ".entry";
        let returns = self.parameters()?;
        let name = self.word()?;
        let params = self.parameters()?;
        let mut f = Function {
            name,
            entry,
            returns,
            params,
            body: Vec::new(),
            reqntid: None,
            maxntid: None,
            cluster: None,
            min_ctas: None,
            line,
        };
        loop {
            if self.eat(';') {
                return Ok(None); // a declaration
            }
            if *self.peek() == Tok::Punct('{') {
                break;
            }
            let here = self.line();
            let directive = self.word()?;
            match directive.as_str() {
                ".reqntid" => f.reqntid = Some(self.dims()?),
                ".maxntid" => f.maxntid = Some(self.dims()?),
                ".reqnctapercluster" => f.cluster = Some(self.dims()?),
                ".maxclusterrank" | ".maxnreg" => {
                    self.int()?;
                }
                ".explicitcluster" | ".noreturn" | ".blocksareclusters" => {}
                ".minnctapersm" | ".maxnctapersm" => f.min_ctas = Some(self.int()? as u32),
                ".pragma" => self.skip_statement(),
                _ => return Err(PtxError::new(here, directive, "directive that is not known for a function")),
            }
        }
        self.expect('{')?;
        self.loc = 0;
        f.body = self.body()?;
        Ok(Some(f))
    }

    fn body(&mut self) -> Res<Vec<Stmt>> {
        self.depth += 1;
        if self.depth > 64 {
            return self.fail("blocks nested too deeply");
        }
        let mut out = Vec::new();
        loop {
            let line = self.line();
            match self.peek().clone() {
                Tok::Punct('}') => {
                    self.next();
                    self.depth -= 1;
                    return Ok(out);
                }
                Tok::Punct('{') => {
                    self.next();
                    out.push(Stmt::Block(self.body()?));
                }
                Tok::Punct(';') => {
                    self.next();
                }
                Tok::Punct('@') => {
                    self.next();
                    let negated = self.eat('!');
                    let p = self.word()?;
                    out.push(self.instruction(Some((p, negated)))?);
                }
                Tok::Word(w) if w.starts_with('.') => self.directive(&w, &mut out)?,
                Tok::Word(w) => {
                    if matches!(self.toks[self.at + 1].0, Tok::Punct(':')) {
                        self.next();
                        self.next();
                        if self.eat_word(".branchtargets") {
                            let mut list = vec![self.word()?];
                            while self.eat(',') {
                                list.push(self.word()?);
                            }
                            self.expect(';')?;
                            out.push(Stmt::Targets(w, list, line));
                        } else if self.is_word(".callprototype") {
                            return self.fail("indirect calls are not supported");
                        } else {
                            out.push(Stmt::Label(w, line));
                        }
                    } else {
                        out.push(self.instruction(None)?);
                    }
                }
                _ => return self.fail("expected a statement"),
            }
        }
    }

    fn directive(&mut self, w: &str, out: &mut Vec<Stmt>) -> Res<()> {
        let line = self.line();
        match w {
            ".reg" => {
                self.next();
                let mut vector = 1;
                if self.eat_word(".v2") {
                    vector = 2;
                }
                if vector != 1 {
                    return self.fail("vector registers are not supported; name scalars in braces");
                }
                let ty = self.typ()?;
                loop {
                    let name = self.word()?;
                    let mut count = None;
                    if self.eat('<') {
                        count = Some(self.int()? as u32);
                        self.expect('>')?;
                    }
                    out.push(Stmt::Reg { ty, name, count, line });
                    if !self.eat(',') {
                        break;
                    }
                }
                self.expect(';')
            }
            ".shared" | ".local" | ".param" | ".global" | ".const" => {
                out.extend(self.variables()?.into_iter().map(Stmt::Var));
                Ok(())
            }
            ".loc" => {
                self.next();
                let file = self.int()?;
                let source_line = self.int()? as u32;
                self.int()?;
                while self.eat(',') {
                    // inlining information: `function_name label, inlined_at file line column`
                    while matches!(self.peek(), Tok::Word(w) if !w.starts_with('.'))
                        || matches!(self.peek(), Tok::Int(_))
                    {
                        if matches!(self.toks[self.at + 1].0, Tok::Punct(':')) {
                            break;
                        }
                        let inlined = self.is_word("inlined_at") || self.is_word("function_name");
                        let is_int = matches!(self.peek(), Tok::Int(_));
                        if !inlined && !is_int {
                            break;
                        }
                        self.next();
                        if inlined && matches!(self.peek(), Tok::Word(_)) {
                            self.next();
                            if self.eat('+') {
                                self.int()?;
                            }
                        }
                    }
                }
                let name = self.files.get(&file).cloned().unwrap_or_else(|| format!("file {file}"));
                self.loc = self.source(name, source_line);
                Ok(())
            }
            ".file" => self.file(),
            ".pragma" => {
                self.skip_statement();
                Ok(())
            }
            _ => self.fail("directive that is not known in a body"),
        }
    }

    fn instruction(&mut self, guard: Option<(String, bool)>) -> Res<Stmt> {
        let line = self.line();
        let op = self.word()?;
        let mut args = Vec::new();
        if !self.eat(';') {
            loop {
                args.push(self.arg()?);
                if self.eat(';') {
                    break;
                }
                self.expect(',')?;
            }
        }
        let source = match self.provenance.get(&line).cloned() {
            Some((file, l)) => self.source(file, l),
            None => self.loc,
        };
        Ok(Stmt::Inst(Inst { guard, op, args, line, source }))
    }

    fn arg(&mut self) -> Res<Arg> {
        match self.peek().clone() {
            Tok::Punct('[') => {
                self.next();
                let mut base = None;
                let mut offset = 0i64;
                if let Tok::Word(w) = self.peek().clone() {
                    self.next();
                    base = Some(w);
                }
                while !self.eat(']') {
                    let negative = match self.peek() {
                        Tok::Punct('+') => {
                            self.next();
                            self.eat('-')
                        }
                        Tok::Punct('-') => {
                            self.next();
                            true
                        }
                        Tok::Int(_) if base.is_none() => false,
                        _ => return self.fail("address form that is not known"),
                    };
                    let v = self.int()? as i64;
                    offset = offset.wrapping_add(if negative { v.wrapping_neg() } else { v });
                }
                Ok(Arg::Address(base, offset))
            }
            Tok::Punct('{') => {
                self.next();
                let mut list = Vec::new();
                while !self.eat('}') {
                    list.push(self.arg()?);
                    self.eat(',');
                }
                Ok(Arg::Vector(list))
            }
            Tok::Punct('(') => {
                self.next();
                let mut list = Vec::new();
                while !self.eat(')') {
                    list.push(self.arg()?);
                    self.eat(',');
                }
                Ok(Arg::List(list))
            }
            Tok::Punct('!') => {
                self.next();
                Ok(Arg::Not(self.word()?))
            }
            Tok::Word(w) => {
                self.next();
                if self.eat('|') {
                    return Ok(Arg::Pair(w, self.word()?));
                }
                if self.eat('+') {
                    return Ok(Arg::Offset(w, self.int()? as i64));
                }
                Ok(Arg::Word(w))
            }
            _ => Ok(Arg::Num(self.number()?)),
        }
    }
}
