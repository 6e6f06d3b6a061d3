//! All figures of a whole ladder, of parts of it, and of broken rows.

use super::{all, fixture};
use crate::record::Records;

/// Draws all figures and writes them where `FIGURES` says, or into a folder that goes away.
#[test]
fn a_whole_ladder() {
    let folder = tempfile::tempdir().unwrap();
    let folder = std::env::var_os("FIGURES").map_or(folder.path().to_owned(), Into::into);
    std::fs::create_dir_all(&folder).unwrap();
    let figures = all(&fixture::records()).unwrap();
    let names: Vec<&str> = figures.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["ladder", "categories", "timelines", "step-time", "positions", "predicted"]);
    for figure in &figures {
        assert!(!figure.svg.contains("<text") && figure.svg.contains("<path"), "{}: text remains", figure.name);
        assert!(figure.svg.len() < 1 << 20, "{}: {} bytes", figure.name, figure.svg.len());
        assert!(!figure.title.contains("NaN") && !figure.title.contains("inf"), "{}", figure.title);
        std::fs::write(folder.join(format!("{}.svg", figure.name)), &figure.svg).unwrap();
        std::fs::write(folder.join(format!("{}.png", figure.name)), &figure.png).unwrap();
        println!("{:12} {:7} {:7} {}", figure.name, figure.svg.len(), figure.png.len(), figure.title);
    }
}

#[test]
fn parts_and_broken_rows() {
    assert!(all(&Records::default()).unwrap().is_empty());
    let whole = fixture::records();
    for run in &whole.runs {
        let mut part = Records { runs: vec![run.clone()], ..whole.clone() };
        all(&part).unwrap();
        part.runs[0].step_seconds = vec![f64::NAN, f64::INFINITY];
        part.runs[0].budget_bytes = None;
        part.runs[0].peak_device_bytes = 0;
        part.runs[0].predicted_peak_device_bytes = 0;
        part.runs[0].peak_process_ledger_bytes = 0;
        part.timeline.iter_mut().for_each(|p| p.seconds = f64::NAN);
        part.positions.iter_mut().for_each(|p| p.mean_loss = Some(f64::NAN));
        all(&part).unwrap();
        part.runs[0].length_tokens = 0;
        part.timeline.clear();
        part.positions.truncate(1);
        all(&part).unwrap();
    }
}

/// A ladder on large machines: gibibytes, a million tokens, no marks, one step.
#[test]
fn a_large_ladder() {
    let mut records = fixture::records();
    records.timeline.clear();
    for run in &mut records.runs {
        run.length_tokens *= 171;
        run.step_seconds.truncate(1);
        run.budget_bytes = run.budget_bytes.map(|b| b * 5000);
        run.at_peak_device.0.iter_mut().for_each(|b| *b *= 5000);
        run.peak_device_bytes *= 5000;
        run.predicted_peak_device_bytes = run.peak_device_bytes + u64::from(run.run);
    }
    let figures = all(&records).unwrap();
    assert!(figures[0].title.contains("GiB") && figures[0].title.contains("1,050,624"), "{}", figures[0].title);
    if let Some(folder) = std::env::var_os("FIGURES") {
        for figure in &figures {
            std::fs::write(std::path::Path::new(&folder).join(format!("large-{}.png", figure.name)), &figure.png)
                .unwrap();
        }
    }
}
