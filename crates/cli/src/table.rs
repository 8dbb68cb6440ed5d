//! Plain text tables that fit the terminal.

use std::io::{IsTerminal, Write};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Names are not cut shorter than this, even where the terminal is narrow.
const LEAST: usize = 16;

/// Rows under a header; the first column is cut in the middle where the terminal is too narrow.
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Where the text of a column goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub fn add(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints header and rows, at most `width` columns wide where there is a limit.
    pub fn print(&self, out: &mut impl Write, width: Option<usize>) -> std::io::Result<()> {
        let header: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut widths: Vec<usize> = header.iter().map(|cell| cell.width()).collect();
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(cell.width());
            }
        }
        let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        if let (Some(excess), Some(first)) =
            (width.and_then(|width| total.checked_sub(width)), widths.first_mut())
        {
            *first = first.saturating_sub(excess).max(LEAST.min(*first));
        }
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let cell = cut(cell, *width);
                let fill = " ".repeat(width.saturating_sub(cell.width()));
                line.push_str(if index > 0 { "  " } else { "" });
                match self.columns[index].1 {
                    Align::Left => line.extend([&*cell, &fill]),
                    Align::Right => line.extend([&*fill, &cell]),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The text in at most `width` columns, an ellipsis in place of its middle: both ends of a
/// tensor's name say something.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let taken = |chars: &mut dyn Iterator<Item = char>, most: usize| {
        let mut used = 0;
        chars
            .take_while(|c| {
                used += c.width().unwrap_or(0);
                used <= most
            })
            .collect::<Vec<char>>()
    };
    let mut end = taken(&mut text.chars().rev(), room - room / 2);
    end.reverse();
    let start = taken(&mut text.chars(), room / 2);
    start.into_iter().chain(['…']).chain(end).collect()
}

/// The columns that a line may take: `COLUMNS`, or the terminal's own; no limit in pipes and files.
pub fn width() -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let found = || {
        let terminal = crate::output::raw().is_terminal();
        terminal.then(terminal_size::terminal_size).flatten().map(|(width, _)| usize::from(width.0))
    };
    asked.or_else(found).filter(|width| *width > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_and_names_are_cut_in_the_middle() {
        let mut table = Table::new(&[("name", Align::Left), ("size", Align::Right)]);
        table.add(vec!["encoder.layers.0.attention.weight".to_owned(), "1 B".to_owned()]);
        table.add(vec!["é".to_owned(), "123 kB".to_owned()]);
        let text = |width| {
            let mut out = Vec::new();
            table.print(&mut out, width).unwrap();
            String::from_utf8(out).unwrap()
        };
        let wide = text(None);
        assert!(wide.contains("encoder.layers.0.attention.weight     1 B\n"), "{wide}");
        let narrow = text(Some(30));
        assert!(narrow.lines().all(|line| line.width() <= 30), "{narrow}");
        assert!(narrow.contains("encoder.la…tion.weight"), "{narrow}");
        assert_eq!(cut("日本語日本語", 5), "日…語");
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 1), "…");
    }
}
