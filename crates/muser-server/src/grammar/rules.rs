//! Holds the rules of a grammar and writes them as text for the grammar library.
//!
//! A rule consists of alternatives, each a sequence of terminals and rules. A rule is
//! *productive* if some finite text fits it. An alternative that is not productive is
//! left out of the text; a grammar whose start rule is not productive is refused.

use muser_text::chat::Piece;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write as _;

/// The number of a rule in its grammar.
pub(super) type RuleId = usize;

/// One symbol of a sequence in a grammar rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sym {
    /// A reference to another rule of the grammar.
    Rule(RuleId),
    /// A terminal (a regular expression or a literal text), by its number.
    Term(usize),
    /// A control token of the model's vocabulary, such as `<|message|>`.
    Token(&'static str),
    /// A grammar rule repeated `min` to `most` times.
    Times {
        rule: RuleId,
        min: usize,
        most: usize,
    },
}

/// The body of a grammar rule: what it matches.
#[derive(Clone, Debug)]
enum Body {
    /// The alternatives of a grammar rule, each a sequence of symbols; a rule without
    /// alternatives fits no text.
    Choice(Vec<Vec<Sym>>),
    /// The grammar rule matches the shortest text that fits this terminal and is
    /// followed by this literal, together with the literal.
    Until(usize, &'static str),
    /// The grammar rule matches what fits a JSON schema, which the grammar library
    /// compiles itself.
    Json(Value),
}

/// The rules and terminals of one grammar, before they are written as text.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Body>,
    terminals: Vec<String>,
    known: HashMap<String, usize>,
    symbols: usize,
}

impl Rules {
    /// Adds a grammar rule whose alternatives are set later, and returns its number.
    pub(super) fn reserve(&mut self) -> RuleId {
        self.rules.push(Body::Choice(Vec::new()));
        self.rules.len() - 1
    }

    pub(super) fn set(&mut self, rule: RuleId, alternatives: Vec<Vec<Sym>>) {
        self.symbols += alternatives.iter().map(|a| a.len() + 1).sum::<usize>();
        self.rules[rule] = Body::Choice(alternatives);
    }

    pub(super) fn rule(&mut self, alternatives: Vec<Vec<Sym>>) -> RuleId {
        let rule = self.reserve();
        self.set(rule, alternatives);
        rule
    }

    /// Adds a grammar rule that matches the shortest text of the terminal that the
    /// literal `end` follows, together with that literal.
    pub(super) fn until(&mut self, terminal: usize, end: &'static str) -> RuleId {
        self.rules.push(Body::Until(terminal, end));
        self.rules.len() - 1
    }

    /// Adds a grammar rule for a JSON schema that the grammar library compiles itself.
    pub(super) fn json(&mut self, schema: Value) -> RuleId {
        self.rules.push(Body::Json(schema));
        self.rules.len() - 1
    }

    /// Returns the number of the grammar's terminal with this expression, which is
    /// added on first use.
    pub(super) fn terminal(&mut self, expression: &str) -> usize {
        if let Some(&known) = self.known.get(expression) {
            return known;
        }
        self.terminals.push(expression.to_owned());
        let id = self.terminals.len() - 1;
        self.known.insert(expression.to_owned(), id);
        id
    }

    /// Returns the grammar symbol (a terminal) that matches exactly this text.
    pub(super) fn text(&mut self, text: &str) -> Sym {
        let expression = literal(text);
        Sym::Term(self.terminal(&expression))
    }

    /// Returns the symbols of a chat format's markup with `name` (a tool's) filled in.
    /// Adjacent texts become one terminal.
    pub(super) fn markup(&mut self, pieces: &[Piece], name: &str) -> Vec<Sym> {
        let mut all = Vec::new();
        let mut text = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(more) => text += more,
                Piece::Name => text += name,
                Piece::Token(token) => {
                    if !text.is_empty() {
                        all.push(self.text(&std::mem::take(&mut text)));
                    }
                    all.push(Sym::Token(token));
                }
            }
        }
        if !text.is_empty() {
            all.push(self.text(&text));
        }
        all
    }

    /// Returns the grammar's size: the number of its rules, alternatives and symbols.
    pub(super) fn size(&self) -> usize {
        self.symbols + self.rules.len()
    }

    /// Computes for each grammar rule whether some finite text fits it.
    fn productive(&self) -> Vec<bool> {
        let mut done = vec![false; self.rules.len()];
        // For each rule, those that refer to it: they are checked again once it is
        // productive.
        let mut users: Vec<Vec<RuleId>> = vec![Vec::new(); self.rules.len()];
        for (id, body) in self.rules.iter().enumerate() {
            let Body::Choice(alternatives) = body else {
                continue;
            };
            for sym in alternatives.iter().flatten() {
                match sym {
                    Sym::Rule(r) | Sym::Times { rule: r, .. } => users[*r].push(id),
                    Sym::Term(_) | Sym::Token(_) => {}
                }
            }
        }
        let mut work: Vec<RuleId> = (0..self.rules.len()).collect();
        while let Some(id) = work.pop() {
            if done[id] {
                continue;
            }
            done[id] = match &self.rules[id] {
                Body::Until(..) | Body::Json(_) => true,
                Body::Choice(all) => all.iter().any(|a| a.iter().all(|s| writable(s, &done))),
            };
            if done[id] {
                work.append(&mut users[id]);
            }
        }
        done
    }

    /// Returns whether some finite text fits the grammar rule.
    pub(super) fn is_productive(&self, rule: RuleId) -> bool {
        self.productive()[rule]
    }

    /// Writes the grammar as Lark text with this rule as its start; `None` if no finite
    /// text fits it.
    pub(super) fn lark(&self, start: RuleId) -> Option<String> {
        let productive = self.productive();
        if !productive[start] {
            return None;
        }
        let mut out = String::new();
        let _ = writeln!(out, "start: r{start}");
        let mut seen = vec![false; self.rules.len()];
        let mut terms = vec![false; self.terminals.len()];
        let mut work = vec![start];
        while let Some(id) = work.pop() {
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            match &self.rules[id] {
                Body::Json(schema) => {
                    let _ = writeln!(out, "r{id}: %json {schema}");
                }
                Body::Until(term, end) => {
                    terms[*term] = true;
                    let _ = writeln!(out, "r{id}[suffix={}]: T{term}", literal(end));
                }
                Body::Choice(all) => {
                    let fits = |a: &&Vec<Sym>| a.iter().all(|s| writable(s, &productive));
                    let alternatives = all.iter().filter(fits).map(|alternative| {
                        let parts = alternative.iter().filter_map(|sym| match sym {
                            Sym::Term(t) => {
                                terms[*t] = true;
                                Some(format!("T{t}"))
                            }
                            Sym::Token(token) => Some((*token).to_owned()),
                            Sym::Rule(r) => {
                                work.push(*r);
                                Some(format!("r{r}"))
                            }
                            Sym::Times { rule, .. } if !productive[*rule] => None,
                            Sym::Times { most: 0, .. } => None,
                            Sym::Times { rule, min, most } => {
                                work.push(*rule);
                                Some(format!("r{rule}{{{min},{most}}}"))
                            }
                        });
                        let parts: Vec<String> = parts.collect();
                        match parts.is_empty() {
                            true => "\"\"".to_owned(),
                            false => parts.join(" "),
                        }
                    });
                    let alternatives: Vec<String> = alternatives.collect();
                    let _ = writeln!(out, "r{id}: {}", alternatives.join(" | "));
                }
            }
        }
        self.write_terminals(terms, &mut out);
        Some(out)
    }

    /// Writes the terminals that the grammar uses, and those that their expressions
    /// name.
    fn write_terminals(&self, mut used: Vec<bool>, out: &mut String) {
        // A terminal's expression names only terminals that were added before it.
        for id in (0..self.terminals.len()).rev() {
            if used[id] {
                for part in parts(&self.terminals[id]) {
                    used[part] = true;
                }
            }
        }
        for (id, expression) in self.terminals.iter().enumerate() {
            if used[id] {
                let _ = writeln!(out, "T{id}: {expression}");
            }
        }
    }
}

/// Returns whether some finite text fits this symbol of a grammar rule.
fn writable(sym: &Sym, productive: &[bool]) -> bool {
    match sym {
        Sym::Rule(rule) => productive[*rule],
        Sym::Times { rule, min, .. } => *min == 0 || productive[*rule],
        Sym::Term(_) | Sym::Token(_) => true,
    }
}

/// Returns the numbers of the terminals that an expression combines (`T0 & ~T1`); none
/// for a regular expression or a literal.
fn parts(expression: &str) -> impl Iterator<Item = usize> {
    let named = expression.starts_with(['T', '~']);
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric());
    let numbers = words.filter_map(|w| w.strip_prefix('T')?.parse().ok());
    numbers.filter(move |_| named)
}

/// Writes a text as a string literal of the grammar's text, which is escaped as in
/// JSON.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_not_productive() {
        let mut rules = Rules::default();
        let a = rules.text("a");
        let open = rules.reserve();
        // The rules x: a x, which has no end, and y: x | a, which has.
        rules.set(open, vec![vec![a.clone(), Sym::Rule(open)]]);
        assert_eq!(rules.lark(open), None);
        let y = rules.rule(vec![vec![Sym::Rule(open)], vec![a]]);
        let lark = rules.lark(y).unwrap();
        assert_eq!(lark, format!("start: r{y}\nr{y}: T0\nT0: \"a\"\n"));
        let never = rules.rule(Vec::new());
        let maybe = Sym::Times {
            rule: never,
            min: 0,
            most: 3,
        };
        let z = rules.rule(vec![vec![maybe]]);
        assert_eq!(rules.lark(z).unwrap(), format!("start: r{z}\nr{z}: \"\"\n"));
    }

    #[test]
    fn a_terminal_brings_its_parts() {
        let mut rules = Rules::default();
        let a = rules.terminal("/T9/");
        let b = rules.terminal("/b/");
        let both = rules.terminal(&format!("T{a} & ~T{b}"));
        let start = rules.rule(vec![vec![Sym::Term(both)]]);
        let lark = rules.lark(start).unwrap();
        assert!(lark.contains("T0: /T9/\nT1: /b/\nT2: T0 & ~T1\n"), "{lark}");
    }
}
