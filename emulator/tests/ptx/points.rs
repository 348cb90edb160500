//! Published points beside the clock's, and the tables of `docs/CLOCK.md` that hold them.

use std::fmt::Write;

/// A point: what, whose, on which chip, the published figure and the clock's.
pub(crate) struct Point {
    pub(crate) what: String,
    /// Where it is published, if the table says so by row.
    pub(crate) source: Option<&'static str>,
    pub(crate) chip: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) published: f64,
    /// Whether device memory bounds it.
    pub(crate) memory: bool,
    pub(crate) model: Box<dyn Fn() -> f64>,
}

impl Point {
    /// Its row of the table, and how much faster the model is than the chip.
    fn row(&self) -> (String, f64) {
        let Point { what, chip, unit, published, model, .. } = self;
        let (modelled, digits) = (
            model(),
            match *unit {
                "us" => 2,
                "lanes" => 1,
                _ => 0,
            },
        );
        let ratio = modelled / published;
        let off = if matches!(*unit, "us" | "ns" | "clocks") { 1.0 / ratio - 1.0 } else { ratio - 1.0 };
        let percent = 100.0 * off;
        let source = self.source.map(|source| format!(" {source} |")).unwrap_or_default();
        let figures =
            format!("{} {unit} | {modelled:.digits$} {unit} | {percent:+.0} %", (100.0 * published).round() / 100.0);
        (format!("| {what} |{source} {chip} | {figures} |\n"), off)
    }
}

/// Mean and worst of errors, in percent.
fn summary(errors: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = errors.clone().count().max(1) as f64;
    (100.0 * errors.clone().sum::<f64>() / count, 100.0 * errors.fold(0.0, f64::max))
}

fn table(first: &str, points: &[Point]) -> String {
    let sourced = points.iter().any(|point| point.source.is_some());
    let (source, rule) = if sourced { (" source |", "---|") } else { ("", "") };
    let mut out =
        format!("| {first} |{source} chip file | published | modelled | off |\n|---|{rule}---|---|---|---|\n");
    let mut errors = Vec::new();
    for point in points {
        let (row, off) = point.row();
        if std::env::var_os("KILN_BLESS").is_some() {
            print!("{row}");
        }
        out += &row;
        errors.push((off.abs(), point.memory));
    }
    let (mean, worst) = summary(errors.iter().map(|error| error.0));
    let _ = write!(out, "\nMean error {mean:.0} %, the worst {worst:.0} %");
    if sourced {
        let bound = || errors.iter().filter(|error| error.1).map(|error| error.0);
        let (mean, worst) = summary(bound());
        let _ = write!(out, "; of the {} that memory bounds, {mean:.0} % and {worst:.0} %", bound().count());
    }
    out + ".\n"
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CLOCK.md");

/// Models points, whose rows the page must have.
pub(crate) fn hold<'a>(points: impl Iterator<Item = &'a Point>) {
    let text = std::fs::read_to_string(PAGE).unwrap();
    for point in points {
        let (row, _) = point.row();
        assert!(
            text.contains(&row),
            "the table lacks {row}the whole of it is a long test, which KILN_BLESS=1 has rewrite it"
        );
    }
}

/// Models all points of the page's table behind the comment `name`, whose first column is `first`.
pub(crate) fn hold_table(name: &str, first: &str, points: &[Point]) {
    let found = table(first, points);
    // Read behind the work: the other table's test may have rewritten its part meanwhile.
    let text = std::fs::read_to_string(PAGE).unwrap();
    let (begin, end) = (format!("<!-- {name} -->\n"), "<!-- end -->");
    let (before, rest) = text.split_once(&begin).unwrap();
    let (known, after) = rest.split_once(end).unwrap();
    if std::env::var_os("KILN_BLESS").is_some() {
        std::fs::write(PAGE, format!("{before}{begin}{found}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(known, found, "KILN_BLESS=1 rewrites the table");
}
