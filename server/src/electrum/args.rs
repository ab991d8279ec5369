//! Parameters bound to their names and read as what they should be.
//!
//! Messages say which parameter is wrong and what it should be; they never repeat it.

use std::borrow::Cow;

use bitcoin::hex::FromHex;
use bitcoin::{ScriptBuf, Txid};
use serde_json::Value;
use serde_json::value::RawValue;

use super::rpc::{Params, RpcError};
use crate::node::ScriptHash;

/// The parameters of a call.
pub(super) struct Args<'a> {
    names: &'static [&'static str],
    values: Vec<Option<&'a RawValue>>,
}

impl<'a> Args<'a> {
    /// Gives each parameter its name. `required` is how many must be there; `more` allows unknown ones behind them.
    pub(super) fn bind(
        params: &Params<'a>,
        names: &'static [&'static str],
        required: usize,
        more: bool,
    ) -> Result<Self, RpcError> {
        let mut values = vec![None; names.len()];
        match params {
            Params::Positional(list) => {
                if list.len() > names.len() && !more {
                    return Err(RpcError::params(format!(
                        "{} parameters were given, at most {} are expected",
                        list.len(),
                        names.len()
                    )));
                }
                for (slot, value) in values.iter_mut().zip(list) {
                    *slot = Some(*value);
                }
            }
            Params::Named(map) => {
                for (name, value) in map {
                    match names.iter().position(|known| *known == name.as_ref()) {
                        Some(at) => values[at] = Some(*value),
                        None if more => {}
                        None => return Err(RpcError::params("a parameter has an unknown name")),
                    }
                }
            }
        }
        // null stands for what is left out.
        for value in &mut values {
            *value = value.filter(|value| value.get() != "null");
        }
        if let Some(missing) = values[..required].iter().position(Option::is_none) {
            return Err(RpcError::params(format!("the parameter {} is missing", names[missing])));
        }
        Ok(Self { names, values })
    }

    /// The JSON of a parameter.
    pub(super) fn raw(&self, at: usize) -> Option<&'a str> {
        self.values.get(at).copied().flatten().map(RawValue::get)
    }

    pub(super) fn wrong(&self, at: usize, expected: &str) -> RpcError {
        RpcError::bad(format!("{} should be {expected}", self.names[at]))
    }

    /// A parameter that isn't secret, as any JSON.
    pub(super) fn value(&self, at: usize) -> Result<Value, RpcError> {
        let raw = self.raw(at).unwrap_or("null");
        serde_json::from_str(raw).map_err(|_| self.wrong(at, "simpler"))
    }

    /// A text without escapes, in place.
    pub(super) fn text(&self, at: usize) -> Result<&'a str, RpcError> {
        serde_json::from_str::<&'a str>(self.raw(at).unwrap_or_default())
            .map_err(|_| self.wrong(at, "a text"))
    }

    /// A text, or the empty one.
    pub(super) fn text_or_empty(&self, at: usize) -> Result<Cow<'a, str>, RpcError> {
        match self.raw(at) {
            None => Ok(Cow::Borrowed("")),
            Some(raw) => serde_json::from_str(raw).map(Cow::Owned).map_err(|_| self.wrong(at, "a text")),
        }
    }

    /// A number from 0 to 2^32 − 1; 3.0 is one, too.
    pub(super) fn u32(&self, at: usize) -> Result<u32, RpcError> {
        let number = match self.value(at)? {
            Value::Number(number) => number.as_u64().or_else(|| {
                number.as_f64().filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f)).map(|f| f as u64)
            }),
            _ => None,
        };
        number
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| self.wrong(at, "a non-negative integer"))
    }

    /// The same, 0 if it is left out.
    pub(super) fn u32_or_zero(&self, at: usize) -> Result<u32, RpcError> {
        if self.raw(at).is_some() { self.u32(at) } else { Ok(0) }
    }

    /// True or false (or 1 or 0); false if it is left out.
    pub(super) fn flag(&self, at: usize) -> Result<bool, RpcError> {
        match self.raw(at) {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(_) => Err(self.wrong(at, "true or false")),
        }
    }

    pub(super) fn txid(&self, at: usize) -> Result<Txid, RpcError> {
        let expected = "a transaction hash";
        self.text(at)?.parse().map_err(|_| self.wrong(at, expected))
    }

    pub(super) fn script_hash(&self, at: usize) -> Result<ScriptHash, RpcError> {
        self.text(at)?.parse().map_err(|_| self.wrong(at, "a script hash of 64 hexadecimal digits"))
    }

    pub(super) fn script(&self, at: usize) -> Result<ScriptBuf, RpcError> {
        let bytes =
            Vec::from_hex(self.text(at)?).map_err(|_| self.wrong(at, "a script in hexadecimal digits"))?;
        Ok(ScriptBuf::from_bytes(bytes))
    }

    pub(super) fn bytes(&self, at: usize) -> Result<Vec<u8>, RpcError> {
        Vec::from_hex(self.text(at)?).map_err(|_| self.wrong(at, "a transaction in hexadecimal digits"))
    }

    /// A list of transactions in hexadecimal digits.
    pub(super) fn list_of_bytes(&self, at: usize) -> Result<Vec<Vec<u8>>, RpcError> {
        let wrong = || self.wrong(at, "a list of transactions in hexadecimal digits");
        let list: Vec<&str> = serde_json::from_str(self.raw(at).unwrap_or_default()).map_err(|_| wrong())?;
        list.into_iter().map(|hex| Vec::from_hex(hex).map_err(|_| wrong())).collect()
    }
}
