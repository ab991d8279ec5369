//! The backend for NVIDIA cards: the kernels of `peregrine-kernels`, through the driver, which is looked for when it is asked
//! for and not before. Building needs no CUDA.

mod device;
mod memory;
mod native;

use super::graphics::Graphics;
use super::{Backend, BackendError, REST, Selection};
use device::Cuda;

pub use device::{CardInfo, cards};

/// The name that `--backend` takes.
pub const NAME: &str = "cuda";

/// The cards that are selected, or all of this machine.
///
/// # Errors
/// [`BackendError::Unavailable`] with what is missing.
pub fn choose(selection: &Selection) -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(open(selection)?))
}

pub(super) fn open(selection: &Selection) -> Result<Graphics<Cuda>, BackendError> {
    let unavailable = |reason| BackendError::Unavailable { name: NAME.to_owned(), reason };
    let cards = cards().map_err(unavailable)?;
    if cards.is_empty() {
        return Err(unavailable("the NVIDIA driver finds no card".to_owned()));
    }
    let numbers = if selection.names.is_empty() {
        (0..cards.len()).collect()
    } else {
        selection.pick(cards.iter().map(|card| card.name.as_str())).map_err(unavailable)?
    };
    let openers = numbers.into_iter().map(|number| {
        let selection = selection.clone();
        let opener = move || Cuda::open(number, &selection);
        (
            format!("card {number}, {}", cards[number].name),
            Box::new(opener) as Box<dyn Fn() -> _ + Send + Sync>,
        )
    });
    Graphics::new(NAME, openers.collect(), selection.rest.unwrap_or(REST))
}
