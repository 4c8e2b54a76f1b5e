//! Damaged backups: each is refused, or contains what its footer counts.

use backup::fuzzing;
use std::path::Path;

/// Random changes of each image.
const ROUNDS: usize = 3000;

#[test]
fn damaged_copies_are_refused() {
    mutate::confined(|| {
        for image in ["full.weftcopy", "changes.weftcopy"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(image);
            let image = std::fs::read(path).expect("the image is there");
            mutate::damage(&image, ROUNDS, fuzzing::copy);
        }
    });
}
