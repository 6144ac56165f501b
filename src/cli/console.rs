//! Standard output for results, standard error for everything else.

use std::cell::Cell;
use std::error::Error as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::json;

use super::failure::{Failure, Outcome};
use crate::error::{Error, err};

/// Where a subcommand prints.
#[derive(Debug)]
pub(super) struct Console {
    json: bool,
    quiet: bool,
    verbose: bool,
    colour: bool,
    /// Whether the JSON document of this run was printed.
    printed: Cell<bool>,
}

impl Console {
    pub(super) fn new(json: bool, quiet: bool, verbose: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let colour = !plain && io::stderr().is_terminal();
        Self { json, quiet, verbose, colour, printed: Cell::new(false) }
    }

    /// Prints a result: `text` for people, or `document` with `--json`.
    pub(super) fn result(&self, document: &impl Serialize, text: &str) -> Outcome {
        if !self.json {
            return write_all(text.as_bytes());
        }
        let mut bytes = serde_json::to_vec_pretty(document)
            .map_err(|e| err!(Internal, "the result makes no JSON: {e}"))?;
        bytes.push(b'\n');
        self.printed.set(true);
        write_all(&bytes)
    }

    /// Tells something that is not a result.
    pub(super) fn notice(&self, text: &str) {
        if !self.quiet {
            self.stderr(text);
        }
    }

    /// Tells what only some want to know.
    pub(super) fn detail(&self, text: &str) {
        if self.verbose {
            self.stderr(text);
        }
    }

    fn stderr(&self, text: &str) {
        #[cfg(feature = "cluster")]
        if super::signals::interrupted() {
            return;
        }
        // There is nowhere else to say that this failed.
        let _ = writeln!(io::stderr().lock(), "{}", text.trim_end());
    }

    fn label(&self, label: &str, colour: &str) -> String {
        if self.colour { format!("\x1b[1;{colour}m{label}\x1b[0m") } else { label.to_owned() }
    }

    /// Whether notices of progress are wanted: neither with `--quiet` nor beside a document.
    #[cfg(feature = "cluster")]
    pub(super) fn tells_progress(&self) -> bool {
        !self.quiet && !self.json
    }

    /// What an error begins with.
    #[cfg(feature = "cluster")]
    pub(super) fn error_label(&self) -> String {
        self.label("error:", "31")
    }

    /// Shows an error with its causes and its help.
    pub(super) fn error(&self, error: &Error) {
        let mut text = format!("{} {}", self.label("error:", "31"), error.headline());
        let mut cause = error.source();
        while let Some(e) = cause {
            text += &format!("\n  caused by: {e}");
            cause = e.source();
        }
        if let Some(help) = error.help() {
            text += &format!("\n{} {help}", self.label("help:", "36"));
        }
        self.stderr(&text);
    }

    /// Shows why the program ends badly.
    pub(super) fn failure(&self, failure: &Failure) {
        let (kind, message) = match failure {
            Failure::Error(e) => {
                self.error(e);
                (e.kind().as_str(), e.to_string())
            }
            Failure::Assertion(text) => {
                self.stderr(&format!("{} {text}", self.label("error:", "31")));
                ("assertion", text.clone())
            }
            Failure::Told | Failure::Closed => return,
        };
        if self.json && !self.printed.get() {
            let document = json!({ "error": { "kind": kind, "message": message } });
            let _ = write_all(format!("{document:#}\n").as_bytes());
        }
    }

    /// A progress bar over `length` steps (`None`: nobody knows how many); it is invisible unless
    /// standard error is a terminal.
    pub(super) fn progress(&self, what: &str, length: Option<u64>) -> ProgressBar {
        if self.quiet || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
        let template = match length {
            Some(_) => "{msg} [{bar:30}] {pos}/{len} {per_sec} {eta}",
            None => "{msg} {spinner} {pos} {per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }
}

/// Writes to standard output as it is.
pub(super) fn write_all(bytes: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Closed),
        Err(e) => Err(err!(Io, "cannot write to standard output").with_source(e).into()),
    }
}
