//! Text for CSV that no spreadsheet takes for a formula, at whichever separator it splits lines.

use std::borrow::Cow;

/// Separators besides the comma, at which a program with other settings begins a cell or a row: it then does not see the
/// quotation marks around a text that is not the first of its row.
const SEPARATORS: [char; 4] = [';', '\t', '\r', '\n'];

/// The text with an apostrophe before each place that would be a formula if a cell began there.
#[must_use]
pub fn without_formulas(text: &str) -> Cow<'_, str> {
    let begins_cell = |at: usize| {
        let (before, rest) = text.split_at(at);
        (before.is_empty() || before.ends_with(SEPARATORS)) && is_formula(rest)
    };
    let places: Vec<usize> =
        text.char_indices().map(|(at, _)| at).filter(|at| begins_cell(*at)).collect();
    if places.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + places.len());
    let mut from = 0;
    for place in places {
        safe.push_str(&text[from..place]);
        safe.push('\'');
        from = place;
    }
    safe.push_str(&text[from..]);
    Cow::Owned(safe)
}

/// Formulas begin so, behind white space and quotation marks too.
fn is_formula(text: &str) -> bool {
    let begin = text.trim_start_matches(|c: char| c.is_whitespace() || c.is_control() || c == '"');
    begin.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_at_any_separator_is_a_formula() {
        for (text, safe) in [
            ("=1+1", "'=1+1"),
            ("+49 40", "'+49 40"),
            ("-2", "'-2"),
            ("@SUM(A1)", "'@SUM(A1)"),
            (" =1", "' =1"),
            ("a;=1+1", "a;'=1+1"),
            ("a; \"=1", "a;' \"=1"),
            ("a\t@x;-1", "a\t'@x;'-1"),
            ("a\r\n=1", "a\r'\n'=1"),
            ("\t=1", "'\t'=1"),
            ("a;;=1", "a;;'=1"),
            ("＝1", "'＝1"),
        ] {
            assert_eq!(without_formulas(text), safe, "{text:?}");
        }
        for harmless in ["", "Hafenstr. 1", "a=b", "1-2", "a; b-c", "x\ny", "a;1=2", "'=1"] {
            assert_eq!(without_formulas(harmless), harmless);
        }
    }
}
