//! Expressions of a template.

use super::super::ast::{Arguments, COMPARISON, Expr, NOT, Operator};
use super::super::lex::Token;
use super::{CALLER, DEEPEST, Parsed, Parser};

impl Parser {
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.deeper(|parser| {
            let mut value = parser.operation(1)?;
            if parser.takes_word("if") {
                let condition = parser.operation(1)?;
                let other = if parser.takes_word("else") { Some(Box::new(parser.expression()?)) } else { None };
                value = Expr::Choice(Box::new(value), Box::new(condition), other);
            }
            Ok(value)
        })
    }

    /// A value, or several with commas between them, which are a tuple.
    pub(super) fn with_commas(&mut self) -> Parsed<Expr> {
        let first = self.expression()?;
        self.tuple_from(first, Parser::expression)
    }

    /// The tuple that begins with a value, where a comma follows it, else the value. A comma may end it.
    pub(super) fn tuple_from(&mut self, first: Expr, part: impl Fn(&mut Parser) -> Parsed<Expr>) -> Parsed<Expr> {
        if !self.takes_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while !matches!(self.peek(), Some(Token::BlockEnd | Token::PrintEnd | Token::Sign(")")) | None)
            && !self.is_word("if")
        {
            items.push(part(self)?);
            if !self.takes_sign(",") {
                break;
            }
        }
        Ok(Expr::Tuple(items))
    }

    fn operator(&self) -> Option<(Operator, usize)> {
        use Operator::*;
        let one = match self.peek()? {
            Token::Name(name) => match name.as_str() {
                "or" => Or,
                "and" => And,
                "in" => In,
                "not" => {
                    let next = self.tokens.get(self.at + 1).map(|(token, _)| token);
                    return matches!(next, Some(Token::Name(next)) if next == "in").then_some((NotIn, 2));
                }
                _ => return None,
            },
            Token::Sign(sign) => match *sign {
                "==" => Equal,
                "!=" => NotEqual,
                "<" => Less,
                "<=" => LessEqual,
                ">" => Greater,
                ">=" => GreaterEqual,
                "+" => Add,
                "-" => Subtract,
                "~" => Join,
                "*" => Multiply,
                "/" => Divide,
                "//" => FloorDivide,
                "%" => Remainder,
                "**" => Power,
                _ => return None,
            },
            _ => return None,
        };
        Some((one, 1))
    }

    /// Operations that bind at least as strongly, from left to right.
    pub(super) fn operation(&mut self, least: u32) -> Parsed<Expr> {
        let depth = self.depth;
        let mut compared = false;
        let mut value = if least <= NOT && self.takes_word("not") {
            Expr::Not(Box::new(self.deeper(|parser| parser.operation(NOT))?))
        } else {
            self.signed(true)?
        };
        while let Some((operator, words)) = self.operator().filter(|(operator, _)| operator.strength() >= least) {
            self.at += words;
            // What stands on the left is one level deeper with each operation.
            self.depth += 1;
            let right = self.deeper(|parser| parser.operation(operator.strength() + 1))?;
            let compares = operator.strength() == COMPARISON;
            value = match value {
                Expr::Binary(first, before, middle) if compares && compared => {
                    Expr::Chain(first, vec![(before, *middle), (operator, right)])
                }
                Expr::Chain(first, mut rest) if compares && compared => {
                    rest.push((operator, right));
                    Expr::Chain(first, rest)
                }
                value => Expr::Binary(Box::new(value), operator, Box::new(right)),
            };
            compared = compares;
        }
        self.depth = depth;
        Ok(value)
    }

    fn signed(&mut self, filters: bool) -> Parsed<Expr> {
        let value = if self.takes_sign("-") {
            Expr::Negate(Box::new(self.deeper(|parser| parser.signed(false))?))
        } else if self.takes_sign("+") {
            self.deeper(|parser| parser.signed(false))?
        } else {
            self.primary()?
        };
        self.postfix(value, filters)
    }

    fn primary(&mut self) -> Parsed<Expr> {
        Ok(match self.take() {
            Some(Token::Str(text)) => {
                // Strings side by side are one.
                let mut text = text;
                while let Some(Token::Str(next)) = self.peek() {
                    text = format!("{text}{next}").into();
                    self.at += 1;
                }
                Expr::Str(text)
            }
            Some(Token::Int(value)) => Expr::Int(value),
            Some(Token::Float(value)) => Expr::Float(value),
            Some(Token::Name(name)) => match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                CALLER => {
                    self.runs_caller = true;
                    Expr::Name(name)
                }
                _ => Expr::Name(name),
            },
            Some(Token::Sign("(")) => {
                if self.takes_sign(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let value = self.with_commas()?;
                self.expect(Token::Sign(")"))?;
                value
            }
            Some(Token::Sign("[")) => Expr::List(self.items("]")?),
            Some(Token::Sign("{")) => {
                let mut entries = Vec::new();
                while !self.takes_sign("}") {
                    let key = self.expression()?;
                    self.expect(Token::Sign(":"))?;
                    entries.push((key, self.expression()?));
                    if !self.takes_sign(",") && self.peek() != Some(&Token::Sign("}")) {
                        return self.fail("entries are separated by commas");
                    }
                }
                Expr::Map(entries)
            }
            other => {
                self.at -= 1;
                return self.fail(format!("found {other:?}, needed a value"));
            }
        })
    }

    /// Values up to a closing sign.
    fn items(&mut self, closing: &'static str) -> Parsed<Vec<Expr>> {
        let mut items = Vec::new();
        while !self.takes_sign(closing) {
            items.push(self.expression()?);
            if !self.takes_sign(",") && self.peek() != Some(&Token::Sign(closing)) {
                return self.fail("items are separated by commas");
            }
        }
        Ok(items)
    }

    /// Attributes, items, calls, and filters and tests where they may follow.
    fn postfix(&mut self, mut value: Expr, filters: bool) -> Parsed<Expr> {
        let depth = self.depth;
        loop {
            self.depth += 1;
            if self.depth > DEEPEST {
                return self.fail(format!("it is nested more than {DEEPEST} deep"));
            }
            value = if self.takes_sign(".") {
                Expr::Attribute(Box::new(value), self.name()?)
            } else if self.takes_sign("[") {
                self.subscript(value)?
            } else if self.takes_sign("(") {
                Expr::Call(Box::new(value), self.arguments()?)
            } else if filters && self.takes_sign("|") {
                let name = self.name()?;
                let arguments = if self.takes_sign("(") { self.arguments()? } else { Arguments::default() };
                Expr::Filter(Box::new(value), name, arguments)
            } else if filters && self.takes_word("is") {
                self.test(value)?
            } else {
                self.depth = depth;
                return Ok(value);
            };
        }
    }

    fn subscript(&mut self, value: Expr) -> Parsed<Expr> {
        let mut parts = [const { None }; 3];
        let mut part = 0;
        loop {
            if self.takes_sign("]") {
                break;
            }
            if self.takes_sign(":") {
                part += 1;
                if part > 2 {
                    return self.fail("a slice has at most three parts");
                }
                continue;
            }
            parts[part] = Some(self.expression()?);
            if !matches!(self.peek(), Some(Token::Sign("]" | ":"))) {
                return self.fail("an index is not closed");
            }
        }
        match (part, parts) {
            (0, [Some(index), None, None]) => Ok(Expr::Item(Box::new(value), Box::new(index))),
            (0, _) => self.fail("an index is empty"),
            (_, parts) => Ok(Expr::Slice(Box::new(value), Box::new(parts))),
        }
    }

    fn arguments(&mut self) -> Parsed<Arguments> {
        let mut arguments = Arguments::default();
        while !self.takes_sign(")") {
            let next = self.tokens.get(self.at + 1).map(|(token, _)| token);
            match (self.peek(), next) {
                (Some(Token::Name(name)), Some(Token::Sign("="))) => {
                    let name = name.clone();
                    self.at += 2;
                    let value = self.expression()?;
                    arguments.names.push((name, value));
                }
                _ => arguments.places.push(self.expression()?),
            }
            if !self.takes_sign(",") && self.peek() != Some(&Token::Sign(")")) {
                return self.fail("arguments are separated by commas");
            }
        }
        Ok(arguments)
    }

    fn test(&mut self, value: Expr) -> Parsed<Expr> {
        let negated = self.takes_word("not");
        let name = self.name()?;
        let arguments = if self.takes_sign("(") {
            self.arguments()?
        } else {
            let has_value = match self.peek() {
                Some(Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{")) => true,
                Some(Token::Name(word)) => !matches!(word.as_str(), "else" | "or" | "and" | "is" | "if" | "in" | "not"),
                _ => false,
            };
            let mut arguments = Arguments::default();
            if has_value {
                let argument = self.deeper(|parser| {
                    let argument = parser.primary()?;
                    parser.postfix(argument, false)
                })?;
                arguments.places.push(argument);
            }
            arguments
        };
        Ok(Expr::Test(Box::new(value), name, arguments, negated))
    }
}
