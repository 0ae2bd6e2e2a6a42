//! Formats answers as tables and as JSON.

use comfy_table::{Cell, Table, presets};
use serde_json::Value;
use serde_json::value::RawValue;

/// The most characters that a cell shows; `--json` shows everything.
const MAX_CELL: usize = 100;

/// A column of a table: its heading, and the field of each item that it shows.
pub(super) struct Column {
    heading: &'static str,
    field: &'static str,
}

impl Column {
    pub(crate) const fn new(heading: &'static str, field: &'static str) -> Self {
        Self { heading, field }
    }
}

/// A table for people.
pub(super) fn table(columns: &[Column], items: &[Box<RawValue>]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(columns.iter().map(|column| Cell::new(column.heading)));
    for item in items {
        let item = value(item);
        table.add_row(columns.iter().map(|column| Cell::new(cell(&item[column.field]))));
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim()));
    lines.collect()
}

/// A list in the form of the API with all pages in one, for programs. Every item stays as the server wrote it.
pub(super) fn json_items(items: &[Box<RawValue>]) -> String {
    let items: Vec<&str> = items.iter().map(|item| item.get()).collect();
    format!("{{\"items\":[{}],\"next_cursor\":null}}\n", items.join(","))
}

/// JSON with line breaks and indentation.
pub(super) fn pretty(json: &RawValue) -> String {
    let mut text = serde_json::to_string_pretty(&value(json)).unwrap_or_default();
    text.push('\n');
    text
}

/// Parses an answer; text that is not JSON counts as `null`.
pub(super) fn value(json: &RawValue) -> Value {
    serde_json::from_str(json.get()).unwrap_or_default()
}

/// A text field of an answer, empty if there is none.
pub(super) fn field(json: &RawValue, name: &str) -> String {
    value(json)[name].as_str().unwrap_or_default().to_owned()
}

/// A JSON list of names. Blank names are left out, so that a flag without a value gives an empty list.
pub(super) fn list(names: Vec<String>) -> Value {
    names.into_iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => without_controls(text),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => without_controls(&value.to_string()),
    };
    match text.char_indices().nth(MAX_CELL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A text without control characters. Clients and models write some of the texts that are shown, and must not be able
/// to control the administrator's terminal.
pub(super) fn without_controls(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [Column::new("ID", "id"), Column::new("LIST", "list"), Column::new("AT", "at")];

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn people_get_columns() {
        let items = [
            raw(r#"{"id":"a","list":["x","y"],"at":null,"more":1}"#),
            raw(r#"{"id":"\u001b[31mlong","list":[],"at":{"n":1}}"#),
        ];
        assert_eq!(
            table(&COLUMNS, &items),
            "ID         LIST  AT\na          x, y  -\n[31mlong  -     {\"n\":1}\n",
            "nothing steers the terminal"
        );
        let long = raw(&format!(r#"{{"id":"{}"}}"#, "ä".repeat(300)));
        assert!(table(&COLUMNS, &[long]).contains(&format!("{}…", "ä".repeat(MAX_CELL))));
    }

    #[test]
    fn programs_get_the_items_as_they_came() {
        let items = [raw(r#"{"z":1.10,"a":"\u00e4"}"#), raw("{}")];
        assert_eq!(json_items(&items), "{\"items\":[{\"z\":1.10,\"a\":\"\\u00e4\"},{}],\"next_cursor\":null}\n");
    }

    #[test]
    fn a_flag_without_a_value_is_an_empty_list() {
        assert_eq!(list(vec![]), serde_json::json!([]));
        assert_eq!(list(vec![" a".into(), String::new()]), serde_json::json!(["a"]));
    }
}
