//! `brigade check --onnx-tests`: the ONNX project's test data.

use std::path::Path;

use super::console::Console;
use super::failure::{Failure, Outcome};
use super::table::{row, table};
use crate::check::{OnnxMode, OnnxSummary, Status, find_onnx_tests, run_onnx_test};
use crate::error::err;

pub(super) fn run(
    folder: &Path,
    only: Option<&str>,
    cut: Option<u64>,
    console: &Console,
) -> Outcome {
    let mut tests = find_onnx_tests(folder)?;
    if let Some(only) = only {
        tests.retain(|t| t.file_name().is_some_and(|n| n.to_string_lossy().contains(only)));
        if tests.is_empty() {
            return Err(err!(
                UnknownName,
                "no test in `{}` has `{only}` in its name",
                folder.display()
            )
            .into());
        }
    }
    let mode = cut.map_or(OnnxMode::Whole, OnnxMode::Cut);
    let bar = console.progress("tests", Some(tests.len() as u64));
    let mut reports = Vec::with_capacity(tests.len());
    for test in &tests {
        reports.push(run_onnx_test(test, mode));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let summary = OnnxSummary::of(reports);
    let mut rows = vec![row(["operator", "passed", "failed", "refused"])];
    for (op, [passed, failed, refused]) in summary.by_operator() {
        rows.push(row([op, &passed.to_string(), &failed.to_string(), &refused.to_string()]));
    }
    let mut text = table(&rows);
    for c in summary.cases.iter().filter(|c| c.status != Status::Passed) {
        let status = if c.status == Status::Failed { "FAILED" } else { "refused" };
        text += &format!("{status} {}: {}\n", c.case, c.headline());
    }
    for c in summary.classes.iter().filter(|c| c.all > 0) {
        text += &format!("{}: {} of {} passed\n", c.class.describe(), c.passed, c.all);
    }
    let OnnxSummary { passed, failed, refused, .. } = &summary;
    text += &format!("{passed} passed, {failed} failed, {refused} refused\n");
    console.result(&summary, &text)?;
    let success = *passed > 0 && *failed == 0 && *refused == 0;
    if success { Ok(()) } else { Err(Failure::Told) }
}
