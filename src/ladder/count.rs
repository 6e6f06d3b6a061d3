//! Counts of bytes and tokens in an experiment file, with or without a unit.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::units::{parse_bytes, parse_tokens};

pub(super) const BYTES: bool = false;
pub(super) const TOKENS: bool = true;

/// A count that may be written with a unit: bytes ("80GiB") or tokens ("160k").
#[derive(Clone, Copy)]
pub(super) struct Count<const KIND: bool>(pub(super) u64);

impl<const KIND: bool> Serialize for Count<KIND> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl<'de, const KIND: bool> Deserialize<'de> for Count<KIND> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct CountVisitor<const KIND: bool>;
        impl<const KIND: bool> Visitor<'_> for CountVisitor<KIND> {
            type Value = Count<KIND>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(if KIND == TOKENS { "tokens (1M, 160k or 32768)" } else { "bytes (80GiB or 1048576)" })
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Self::Value, E> {
                match u64::try_from(v) {
                    Ok(v) if v > 0 => Ok(Count(v)),
                    _ => Err(E::custom(format!("{v} is not positive"))),
                }
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Self::Value, E> {
                if v > 0 { Ok(Count(v)) } else { Err(E::custom("0 is not positive")) }
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                let count = if KIND == TOKENS { parse_tokens(v) } else { parse_bytes(v) };
                count.map(Count).map_err(E::custom)
            }
        }
        d.deserialize_any(CountVisitor)
    }
}
