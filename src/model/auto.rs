//! The path that a session takes where it is left to kiln: the one that [`cost`] predicts to be faster, on chips that it
//! has figures of.

use super::cost::{self, CHIPS, Chip, Program, Way};
use super::kernels::Persistent;
use super::{Inner, KvType, Numerics};
use crate::driver::Device;
use crate::shape::{TensorRole, WeightType};

/// Positions behind which a token is predicted: its cache is neither empty nor what the time goes to.
const POSITION: u32 = 512;

/// What is predicted for a session.
pub(super) struct Predicted {
    pub(super) is_graph: bool,
    /// Why, in a line: modelled, not measured.
    pub(super) why: String,
}

/// Whether tokens come faster as graphs than from the resident decoder; `None` where there are no figures of the chip.
pub(super) fn predicted(inner: &Inner, numerics: Numerics, kv: KvType) -> Option<Predicted> {
    let chip = chip_of(&inner.device)?;
    let type_of = |role, layer| {
        // A tied head has the embedding's.
        let ty = inner.weights.ty(role, layer).or_else(|| inner.weights.ty(TensorRole::TokenEmbedding, 0));
        ty.unwrap_or(WeightType::Q4_K)
    };
    let phases = cost::phases_of(inner.file.shape(), POSITION, kv.bytes(), type_of);
    let types: Vec<_> = inner.weights.types().collect();
    let has_ring = Persistent::takes_ring(&inner.device, inner.baked, numerics, &types);
    let resident = if has_ring { Way::PersistentRing } else { Way::Persistent };
    let [graph, resident] = [Way::Graph, resident].map(|way| {
        let seconds = cost::predict(&phases, chip, way, Program::Kiln(numerics)).seconds();
        (seconds, format!("{} at {:.0} tokens/s", way.name(), seconds.recip()))
    });
    let is_graph = graph.0 < resident.0;
    let (taken, left) = if is_graph { (graph.1, resident.1) } else { (resident.1, graph.1) };
    Some(Predicted {
        is_graph,
        why: format!("auto: {taken}, {left}: modelled for {} and the file's weights", chip.name),
    })
}

/// The chip with figures that a device is: one of its target and size, by its name where several are.
fn chip_of(device: &Device) -> Option<&'static Chip> {
    let is = |chip: &&Chip| chip.sm == device.sm() && chip.multiprocessors == device.multiprocessors();
    let is_named = |chip: &&Chip| chip.name.split([' ', '-']).any(|word| device.name().contains(word));
    CHIPS.iter().filter(is).find(is_named).or_else(|| CHIPS.iter().find(is))
}
