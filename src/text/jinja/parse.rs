//! Words to a tree, no deeper than [`DEEPEST`].

mod expression;

use super::ast::{Expr, For, Kind, Macro, Node, Target};
use super::lex::Token;
use super::{Fault, fault};

/// Nested tags and operations of a template: what walks over the tree has a stack.
const DEEPEST: u32 = 100;

/// The name by which a macro runs the body that it is called with.
const CALLER: &str = "caller";

pub(super) struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: u32,
    macros: Vec<Macro>,
    /// Whether the macro that is read has run its caller's body.
    runs_caller: bool,
}

type Parsed<T> = Result<T, Fault>;

impl Parser {
    pub(super) fn new(tokens: Vec<(Token, u32)>) -> Parser {
        Parser { tokens, at: 0, depth: 0, macros: Vec::new(), runs_caller: false }
    }

    /// The whole template, and its macros.
    pub(super) fn template(mut self) -> Parsed<(Vec<Node>, Vec<Macro>)> {
        let (nodes, _) = self.body(&[])?;
        Ok((nodes, self.macros))
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    fn fail<T>(&self, what: impl Into<String>) -> Parsed<T> {
        Err(fault(self.line(), what))
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn take(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    fn takes(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn takes_sign(&mut self, sign: &'static str) -> bool {
        self.takes(&Token::Sign(sign))
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(name)) if name == word)
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: Token) -> Parsed<()> {
        match self.takes(&token) {
            true => Ok(()),
            false => self.fail(format!("found {:?}, needed {token:?}", self.peek())),
        }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.take() {
            Some(Token::Name(name)) => Ok(name),
            other => self.fail(format!("found {other:?}, needed a name")),
        }
    }

    /// Runs a part one level deeper.
    fn deeper<T>(&mut self, part: impl FnOnce(&mut Parser) -> Parsed<T>) -> Parsed<T> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.fail(format!("it is nested more than {DEEPEST} deep"));
        }
        let parsed = part(self);
        self.depth -= 1;
        parsed
    }

    // ---- statements

    /// Nodes up to a block of one of these words, which is taken with its name, or to the end where there are none.
    fn body(&mut self, ends: &[&str]) -> Parsed<(Vec<Node>, String)> {
        let mut nodes = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.take() {
                Some(Token::Text(text)) => Kind::Text(text),
                Some(Token::PrintBegin) => {
                    let value = self.with_commas()?;
                    self.expect(Token::PrintEnd)?;
                    Kind::Print(value)
                }
                Some(Token::BlockBegin) => {
                    let word = self.name()?;
                    if ends.contains(&word.as_str()) {
                        return Ok((nodes, word));
                    }
                    match self.deeper(|parser| parser.statement(&word))? {
                        Some(kind) => kind,
                        None => continue,
                    }
                }
                None if ends.is_empty() => return Ok((nodes, String::new())),
                None => return self.fail(format!("it ends before {}", ends.join(" or "))),
                Some(other) => return self.fail(format!("found {other:?} outside a tag")),
            };
            nodes.push(Node { line, kind });
        }
    }

    /// A body that ends with a word alone.
    fn body_to(&mut self, end: &str) -> Parsed<Vec<Node>> {
        let (nodes, _) = self.body(&[end])?;
        self.expect(Token::BlockEnd)?;
        Ok(nodes)
    }

    fn statement(&mut self, word: &str) -> Parsed<Option<Kind>> {
        let simple = match word {
            "if" => return self.condition().map(Some),
            "for" => return self.repetition().map(Some),
            "set" => return self.assignment().map(Some),
            "macro" => return self.definition().map(Some),
            "call" => return self.call().map(Some),
            "break" => Some(Kind::Break),
            "continue" => Some(Kind::Continue),
            // What Hugging Face marks for training; it writes nothing itself.
            "generation" | "endgeneration" => None,
            "include" | "import" | "from" | "extends" | "block" => {
                return self.fail(format!("`{word}` is for templates that are several, and a file has one"));
            }
            other => return self.fail(format!("`{other}` is no block that kiln knows")),
        };
        self.expect(Token::BlockEnd)?;
        Ok(simple)
    }

    fn condition(&mut self) -> Parsed<Kind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.expression()?;
            self.expect(Token::BlockEnd)?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            if end == "elif" {
                continue;
            }
            self.expect(Token::BlockEnd)?;
            let otherwise = if end == "else" { self.body_to("endif")? } else { Vec::new() };
            return Ok(Kind::If(branches, otherwise));
        }
    }

    fn repetition(&mut self) -> Parsed<Kind> {
        let enclosed = self.takes_sign("(");
        let mut names = vec![self.name()?];
        while self.takes_sign(",") {
            names.push(self.name()?);
        }
        if enclosed {
            self.expect(Token::Sign(")"))?;
        }
        if !self.takes_word("in") {
            return self.fail("a loop needs `in`");
        }
        let over = self.operation(1)?;
        let over = self.tuple_from(over, |parser| parser.operation(1))?;
        let filter = if self.takes_word("if") { Some(self.expression()?) } else { None };
        self.expect(Token::BlockEnd)?;
        let (body, end) = self.body(&["else", "endfor"])?;
        self.expect(Token::BlockEnd)?;
        let otherwise = if end == "else" { self.body_to("endfor")? } else { Vec::new() };
        Ok(Kind::For(Box::new(For { names, over, filter, body, otherwise })))
    }

    fn assignment(&mut self) -> Parsed<Kind> {
        let mut targets = Vec::new();
        loop {
            let name = self.name()?;
            let attribute = if self.takes_sign(".") { Some(self.name()?) } else { None };
            targets.push(Target { name, attribute });
            if !self.takes_sign(",") {
                break;
            }
        }
        if self.takes_sign("=") {
            let value = self.with_commas()?;
            self.expect(Token::BlockEnd)?;
            return Ok(Kind::Set(targets, value));
        }
        self.expect(Token::BlockEnd)?;
        let body = self.body_to("endset")?;
        match targets.pop() {
            Some(Target { name, attribute: None }) if targets.is_empty() => Ok(Kind::Capture(name, body)),
            _ => self.fail("what a body writes needs one name"),
        }
    }

    fn definition(&mut self) -> Parsed<Kind> {
        let name = self.name()?;
        self.expect(Token::Sign("("))?;
        let parameters = self.parameters()?;
        self.expect(Token::BlockEnd)?;
        let outer = std::mem::replace(&mut self.runs_caller, false);
        let body = self.body_to("endmacro")?;
        let runs_caller = std::mem::replace(&mut self.runs_caller, outer);
        self.macros.push(Macro { name, parameters, body, runs_caller });
        Ok(Kind::Macro(self.macros.len() - 1))
    }

    /// A macro's call with a body, whose parameters, if it has any, stand behind the word.
    fn call(&mut self) -> Parsed<Kind> {
        let parameters = if self.takes_sign("(") { self.parameters()? } else { Vec::new() };
        let Expr::Call(called, arguments) = self.expression()? else {
            return self.fail("`call` needs a macro with its arguments");
        };
        self.expect(Token::BlockEnd)?;
        let body = self.body_to("endcall")?;
        let name = CALLER.to_owned();
        self.macros.push(Macro { name, parameters, body, runs_caller: false });
        Ok(Kind::Call(self.macros.len() - 1, *called, arguments))
    }

    /// Parameters up to the closing parenthesis.
    fn parameters(&mut self) -> Parsed<Vec<(String, Option<Expr>)>> {
        let mut parameters = Vec::new();
        while !self.takes_sign(")") {
            let parameter = self.name()?;
            let default = if self.takes_sign("=") { Some(self.expression()?) } else { None };
            parameters.push((parameter, default));
            if !self.takes_sign(",") && self.peek() != Some(&Token::Sign(")")) {
                return self.fail("parameters are separated by commas");
            }
        }
        Ok(parameters)
    }
}
