//! Formats tables of figures as aligned text for people.

/// A table of text whose columns are aligned: the first to the left, the others to the
/// right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes an empty table with these column headings.
    pub(crate) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self {
            rows: vec![head.map(str::to_owned).to_vec()],
        }
    }

    /// Adds a row of cells to the table.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Formats the table as lines of text, each with its line end.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(c));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (i, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match i {
                    0 => line += &format!("  {cell:<width$}"),
                    _ => line += &format!("  {cell:>width$}"),
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Formats a number with commas between its thousands: `27,854,794,240`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats the share of `part` in `whole` as a percentage, `12.3 %`; `0.0 %` if the whole
/// is zero.
pub(crate) fn share(part: f64, whole: f64) -> String {
    let share = if whole > 0.0 { part / whole } else { 0.0 };
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let mut table = Table::new(["name", "n"]);
        table.row(["a".to_owned(), "1,000".to_owned()]);
        assert_eq!(table.text(), "  name      n\n  a     1,000\n");
    }

    #[test]
    fn digits_by_three() {
        let texts = [0, 999, 1000, 27_854_794_240].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "27,854,794,240"]);
        assert_eq!(
            (share(1.0, 8.0), share(0.0, 0.0)),
            ("12.5 %".into(), "0.0 %".into())
        );
    }
}
