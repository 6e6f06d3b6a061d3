//! `ablation verify`: checks by computing that what must agree on this machine does.

use anyhow::Result;

use crate::progress;
use crate::verify::{Measure, Outcome, checks};

/// Check on this machine that what must not change a result doesn't
#[derive(Debug, clap::Args)]
pub struct Verify {
    /// The device to check
    #[arg(long, value_name = "DEVICE", value_parser = ["cpu"], default_value = "cpu")]
    device: String,
    /// Print one JSON object in place of the table
    #[arg(long)]
    json: bool,
}

fn number(measured: f64, allowed: f64) -> String {
    if allowed == 0.0 || measured == 0.0 { format!("{measured}") } else { format!("{measured:.1e}") }
}

/// What was measured, and what is allowed.
fn cells(m: &Measure) -> (String, String) {
    let measured = m.measured.map_or("-".to_string(), |measured| number(measured, m.allowed));
    (measured, if m.allowed == 0.0 { "0".to_string() } else { format!("{:.0e}", m.allowed) })
}

/// The lines of a check: one a quantity.
fn lines(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (i, m) in outcome.measures.iter().enumerate() {
        let (name, settings) = if i == 0 { (&outcome.name[..], &outcome.settings[..]) } else { ("", "") };
        let (measured, allowed) = cells(m);
        let verdict = if m.holds() { "holds" } else { "BROKEN" };
        text.push_str(&format!(
            "{name:<46}  {:<26}  {measured:>8}  {allowed:>7}  {verdict:<6}  {settings}\n",
            m.quantity
        ));
    }
    if let Some(error) = &outcome.error {
        text.push_str(&format!("  {error}\n"));
    }
    text
}

/// Runs the command.
pub fn verify(command: &Verify) -> Result<u8> {
    crate::device::cpu::kernels::warm_up();
    let checks = checks();
    let bar = progress::bar(checks.len() as u64, "{bar:30} {pos}/{len}  {elapsed} gone, {eta} to go  {msg}");
    let mut outcomes = Vec::new();
    for check in &checks {
        bar.set_message(check.name.clone());
        outcomes.push(check.run());
        bar.inc(1);
    }
    bar.finish_and_clear();

    let broken = outcomes.iter().filter(|o| !o.holds).count();
    if command.json {
        let version = crate::ladder::machine::version();
        let all = serde_json::json!({
            "program": version, "device": command.device, "holds": broken == 0, "checks": outcomes,
        });
        super::say(&serde_json::to_string_pretty(&all)?)?;
    } else {
        let mut text = format!(
            "{:<46}  {:<26}  {:>8}  {:>7}  {:<6}  {}\n",
            "what must hold", "difference of", "measured", "allowed", "", "over"
        );
        outcomes.iter().for_each(|o| text.push_str(&lines(o)));
        let seconds: f64 = outcomes.iter().map(|o| o.seconds).sum();
        let verdict = match broken {
            0 => format!("all {} hold on the {} device", outcomes.len(), command.device),
            n => format!(
                "{n} of {} are broken on the {} device: results of this machine can't be trusted",
                outcomes.len(),
                command.device
            ),
        };
        text.push_str(&format!("\n{verdict} ({seconds:.0} s)"));
        super::say(&text)?;
    }
    Ok(u8::from(broken > 0))
}
