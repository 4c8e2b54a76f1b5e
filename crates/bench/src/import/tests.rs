use super::*;
use crate::experiment::{Caching, FileSharing, Operation};
use crate::results::Measured;

macro_rules! fixture {
    ($name:literal) => {
        any(include_str!(concat!("../../tests/fixtures/", $name))).unwrap()
    };
}

fn of(results: &Results, operation: Operation) -> &Measured {
    results.measured.iter().find(|measured| measured.operation == operation).unwrap()
}

fn mib(rate: Option<(f64, f64, f64)>) -> [f64; 3] {
    let (middle, least, most) = rate.unwrap();
    [middle, least, most].map(|rate| (rate / 1_048_576.0 * 100.0).round() / 100.0)
}

#[test]
fn ior_has_a_run_for_each_line() {
    let four = fixture!("ior-4.0.0-nn.txt");
    assert_eq!((four.system.as_str(), four.machine.clients), ("IOR-4.0.0", 1));
    assert_eq!(four.command[0], "ior");
    let write = of(&four, Operation::Write);
    assert_eq!(write.experiment, "sequential N-N");
    assert_eq!((write.threads, write.record_bytes, write.total_bytes), (2, 1 << 20, 16 << 20));
    assert_eq!((write.sharing, write.caching), (Some(FileSharing::OwnFiles), Caching::Warm));
    assert_eq!(mib(write.bytes_per_s()), [1266.80, 1009.72, 1423.61]);
    assert_eq!(mib(of(&four, Operation::Read).bytes_per_s()), [20485.0, 18391.0, 22565.0]);
    let three = fixture!("ior-3.3.0-nn.txt");
    assert_eq!(mib(of(&three, Operation::Write).bytes_per_s()), [1378.85, 1091.16, 1467.37]);
}

#[test]
fn ior_on_one_file_in_turn() {
    for (results, rate) in
        [(fixture!("ior-3.3.0-interleaved.txt"), 329.56), (fixture!("ior-4.0.0-interleaved.txt"), 410.35)]
    {
        let write = of(&results, Operation::Write);
        assert_eq!(write.experiment, "interleaved N-1");
        assert_eq!((write.record_bytes, write.total_bytes), (47_008, 2 * 20 * 47_008));
        assert_eq!(mib(write.bytes_per_s())[0], rate);
        assert!(write.runs[0].operations.abs_diff(40) <= 1, "{:?}", write.runs);
    }
}

#[test]
fn mdtest_has_extremes_and_mean() {
    let four = fixture!("mdtest-4.0.0.txt");
    assert_eq!(four.system, "mdtest-4.0.0");
    assert_eq!(four.measured.len(), 4);
    let create = of(&four, Operation::Create);
    assert_eq!(create.experiment, "files in own directories");
    assert_eq!((create.threads, create.record_bytes, create.total_bytes), (2, 4096, 200 * 4096));
    let (middle, least, most) = create.ops_per_s().unwrap();
    assert_eq!([least, most].map(|rate| rate.round()), [10554.0, 10693.0]);
    // Three repetitions: the middle one follows from the mean.
    assert!((middle - (3.0 * 10624.307 - 10692.936 - 10554.098)).abs() < 0.01);
    let three = fixture!("mdtest-3.3.0.txt");
    assert_eq!(of(&three, Operation::Remove).ops_per_s().unwrap().2.round(), 153_639.0);
    assert_eq!(of(&three, Operation::Stat).runs.len(), 3);
}

#[test]
fn fio_groups_are_figures() {
    let groups = fixture!("fio-3.33-groups.json");
    assert_eq!(groups.system, "fio-3.33");
    let [write, mixed] = groups.measured.as_slice() else { panic!("{:?}", groups.measured) };
    assert_eq!((write.experiment.as_str(), write.operation), ("sequential N-N", Operation::Write));
    assert_eq!((write.threads, write.record_bytes, write.total_bytes), (2, 1 << 20, 16 << 20));
    assert_eq!(write.caching, Caching::Direct);
    assert_eq!((write.runs[0].bytes, write.runs[0].operations), (16 << 20, 16));
    assert!(write.runs[0].latency.unwrap().p99_us > 0.0);
    assert_eq!((mixed.experiment.as_str(), mixed.operation), ("random N-N", Operation::Mixed));
    assert_eq!((mixed.threads, mixed.record_bytes), (2, 4096));
    assert_eq!(mixed.runs[0].latency, None);
}

#[test]
fn fio_jobs_of_one_name_are_threads() {
    let results = fixture!("fio-3.33-nn.json");
    let [read] = results.measured.as_slice() else { panic!("{:?}", results.measured) };
    assert_eq!((read.operation, read.threads, read.runs[0].bytes), (Operation::Read, 2, 16 << 20));
    let warned = format!("fio: this is a warning\n{}", include_str!("../../tests/fixtures/fio-3.33-nn.json"));
    assert_eq!(any(&warned).unwrap().measured, results.measured);
}

#[test]
fn files_with_several_outputs_are_one_result() {
    let text = concat!(
        "some words before\n",
        include_str!("../../tests/fixtures/ior-4.0.0-nn.txt"),
        include_str!("../../tests/fixtures/ior-4.0.0-interleaved.txt"),
        include_str!("../../tests/fixtures/mdtest-4.0.0.txt"),
    );
    let all = any(text).unwrap();
    assert_eq!(all.measured.len(), 2 + 2 + 4);
    assert_eq!(all.system, "IOR-4.0.0 and mdtest-4.0.0");
}

#[test]
fn results_of_weft_come_back_as_they_are() {
    let results = fixture!("mdtest-4.0.0.txt");
    assert_eq!(any(&serde_json::to_string(&results).unwrap()).unwrap(), results);
}

#[test]
fn unknown_formats_are_refused() {
    let refused = |text: &str| any(text).unwrap_err();
    assert!(refused("").contains("not results of weft bench"));
    assert!(refused("hello\nworld").contains("not results of weft bench"));
    assert!(refused("{\"weft_bench\": 2}").contains("version 2"));
    assert!(refused("{\"fio version\": \"fio-3.33\"}").contains("no JSON of fio"));
    let whole = include_str!("../../tests/fixtures/ior-4.0.0-nn.txt");
    let half = &whole[..whole.find("Summary").unwrap()];
    assert!(refused(half).contains("no summary"), "{}", refused(half));
    let whole = include_str!("../../tests/fixtures/mdtest-4.0.0.txt");
    assert!(refused(&whole[..whole.find("SUMMARY").unwrap()]).contains("no summary"));
}

/// A file truncated anywhere is parsed or refused.
#[test]
fn truncated_files_are_parsed_or_refused() {
    for whole in [
        include_str!("../../tests/fixtures/ior-3.3.0-nn.txt"),
        include_str!("../../tests/fixtures/mdtest-3.3.0.txt"),
        include_str!("../../tests/fixtures/fio-3.33-nn.json"),
    ] {
        for end in (0..whole.len()).step_by(7).filter(|end| whole.is_char_boundary(*end)) {
            if let Err(why) = any(&whole[..end]) {
                assert!(!why.is_empty());
            }
        }
    }
}

#[test]
fn sizes_of_other_programs() {
    for (text, size) in [
        ("4k", Some(4096)),
        ("1M", Some(1 << 20)),
        ("8MiB", Some(8 << 20)),
        ("47008", Some(47008)),
        ("x", None),
        ("4k,8k", Some(4096)),
    ] {
        assert_eq!(bytes(text), size, "{text}");
    }
}
