//! Text for CSV that no spreadsheet takes for a formula, at whichever separator it splits lines.

use std::borrow::Cow;

/// Separators besides the comma, at which a program with other settings begins a cell or a row: it then does not see the
/// quotation marks around a text that is not the first of its row.
const SEPARATORS: [char; 4] = [';', '\t', '\r', '\n'];

/// The text with an apostrophe before each place that would be a formula if a cell began there.
#[must_use]
pub fn without_formulas(text: &str) -> Cow<'_, str> {
    let (mut places, mut is_formula) = (Vec::new(), false);
    for (at, c) in text.char_indices().rev() {
        is_formula = match c {
            '=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠' => true,
            // Formulas begin behind white space and quotation marks, too.
            c => is_formula && (c.is_whitespace() || c.is_control() || c == '"'),
        };
        if is_formula && (at == 0 || text[..at].ends_with(SEPARATORS)) {
            places.push(at);
        }
    }
    if places.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + places.len());
    let mut from = 0;
    for place in places.into_iter().rev() {
        safe.push_str(&text[from..place]);
        safe.push('\'');
        from = place;
    }
    safe.push_str(&text[from..]);
    Cow::Owned(safe)
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

    #[test]
    fn the_time_for_a_text_grows_with_its_length() {
        // With its square, this takes hours.
        let tabs = "\t".repeat(2 << 20);
        assert_eq!(without_formulas(&tabs), tabs);
        assert_eq!(without_formulas(&(tabs.clone() + "=1")).len(), 2 * tabs.len() + 3);
    }
}
