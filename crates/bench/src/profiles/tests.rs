use super::*;
use crate::experiment::Caching;
use proptest::prelude::*;

const ROOMY: Host = Host { free_bytes: 1 << 60, memory_bytes: 1 << 50, drops_caches: true };

fn threads(figure: &Figure) -> Vec<u32> {
    figure.experiments.iter().map(Experiment::threads).collect()
}

fn at_one(name: &str) -> Vec<Figure> {
    fitted(&profile(name).unwrap(), 1.0, &ROOMY).unwrap()
}

#[test]
fn scale_one_gives_the_published_counts_and_sizes() {
    let powers = |first: u32, last: u32| -> Vec<u32> {
        (0..=10).map(|power| 1 << power).filter(|count| (first..=last).contains(count)).collect()
    };
    let beegfs = at_one("beegfs-nvme");
    assert_eq!(threads(&beegfs[0]), powers(1, 1024));
    assert_eq!(threads(&beegfs[1]), powers(4, 1024));
    let pixstor = at_one("pixstor-nvme");
    let counts: Vec<Vec<u32>> = pixstor.iter().map(threads).collect();
    assert_eq!(counts, [powers(1, 1024), powers(1, 512), powers(1, 1024), powers(1, 512)]);
    let Experiment::Meta(last) = pixstor[3].experiments.last().unwrap() else { panic!("files") };
    assert_eq!((last.thread_files, last.file_bytes), ((2 << 20) / 512, 4096));
    assert_eq!(last.shape, crate::TreeShape::OwnDirectories { directories: 2048 / 512 });
    assert!(at_one("fsx-persistent").iter().all(|figure| threads(figure) == [32]));
    for figure in at_one("weka-4corner") {
        assert_eq!(threads(&figure), [72; 6]);
        let depths: Vec<u32> = figure.experiments.iter().map(Experiment::queue_depth).collect();
        assert_eq!(depths, [1, 2, 4, 8, 16, 32]);
    }
    for known in profiles() {
        assert_eq!(fitted(&known, 1.0, &ROOMY).unwrap(), known.figures, "{}", known.name);
    }
}

#[test]
fn totals_are_those_of_the_publications() {
    let totals =
        |figure: &Figure| -> Vec<u64> { figure.experiments.iter().map(Experiment::space_bytes).collect() };
    for total in totals(&at_one("beegfs-nvme")[0]) {
        assert!((7_999_000_000_000..=8_000_000_000_000).contains(&total), "{total}");
    }
    for total in totals(&at_one("pixstor-nvme")[1]) {
        assert_eq!(total, 4 << 40);
    }
}

#[test]
fn a_scale_that_does_not_fit_is_refused_with_the_one_that_does() {
    let beegfs = profile("beegfs-nvme").unwrap();
    let small = Host { free_bytes: 60 << 30, memory_bytes: 16 << 30, drops_caches: true };
    let refusal = fitted(&beegfs, 1.0, &small).unwrap_err();
    assert!(
        refusal.cause.contains("needs 7.3 TiB of space") && refusal.cause.contains("60 GiB"),
        "{refusal}"
    );
    assert_eq!(refusal.largest, Some(1.0 / 256.0));
    fitted(&beegfs, 1.0 / 256.0, &small).unwrap();
    assert!(refusal.hint().contains("--scale 0.00390625"), "{}", refusal.hint());

    // Records of 8 MiB in a quarter of 16 MiB: not even one thread.
    let weak = Host { memory_bytes: 16 << 20, ..ROOMY };
    let refusal = fitted(&profile("pixstor-nvme").unwrap(), 1.0, &weak).unwrap_err();
    assert!(refusal.cause.contains("needs 8 MiB of memory for transfers"), "{refusal}");

    for wrong in [0.0, -1.0, f64::NAN, 17.0, f64::INFINITY] {
        let refusal = fitted(&beegfs, wrong, &small).unwrap_err();
        assert!(refusal.cause.contains("more than 0 and at most 16"), "{refusal}");
    }
}

#[test]
fn smaller_totals_are_shared_by_as_many_threads() {
    let beegfs = profile("beegfs-nvme").unwrap();
    let small = Host { free_bytes: 8 << 30, memory_bytes: 24 << 30, drops_caches: true };
    let figures = fitted(&beegfs, 1.0 / 2048.0, &small).unwrap();
    assert_eq!(threads(&figures[0]), threads(&beegfs.figures[0]));
    assert_eq!(threads(&figures[1]), threads(&beegfs.figures[1]));
    assert!(figures.iter().all(|figure| figure.left_out.is_empty()));
    let totals: Vec<u64> = figures[0].experiments.iter().map(Experiment::space_bytes).collect();
    assert!(totals.iter().all(|total| (3_000_000_000..=3_906_250_000).contains(total)), "{totals:?}");

    // 4 GiB are 512 records of 8 MiB, so each of 1024 threads would have none.
    let pixstor = fitted(&profile("pixstor-nvme").unwrap(), 1.0 / 1024.0, &small).unwrap();
    assert_eq!((threads(&pixstor[0]).last(), &pixstor[0].left_out), (Some(&512), &vec![1024]));
    // A quarter of 1 GiB holds 32 records of 8 MiB.
    let weak = Host { memory_bytes: 1 << 30, ..ROOMY };
    let pixstor = fitted(&profile("pixstor-nvme").unwrap(), 1.0, &weak).unwrap();
    assert_eq!(
        (threads(&pixstor[0]).last(), &pixstor[0].left_out),
        (Some(&32), &vec![64, 128, 256, 512, 1024])
    );
}

#[test]
fn reads_that_caches_would_answer_are_refused_where_caches_stay() {
    let pixstor = profile("pixstor-nvme").unwrap();
    let host = Host { free_bytes: 1 << 40, memory_bytes: 64 << 30, drops_caches: false };
    let refusal = fitted(&pixstor, 1.0 / 64.0, &host).unwrap_err();
    assert!(refusal.cause.contains("below 128 GiB (twice the memory)"), "{refusal}");
    let largest = refusal.largest.unwrap();
    fitted(&pixstor, largest, &host).unwrap();
    fitted(&pixstor, 1.0 / 64.0, &Host { drops_caches: true, ..host }).unwrap();
    // Neither large enough for the memory nor small enough for the space.
    let none = Host { free_bytes: 50 << 30, ..host };
    let refusal = fitted(&pixstor, 1.0 / 128.0, &none).unwrap_err();
    assert_eq!(refusal.largest, None);
    assert!(refusal.hint().contains("no scale fits"));
}

#[test]
fn the_quick_profile_fits_a_small_machine_without_rights() {
    let small = Host { free_bytes: 1 << 30, memory_bytes: 2 << 30, drops_caches: false };
    let figures = fitted(&profile("quick").unwrap(), 1.0, &small).unwrap();
    let kinds = figures.iter().flat_map(|figure| &figure.experiments);
    assert!(kinds.into_iter().any(|e| matches!(e, Experiment::Io(io) if io.caching == Caching::Direct)));
}

#[test]
fn direct_records_are_whole_blocks() {
    for figure in profiles().iter().flat_map(|profile| &profile.figures) {
        for experiment in &figure.experiments {
            if let Experiment::Io(io) = experiment
                && io.caching == Caching::Direct
            {
                assert_eq!(io.record_bytes % 4096, 0, "{}", figure.title);
            }
        }
    }
}

proptest! {
    #[test]
    fn what_fits_stays_below_the_free_space_and_has_a_point_in_each_figure(
        which in 0usize..5,
        scale in prop_oneof![1e-6f64..16.0, (-20i32..=0).prop_map(|power| 2f64.powi(power))],
        free in 20u32..50,
        memory in 24u32..44,
        drops_caches: bool,
    ) {
        let profile = &profiles()[which];
        let host = Host { free_bytes: 1 << free, memory_bytes: 1 << memory, drops_caches };
        match fitted(profile, scale, &host) {
            Ok(figures) => {
                prop_assert_eq!(figures.len(), profile.figures.len());
                for (figure, published) in figures.iter().zip(&profile.figures) {
                    prop_assert!(!figure.experiments.is_empty());
                    prop_assert_eq!(figure.operations(), published.operations());
                    // Each published count is measured or listed as left out, once.
                    let mut counts = [threads(figure), figure.left_out.clone()].concat();
                    let mut before = threads(published);
                    counts.sort_unstable();
                    before.sort_unstable();
                    prop_assert_eq!(counts, before);
                    for experiment in &figure.experiments {
                        prop_assert!(experiment.space_bytes() > 0 && experiment.space_bytes() < host.free_bytes);
                        prop_assert!(experiment.buffer_bytes() <= host.memory_bytes / 4);
                        if let Experiment::Io(io) = experiment {
                            prop_assert!(io.thread_bytes >= io.record_bytes && io.thread_bytes % io.record_bytes == 0);
                        }
                    }
                }
            }
            Err(ScaleError { largest: Some(other), .. }) => {
                prop_assert!(fitted(profile, other, &host).is_ok());
                prop_assert!(other != scale);
            }
            Err(refusal) => prop_assert!(largest_scale(profile, &host).is_none(), "{}", refusal),
        }
    }
}
