//! Declares a contract's functions, with the number and the types of their arguments.
//!
//! [`ContractInterface::resolve`] turns the untrusted function name and arguments of a call into a [`FunctionCall`]: a
//! declared function with as many arguments as it takes. Each argument is valid UTF-8, unless the function declares it
//! as bytes. `resolve` rejects any other call. The accessors of `FunctionCall` parse the arguments. Function names mean
//! what they mean in Fabric's contract libraries:
//! 1. `contract:function` names a function of that contract. Without a prefix a name belongs to the default contract.
//! 2. The case of a name's first letter does not matter.
//! 3. `org.hyperledger.fabric:GetMetadata` returns a JSON description.

use std::fmt::Write as _;
use std::str::FromStr;

use base::Bytes;
use serde_json::{Value, json};

use crate::{ContractError, ContractResponse};

/// The contract that Fabric's libraries add to every chaincode.
const SYSTEM_CONTRACT: &str = "org.hyperledger.fabric";
const GET_METADATA: &str = "GetMetadata";

/// How much of an argument an error message repeats, in characters.
const SHOWN_CHARS_MAX: usize = 64;

/// What an argument must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentKind {
    Text,
    /// Anything, not only UTF-8.
    Bytes,
    Integer,
    Number,
}

/// One argument of a function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionParameter {
    name: &'static str,
    kind: ArgumentKind,
    optional: bool,
}

impl FunctionParameter {
    pub(crate) const fn text(name: &'static str) -> Self {
        Self { name, kind: ArgumentKind::Text, optional: false }
    }

    pub(crate) const fn bytes(name: &'static str) -> Self {
        Self { name, kind: ArgumentKind::Bytes, optional: false }
    }

    pub(crate) const fn integer(name: &'static str) -> Self {
        Self { name, kind: ArgumentKind::Integer, optional: false }
    }

    pub(crate) const fn number(name: &'static str) -> Self {
        Self { name, kind: ArgumentKind::Number, optional: false }
    }

    pub(crate) const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }
}

/// Whether a function writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FunctionEffect {
    Submit,
    Evaluate,
}

/// One function of a contract.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContractFunction {
    name: &'static str,
    effect: FunctionEffect,
    parameters: &'static [FunctionParameter],
    /// Whether the last parameter may be given more than once.
    repeats: bool,
}

impl ContractFunction {
    pub(crate) const fn submit(name: &'static str, parameters: &'static [FunctionParameter]) -> Self {
        Self { name, effect: FunctionEffect::Submit, parameters, repeats: false }
    }

    pub(crate) const fn evaluate(name: &'static str, parameters: &'static [FunctionParameter]) -> Self {
        Self { name, effect: FunctionEffect::Evaluate, parameters, repeats: false }
    }

    pub(crate) const fn repeating_last(self) -> Self {
        Self { repeats: true, ..self }
    }

    fn check_count(&self, given: usize) -> Result<(), ContractError> {
        let required = self.parameters.iter().filter(|parameter| !parameter.optional).count();
        let most = if self.repeats { usize::MAX } else { self.parameters.len() };
        if (required..=most).contains(&given) {
            return Ok(());
        }
        let mut message = format!("wrong number of arguments: {} takes ", self.name);
        let written = match (required, most) {
            (least, most) if least == most => write!(message, "{least}"),
            (least, usize::MAX) => write!(message, "at least {least}"),
            (least, most) => write!(message, "{least} to {most}"),
        };
        written.expect("writing into a string does not fail");
        for (index, parameter) in self.parameters.iter().enumerate() {
            message.push_str(if index == 0 { " (" } else { ", " });
            message.push_str(parameter.name);
        }
        message.push_str(if self.parameters.is_empty() { "" } else { ")" });
        write!(message, ", {given} were given").expect("writing into a string does not fail");
        Err(ContractError::application(message))
    }
}

/// A contract's name and functions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContractInterface {
    /// What the metadata calls it.
    pub(crate) name: &'static str,
    /// Other names that a call may use as the prefix.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) version: &'static str,
    pub(crate) functions: &'static [ContractFunction],
    /// JSON schemas by name, for the metadata.
    pub(crate) schemas: fn() -> Value,
}

/// What a function name and arguments mean.
#[derive(Debug)]
pub(crate) enum ResolvedFunction<'a> {
    /// A declared function, to be run.
    Call(FunctionCall<'a>),
    /// The answer is known already.
    Answered(ContractResponse),
}

impl ContractInterface {
    pub(crate) fn resolve<'a>(&self, function: &str, args: &'a [Bytes]) -> Result<ResolvedFunction<'a>, ContractError> {
        let name = match function.rsplit_once(':') {
            None => function,
            Some((SYSTEM_CONTRACT, GET_METADATA)) => return Ok(ResolvedFunction::Answered(self.metadata())),
            Some((SYSTEM_CONTRACT, name)) => return Err(no_function(SYSTEM_CONTRACT, name)),
            Some((contract, name)) if contract == self.name || self.aliases.contains(&contract) => name,
            Some((contract, _)) => {
                return Err(ContractError::application(format!("there is no contract named {}", shown(contract))));
            }
        };
        let declared = self.functions.iter().find(|declared| same_but_first_case(declared.name, name));
        let declared = declared.ok_or_else(|| no_function(self.name, name))?;
        declared.check_count(args.len())?;
        FunctionCall::new(declared, args).map(ResolvedFunction::Call)
    }

    fn metadata(&self) -> ContractResponse {
        let transactions: Vec<Value> = self.functions.iter().map(describe).collect();
        let metadata = json!({
            "$schema": "https://hyperledger.github.io/fabric-chaincode-node/main/api/contract-schema.json",
            "info": { "title": self.name, "version": self.version },
            "contracts": {
                self.name: {
                    "name": self.name,
                    "info": { "title": self.name, "version": self.version },
                    "default": true,
                    "transactions": transactions,
                },
                SYSTEM_CONTRACT: {
                    "name": SYSTEM_CONTRACT,
                    "info": { "title": SYSTEM_CONTRACT, "version": self.version },
                    "transactions": [{
                        "name": GET_METADATA,
                        "tag": ["evaluate"],
                        "parameters": [],
                        "returns": { "type": "string" },
                    }],
                },
            },
            "components": { "schemas": (self.schemas)() },
        });
        ContractResponse::success(metadata.to_string())
    }
}

fn describe(function: &ContractFunction) -> Value {
    let parameters: Vec<Value> = function
        .parameters
        .iter()
        .map(|parameter| {
            let kind = match parameter.kind {
                ArgumentKind::Text | ArgumentKind::Bytes => "string",
                ArgumentKind::Integer => "integer",
                ArgumentKind::Number => "number",
            };
            json!({ "name": parameter.name, "schema": { "type": kind } })
        })
        .collect();
    let tag = match function.effect {
        FunctionEffect::Submit => "submit",
        FunctionEffect::Evaluate => "evaluate",
    };
    json!({ "name": function.name, "tag": [tag], "parameters": parameters })
}

fn no_function(contract: &str, name: &str) -> ContractError {
    match name {
        "" => ContractError::application("no function was named"),
        name => ContractError::application(format!("contract {contract} has no function named {}", shown(name))),
    }
}

fn same_but_first_case(declared: &str, given: &str) -> bool {
    let (mut declared, mut given) = (declared.chars(), given.chars());
    match (declared.next(), given.next()) {
        (Some(a), Some(b)) => a.eq_ignore_ascii_case(&b) && declared.as_str() == given.as_str(),
        _ => false,
    }
}

/// An argument as an error message repeats it.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// A call of a declared function with the right number of arguments.
#[derive(Debug)]
pub(crate) struct FunctionCall<'a> {
    function: ContractFunction,
    args: &'a [Bytes],
}

impl<'a> FunctionCall<'a> {
    fn new(function: &ContractFunction, args: &'a [Bytes]) -> Result<Self, ContractError> {
        let call = Self { function: *function, args };
        for index in 0..args.len() {
            if call.parameter(index).is_none_or(|parameter| parameter.kind != ArgumentKind::Bytes) {
                call.text(index)?;
            }
        }
        Ok(call)
    }

    /// The declared name.
    pub(crate) fn function(&self) -> &'static str {
        self.function.name
    }

    /// How many arguments there are: as many as the function takes.
    pub(crate) fn len(&self) -> usize {
        self.args.len()
    }

    /// Argument `index` as it came.
    pub(crate) fn bytes(&self, index: usize) -> &'a Bytes {
        &self.args[index]
    }

    /// Argument `index` as text.
    pub(crate) fn text(&self, index: usize) -> Result<&'a str, ContractError> {
        std::str::from_utf8(&self.args[index]).map_err(|_| self.reject(index, "is not valid UTF-8"))
    }

    /// Argument `index` as an integer.
    pub(crate) fn integer<T: FromStr>(&self, index: usize) -> Result<T, ContractError> {
        let text = self.text(index)?;
        text.parse().map_err(|_| self.reject(index, &format!("is not an integer in range: {:?}", shown(text))))
    }

    /// Argument `index` as a whole number from `least` to `most`.
    pub(crate) fn count(&self, index: usize, least: u64, most: u64) -> Result<u64, ContractError> {
        let number = self.integer::<u64>(index)?;
        if (least..=most).contains(&number) {
            return Ok(number);
        }
        Err(self.reject(index, &format!("must be from {least} to {most}, not {number}")))
    }

    /// Argument `index` as a finite number.
    pub(crate) fn number(&self, index: usize) -> Result<f64, ContractError> {
        let text = self.text(index)?;
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(number),
            _ => Err(self.reject(index, &format!("is not a number: {:?}", shown(text)))),
        }
    }

    /// The error that argument `index` `is_wrong`.
    pub(crate) fn reject(&self, index: usize, is_wrong: &str) -> ContractError {
        let name = self.parameter(index).map_or("", |parameter| parameter.name);
        ContractError::application(format!("argument {name} of {} {is_wrong}", self.function.name))
    }

    /// What argument `index` was declared as; those beyond the declared ones repeat the last.
    fn parameter(&self, index: usize) -> Option<&'static FunctionParameter> {
        self.function.parameters.get(index).or(self.function.parameters.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERFACE: ContractInterface = ContractInterface {
        name: "Sample",
        aliases: &["sample"],
        version: "1.0",
        functions: &[
            ContractFunction::submit("Put", &[FunctionParameter::text("key"), FunctionParameter::integer("value")]),
            ContractFunction::evaluate(
                "Get",
                &[FunctionParameter::text("key"), FunctionParameter::number("scale").optional()],
            ),
            ContractFunction::submit("Many", &[FunctionParameter::text("key"), FunctionParameter::text("values")])
                .repeating_last(),
        ],
        schemas: || json!({}),
    };

    fn resolve(function: &str, args: &[&[u8]]) -> Result<String, String> {
        let args: Vec<Bytes> = args.iter().map(|arg| Bytes::copy_from_slice(arg)).collect();
        match INTERFACE.resolve(function, &args) {
            Ok(ResolvedFunction::Call(call)) => Ok(format!("{}/{}", call.function(), call.len())),
            Ok(ResolvedFunction::Answered(response)) => Ok(String::from_utf8(response.payload.to_vec()).expect("JSON")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn functions_resolve_with_and_without_their_contract() {
        for name in ["Put", "put", "Sample:Put", "sample:put"] {
            assert_eq!(resolve(name, &[b"k", b"1"]), Ok("Put/2".to_owned()), "{name}");
        }
        assert_eq!(resolve("Get", &[b"k"]), Ok("Get/1".to_owned()));
        assert_eq!(resolve("Get", &[b"k", b"2"]), Ok("Get/2".to_owned()));
        assert_eq!(resolve("Many", &[b"k", b"1", b"2", b"3"]), Ok("Many/4".to_owned()));
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        let cases: [(&str, &[&[u8]], &str); 10] = [
            ("Take", &[], "contract Sample has no function named Take"),
            ("", &[], "no function was named"),
            ("Sample:", &[], "no function was named"),
            ("PUT", &[], "contract Sample has no function named PUT"),
            ("other:Put", &[], "there is no contract named other"),
            ("org.hyperledger.fabric:Put", &[], "contract org.hyperledger.fabric has no function named Put"),
            ("Put", &[b"k"], "wrong number of arguments: Put takes 2 (key, value), 1 were given"),
            ("Get", &[], "wrong number of arguments: Get takes 1 to 2 (key, scale), 0 were given"),
            ("Many", &[b"k"], "wrong number of arguments: Many takes at least 2 (key, values), 1 were given"),
            ("Put", &[b"k", b"\xff"], "argument value of Put is not valid UTF-8"),
        ];
        for (function, args, message) in cases {
            assert_eq!(resolve(function, args), Err(message.to_owned()), "{function}");
        }
    }

    #[test]
    fn numbers_are_parsed_strictly() {
        let args = ["1x", "", "9223372036854775808", "NaN", "inf", "1e999", "-7"].map(Bytes::from);
        let call = FunctionCall::new(&INTERFACE.functions[2], &args).expect("text");
        for index in 0..6 {
            assert!(call.integer::<i64>(index).is_err(), "{index}");
        }
        for index in [0, 1, 3, 4, 5] {
            assert!(call.number(index).is_err(), "{index}");
        }
        assert_eq!(call.integer::<i64>(6).expect("an integer"), -7);
        assert!(call.count(6, 0, 10).is_err());
    }

    #[test]
    fn long_arguments_are_cut_in_messages() {
        let message = resolve(&"ü".repeat(10_000), &[]).expect_err("unknown");
        assert!(message.chars().count() < 120, "{message}");
    }

    #[test]
    fn metadata_describes_every_function() {
        let metadata = resolve("org.hyperledger.fabric:GetMetadata", &[]).expect("always there");
        let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
        let transactions = metadata["contracts"]["Sample"]["transactions"].as_array().expect("a list");
        assert_eq!(transactions.len(), 3);
        assert_eq!(transactions[0]["parameters"][1], json!({ "name": "value", "schema": { "type": "integer" } }));
        assert_eq!(transactions[1]["tag"], json!(["evaluate"]));
    }
}
