//! What the emulator counted, as a table: exact, and the same on every run.

use kiln::shape::ModelShape;
use kiln_emulator::Counters;
use std::collections::BTreeMap;

/// Weights of a kernel's matrices, if it is a gemv.
fn weights(kernel: &str, shape: &ModelShape) -> Option<u64> {
    let [hidden, ffn, vocab] = [shape.hidden, shape.ffn, shape.vocab].map(u64::from);
    let (q_dim, kv_dim) = (u64::from(shape.q_dim()), u64::from(shape.kv_dim()));
    match kernel {
        "rmsnorm_qkv" => Some(hidden * (q_dim + 2 * kv_dim)),
        "attention_output_residual" => Some(hidden * q_dim),
        "rmsnorm_gate_up_swiglu" => Some(2 * hidden * ffn),
        "down_residual" => Some(hidden * ffn),
        "rmsnorm_head" => Some(hidden * vocab),
        _ => None,
    }
}

/// A table by kernel of all launches of a device, and the twenty lines that take the most instructions if `by_line`: of
/// the kernels' source where the PTX was baked with it, else of the PTX.
pub(crate) fn table(ordinal: i32, shape: &ModelShape, by_line: bool) -> String {
    let mut kernels: BTreeMap<String, (u64, Counters)> = BTreeMap::new();
    for record in kiln_emulator::reports(ordinal) {
        let (launches, counters) = kernels.entry(record.kernel).or_default();
        *launches += 1;
        counters.add(&record.counters);
    }
    let mut text = format!(
        "counted on the emulator, all launches together; bytes read\n{:<28} {:>8} {:>14} {:>9} {:>12} {:>12} {:>12} {:>9} {:>9}\n",
        "kernel", "launches", "instructions", "a weight", "used", "in sectors", "distinct", "conflicts", "barriers"
    );
    for (kernel, (launches, counters)) in &kernels {
        let each = weights(kernel, shape).map_or("-".to_owned(), |weights| {
            format!("{:.2}", counters.lane_instructions as f64 / (weights * launches) as f64)
        });
        text.push_str(&format!(
            "{kernel:<28} {launches:>8} {:>14} {each:>9} {:>12} {:>12} {:>12} {:>9} {:>9}\n",
            counters.lane_instructions,
            counters.read_bytes_used,
            32 * counters.read_sectors,
            counters.read_bytes_distinct,
            counters.bank_conflicts,
            counters.barriers,
        ));
    }
    if by_line {
        text.push_str(&lines(kernels.iter().map(|(kernel, (_, counters))| (kernel.as_str(), counters))));
    }
    text
}

fn lines<'a>(all: impl Iterator<Item = (&'a str, &'a Counters)>) -> String {
    let mut lines: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    let mut nameless = false;
    for (kernel, (ptx_line, line)) in all.flat_map(|(kernel, all)| all.lines.iter().map(move |line| (kernel, line))) {
        let place = match &line.source {
            Some((file, line)) => format!("{file}:{line}"),
            None => format!("{kernel}, PTX line {ptx_line}"),
        };
        nameless |= line.source.is_none();
        let sum = lines.entry(place).or_default();
        sum.0 += line.lane_instructions;
        sum.1 += 32 * line.sectors;
        sum.2 += line.bank_conflicts;
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.0));
    let mut text = format!("{:<52} {:>14} {:>12} {:>9}\n", "line", "instructions", "in sectors", "conflicts");
    for (place, (instructions, bytes, conflicts)) in lines.into_iter().take(20) {
        text.push_str(&format!("{place:<52} {instructions:>14} {bytes:>12} {conflicts:>9}\n"));
    }
    if nameless {
        text.push_str("a build with KILN_PROVENANCE=1 names lines of the kernels' source\n");
    }
    text
}
