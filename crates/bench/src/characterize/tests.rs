use super::*;
use crate::{Ceiling, Experiment, FORMAT, Latency, Limit, Machine, Operation, Run};
use std::cell::Cell;

const HOST: Host = Host { free_bytes: 1 << 40, memory_bytes: 64 << 30, drops_caches: true };

/// Measures nothing, and reports rates that rise with the threads up to a plateau; ends after
/// `ends_after` experiments.
struct FakeGenerator {
    ends_after: usize,
    done: Cell<usize>,
    fails: Option<Operation>,
}

impl FakeGenerator {
    fn all() -> FakeGenerator {
        FakeGenerator { ends_after: usize::MAX, done: Cell::new(0), fails: None }
    }
}

impl Generator for FakeGenerator {
    fn measure(&self, experiment: &Experiment, iterations: u32) -> Result<(Vec<Measured>, Vec<String>)> {
        self.done.set(self.done.get() + 1);
        if self.fails.is_some_and(|operation| experiment.operations().contains(&operation)) {
            return Err(Error::new(Errno::EINVAL, "not on this file system"));
        }
        let measured = |operation: &Operation| {
            let latency = Latency {
                mean_us: 9.0,
                p50_us: 8.0,
                p95_us: 20.0,
                p99_us: 30.0,
                p999_us: 40.0,
                max_us: 50.0,
            };
            let run = |number: u32| Run {
                seconds: 1.0 + f64::from(number) / 10.0,
                operations: 100 * u64::from(experiment.threads().min(8)),
                bytes: 100 * u64::from(experiment.threads().min(8)) * experiment.record_bytes(),
                errors: 0,
                wrong_bytes: 0,
                latency: Some(latency),
                cpu_s: Some(0.01),
            };
            Measured {
                experiment: experiment.name().into(),
                operation: *operation,
                clients: 1,
                threads: experiment.threads(),
                record_bytes: experiment.record_bytes(),
                total_bytes: experiment.space_bytes(),
                queue_depth: experiment.queue_depth(),
                sharing: None,
                caching: crate::Caching::Direct,
                through: crate::Through::Mount,
                runs: (0..iterations).map(run).collect(),
                cached: (*operation == Operation::Stat).then(|| "attributes lie in memory".into()),
                generator_ns: Some(70.0),
                binding: None,
            }
        };
        Ok((experiment.operations().iter().map(measured).collect(), Vec::new()))
    }

    fn is_over(&self) -> bool {
        self.done.get() >= self.ends_after
    }
}

fn report(name: &str, generator: &FakeGenerator) -> Report {
    report_with(name, generator, Vec::new())
}

fn report_with(name: &str, generator: &FakeGenerator, ceilings: Vec<Ceiling>) -> Report {
    let profile = find(name).unwrap();
    let (scale, figures) = figures(&profile, None, &HOST).unwrap();
    let results = Results {
        weft_bench: FORMAT,
        system: "weft 0.1.0".into(),
        began: "2026-01-02T03:04:05Z".into(),
        command: vec!["weft".into(), "bench".into()],
        machine: Machine::default(),
        ceilings,
        measured: Vec::new(),
        notes: Vec::new(),
    };
    let parts = figures.into_iter().map(|figure| Part { figure, measured: Vec::new() }).collect();
    let mut report = Report {
        profile,
        scale,
        iterations: 3,
        place: "/mnt/weft".into(),
        copies: 1,
        parts,
        results,
        beside: Vec::new(),
    };
    measure(&mut report, generator, &|_| ());
    report
}

#[test]
fn every_profile_is_a_page_with_all_figures_tables_and_commands() {
    for profile in profiles() {
        let report = report(profile.name, &FakeGenerator::all());
        let html = page::page(&report).unwrap();
        assert_eq!(html.matches("<svg").count(), profile.figures.len(), "{}", profile.name);
        for figure in &profile.figures {
            let title = ::report::escape(figure.title);
            assert!(
                html.contains(&format!("<h2>{title}</h2>"))
                    && html.contains(&format!("<caption>{title}</caption>"))
            );
            assert!(html.contains(&::report::escape(figure.published)));
        }
        for part in &report.parts {
            for experiment in &part.figure.experiments {
                assert!(html.contains(&commands::command(experiment, "/mnt/weft", 3)));
            }
        }
        assert!(html.contains("not measured: weft bench storage"), "no hole where ceilings belong");
        assert!(!html.contains("NaN") && !html.contains("<script"));
    }
}

#[test]
fn an_early_end_is_noted_and_results_are_kept() {
    let generator = FakeGenerator { ends_after: 2, ..FakeGenerator::all() };
    let report = report("quick", &generator);
    assert_eq!(generator.done.get(), 2, "nothing is begun after the signal");
    assert!(report.results.notes[0].contains("ended by a signal after 2 of"), "{:?}", report.results.notes);
    assert_eq!(report.results.measured.len(), 4, "two experiments of two operations");
    let html = page::page(&report).unwrap();
    assert_eq!(html.matches("<svg").count(), 1);
    assert!(html.contains("ended by a signal") && html.contains("Nothing was measured here."));
}

#[test]
fn a_failed_experiment_is_noted_and_the_others_run() {
    let report = report("quick", &FakeGenerator { fails: Some(Operation::Create), ..FakeGenerator::all() });
    let failures = report.results.notes.iter().filter(|note| note.contains("not on this file system"));
    assert_eq!(failures.count(), 5, "{:?}", report.results.notes);
    assert_eq!(page::page(&report).unwrap().matches("<svg").count(), 4);
}

#[test]
fn ceilings_are_lines_and_shares() {
    let mut report = report("quick", &FakeGenerator::all());
    let ceiling = |limit, rate| Ceiling {
        limit,
        place: "target 1".into(),
        rate,
        streams: 4,
        measured: "2026-01-02T03:04:05Z".into(),
    };
    report.results.ceilings = vec![
        ceiling(Limit::StorageRead, 1.6e9),
        ceiling(Limit::StorageWrite, 0.8e9),
        ceiling(Limit::StorageRandomRead, 1e3),
    ];
    let html = page::page(&report).unwrap();
    for part in [
        "read at most: storage-read",
        "write at most: storage-write",
        "read at most: storage-random-read",
        "storage-read: target 1",
    ] {
        assert!(html.contains(part), "{part}");
    }
    // 800 records of 1 MiB in 1.1 s, relative to 1.6 GB/s.
    assert!(html.contains("48 % of the 1600 MB/s that storage-read (target 1) allows"), "{html}");
    // Metadata operations have no ceiling among these.
    assert!(html.contains("<td>not measured</td>"));
}

#[test]
fn another_system_is_drawn_beside() {
    let mut report = report("quick", &FakeGenerator::all());
    let ior = include_str!("../../tests/fixtures/ior-4.0.0-nn.txt");
    report.beside = vec![crate::import::any(ior).unwrap()];
    let html = page::page(&report).unwrap();
    assert!(html.contains("read, IOR-4.0.0") && html.contains("write, IOR-4.0.0"));
}

#[test]
fn csv_has_a_row_for_each_figure() {
    let report = report("quick", &FakeGenerator::all());
    let text = csv::csv(&report.results);
    let columns = text.lines().next().unwrap().split(',').count();
    assert_eq!(text.lines().count(), 1 + report.results.measured.len());
    assert!(text.lines().skip(1).all(|line| line.split(',').count() == columns));
    assert!(text.contains("sequential N-N,read,1,4,1048576,1,"), "{text}");
}

#[test]
fn shares_of_ceilings_and_the_generators_own_time_are_in_all_three() {
    let ceiling = Ceiling {
        limit: Limit::StorageRead,
        place: "target 1".into(),
        rate: 1e9,
        streams: 4,
        measured: "2026-01-02T03:04:05Z".into(),
    };
    let report = report_with("quick", &FakeGenerator::all(), vec![ceiling]);
    let read = report.results.measured.iter().find(|of| of.operation == Operation::Read).unwrap();
    let binding = read.binding.as_ref().unwrap();
    let share = read.bytes_per_s().unwrap().0 / 1e9;
    assert_eq!((binding.limit, binding.share, binding.ceiling), (Limit::StorageRead, share, 1e9));
    let write = report.results.measured.iter().find(|of| of.operation == Operation::Write).unwrap();
    assert_eq!(write.binding, None, "no ceiling of writes is known");
    let [(_, json), (_, csv), (_, html)] = files(&report).unwrap();
    let again = crate::import::any(&json).unwrap();
    assert_eq!(again.measured[0].generator_ns, Some(70.0));
    assert!(csv.contains(&format!(",70,storage-read,{share:.4},")), "{csv}");
    assert!(html.contains("own overhead is 70 to 70 ns per operation"), "{html}");
    assert!(!report.results.notes.iter().any(|note| note.contains("not measured")));
}

#[test]
fn what_is_written_is_read_again() {
    let report = report("quick", &FakeGenerator::all());
    let [(name, json), (_, csv), (_, html)] = files(&report).unwrap();
    assert_eq!((name, crate::import::any(&json).unwrap()), ("results.json", report.results));
    assert!(csv.starts_with("experiment,") && html.starts_with("<!doctype html>"));
}

#[test]
fn unknown_profiles_and_large_scales_are_refused_with_what_to_do() {
    let error = find("fast").unwrap_err();
    assert!(error.hint.contains("quick") && error.hint.contains("beegfs-nvme"), "{error:?}");
    let error = figures(&find("beegfs-nvme").unwrap(), Some(1.0), &HOST).unwrap_err();
    assert!(error.message.contains("needs 7.3 TiB") && error.hint.contains("--scale 0.0625"), "{error:?}");
}

#[test]
fn progress_shows_rates_and_remaining_time() {
    let quick = find("quick").unwrap();
    let experiment = &quick.figures[0].experiments[1];
    let (measured, _) = FakeGenerator::all().measure(experiment, 1).unwrap();
    let text = progress(Quantity::Bytes, experiment, &measured, (2, 9), Duration::from_secs(300));
    assert_eq!(
        text,
        "[2/9] sequential N-N, 1 MiB, 2 threads: write 209.7, read 209.7 MB/s; about 5 min left\n"
    );
}
