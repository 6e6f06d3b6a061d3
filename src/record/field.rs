//! One field of a row as columns of a table: written and read by the same description.

use anyhow::{Result, anyhow};
use polars::prelude::*;

use super::run::Status;
use crate::memory::category::{Bytes, Category};

/// A type that one or several columns hold.
pub(super) trait Field: Sized {
    /// The columns of a field over all rows.
    fn columns(name: &str, values: Vec<&Self>) -> Vec<Column>;
    /// The field of every row.
    fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>>;
}

/// A column of the given type, or what is wrong with it.
fn typed<'a>(table: &'a DataFrame, name: &str, dtype: &DataType) -> Result<&'a Column> {
    let column = table.column(name).map_err(|_| anyhow!("there is no column `{name}`"))?;
    if column.dtype() != dtype {
        return Err(anyhow!("column `{name}` holds {}, not {dtype}", column.dtype()));
    }
    Ok(column)
}

/// The value of a column that may not be null.
fn whole<T>(name: &str, values: impl Iterator<Item = Option<T>>) -> Result<Vec<T>> {
    values.map(|v| v.ok_or_else(|| anyhow!("column `{name}` has a null"))).collect()
}

macro_rules! primitive {
    ($type:ty, $dtype:expr, $get:ident) => {
        impl Field for $type {
            fn columns(name: &str, values: Vec<&Self>) -> Vec<Column> {
                let values: Vec<$type> = values.into_iter().copied().collect();
                vec![Column::new(name.into(), values)]
            }
            fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>> {
                whole(name, typed(table, name, &$dtype)?.$get()?.iter())
            }
        }
        impl Field for Option<$type> {
            fn columns(name: &str, values: Vec<&Self>) -> Vec<Column> {
                let values: Vec<Option<$type>> = values.into_iter().copied().collect();
                vec![Column::new(name.into(), values)]
            }
            fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>> {
                Ok(typed(table, name, &$dtype)?.$get()?.iter().collect())
            }
        }
    };
}

primitive!(u32, DataType::UInt32, u32);
primitive!(u64, DataType::UInt64, u64);
primitive!(i32, DataType::Int32, i32);
primitive!(i64, DataType::Int64, i64);
primitive!(f64, DataType::Float64, f64);
primitive!(bool, DataType::Boolean, bool);

impl Field for String {
    fn columns(name: &str, values: Vec<&Self>) -> Vec<Column> {
        let values: Vec<&str> = values.into_iter().map(String::as_str).collect();
        vec![Column::new(name.into(), values)]
    }
    fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>> {
        let column = typed(table, name, &DataType::String)?.str()?;
        whole(name, column.iter().map(|v| v.map(str::to_string)))
    }
}

impl Field for Option<String> {
    fn columns(name: &str, values: Vec<&Self>) -> Vec<Column> {
        let values: Vec<Option<&str>> = values.into_iter().map(|v| v.as_deref()).collect();
        vec![Column::new(name.into(), values)]
    }
    fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>> {
        let column = typed(table, name, &DataType::String)?.str()?;
        Ok(column.iter().map(|v| v.map(str::to_string)).collect())
    }
}

impl Field for Status {
    fn columns(name: &str, values: Vec<&Self>) -> Vec<Column> {
        let values: Vec<&str> = values.into_iter().map(|s| s.key()).collect();
        vec![Column::new(name.into(), values)]
    }
    fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>> {
        let keys = String::read(table, name)?;
        let known = |key: &String| Status::from_key(key).ok_or_else(|| anyhow!("column `{name}` has `{key}`"));
        keys.iter().map(known).collect()
    }
}

/// Values by step: a list column.
impl Field for Vec<f64> {
    fn columns(name: &str, values: Vec<&Self>) -> Vec<Column> {
        let mut list = ListPrimitiveChunkedBuilder::<Float64Type>::new(
            name.into(),
            values.len(),
            values.iter().map(|v| v.len()).sum(),
            DataType::Float64,
        );
        values.into_iter().for_each(|v| list.append_slice(v));
        vec![list.finish().into_column()]
    }
    fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>> {
        let list = typed(table, name, &DataType::List(Box::new(DataType::Float64)))?.list()?;
        let one = |i| -> Result<Vec<f64>> {
            let series = list.get_as_series(i).ok_or_else(|| anyhow!("column `{name}` has a null"))?;
            whole(name, series.f64()?.iter())
        };
        (0..table.height()).map(one).collect()
    }
}

/// A column for each category: `<name>_<category>_bytes`.
impl Field for Bytes {
    fn columns(name: &str, values: Vec<&Self>) -> Vec<Column> {
        let column = |category: Category| {
            let values: Vec<u64> = values.iter().map(|b| b.of(category)).collect();
            Column::new(format!("{name}_{}_bytes", category.key()).into(), values)
        };
        Category::ALL.into_iter().map(column).collect()
    }
    fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>> {
        let mut rows = vec![Bytes::default(); table.height()];
        for category in Category::ALL {
            let values = u64::read(table, &format!("{name}_{}_bytes", category.key()))?;
            rows.iter_mut().zip(values).for_each(|(row, value)| row.0[category as usize] = value);
        }
        Ok(rows)
    }
}

/// A column for each category, null where it isn't known.
impl Field for Option<Bytes> {
    fn columns(name: &str, values: Vec<&Self>) -> Vec<Column> {
        let column = |category: Category| {
            let values: Vec<Option<u64>> = values.iter().map(|b| b.map(|b| b.of(category))).collect();
            Column::new(format!("{name}_{}_bytes", category.key()).into(), values)
        };
        Category::ALL.into_iter().map(column).collect()
    }
    fn read(table: &DataFrame, name: &str) -> Result<Vec<Self>> {
        let mut rows = vec![Some(Bytes::default()); table.height()];
        for category in Category::ALL {
            let values = Option::<u64>::read(table, &format!("{name}_{}_bytes", category.key()))?;
            for (row, value) in rows.iter_mut().zip(values) {
                *row = row.zip(value).map(|(mut bytes, value)| {
                    bytes.0[category as usize] = value;
                    bytes
                });
            }
        }
        Ok(rows)
    }
}

/// Describes a table: for each field of `$row` its column, or its columns' prefix.
macro_rules! table {
    ($row:ident, $write:ident, $read:ident, { $($field:ident => $column:literal),* $(,)? }) => {
        pub(super) fn $write(rows: &[$row]) -> Result<DataFrame> {
            let mut columns = Vec::new();
            $(columns.extend(Field::columns($column, rows.iter().map(|r| &r.$field).collect()));)*
            Ok(DataFrame::new(rows.len(), columns)?)
        }

        pub(super) fn $read(table: &DataFrame) -> Result<Vec<$row>> {
            $(let mut $field = Field::read(table, $column)?.into_iter();)*
            let mut rows = Vec::with_capacity(table.height());
            for _ in 0..table.height() {
                $(let Some($field) = $field.next() else { break };)*
                rows.push($row { $($field),* });
            }
            Ok(rows)
        }
    };
}
pub(super) use table;
