//! The report as a picture: how many intents were charged how often. Bars for the terminal, an SVG for a page.

use std::fmt::Write;

use super::report::{Report, Side};
use crate::table::thousands;

/// Cells of the longest bar.
const BAR_CELLS: u64 = 24;

/// One panel of the SVG: squares in a row, rows, and pixels from one square to the next.
const COLUMNS: u64 = 40;
const ROWS_MAX: u64 = 25;
const PITCH: u64 = 10;

/// What the number of charges of an intent means, in the order of [`Side::intents_by_charges`].
const CLASSES: [(&str, &str); 4] = [
    ("never charged", "never"),
    ("charged once", "once"),
    ("charged twice", "twice"),
    ("three times or more", "more"),
];

/// The sides of the report, with their headings.
fn sides(report: &Report) -> Vec<(&'static str, &Side)> {
    let two = [("without semel", &report.without), ("with semel", &report.with)];
    two.into_iter()
        .chain(report.in_transaction.as_ref().map(|side| ("in the service's commit", side)))
        .collect()
}

/// A bar for each class and side. Every bar is drawn to the same scale.
pub(super) fn bars(report: &Report) -> String {
    let mut text = String::new();
    for (heading, side) in sides(report) {
        let _ = writeln!(text, "\n{heading}");
        for ((name, _), intents) in CLASSES.iter().zip(side.intents_by_charges) {
            // Rounded up, so that a single intent is still visible.
            let cells = (intents * BAR_CELLS).div_ceil(report.intents.max(1));
            let bar = "█".repeat(cells as usize);
            let _ = writeln!(
                text,
                "  {name:<20} {bar}{}{}",
                if cells > 0 { " " } else { "" },
                thousands(intents)
            );
        }
    }
    text
}

/// How many of `squares` squares each class gets: the largest remainders are rounded up, so that none is left over.
fn squares(classes: [u64; 4], squares: u64) -> [u64; 4] {
    let total = classes.iter().sum::<u64>().max(1);
    let mut given = classes.map(|intents| intents * squares / total);
    let mut order = [0, 1, 2, 3];
    order.sort_by_key(|&class| std::cmp::Reverse(classes[class] * squares % total));
    let left = squares.saturating_sub(given.iter().sum());
    for &class in order.iter().take(left as usize).filter(|&&class| classes[class] > 0) {
        given[class] += 1;
    }
    given
}

/// A panel of squares per side, one square per intent (or per share of them, if there are more than a thousand).
pub(super) fn svg(report: &Report) -> String {
    let sides = sides(report);
    let (panel, gap, top) = (COLUMNS * PITCH, 40, 96);
    let width = gap + sides.len() as u64 * (panel + gap);
    let count = report.intents.min(COLUMNS * ROWS_MAX);
    let below = top + count.div_ceil(COLUMNS) * PITCH;
    let height = below + 72;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         <title>{} payments, sent {} times</title>\n\
         <style>\n\
         text {{ font: 14px system-ui, sans-serif; fill: #1f2328 }} .head {{ font-weight: 600; font-size: 17px }}\n\
         .page {{ fill: #ffffff }} .never {{ fill: #8c959f }} .once {{ fill: #2da44e }} .twice {{ fill: #e3a008 }} .more {{ fill: #cf222e }}\n\
         @media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .page {{ fill: #0d1117 }} .once {{ fill: #3fb950 }} .more {{ fill: #f85149 }} }}\n\
         </style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n\
         <text x=\"{gap}\" y=\"36\" class=\"head\">{} payments, sent {} times by {} clients (seed {})</text>\n",
        thousands(report.intents),
        thousands(report.sends),
        thousands(report.intents),
        thousands(report.sends),
        report.tasks,
        report.seed,
    );
    for (n, (heading, side)) in sides.iter().enumerate() {
        let left = gap + n as u64 * (panel + gap);
        let charges = thousands(side.charges);
        let _ = writeln!(svg, "<text x=\"{left}\" y=\"78\">{}: {charges} charges</text>", escaped(heading));
        let mut index = 0;
        for ((_, class), number) in CLASSES.iter().zip(squares(side.intents_by_charges, count)) {
            if number == 0 {
                continue;
            }
            let _ = write!(svg, "<path class=\"{class}\" d=\"");
            for square in index..index + number {
                let (x, y) = (left + square % COLUMNS * PITCH, top + square / COLUMNS * PITCH);
                let _ = write!(svg, "M{x} {y}h8v8h-8z");
            }
            svg.push_str("\"/>\n");
            index += number;
        }
        // Two lines of two: four in a row would be wider than the panel.
        for (class, ((name, style), intents)) in CLASSES.iter().zip(side.intents_by_charges).enumerate() {
            let (x, y) = (left + class as u64 % 2 * (panel / 2), below + 28 + class as u64 / 2 * 24);
            let _ = writeln!(
                svg,
                "<rect class=\"{style}\" x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"{y}\">{name}: {}</text>",
                y - 11,
                x + 18,
                thousands(intents)
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(without: [u64; 4], with: [u64; 4]) -> Report {
        let side = |intents_by_charges| Side { intents_by_charges, ..Side::default() };
        Report { intents: with.iter().sum(), without: side(without), with: side(with), ..Report::default() }
    }

    #[test]
    fn a_single_intent_is_still_to_be_seen() {
        let text = bars(&report([0, 1, 2, 997], [0, 1_000, 0, 0]));
        let bar = |line: &str| line.chars().filter(|cell| *cell == '█').count();
        let cells: Vec<usize> = text.lines().filter(|line| line.starts_with("  ")).map(bar).collect();
        assert_eq!(cells, [0, 1, 1, 24, 0, 24, 0, 0]);
    }

    #[test]
    fn every_intent_gets_its_square_and_a_large_run_a_thousand() {
        assert_eq!(squares([0, 1, 2, 97], 100), [0, 1, 2, 97]);
        assert_eq!(squares([0, 0, 0, 0], 10), [0, 0, 0, 0]);
        for classes in [[1, 1, 1, 999_997], [333_333, 333_333, 333_334, 0]] {
            assert_eq!(squares(classes, 1_000).iter().sum::<u64>(), 1_000, "{classes:?}");
        }
        let svg = svg(&report([0, 10, 20, 70], [0, 100, 0, 0]));
        assert_eq!(svg.matches("h8v8h-8z").count(), 200);
    }
}
