//! Attribute values between Rust and Python.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use ztensor::{Attributes, Value};

use crate::errors::invalid;

/// Attributes nest no deeper than this: a list that contains itself must not hang us.
const MAX_DEPTH: usize = 64;

/// Attributes as a dictionary.
pub(crate) fn to_dict<'py>(py: Python<'py>, attributes: &Attributes) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in attributes {
        dict.set_item(name, to_python(py, value)?)?;
    }
    Ok(dict)
}

fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Int(value) => value.into_pyobject(py)?.into_any(),
        Value::Float(value) => PyFloat::new(py, *value).into_any(),
        Value::Text(value) => PyString::new(py, value).into_any(),
        Value::Bytes(value) => PyBytes::new(py, value).into_any(),
        Value::Array(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(to_python(py, value)?)?;
            }
            list.into_any()
        }
        Value::Map(pairs) => {
            let dict = PyDict::new(py);
            for (key, value) in pairs {
                let key = match key {
                    // Lists and maps cannot be keys in Python: show them as text.
                    Value::Array(_) | Value::Map(_) => to_python(py, key)?.repr()?.into_any(),
                    key => to_python(py, key)?,
                };
                dict.set_item(key, to_python(py, value)?)?;
            }
            dict.into_any()
        }
        Value::Tag(_, value) => to_python(py, value)?,
    })
}

/// A dictionary as attributes.
pub(crate) fn from_dict(dict: &Bound<'_, PyDict>) -> PyResult<Attributes> {
    let mut attributes = Attributes::new();
    for (key, value) in dict {
        let key: String = key.extract().map_err(|_| {
            invalid(dict.py(), format!("attribute names are strings, not {}", type_name(&key)))
        })?;
        let value = from_python(&value, 0, &key)?;
        attributes.insert(key, value);
    }
    Ok(attributes)
}

fn from_python(value: &Bound<'_, PyAny>, depth: usize, name: &str) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(invalid(value.py(), format!("attribute {name:?} is nested more than {MAX_DEPTH} deep")));
    }
    let list = |items: &mut dyn Iterator<Item = Bound<'_, PyAny>>| {
        let items: PyResult<Vec<_>> = items.map(|item| from_python(&item, depth + 1, name)).collect();
        Ok(Value::Array(items?))
    };
    if value.is_none() {
        Ok(Value::Null)
    } else if value.is_instance_of::<PyBool>() {
        Ok(Value::Bool(value.extract()?))
    } else if value.is_instance_of::<PyInt>() {
        let int: i128 = value.extract().map_err(|_| {
            invalid(value.py(), format!("attribute {name:?} is an integer of more than 64 bits"))
        })?;
        Ok(Value::Int(int))
    } else if value.is_instance_of::<PyFloat>() {
        Ok(Value::Float(value.extract()?))
    } else if let Ok(text) = value.cast::<PyString>() {
        Ok(Value::Text(text.to_str()?.to_owned()))
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        Ok(Value::Bytes(bytes.as_bytes().to_vec()))
    } else if let Ok(items) = value.cast::<PyList>() {
        list(&mut items.iter())
    } else if let Ok(items) = value.cast::<PyTuple>() {
        list(&mut items.iter())
    } else if let Ok(dict) = value.cast::<PyDict>() {
        let pairs = dict.iter().map(|(key, value)| {
            Ok((from_python(&key, depth + 1, name)?, from_python(&value, depth + 1, name)?))
        });
        Ok(Value::Map(pairs.collect::<PyResult<_>>()?))
    } else if value.hasattr("tolist")? {
        // NumPy scalars and small arrays.
        from_python(&value.call_method0("tolist")?, depth + 1, name)
    } else {
        Err(invalid(
            value.py(),
            format!(
                "attribute {name:?} has type {}: use None, bool, int, float, str, bytes, list or dict",
                type_name(value)
            ),
        ))
    }
}

/// The name of an object's type, for messages.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string())
}
