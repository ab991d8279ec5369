//! The backends over `peregrine-kernels`: one for each instruction set that the processor has.
//!
//! The kernels hand back rows to which one of their formulas didn't apply; those are done by the reference. That
//! happens only for keys and rows that were constructed to make it happen.

use peregrine_kernels::{Hit, Isa, KernelError, KeyMaterial, Rows, Scanner};
use secp256k1::PublicKey;

use super::{Backend, Candidate, PreparedScan, RowBatch, reference};
use crate::keys::ScanTarget;
use crate::tweak::Tweak;

/// One instruction set's backend.
pub struct Lanes(Isa);

impl Lanes {
    /// The backend of this instruction set; the error names the feature that the processor lacks.
    pub fn new(isa: Isa) -> Result<Self, &'static str> {
        match isa.missing_feature() {
            None => Ok(Self(isa)),
            Some(feature) => Err(feature),
        }
    }
}

impl Backend for Lanes {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn prepare(&self, targets: &[ScanTarget]) -> Box<dyn PreparedScan> {
        let keys: Vec<KeyMaterial> = targets.iter().map(key_material).collect();
        match Scanner::new(self.0, &keys) {
            Ok(scanner) => Box::new(Prepared { scanner, targets: targets.to_vec() }),
            // The features were detected, and the types of a target hold nothing but valid keys.
            Err(
                error @ (KernelError::Unavailable { .. }
                | KernelError::InvalidSecret { .. }
                | KernelError::InvalidPoint { .. }),
            ) => unreachable!("{error}"),
        }
    }
}

pub(super) fn key_material(target: &ScanTarget) -> KeyMaterial {
    let row = |point: &PublicKey| Tweak(*point).to_row();
    KeyMaterial {
        scan_secret: target.scan_key().secret().to_secret_bytes(),
        spend: row(target.spend_key()),
        labels: target.labels().iter().map(|label| row(label.point())).collect(),
    }
}

struct Prepared {
    scanner: Scanner,
    targets: Vec<ScanTarget>,
}

impl PreparedScan for Prepared {
    fn batch_rows(&self) -> usize {
        self.scanner.preferred_rows()
    }

    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>) {
        let rows = Rows {
            points: batch.points,
            output_ends: batch.output_ends,
            outputs_base: batch.outputs_base,
            outputs: batch.outputs,
        };
        let (mut hits, mut redo) = (Vec::new(), Vec::new());
        self.scanner.scan(rows, &mut hits, &mut redo);
        // What the kernels say of a row that is done again doesn't count.
        redo.sort_unstable();
        hits.retain(|hit: &Hit| redo.binary_search(&hit.row).is_err());
        found.extend(hits.into_iter().map(|hit| Candidate { row: hit.row, target: hit.key, slot: hit.slot }));
        for row in redo {
            for (number, target) in (0..).zip(&self.targets) {
                let point = &batch.points[row as usize];
                let slots = reference::row_slots(target, point, batch.row_outputs(row as usize));
                found.extend(slots.into_iter().map(|slot| Candidate { row, target: number, slot }));
            }
        }
    }
}
