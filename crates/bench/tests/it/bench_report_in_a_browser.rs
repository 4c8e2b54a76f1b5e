//! The page of a characterisation, opened in a headless browser: everything that people should see
//! is there.

use bench::characterize::{Generator, Part, Report, figures, files, find, measure};
use bench::profiles::Host;
use bench::{Caching, Experiment, FORMAT, Machine, Measured, Operation, Results, Run};
use std::path::Path;
use std::process::Command;

/// Reports rates that rise with the threads, without any load.
struct Told;

impl Generator for Told {
    fn measure(
        &self,
        experiment: &Experiment,
        iterations: u32,
    ) -> types::Result<(Vec<Measured>, Vec<String>)> {
        let threads = experiment.threads();
        let measured = |operation: &Operation| {
            let run = |number: u32| Run {
                seconds: 1.0 + f64::from(number) / 20.0,
                operations: 1000 * u64::from(threads.min(8)),
                bytes: 1000 * u64::from(threads.min(8)) * experiment.record_bytes(),
                errors: 0,
                wrong_bytes: 0,
                latency: None,
                cpu_s: None,
            };
            Measured {
                experiment: experiment.name().into(),
                operation: *operation,
                clients: 1,
                threads,
                record_bytes: experiment.record_bytes(),
                total_bytes: experiment.space_bytes(),
                queue_depth: experiment.queue_depth(),
                sharing: None,
                caching: Caching::Direct,
                through: bench::Through::Mount,
                runs: (0..iterations).map(run).collect(),
                cached: None,
                generator_ns: None,
                binding: None,
            }
        };
        Ok((experiment.operations().iter().map(measured).collect(), Vec::new()))
    }

    fn is_over(&self) -> bool {
        false
    }
}

fn report(name: &str) -> Report {
    let host = Host { free_bytes: 1 << 40, memory_bytes: 64 << 30, drops_caches: true };
    let profile = find(name).unwrap();
    let (scale, figures) = figures(&profile, None, &host).unwrap();
    let results = Results {
        weft_bench: FORMAT,
        system: "weft".into(),
        began: "2026-01-02T03:04:05Z".into(),
        command: vec!["weft bench characterize".into()],
        machine: Machine::default(),
        ceilings: Vec::new(),
        measured: Vec::new(),
        notes: Vec::new(),
    };
    let parts = figures.into_iter().map(|figure| Part { figure, measured: Vec::new() }).collect();
    let place = "/mnt/weft".into();
    let mut report =
        Report { profile, scale, iterations: 3, place, copies: 1, parts, results, beside: Vec::new() };
    measure(&mut report, &Told, &|_| ());
    report
}

fn browser() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = std::env::split_paths(&path)
        .flat_map(|dir| ["chromium", "chromium-browser"].map(|name| dir.join(name)));
    names.into_iter().find(|file| file.is_file())
}

/// Returns a page as the browser has rendered it.
fn opened(browser: &Path, dir: &Path, page: &Path) -> String {
    let answer = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .env("HOME", dir)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success(), "{errors}");
    String::from_utf8(answer.stdout).unwrap()
}

#[test]
fn all_figures_and_tables_have_data_in_a_browser() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no chromium here; apt-get install chromium");
        return;
    };
    for name in ["quick", "pixstor-nvme", "fsx-persistent"] {
        let dir = tempfile::tempdir().unwrap();
        let report = report(name);
        let [.., (file, html)] = files(&report).unwrap();
        let page = dir.path().join(file);
        std::fs::write(&page, html).unwrap();
        let seen = opened(&browser, dir.path(), &page);
        let svgs: Vec<&str> =
            seen.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect();
        assert_eq!(svgs.len(), report.profile.figures.len(), "{name}");
        for (svg, part) in svgs.iter().zip(&report.parts) {
            let points = part.measured.len();
            assert!(
                svg.matches("<circle").count() >= points,
                "{name}: {} has {points} points",
                part.figure.title
            );
        }
        let rows = seen.matches("<tr>").count();
        let measured: usize = report.parts.iter().map(|part| part.measured.len()).sum();
        assert!(rows > measured, "{name}: {rows} rows of {measured} measurements");
        for part in &report.parts {
            assert!(seen.contains(&format!("<caption>{}</caption>", report::escape(part.figure.title))));
        }
    }
}
