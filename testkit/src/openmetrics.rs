//! What a metrics document promises: names, types, help texts and labels, without the values.

/// The document without its values. The samples of a metric are sorted, since their order is not promised.
pub fn listing(document: &str) -> String {
    let is_comment = |line: &str| line.starts_with('#');
    let mut lines: Vec<&str> = document
        .lines()
        .map(
            |line| if is_comment(line) { line } else { line.rsplit_once(' ').map_or(line, |(name, _)| name) },
        )
        .collect();
    for samples in lines.chunk_by_mut(|one, next| is_comment(one) == is_comment(next)) {
        samples.sort_unstable();
    }
    lines.into_iter().flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::listing;

    #[test]
    fn values_and_the_order_of_samples_do_not_matter() {
        let document = "# HELP a Some.\n# TYPE a counter\na_total{of=\"y\"} 2\na_total{of=\"x\"} 1\n# EOF\n";
        let listed = "# HELP a Some.\n# TYPE a counter\na_total{of=\"x\"}\na_total{of=\"y\"}\n# EOF\n";
        assert_eq!(listing(document), listed);
    }
}
