//! What each opcode and modifier needs: since which PTX ISA version, on which compute capability.
//! Source: the "PTX ISA Notes" and "Target ISA Notes" of each instruction in NVIDIA's PTX ISA manual.

/// One row: an instruction that has all of `tokens` (the opcode first, then modifiers in any number between).
struct Rule {
    tokens: &'static [&'static str],
    version: (u32, u32),
    sm: u32,
}

const fn rule(tokens: &'static [&'static str], version: (u32, u32), sm: u32) -> Rule {
    Rule { tokens, version, sm }
}

/// Every target of kiln has sm_75 and PTX 6.3; what needs no more is not listed.
const RULES: &[Rule] = &[
    rule(&["ld", "L1::no_allocate"], (7, 4), 75),
    rule(&["ld", "L2::128B"], (7, 4), 75),
    rule(&["ld", "L2::256B"], (7, 4), 80),
    rule(&["ld", "L2::cache_hint"], (7, 4), 80),
    rule(&["ld", "v8"], (8, 8), 100),
    rule(&["createpolicy"], (7, 4), 80),
    rule(&["discard"], (7, 4), 80),
    rule(&["ldmatrix"], (6, 5), 75),
    rule(&["mma", "m16n8k8"], (6, 5), 75),
    rule(&["mma", "m8n8k16"], (6, 5), 75),
    rule(&["mma", "m16n8k16"], (7, 0), 80),
    rule(&["mma", "m16n8k32"], (7, 0), 80),
    rule(&["redux"], (7, 0), 80),
    rule(&["cp", "async"], (7, 0), 80),
    rule(&["cp", "async", "bulk"], (8, 0), 90),
    rule(&["cp", "async", "bulk", "shared::cta"], (8, 6), 90),
    rule(&["mbarrier"], (7, 0), 80),
    rule(&["mbarrier", "try_wait"], (7, 8), 90),
    rule(&["mbarrier", "expect_tx"], (8, 0), 90),
    rule(&["fence", "proxy", "async"], (8, 0), 90),
    rule(&["fence", "mbarrier_init"], (8, 0), 90),
    rule(&["griddepcontrol"], (7, 8), 90),
    rule(&["elect"], (8, 0), 90),
    rule(&["mapa"], (7, 8), 90),
    rule(&["st", "async"], (8, 1), 90),
    rule(&["cvt", "bf16", "f32"], (7, 0), 80),
    rule(&["fma", "bf16x2"], (7, 0), 80),
    rule(&["fma", "f32x2"], (8, 6), 100),
];

impl Rule {
    fn applies(&self, mnemonic: &str) -> bool {
        let mut parts = mnemonic.split('.');
        if parts.next() != Some(self.tokens[0]) {
            return false;
        }
        self.tokens[1..].iter().all(|token| parts.any(|part| part == *token))
    }
}

/// The least PTX version and compute capability that have this instruction.
pub(crate) fn of(mnemonic: &str) -> ((u32, u32), u32) {
    RULES
        .iter()
        .filter(|rule| rule.applies(mnemonic))
        .fold(((6, 3), 75), |(version, sm), rule| (version.max(rule.version), sm.max(rule.sm)))
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn modifiers_raise_what_an_opcode_needs() {
        assert_eq!(of("ld.global.f32"), ((6, 3), 75));
        assert_eq!(of("ld.global.nc.L1::no_allocate.v4.u32"), ((7, 4), 75));
        assert_eq!(of("cp.async.cg.shared.global"), ((7, 0), 80));
        assert_eq!(of("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"), ((8, 0), 90));
        assert_eq!(of("mbarrier.arrive.expect_tx.shared.b64"), ((8, 0), 90));
    }
}
