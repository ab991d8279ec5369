//! Handing out views to whoever asks.

use std::sync::{Arc, PoisonError, RwLock};

use super::view::AddressView;

/// Gives the index as it is now. Clones share everything; the index stays open for as long as one of them, a view or the
/// writer is there.
#[derive(Clone, Debug)]
pub struct AddressReader {
    current: Arc<RwLock<AddressView>>,
}

impl AddressReader {
    pub(super) fn new(view: AddressView) -> Self {
        Self { current: Arc::new(RwLock::new(view)) }
    }

    /// The index after the last committed block. Cheap; take one per request and drop it, as the store keeps overwritten
    /// rows for as long as a view may read them.
    pub fn view(&self) -> AddressView {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn publish(&self, view: AddressView) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = view;
    }
}
