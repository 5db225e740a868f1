//! Condition, filter and update expressions, as far as the DAO sends them. What is not known here ends the run: it must not pass for
//! true.

use std::{cmp::Ordering, collections::BTreeSet};

use serde_json::{Map, Value, json};

/// The attributes of an item, in the JSON of the service.
pub(super) type Item = Map<String, Value>;

/// Returns whether a condition holds for an item; an empty one stands for an item that there is not.
pub(super) fn holds(condition: &str, request: &Value, item: &Item, used: &mut BTreeSet<String>) -> bool {
    let mut reader = Reader::new(condition, request, used);
    let holds = reader.condition(item);
    reader.end();
    holds
}

/// Returns the item after an update; `None` if it has no map in which the update sets or removes something.
pub(super) fn updated(
    update: &str,
    request: &Value,
    item: &Item,
    used: &mut BTreeSet<String>,
) -> Option<Item> {
    let mut reader = Reader::new(update, request, used);
    let mut new = item.clone();
    while let Some(clause) = reader.next() {
        loop {
            let path = reader.path();
            let (last, parents) = path.split_last().expect("a path has parts");
            let mut map = Some(&mut new);
            for parent in parents {
                map = map.and_then(|map| map.get_mut(parent)?.get_mut("M")?.as_object_mut());
            }
            let map = map?;
            match clause.as_str() {
                "SET" => {
                    reader.expect("=");
                    let value = reader.value();
                    map.insert(last.clone(), value);
                }
                "REMOVE" => drop(map.remove(last)),
                _ => panic!("the clause {clause} is not simulated: {update}"),
            }
            if !reader.eat(",") {
                break;
            }
        }
    }
    Some(new)
}

/// Panics if the service would refuse a request for placeholders that its expressions leave unused.
pub(super) fn assert_all_used(request: &Value, used: &BTreeSet<String>) {
    for of in ["ExpressionAttributeNames", "ExpressionAttributeValues"] {
        let names = request[of].as_object().into_iter().flat_map(Map::keys);
        names.for_each(|name| assert!(used.contains(name), "{name} is not used in {request}"));
    }
}

/// Compares two numbers of the service: the DAO sends whole ones, and such with six decimals.
fn compare(one: &str, other: &str) -> Ordering {
    let millionths = |number: &str| {
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{fraction:0<6}");
        assert!(fraction.len() <= 6, "the number {number} is not simulated");
        digits.parse::<i128>().unwrap_or_else(|_| panic!("the number {number} is not simulated"))
    };
    millionths(one).cmp(&millionths(other))
}

/// Reads an expression from the left to the right, all of it, whatever its value turns out to be.
struct Reader<'r> {
    text: &'r str,
    tokens: std::vec::IntoIter<String>,
    request: &'r Value,
    used: &'r mut BTreeSet<String>,
}

impl<'r> Reader<'r> {
    fn new(text: &'r str, request: &'r Value, used: &'r mut BTreeSet<String>) -> Self {
        let mut tokens: Vec<String> = Vec::new();
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_#:".contains(letter);
        for letter in text.chars() {
            let last = tokens.last_mut().filter(|last| {
                let both_are_words = is_word(letter) && last.chars().all(is_word);
                !last.is_empty() && (both_are_words || letter == '=' && ["<", ">"].contains(&last.as_str()))
            });
            match last {
                // Ends a word.
                _ if letter == ' ' => tokens.push(String::new()),
                Some(last) => last.push(letter),
                None => tokens.push(letter.to_string()),
            }
        }
        tokens.retain(|token| !token.is_empty());
        Reader { text, tokens: tokens.into_iter(), request, used }
    }

    fn next(&mut self) -> Option<String> {
        self.tokens.next()
    }

    fn word(&mut self) -> String {
        self.next().unwrap_or_else(|| panic!("{} ends early", self.text))
    }

    fn eat(&mut self, token: &str) -> bool {
        let is_next = self.tokens.as_slice().first().is_some_and(|next| next == token);
        if is_next {
            self.tokens.next();
        }
        is_next
    }

    fn expect(&mut self, token: &str) {
        let found = self.word();
        assert_eq!(found, token, "in {}", self.text);
    }

    fn end(mut self) {
        assert_eq!(self.next(), None, "is too much in {}", self.text);
    }

    fn condition(&mut self, item: &Item) -> bool {
        let mut any = self.all(item);
        while self.eat("OR") {
            any |= self.all(item);
        }
        any
    }

    fn all(&mut self, item: &Item) -> bool {
        let mut all = self.term(item);
        while self.eat("AND") {
            all &= self.term(item);
        }
        all
    }

    fn term(&mut self, item: &Item) -> bool {
        if self.eat("(") {
            let holds = self.condition(item);
            self.expect(")");
            return holds;
        }
        for function in ["attribute_exists", "attribute_not_exists", "begins_with"] {
            if self.eat(function) {
                self.expect("(");
                let path = self.path();
                let found = lookup(item, &path);
                let holds = match function {
                    "attribute_exists" => found.is_some(),
                    "attribute_not_exists" => found.is_none(),
                    _ => {
                        self.expect(",");
                        let prefix = self.value();
                        let text = found.and_then(|found| found["S"].as_str());
                        text.zip(prefix["S"].as_str()).is_some_and(|(text, prefix)| text.starts_with(prefix))
                    }
                };
                self.expect(")");
                return holds;
            }
        }
        let left = self.operand(item);
        let operator = self.word();
        let right = self.operand(item);
        // What is compared with an attribute that there is not is false.
        let (Some(left), Some(right)) = (left, right) else { return false };
        let order = match (left["N"].as_str(), right["N"].as_str()) {
            (Some(left), Some(right)) => compare(left, right),
            _ if operator == "=" => return left == right,
            _ => panic!("{left} {operator} {right} is not simulated: {}", self.text),
        };
        match operator.as_str() {
            "=" => order.is_eq(),
            "<" => order.is_lt(),
            "<=" => order.is_le(),
            ">" => order.is_gt(),
            ">=" => order.is_ge(),
            _ => panic!("the operator {operator} is not simulated: {}", self.text),
        }
    }

    fn operand(&mut self, item: &Item) -> Option<Value> {
        if self.tokens.as_slice().first()?.starts_with(':') {
            return Some(self.value());
        }
        if !self.eat("size") {
            return lookup(item, &self.path()).cloned();
        }
        self.expect("(");
        let path = self.path();
        self.expect(")");
        let sized = lookup(item, &path)?;
        let map = sized["M"].as_object();
        let map = map.unwrap_or_else(|| panic!("the size of {sized} is not simulated: {}", self.text));
        Some(json!({ "N": map.len().to_string() }))
    }

    /// Reads a document path.
    fn path(&mut self) -> Vec<String> {
        let mut path = Vec::new();
        loop {
            let part = self.word();
            let is_plain = part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
            path.push(match part.starts_with('#') {
                true => {
                    let name = self.request["ExpressionAttributeNames"][&part].as_str();
                    name.unwrap_or_else(|| panic!("{part} stands for no name: {}", self.text)).to_owned()
                }
                false if is_plain => part.clone(),
                false => panic!("{part} is no part of a path: {}", self.text),
            });
            self.used.insert(part);
            if !self.eat(".") {
                return path;
            }
        }
    }

    fn value(&mut self) -> Value {
        let name = self.word();
        let value = self.request["ExpressionAttributeValues"].get(&name);
        let value = value.unwrap_or_else(|| panic!("{name} stands for no value: {}", self.text)).clone();
        self.used.insert(name);
        value
    }
}

fn lookup<'i>(item: &'i Item, path: &[String]) -> Option<&'i Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(item.get(first)?, |value, part| value.get("M")?.get(part))
}
