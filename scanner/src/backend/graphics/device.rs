//! What a graphics card has to be able to do: the rest of the backend is the same for all of them.

use std::time::Duration;

use peregrine_kernels::gpu::DeviceKey;

use super::super::RowBatch;

/// Slot of a report that says that the row has to be done otherwise.
pub(in super::super) const REDO: u32 = u32::MAX;
/// Rows of a thread in the steps that share an inversion.
pub(in super::super) const ROWS_PER_THREAD: u32 = 8;

/// Why a card can't be used, or not any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum Failure {
    /// What is missing on this machine.
    #[error("{0}")]
    Missing(String),
    /// Whatever the driver says.
    #[error("{what}: {error}")]
    Driver { what: &'static str, error: String },
    /// No room for more; what is there goes on working.
    #[error("the card's memory is full")]
    Memory,
    /// It doesn't come back.
    #[error("no answer for {} s", .0.as_secs_f32())]
    Hangs(Duration),
    /// Results that can't be.
    #[error("its answers contradict themselves")]
    Nonsense,
    /// It doesn't find what was put there to be found.
    #[error("it missed {missed} of {rows} payments in a test")]
    Wrong { missed: usize, rows: usize },
}

/// One thing that a step is asked to do.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Step {
    /// Which of the keys.
    pub(in super::super) key: u32,
    /// Whether the points are to be computed; otherwise they are those of the step before.
    pub(in super::super) compute: bool,
    /// Which of the key's labels to look for, at most [`MAX_LABELS`](peregrine_kernels::gpu::MAX_LABELS).
    pub(in super::super) first_label: u32,
    pub(in super::super) labels: u32,
}

/// Rows on a card, as many as there are in `batch`.
pub(in super::super) struct Part<'a, T> {
    pub(in super::super) batch: RowBatch<'a>,
    /// Where they lie already, and how many rows lie there before them; otherwise they are brought.
    pub(in super::super) tile: Option<(&'a T, u32)>,
}

/// A card that is open. Many threads use it at once, each with a lane of its own.
pub(in super::super) trait Device: Send + Sync + Sized + 'static {
    /// Keys on the card. Dropping them without [`unload`](Self::unload) is right only when the card failed.
    type Keys: Send + Sync;
    /// Rows on the card.
    type Tile: Send + Sync;
    /// Memory for the part that a thread is at.
    type Lane: Send;

    /// The most rows that a part may have.
    fn max_rows(&self) -> usize;
    /// Bytes that rows may take up on the card.
    fn budget(&self) -> u64;
    fn lane(&self) -> Result<Self::Lane, Failure>;
    fn load(&self, keys: &[DeviceKey]) -> Result<Self::Keys, Failure>;
    /// Overwrites keys.
    fn unload(&self, keys: Self::Keys) -> Result<(), Failure>;
    /// Brings rows that are to stay.
    fn upload(&self, lane: &mut Self::Lane, batch: RowBatch<'_>) -> Result<Self::Tile, Failure>;
    /// Makes ready for steps over these rows.
    fn begin(&self, lane: &mut Self::Lane, part: &Part<'_, Self::Tile>, labels: u32) -> Result<(), Failure>;
    /// Gives row (of the part), key, slot: 0, or 1 + number of the label counted from the step's first one, or [`REDO`].
    fn step(
        &self,
        lane: &mut Self::Lane,
        part: &Part<'_, Self::Tile>,
        keys: &Self::Keys,
        step: Step,
    ) -> Result<Vec<[u32; 3]>, Failure>;
    /// Overwrites what steps left.
    fn wipe(&self, lane: &mut Self::Lane) -> Result<(), Failure>;
    /// It hangs: nothing that waits for it may be called any more, not even to give back keys.
    fn abandon(&self) {}
}

/// How many reports a step over so many rows can give: a row reports every slot at most once, and that it has to be done
/// otherwise at most twice.
pub(in super::super) fn report_room(rows: usize, labels: u32) -> usize {
    rows * (labels as usize + 3)
}
