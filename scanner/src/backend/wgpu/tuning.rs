//! How many invocations a workgroup has: what is fastest differs between cards, and is tried once.

use std::path::Path;

use super::super::graphics::device::Failure;

/// What is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuning {
    /// Invocations of a workgroup.
    pub(super) group: u32,
}

/// What every device can.
pub(super) const PLAIN: Tuning = Tuning { group: 64 };
const CANDIDATES: [Tuning; 4] = [PLAIN, Tuning { group: 32 }, Tuning { group: 128 }, Tuning { group: 256 }];

/// What the notes say about this device, or what is fastest; then that is noted. `device` names the device, its driver and the
/// version of the kernels; `rate` gives rows per second.
///
/// # Errors
/// None of the candidates works: what is wrong with the first.
pub(super) fn find(
    notes: Option<&Path>,
    device: &str,
    rate: impl Fn(Tuning) -> Result<f64, Failure>,
) -> Result<Tuning, Failure> {
    if let Some(tuning) = notes.and_then(|notes| read(notes, device)) {
        return Ok(tuning);
    }
    let mut best: Result<(f64, Tuning), Failure> = Err(Failure::Nonsense);
    for candidate in CANDIDATES {
        match (rate(candidate), &best) {
            // What is hardly faster may be so by chance.
            (Ok(rate), Ok((fastest, _))) if rate <= fastest * 1.02 => {}
            (Ok(rate), _) => best = Ok((rate, candidate)),
            (Err(failure), Err(Failure::Nonsense)) => best = Err(failure),
            (Err(_), _) => {}
        }
    }
    let (rate, tuning) = best?;
    tracing::info!("{device}: {} invocations a workgroup are fastest, {rate:.0} rows/s", tuning.group);
    if let Some(notes) = notes
        && let Err(error) = write(notes, device, tuning)
    {
        // It is found out once more the next time.
        tracing::debug!("can't write {}: {error}", notes.display());
    }
    Ok(tuning)
}

/// A line for each device: invocations, a space, the device.
fn read(notes: &Path, device: &str) -> Option<Tuning> {
    let text = std::fs::read_to_string(notes).ok()?;
    let known = |line: &str| {
        let (group, name) = line.split_once(' ')?;
        let tuning = Tuning { group: group.parse().ok()? };
        (name == device && CANDIDATES.contains(&tuning)).then_some(tuning)
    };
    text.lines().rev().find_map(known)
}

fn write(notes: &Path, device: &str, tuning: Tuning) -> std::io::Result<()> {
    let before = std::fs::read_to_string(notes).unwrap_or_default();
    let others: String = before
        .lines()
        .filter(|line| line.split_once(' ').is_some_and(|(_, name)| name != device))
        .map(|line| format!("{line}\n"))
        .collect();
    if let Some(folder) = notes.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // In one step, as two programs may do it at once.
    let new = notes.with_extension(format!("new-{}", std::process::id()));
    std::fs::write(&new, format!("{others}{} {device}\n", tuning.group))?;
    std::fs::rename(&new, notes)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_fastest_is_found_once_and_noted() {
        let folder = std::env::temp_dir().join(format!("peregrine-tuning-{}", std::process::id()));
        let notes = folder.join("notes.txt");
        let tried = Cell::new(0);
        let rate = |tuning: Tuning| {
            tried.set(tried.get() + 1);
            match tuning.group {
                32 => Err(Failure::Memory),
                128 => Ok(300.0),
                group => Ok(f64::from(group)),
            }
        };
        let find = |device: &str| find(Some(&notes), device, rate).unwrap().group;
        assert_eq!((find("a card, driver 1"), tried.get()), (128, 4));
        assert_eq!((find("a card, driver 1"), tried.get()), (128, 4));
        assert_eq!((find("a card, driver 2"), tried.get()), (128, 8));
        std::fs::write(&notes, "nonsense\n77 a card, driver 1\n256 a card, driver 2\n\u{fffd}").unwrap();
        assert_eq!((find("a card, driver 2"), tried.get()), (256, 8));
        assert_eq!((find("a card, driver 1"), tried.get()), (128, 12));
        assert_eq!(std::fs::read_to_string(&notes).unwrap(), "256 a card, driver 2\n128 a card, driver 1\n");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn without_notes_or_luck() {
        assert_eq!(find(None, "a card", |_| Ok(1.0)), Ok(PLAIN));
        assert_eq!(find(None, "a card", |_| Err(Failure::Memory)), Err(Failure::Memory));
        let nowhere = Path::new("/dev/null/notes");
        assert_eq!(find(Some(nowhere), "a card", |tuning| Ok(f64::from(tuning.group))).unwrap().group, 256);
    }
}
