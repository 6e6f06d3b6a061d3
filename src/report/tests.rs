//! The page of whole ladders, of parts of them, and of rows that mean ill.

use std::path::Path;

use super::figure::fixture;
use super::render;
use crate::record::Records;
use crate::record::run::{Run, Status};

const EXPERIMENT: &str = "[[rung]]\nname = \"plain\"\n[[rung]]\nname = \"chunked\"\nadds = \"the loss in chunks\"\n\
                          [[rung]]\nname = \"yarn\"\n[[rung]]\nname = \"offload\"\n\
                          [[rung]]\nname = \"ring\"\nstop_at = 6144\n[[rung]]\nname = \"ulysses\"\nstop_at = 6144\n";

/// The fixture's rows that `keep` takes.
fn part(keep: impl Fn(&Run) -> bool) -> Records {
    let mut records = fixture::records();
    records.runs.retain(keep);
    records.runs.iter_mut().for_each(|r| r.experiment_toml = EXPERIMENT.to_string());
    records
}

/// The summary, the Markdown and the HTML of records.
fn rendered(records: &Records) -> [String; 3] {
    let dir = tempfile::tempdir().unwrap();
    records.write(dir.path()).unwrap();
    let report = render(dir.path()).unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    [report.summary, read(&dir.path().join("report.md")), read(&report.page)]
}

#[test]
fn a_whole_ladder_says_what_each_rung_reached() {
    for text in rendered(&part(|_| true)) {
        for told in ["chunked 960 (5.0×)", "offload 1,584 (8.2×)", "ring on 4 ranks 6,144 (32.0×)", "× plain"] {
            assert!(text.contains(told), "{told}: {text}");
        }
        assert!(
            text.contains("memory is left: ring with") && !text.contains("Not finished") && !text.contains("Not run")
        );
    }
    let [_, markdown, _] = rendered(&part(|_| true));
    assert!(markdown.contains("| activation offload | 1 | 262,144 | 8 | 8.2 |"), "{markdown}");
    assert!(markdown.contains("| 1,048,576 | 32 | 32.0, set by stop"), "{markdown}");
}

#[test]
fn an_interrupted_ladder_claims_no_end() {
    for text in rendered(&part(|r| r.rung == "plain" && r.purpose == "curve")) {
        assert!(text.contains("Not finished, so these may reach further: plain."), "{text}");
        assert!(text.contains("Not run: chunked, yarn, offload, ring and ulysses."), "{text}");
        assert!(!text.contains("memory is left") && !text.contains("confirmed twice"), "{text}");
    }
}

#[test]
fn without_the_first_rung_nothing_is_a_multiple_of_it() {
    for records in [
        part(|r| r.rung == "chunked"),
        part(|r| r.rung == "chunked" || r.rung == "yarn"),
        part(|r| r.rung == "chunked" || (r.rung == "plain" && r.purpose == "beyond")),
    ] {
        let [summary, markdown, _] = rendered(&records);
        assert!(!summary.contains('×'), "{summary}");
        assert!(markdown.contains("| chunked loss | 1 | 163,840 | 5 |  |"), "{markdown}");
    }
}

#[test]
fn nothing_and_failures_are_told() {
    assert!(rendered(&Records::default())[0].contains("No run is recorded."));
    let mut records = part(|r| r.purpose == "beyond");
    for text in rendered(&records) {
        assert!(text.contains("No rung ended well"), "{text}");
    }
    records.runs[0].status = Status::Failed;
    records.runs[0].reason = "the pool is gone\nat once".to_string();
    assert!(rendered(&records)[1].contains("208: failed: the pool is gone |"));
    let mut records = part(|_| true);
    for run in &mut records.runs {
        run.steps = 0;
        run.loss.iter_mut().for_each(|l| *l = f64::NAN);
        run.step_seconds = vec![f64::INFINITY; run.step_seconds.len().min(1)];
        run.tokens_per_second = None;
    }
    assert!(rendered(&records)[1].contains("NaN → NaN"));
    records.runs.iter_mut().for_each(|r| r.loss.clear());
    rendered(&records);
}

#[test]
fn texts_of_rows_are_no_markup() {
    let mut records = part(|r| r.rung == "plain");
    let ill = "</pre><script>alert(1)</script> & &lt; | `x` [a](b) <b>";
    for run in &mut records.runs {
        for field in [&mut run.rung, &mut run.text, &mut run.cpu, &mut run.experiment, &mut run.experiment_toml] {
            *field = ill.to_string();
        }
        run.reason = format!("{ill}\n````\n{ill}");
    }
    let [_, markdown, html] = rendered(&records);
    assert!(!html.contains("<script>") && html.contains("&lt;script&gt;") && html.contains("&amp;lt;"));
    let row = markdown.lines().find(|l| l.starts_with("| text |")).unwrap();
    assert_eq!(
        row,
        "| text | &lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; &amp;lt; \\| \\`x\\` \\[a\\](b) &lt;b&gt; |"
    );
    assert!(markdown.contains("`````text\n"), "the fence is longer than what it holds");
    for outside in ["http://", "https://", "src=", "url("] {
        let own = html.replace("http://www.w3.org/", "");
        assert!(!own.contains(outside), "the page needs {outside}");
    }
}
