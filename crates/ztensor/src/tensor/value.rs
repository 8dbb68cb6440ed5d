//! Attribute values: what metadata of any format turns into.

use indexmap::IndexMap;

/// Named attributes, in the order of the file.
pub type Attributes = IndexMap<String, Value>;

/// One attribute value. The variants are those of CBOR, which every other
/// format's metadata fits into.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// An integer; `.zt` files hold -2^64 to 2^64 - 1.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(String),
    /// Raw bytes.
    Bytes(Vec<u8>),
    /// A list.
    Array(Vec<Value>),
    /// A map; keys are mostly text, but need not be.
    Map(Vec<(Value, Value)>),
    /// A CBOR tag and what it stands for.
    Tag(u64, Box<Value>),
}

impl Value {
    /// The text, if this is text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if this is one.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// Looks a text key up in a map.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Map(pairs) => {
                pairs.iter().find(|(name, _)| name.as_text() == Some(key)).map(|(_, value)| value)
            }
            _ => None,
        }
    }
}

macro_rules! from_int {
    ($($int:ty),*) => {$(
        impl From<$int> for Value {
            fn from(int: $int) -> Self {
                Value::Int(int as i128)
            }
        }
    )*};
}
from_int!(i8, i16, i32, i64, u8, u16, u32, u64, usize);

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::Text(value)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(values: Vec<T>) -> Self {
        Value::Array(values.into_iter().map(Into::into).collect())
    }
}
