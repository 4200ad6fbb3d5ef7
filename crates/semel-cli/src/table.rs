//! Aligned columns.

/// Longest error in a table.
const ERROR_CHARS_MAX: usize = 80;

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Rows under headings. Widths only ever grow, so the pages of one listing stay aligned as far as possible.
pub(crate) struct Table<const N: usize> {
    sides: [Side; N],
    widths: [usize; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(headings: [(&str, Side); N]) -> Self {
        let mut table = Self { sides: headings.map(|(_, side)| side), widths: [0; N], rows: Vec::new() };
        table.row(headings.map(|(heading, _)| heading.to_owned()));
        table
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(cell.chars().count());
        }
        self.rows.push(cells);
    }

    /// Takes the rows added so far: two spaces between columns, none at the end of a line.
    pub(crate) fn take(&mut self) -> String {
        let mut text = String::new();
        for row in self.rows.drain(..) {
            let mut line = String::new();
            for ((cell, width), side) in row.iter().zip(self.widths).zip(self.sides) {
                match side {
                    Side::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Side::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Escapes control characters, so that the text is safe for a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if c.is_control() {
            shown.extend(c.escape_default())
        } else {
            shown.push(c)
        }
        shown
    })
}

/// An error shortened to fit a table; `show` prints all of it.
pub(crate) fn short(error: &str) -> String {
    let shown = printable(error);
    match shown.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_do_not_trail() {
        let mut table = Table::new([("NAME", Side::Left), ("N", Side::Right), ("", Side::Left)]);
        table.row(["käse".into(), "1000".into(), String::new()]);
        table.row(["x".into(), "7".into(), "!".into()]);
        assert_eq!(table.take(), "NAME     N\nkäse  1000\nx        7  !\n");
        table.row(["y".into(), "1".into(), String::new()]);
        assert_eq!(table.take(), "y        1\n");
    }

    #[test]
    fn numbers_and_texts_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(printable("a\u{1b}[31m\nü"), "a\\u{1b}[31m\\nü");
    }
}
